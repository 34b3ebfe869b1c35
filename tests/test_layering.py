"""Imports point one way, so that the format is usable alone and the report rebuilds without torch."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from pangu_hif8.freshness import PACKAGE, imported_modules
from pangu_hif8.paths import ROOT

GROUND = {"hif8_codes", "metrics", "errors", "paths"}  # import nothing of the package, errors aside
BELOW = {
    "hif8_info": {"hif8_codes"},
    "hif8_tables": {"hif8_codes"},
    "rounding": {"hif8_codes", "hif8_tables"},
    "hif8": {"hif8_codes", "hif8_info", "hif8_tables", "rounding"},
    "files": {"errors"},
    "strict": {"errors"},
    "quant_config": {"strict"},
    "config": {"errors", "paths", "strict", "quant_config"},
    "amax": {"errors", "quant_config"},
    "slots": {"quant_config"},
    "sampling": {"reductions"},
    "scaling": {"amax", "errors", "quant_config", "reductions", "sampling", "slots"},
    "fake_quantize": {"hif8"},
    "fused": {"amax", "fake_quantize", "hif8", "hif8_codes", "hif8_tables"},
    "traced": {"fake_quantize", "fused", "hif8"},
    "table_qdq": {"fake_quantize", "hif8_codes", "hif8_tables"},
    "quantized_linear": {
        "amax",
        "errors",
        "fake_quantize",
        "fused",
        "quant_config",
        "scaling",
        "table_qdq",
        "traced",
    },
    "linear": {"errors", "quant_config", "quantized_linear", "scaling", "slots"},
}
NO_TORCH = (
    "hif8_info results claims tables plots report report_beside report_readme metrics cli stages notebook "
    "kernel run prepare telemetry plan doctor launch processes overrides experiments beyond sensitivity "
    "page_stage audit dose dose_files record_law page_readme page_notebook variant_runs".split()
)


def modules() -> dict[str, set[str]]:
    return {path.stem: imported_modules(path) for path in PACKAGE.glob("*.py")}


@pytest.mark.parametrize("name", sorted(GROUND))
def test_the_ground_stands_on_nothing(name: str) -> None:
    assert modules()[name] <= {"errors"}


@pytest.mark.parametrize("name", sorted(BELOW))
def test_each_layer_uses_only_what_is_below(name: str) -> None:
    assert modules()[name] <= BELOW[name]


def test_there_is_no_circle() -> None:
    graph, done = modules(), set[str]()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for inner in sorted(graph[name]):
                visit(inner, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_nothing_below_the_driver_knows_the_driver() -> None:
    driver = {"cli", "commands", "stages", "page_stage", "processes", "kernel", "terminal", "__main__"}
    driver |= {"notebook", "page_notebook"}
    for name, inner in modules().items():
        if name not in driver:
            assert not inner & driver, name


def top_level_imports(name: str) -> set[str]:
    tree = ast.parse((PACKAGE / f"{name}.py").read_text())
    nodes = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    return {n.split(".")[0] for n in names + [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]}


WITHOUT_TORCH = """
import importlib, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("torch is absent")

sys.meta_path.insert(0, NoTorch())
importlib.import_module(sys.argv[1])
"""


def test_the_block_works() -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, "pangu_hif8.hif8"]
    assert b"torch is absent" in subprocess.run(command, cwd=ROOT, capture_output=True).stderr


@pytest.mark.parametrize("name", NO_TORCH)
def test_imports_where_torch_is_absent(name: str) -> None:
    assert "torch" not in top_level_imports(name)
    command = [sys.executable, "-c", WITHOUT_TORCH, f"pangu_hif8.{name}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
