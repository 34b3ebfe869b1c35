"""The notebooks as sources, and what they import: thin, tagged, without outputs, strict about parameters."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell

from pangu_hif8 import kernel, notebook, run
from pangu_hif8.errors import UserError
from pangu_hif8.experiments import EXPERIMENTS, Overrides
from pangu_hif8.notebook import KNOWN, NotebookError, check_parameters, run_from_notebook
from pangu_hif8.page_notebook import PARAMETERS
from pangu_hif8.page_stage import NOTEBOOK_OF
from pangu_hif8.paths import NOTEBOOKS_DIR
from pangu_hif8.stages import REPORT_NOTEBOOK, source_of

SOURCES = sorted(NOTEBOOKS_DIR.glob("*.ipynb"))
NAMES = [path.stem for path in SOURCES]
LOGIC = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.While, ast.If, ast.Try)


def cells(path: Path) -> list[Any]:
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def tree(path: Path) -> ast.Module:
    return ast.parse("\n".join(cell.source for cell in cells(path)))


def test_there_is_a_notebook_for_each_experiment_the_report_and_each_page() -> None:
    wanted = {row.notebook for row in EXPERIMENTS.values()} | {REPORT_NOTEBOOK, *NOTEBOOK_OF.values()}
    assert wanted <= set(NAMES)
    assert len({row.notebook for row in EXPERIMENTS.values()}) == len(EXPERIMENTS)


@pytest.mark.parametrize("path", SOURCES, ids=NAMES)
def test_a_source_is_valid_and_holds_no_outputs(path: Path) -> None:
    source = nbformat.read(path, 4)
    nbformat.validate(source)
    assert (source.nbformat, source.nbformat_minor) == (4, 5)
    assert source.metadata.kernelspec.name == "python3"
    for cell in cells(path):
        assert not cell.outputs and cell.execution_count is None
    ids = [cell.id for cell in source.cells]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("path", SOURCES, ids=NAMES)
def test_a_notebook_has_no_logic_of_its_own(path: Path) -> None:
    assert not [type(node).__name__ for node in ast.walk(tree(path)) if isinstance(node, LOGIC)]
    first = nbformat.read(path, 4).cells[0]
    assert first.cell_type == "markdown" and first.source.startswith("# ")


@pytest.mark.parametrize("path", SOURCES, ids=NAMES)
def test_parameters_are_known_and_the_defaults_finish_in_minutes(path: Path) -> None:
    names = kernel.declared_parameters(path)
    tagged = next(c for c in cells(path) if "parameters" in c.metadata.get("tags", ()))
    values: dict[str, Any] = {}
    exec(tagged.source, values)
    if path.stem in NOTEBOOK_OF.values():
        assert names == set(PARAMETERS)
        assert (values["profile"], values["seeds"], values["fresh"]) == ("smoke", "0", False)
        return
    if path.stem == REPORT_NOTEBOOK:  # it only reads results, and laptop's are there to be read
        assert {name: values[name] for name in names} == {"profile": "laptop", "beside": ""}
        return
    assert "profile" in names and names <= set(KNOWN)
    assert values["profile"] == "smoke"
    assert values.get("seed", 0) == 0
    assert all(values[name] is None for name in names - {"profile", "seed"})


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_notebook_runs_its_own_experiment_once(experiment: str) -> None:
    text = "\n".join(cell.source for cell in cells(source_of(experiment)))
    assert re.findall(r"run_from_notebook\((.*?)\)", text) == [f'"{experiment}", globals(']
    names = kernel.declared_parameters(source_of(experiment)) - {"profile", "seed"}
    row = EXPERIMENTS[experiment]
    trained = {"lr", "steps"} if row.lr else set()
    quantizer = {"bf16_warmup_steps", "hif8_max", "overflow"} if row.amax_compute_algo else set()
    special = {"exponential_smoothing": {"smoothing_decay"}, "max_window": {"amax_history_len"}}
    assert names == trained | quantizer | special.get(row.amax_compute_algo or "", set())


# ---- parameters ----------------------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would have been run."""
    calls: list[Any] = []

    def pretend(experiment: str, **parameters: Any) -> object:
        calls.append((experiment, parameters))
        return object()

    monkeypatch.setattr(run, "run_experiment", pretend)
    return calls


