"""One truth about versions, files and names, although several tools want to read it."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
import yaml

from pangu_hif8.config import profile_names
from pangu_hif8.experiments import EXPERIMENTS
from pangu_hif8.paths import ROOT

PIN = re.compile(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUNTIME = PYPROJECT["project"]["dependencies"]
DEV = PYPROJECT["project"]["optional-dependencies"]["dev"]
# Direct dependencies that no Python file imports: commands, plugins, type stubs, things loaded by name.
NOT_IMPORTED = set(
    "datasets gguf ipykernel jupyter mypy nbstripout pandas-stubs ruff setuptools types-pyyaml".split()
)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(lines: list[str]) -> dict[str, str]:
    found = [PIN.fullmatch(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return {normal(match[1]): match[2] for match in found if match}


def lock_lines() -> list[str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_the_lock_is_pins_only_each_package_once_and_sorted() -> None:
    names = [normal(line.split("==")[0]) for line in lock_lines()]
    assert pins(lock_lines()).keys() == set(names)
    assert names == sorted(set(names))


def test_direct_dependencies_have_the_lock_s_pins_and_a_reason() -> None:
    lock = pins(lock_lines())
    for name, pin in (pins(RUNTIME) | pins(DEV) | pins(PYPROJECT["build-system"]["requires"])).items():
        assert lock.get(name) == pin, name
    text = (ROOT / "pyproject.toml").read_text()
    for line in RUNTIME + DEV:
        assert re.search(rf'"{re.escape(line)}",\s+# \w+', text), f"{line} has no reason beside it"


def test_conda_s_environment_reads_the_lock() -> None:
    wanted = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert wanted == ["python=3.11", "pip", {"pip": ["-r requirements.lock", "-e ."]}]
    assert PYPROJECT["project"]["requires-python"] == ">=3.11"


def test_this_environment_is_the_locked_one() -> None:
    found = {name: version(name).split("+")[0] for name in pins(RUNTIME) | pins(DEV)}
    assert found == pins(RUNTIME) | pins(DEV)


def imported(path: Path) -> set[str]:
    if path.suffix == ".ipynb":
        cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
        source = "\n".join("".join(cell["source"]) for cell in cells)
    else:
        source = path.read_text()
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").split(".")[0])
    return names | set(re.findall(r'importorskip\("(\w+)"', source))


def distributions(pattern: str, *more: str) -> set[str]:
    files = [path for glob in (pattern, *more) for path in ROOT.glob(glob)]
    assert files
    own = {path.stem for glob in ("*/*.py", "tools/*/*.py") for path in ROOT.glob(glob)}
    own |= {"pangu_hif8", "rehearsal"}
    names = set().union(*map(imported, files)) - own - set(sys.stdlib_module_names)
    known = packages_distributions()
    # IPython comes with ipykernel and is what a notebook runs in.
    return {normal(known[name][0]) for name in names} - {"ipython"}


def test_every_import_is_a_declared_dependency_and_nothing_is_declared_for_nothing() -> None:
    runtime, dev = set(pins(RUNTIME)), set(pins(DEV))
    used = distributions("pangu_hif8/*.py", "notebooks/*.ipynb")
    assert used - runtime == set()
    assert runtime - used - NOT_IMPORTED == set()
    tested = distributions("tests/*.py", "benchmarks/*.py", "tools/**/*.py")
    assert tested - runtime - dev == set()
    assert dev - tested - NOT_IMPORTED == set()


def test_the_package_ships_its_data() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["pangu_hif8"]
    package = ROOT / "pangu_hif8"
    shipped = {path for pattern in patterns for path in package.glob(pattern) if path.is_file()}
    there = {p for p in package.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}
    assert {p for p in there if p.name != ".DS_Store"} <= shipped


def ignored(path: str) -> bool:
    command = ["git", "-C", str(ROOT), "check-ignore", "--quiet", "--no-index", path]
    result = subprocess.run(command, capture_output=True)
    if result.returncode > 1:
        pytest.skip("not a git checkout")
    return result.returncode == 0


def test_git_keeps_results_and_ignores_what_only_the_next_run_needs() -> None:
    run = "results/laptop/E5/seed0"
    for name in ("run.json", "steps.csv", "eval.json", "executed.ipynb"):
        assert not ignored(f"{run}/{name}"), name
    for name in ("checkpoint/model.safetensors", "train.stamp", ".lock", "failed.ipynb", ".run.json.x.tmp"):
        assert ignored(f"{run}/{name}"), name
    assert ignored("results/smoke/E5/seed0/run.json")
    assert ignored("results/laptop/E5-custom-12345678/seed0/run.json")
    assert not ignored("results/laptop/report/report.html")
    assert not ignored("results/tiny/E5/seed1/saturation.csv")
    for name in ("E5/seed1/executed.ipynb", "report/executed.ipynb"):  # the page shows it again
        assert ignored(f"results/tiny/{name}"), name
    assert ignored("results/laptop/report/beside-tiny/executed.ipynb")
    assert not ignored("results/laptop/report/beside-tiny/report.html")


# ---- the Makefile: bad values end at once, before anything is installed --------------------------------


def make(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "-C", str(ROOT), "--no-print-directory", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)


def test_make_alone_is_help_and_knows_the_registry_and_the_profiles(clean_env: dict[str, str]) -> None:
    result = make(clean_env)
    assert result.returncode == 0
    assert f"of: {' '.join(EXPERIMENTS)}" in result.stdout
    assert f"one of: {' '.join(profile_names())}" in result.stdout
    for target in "reproduce report test check lab clean".split():
        assert f"make {target}" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("PROFILE=lapptop",), ('unknown PROFILE "lapptop"', "laptop paper smoke")),
        (("PROFILE=smoke laptop",), ("unknown PROFILE", "laptop paper smoke")),
        (("PROFILE=",), ("unknown PROFILE", "laptop paper smoke")),
        (("ONLY=E5 E9",), ("unknown experiment in ONLY: E9", "E0 E1")),
        (("SEEDS=one",), ("SEEDS must be whole numbers",)),
        (("SEEDS=-1",), ("SEEDS must be whole numbers",)),
        (("SEEDS=01",), ("SEEDS must be whole numbers",)),
        (("SEEDS= ",), ("SEEDS is empty",)),
        (("BESIDE=lapptop",), ('unknown BESIDE "lapptop"', "laptop paper smoke")),
        (("BESIDE=smoke laptop",), ("unknown BESIDE", "laptop paper smoke")),
        (("TIMEOUT=1h",), ("TIMEOUT must be a whole number",)),
        (("SEED=1",), ("unknown variable SEED", "SEEDS")),
    ],
)
def test_a_bad_value_ends_with_the_valid_ones(
    clean_env: dict[str, str], arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = make(clean_env, "-n", "reproduce", *arguments)
    assert result.returncode == 2
    assert not result.stdout
    assert all(word in result.stderr for word in words), result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_runs_are_targets_by_seed_and_experiment(clean_env: dict[str, str]) -> None:
    result = make(clean_env, "-n", "pipeline", "ONLY=E5 E8", "SEEDS=0 3", "PROFILE=smoke", "TIMEOUT=90")
    stages = re.findall(r"stage (E\d) ", result.stdout)
    assert stages == ["E0", "E5", "E8", "E5", "E8"]
    assert "stage E8 --seed 3 --profile smoke --timeout 90" in result.stdout
    assert "stage report" in result.stdout.splitlines()[-1]


def test_the_report_takes_a_profile_to_stand_beside(clean_env: dict[str, str]) -> None:
    told = make(clean_env, "-n", "report", "PROFILE=laptop", "BESIDE=smoke").stdout
    assert "report --profile laptop --beside smoke" in told
    assert "--beside" not in make(clean_env, "-n", "report", "PROFILE=laptop").stdout


# ---- the installer -------------------------------------------------------------------------------------


@pytest.fixture
def installer(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("install", ROOT / "tools" / "install.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "run", lambda *command: _pretend(module, command))
    module.steps = []
    return module


def _pretend(module, command: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    module.steps.append(command)
    if "venv" in command:
        (Path(command[-1]) / "bin").mkdir(parents=True)
        (Path(command[-1]) / "bin" / "python").touch()


def test_an_installation_is_fresh_only_when_it_finished(installer, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    venv = tmp_path / "venv"
    assert not installer.is_fresh(venv)
    installer.build(venv)
    assert installer.is_fresh(venv)
    assert len(installer.steps) == 3
    (venv / "bin" / "python").unlink()
    assert not installer.is_fresh(venv)


def test_an_interrupted_installation_is_redone_from_nothing(installer, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch()
    (venv / "half").touch()
    assert not installer.is_fresh(venv)
    installer.build(venv)
    assert installer.is_fresh(venv)
    assert not (venv / "half").exists()


def test_a_changed_pin_is_another_identity(
    installer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    for name in installer.SOURCES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x==1\n")
    monkeypatch.setattr(installer, "ROOT", tmp_path)
    before = installer.identity()
    assert installer.identity() == before
    (tmp_path / "requirements.lock").write_text("x==2\n")
    assert installer.identity() != before
