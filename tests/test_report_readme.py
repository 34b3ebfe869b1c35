"""README's tables: written between their markers, and equal to the committed results."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_results import Dial, write_tree

from pangu_hif8 import report_readme
from pangu_hif8.claims import judge
from pangu_hif8.errors import UserError
from pangu_hif8.paths import ROOT
from pangu_hif8.report_readme import BESIDE, CLAIMS, markers
from pangu_hif8.results import load_profile_results

BEGIN, END = markers(CLAIMS)


@pytest.mark.parametrize(("block", "beside"), [(CLAIMS, ""), (BESIDE, "laptop")])
def test_readme_is_rewritten_between_its_markers(
    results: Path, tmp_path: Path, block: str, beside: str
) -> None:
    write_tree(results)
    write_tree(results, "laptop")
    readme, (begin, end) = tmp_path / "README.md", markers(block)
    readme.write_text(f"before\n{begin}\nold \\1\n{end}\nafter\n")
    report_readme.update_readme("smoke", beside, readme)
    text = readme.read_text()
    assert text.startswith(f"before\n{begin}\n")
    assert text.endswith(f"{end}\nafter\n")
    expected = report_readme.beside_table("smoke", beside) if beside else report_readme.readme_table("smoke")
    assert report_readme.table_in_readme(block, readme) == expected
    report_readme.update_readme("smoke", beside, readme)
    assert readme.read_text() == text


@pytest.mark.parametrize("text", ["", "no markers", f"{END}{BEGIN}", f"{BEGIN}" * 2 + END])
def test_readme_without_markers_is_refused(results: Path, tmp_path: Path, text: str) -> None:
    write_tree(results)
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(UserError, match="README"):
        report_readme.update_readme("smoke", readme=tmp_path / "README.md")
    assert (tmp_path / "README.md").read_text() == text


def test_the_beside_table_has_both_verdicts(results: Path) -> None:
    write_tree(results)
    write_tree(results, "laptop", dials={"E8": Dial(turned_wrong=0.3)})
    table = report_readme.beside_table("smoke", "laptop")
    for name in ("smoke", "laptop"):
        assert load_profile_results(name).settings.title in table
    both = zip(*(judge(load_profile_results(name)) for name in ("smoke", "laptop")), strict=True)
    for one, two in both:
        assert f"| {one.id} | {one.claim} | {one.paper} | {one.verdict} | {two.verdict} |" in table


def committed(*profiles: str) -> None:
    for name in profiles:
        if not (ROOT / "results" / name).is_dir():
            pytest.skip(f"results/{name} is not there")


def test_readme_equals_the_committed_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANGU_HIF8_RESULTS", str(ROOT / "results"))
    committed("laptop")
    table = report_readme.table_in_readme()
    assert table == report_readme.readme_table("laptop"), "run: python -m pangu_hif8 report --readme"


def test_readme_shows_laptop_and_tiny_as_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANGU_HIF8_RESULTS", str(ROOT / "results"))
    committed("laptop", "tiny")
    table = report_readme.table_in_readme(BESIDE)
    wanted = report_readme.beside_table("laptop", "tiny")
    assert table == wanted, "run: python -m pangu_hif8 report --beside tiny --readme"
