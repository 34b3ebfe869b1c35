"""docs/pitfalls.md names tests that exist, and every line of its tables names at least one."""

from __future__ import annotations

import re

import pytest

from pangu_hif8.paths import ROOT

TEXT = (ROOT / "docs" / "pitfalls.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", TEXT)))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file: str, name: str) -> None:
    source = (ROOT / "tests" / file).read_text(encoding="utf-8")
    assert re.search(rf"^def {name}\(", source, re.MULTILINE)


def test_every_fault_has_a_test() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("|")]
    faults = [row for row in rows if not row.startswith(("| fault", "|---"))]
    assert len(faults) > 30
    for row in faults:
        assert len(row.strip("|").split("|")) == 3 and "::" in row