def test_known_parameters_are_taken_and_everything_else_of_a_notebook_is_left(started: list[Any]) -> None:
    namespace = {
        "__name__": "__main__", "_": 3, "_i1": "x = 1", "In": ["", "x"], "Out": {1: 3}, "exit": object(),
        "ast": ast, "Markdown": dict, "figure": object(), "profile": "smoke", "seed": 1,
        "lr": None, "steps": None,
    }  # fmt: skip
    run_from_notebook("E5", namespace)
    assert started == [("E5", {"profile": "smoke", "seed": 1, "lr": None, "steps": None})]


def test_every_override_is_a_parameter() -> None:
    assert {"profile", "seed", *Overrides.model_fields} == set(KNOWN)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"sed": 1}, "unknown parameter sed; valid: profile, seed, lr"),
        ({"learning_rate": 1e-3, "stepz": [1]}, "unknown parameter learning_rate, stepz"),
        ({"profile": object}, "parameter profile must be a plain value"),
    ],
)
def test_an_unknown_parameter_ends_before_anything_starts(
    started: list[Any], extra: dict[str, Any], words: str
) -> None:
    with pytest.raises(NotebookError, match=words):
        run_from_notebook("E5", {"profile": "smoke", "seed": 0} | extra)
    assert not started


@pytest.mark.parametrize("injected", [{}, {"seed": 0}, {"profile": "smoke"}, {"profile": "smoke", "seed": 1}])
def test_a_notebook_without_its_parameters_cell_is_an_error(
    started: list[Any], injected: dict[str, Any]
) -> None:
    with pytest.raises(NotebookError, match="restore its parameters cell"):
        run_from_notebook("E5", injected)
    assert not started


@pytest.mark.parametrize(
    ("experiment", "values", "words"),
    [
        ("E8", {"lr": "fast"}, "lr: Input should be a valid number"),
        ("E8", {"lr": "1e-3"}, "lr: Input should be a valid number"),
        ("E8", {"lr": True}, "lr: Input should be a valid number"),
        ("E8", {"seed": 2**32}, "seed 4294967296 is too large"),
        ("E8", {"steps": 2.5}, "steps: Input should be a valid integer"),
        ("E8", {"overflow": "clip"}, "overflow: Input should be 'saturate' or 'taper'"),
        ("E8", {"seed": "1"}, "seed must be a whole number"),
        ("E8", {"seed": -1}, "seed must be a whole number"),
        ("E8", {"profile": "big"}, "unknown profile 'big'"),
        ("E8", {"profile": 3}, "unknown profile 3"),
        ("E9", {}, "unknown experiment 'E9'"),
        ("E1", {"hif8_max": 15.0}, "E1 does not quantize"),
        ("E0", {"lr": 1e-4}, "E0 is not trained"),
    ],
)
def test_a_wrong_value_ends_before_anything_is_prepared(
    monkeypatch: pytest.MonkeyPatch, experiment: str, values: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr(run, "prepare", lambda profile: pytest.fail("prepared"))
    with pytest.raises(UserError, match=words):
        run_from_notebook(experiment, {"profile": "smoke", "seed": 0, "lr": None, "steps": None} | values)


@pytest.mark.parametrize("experiment", ["E0", "E1", "E8"])
def test_all_cells_can_be_run_again_interactively(started: list[Any], experiment: str) -> None:
    shell = InteractiveShell()
    sources = [c.source for c in cells(source_of(experiment)) if "parameters" in c.metadata.get("tags", ())]
    sources.append(
        next(c.source for c in cells(source_of(experiment)) if "import run_from_notebook" in c.source)
    )
    sources += ["1 + 1", next(c.source for c in cells(source_of(experiment)) if "globals()" in c.source)]
    for source in sources * 2:
        shell.run_cell(source, store_history=True).raise_error()
    assert len(started) == 2
    assert started[0] == started[1]


def test_an_error_is_one_line_in_jupyter() -> None:
    assert NotebookError("unknown profile")._render_traceback_() == ["UserError: unknown profile"]
    assert check_parameters({}) == {} and notebook.KNOWN[:2] == ("profile", "seed")


def test_papermill_s_own_command_line_is_refused_too() -> None:
    """`-p lr fast`: papermill hands over the string, and the notebook's one call refuses it."""
    parameters = {"profile": "smoke", "lr": "fast"}
    with pytest.raises(kernel.ExecutionError, match="parameters of E8: lr: Input should be a valid number"):
        kernel.execute(source_of("E8"), parameters, label="E8")
