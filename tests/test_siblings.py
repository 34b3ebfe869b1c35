"""What a run knows of a parallel make around it, and how its threads wait then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pangu_hif8 import siblings
from pangu_hif8.kernel import environment
from pangu_hif8.siblings import SPINS_ALONE, SPINS_BESIDE, has_siblings, spin_count


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAKEFLAGS", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setattr(siblings, "num_cores", lambda: 2)


def test_with_cores_enough_threads_spin_beside_others_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAKEFLAGS", " -j2 --jobserver-auth=3,4")
    monkeypatch.setattr(siblings, "num_cores", lambda: 4)
    assert has_siblings() and spin_count() == str(SPINS_ALONE)


def test_threads_spin_alone_and_not_beside_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_siblings() and spin_count() == environment()["GOMP_SPINCOUNT"] == str(SPINS_ALONE)
    monkeypatch.setenv("MAKEFLAGS", " -j2 --jobserver-auth=3,4")
    assert has_siblings() and spin_count() == str(SPINS_BESIDE)
    assert environment()["GOMP_SPINCOUNT"] == str(SPINS_BESIDE)


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAKEFLAGS", " -j2 --jobserver-auth=3,4")
    monkeypatch.setenv("GOMP_SPINCOUNT", "77")
    assert spin_count() == environment()["GOMP_SPINCOUNT"] == "77"


def test_it_is_set_before_torch_is_loaded() -> None:
    code = "import sys, os, pangu_hif8.run; print('torch' in sys.modules, os.environ['GOMP_SPINCOUNT'])"
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert printed.split() == ["False", str(SPINS_ALONE)]


@pytest.mark.parametrize(("jobs", "expected"), [("-j1", False), ("-j2", True), ("-j", True), ("-k", False)])
def test_make_says_whether_it_is_parallel(tmp_path: Path, jobs: str, expected: bool) -> None:
    code = "from pangu_hif8.siblings import has_siblings; print(has_siblings())"
    (tmp_path / "Makefile").write_text(f'all:\n\t@{sys.executable} -c "{code}"\n')
    printed = subprocess.check_output(["make", jobs, "-C", str(tmp_path), "--no-print-directory"], text=True)
    assert printed.split() == [str(expected)]
