"""Audit and sweeps as stages: when their notebook runs, what it is given, and what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_results import Dial, write_run
from fake_variants import write_dose, write_variants

from pangu_hif8 import audit, cli, page_notebook, page_stage
from pangu_hif8.errors import Preempted, UserError
from pangu_hif8.notebook import NotebookError
from pangu_hif8.page_notebook import audit_from_notebook, beyond_from_notebook
from pangu_hif8.run import directory_of
from pangu_hif8.variants import Variant

TAPER = Variant("A3-E2-taper", "no clipping", "E2", "E1", {"overflow": "taper"})
GOOD = {"profile": "smoke", "seeds": "0", "fresh": False}


@pytest.fixture
def done(results: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """All runs of a one-variant audit are there; its notebook is pretended. What was called is noted."""
    for name in ("E0", "E1", "E2"):
        write_run(results, name, "smoke", 0, Dial())
    write_variants(results, [TAPER])
    write_dose("smoke")
    calls: dict[str, Any] = {"executed": [], "prepared": 0, "processes": []}

    def execute(source: Path, directory: Path, parameters: Any, label: str, timeout_s: Any) -> None:
        calls["executed"].append((source.name, parameters, label, timeout_s))
        (directory / "executed.ipynb").write_text("{}")

    def prepare(profile: str) -> None:
        calls["prepared"] += 1

    monkeypatch.setattr(page_stage, "variants_of", lambda page, profile: (TAPER,))
    monkeypatch.setattr(page_stage, "execute_notebook", execute)
    monkeypatch.setattr(page_stage, "write_page", lambda executed, target: target.write_text("page"))
    monkeypatch.setattr(page_stage, "prepare_aloud", prepare)
    monkeypatch.setattr(page_stage, "num_processes", lambda: 2)
    monkeypatch.setattr(
        page_stage,
        "use_all_processes",
        lambda config, label, changes: calls["processes"].append((label, changes)),
    )
    return calls


def stage(**options: Any) -> Path:
    return page_stage.stage_page("audit", **({"profile": "smoke", "seeds": [0]} | options))


def test_it_runs_once_and_is_up_to_date_then(
    done: dict[str, Any], results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = stage(timeout_s=9.0)
    assert page == results / "smoke" / "audit" / "audit.html" and page.read_text() == "page"
    assert done["executed"] == [("10_audit.ipynb", GOOD, "audit", 9.0)]
    assert done["prepared"] == 0 and done["processes"] == []  # all was there: no model is needed
    assert "running 10_audit.ipynb (not made yet)" in capsys.readouterr().out
    assert stage() == page and len(done["executed"]) == 1
    assert capsys.readouterr().out == f"audit: up to date; page: {page}\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda base: (base / "audit/audit.html").write_text("torn"), "audit.html is damaged or changed"),
        (lambda base: (base / "audit/dose.csv").unlink(), "dose response: dose.csv is missing"),
        (lambda base: shutil.rmtree(base / "E1"), "1 runs to make, E1 seed 0 first"),
        (lambda base: (base / "E2/seed0/train_timing.json").unlink(), "results changed"),
    ],
)
def test_a_change_runs_it_again(
    done: dict[str, Any], results: Path, capsys: pytest.CaptureFixture[str], change: Any, words: str
) -> None:
    stage()
    change(results / "smoke")
    stage()
    assert len(done["executed"]) == 2
    assert f"({words}" in capsys.readouterr().out


def test_other_seeds_and_fresh_are_handed_on(done: dict[str, Any]) -> None:
    stage(seeds=[1, 0, 1], fresh=True)
    ((_, parameters, *_),) = done["executed"]
    assert parameters == {"profile": "smoke", "seeds": "0 1", "fresh": True}


def test_pending_runs_take_all_processes_after_preparing(done: dict[str, Any]) -> None:
    shutil.rmtree(directory_of(TAPER.config("smoke", 0)))
    stage()
    assert done["prepared"] == 1
    assert done["processes"] == [("A3-E2-taper seed 0", {"overflow": "taper"})]


def test_a_failed_notebook_leaves_no_stamp(
    done: dict[str, Any], results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise UserError("audit: cell 3 failed")

    monkeypatch.setattr(page_stage, "execute_notebook", fail)
    with pytest.raises(UserError, match="cell 3 failed"):
        stage()
    assert not (results / "smoke" / "audit" / "page.stamp").exists()


@pytest.mark.parametrize("page", ["audit", "beyond"])
def test_the_lists_are_those_of_the_pages(page: str, results: Path) -> None:
    with pytest.raises(UserError, match="unknown profile"):
        page_stage.variants_of(page, "big")
    names = [v.id for v in page_stage.variants_of(page, "smoke")]
    assert ("A1-E1" in names) == (page == "audit") and len(names) > 10


def test_a_measurement_that_is_missing_is_a_reason(results: Path) -> None:
    assert page_stage.to_measure("audit", "smoke") == "dose response: not measured yet"
    assert "sensitivity" in str(page_stage.to_measure("beyond", "smoke"))
    write_dose("smoke")
    assert page_stage.to_measure("audit", "smoke") is None


@pytest.mark.parametrize("page", ["audit", "beyond"])
def test_the_command_line_reaches_it(monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(page_stage, "stage_page", lambda name, **how: calls.append((name, how)))
    assert cli.main([page, "--profile", "smoke", "--seeds", "1 0", "--fresh", "--timeout", "60"]) == 0
    assert cli.main([page]) == 0
    assert calls == [
        (page, {"profile": "smoke", "seeds": [0, 1], "fresh": True, "timeout_s": 60.0}),
        (page, {"profile": "laptop", "seeds": [0], "fresh": False, "timeout_s": None}),
    ]


# ---- what the notebook calls ---------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(audit, "measure_audit", lambda *given, **how: calls.append((*given, how)))
    monkeypatch.setattr(audit, "build_audit", lambda profile: f"page of {profile}")
    return calls


@pytest.mark.parametrize(("seeds", "expected"), [("0", [0]), ("2 0,1 2", [0, 1, 2]), (3, [3])])
def test_measures_and_builds(asked: list[Any], seeds: Any, expected: list[int]) -> None:
    namespace = GOOD | {"seeds": seeds, "In": [""], "Markdown": str, "_": 1}
    assert audit_from_notebook(namespace) == "page of smoke"
    assert asked == [("smoke", expected, {"fresh": False})]


@pytest.mark.parametrize("call", [audit_from_notebook, beyond_from_notebook])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": "one"}, "seeds must be whole numbers, as \"0 1 2\", got 'one'"),
        ({"seeds": ""}, "seeds must be whole numbers"),
        ({"seeds": "-1"}, "seeds must be whole numbers"),
        ({"seeds": [0]}, "seeds must be whole numbers"),
        ({"seeds": True}, "seeds must be whole numbers"),
        ({"fresh": "true"}, "fresh must be true or false, got 'true'"),
        ({"fresh": 1}, "fresh must be true or false"),
        ({"profile": 3}, "profile must be a name, got 3"),
        ({"profil": "smoke"}, "unknown parameter profil; valid: profile, seeds, fresh"),
        ({"seeds": None}, "seeds must be whole numbers"),
    ],
)
def test_bad_parameters_end_in_one_line(asked: list[Any], call: Any, changes: Any, words: str) -> None:
    with pytest.raises(NotebookError) as caught:
        call(GOOD | changes)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert not asked


def test_a_lost_parameters_cell_and_a_preempted_run_are_said(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotebookError, match="declares no profile, fresh; restore its parameters cell"):
        audit_from_notebook({"seeds": "0"})

    def stop(*_: Any, **__: Any) -> None:
        raise Preempted("stopped at step 5")

    monkeypatch.setattr(audit, "measure_audit", stop)
    with pytest.raises(NotebookError, match="stopped at step 5"):
        audit_from_notebook(GOOD)
    assert tuple(GOOD) == page_notebook.PARAMETERS
