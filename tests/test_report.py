"""The report: what it writes, what it leaves out, and its page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from fake_results import Dial, write_tree
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from pangu_hif8 import cli, report, report_readme
from pangu_hif8.errors import UserError
from pangu_hif8.files import sha256_file
from pangu_hif8.paths import NOTEBOOKS_DIR, ROOT
from pangu_hif8.plots import FIGURES
from pangu_hif8.report_beside import MAIN
from pangu_hif8.report_html import write_html
from pangu_hif8.results import load_profile_results
from pangu_hif8.tables import benchmark_table


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> report.Report:
    base = tmp_path_factory.mktemp("report")
    write_tree(base, "smoke")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PANGU_HIF8_RESULTS", str(base))
        return report.build_report("smoke")


def files(directory: Path) -> dict[str, str]:
    return {p.relative_to(directory).as_posix(): sha256_file(p) for p in directory.rglob("*") if p.is_file()}


def test_everything_is_written(built: report.Report) -> None:
    names = set(files(built.directory))
    assert {f"figures/{spec.name}.{kind}" for spec in FIGURES for kind in ("png", "svg")} <= names
    made = ("claims", "benchmarks", "heldout", "ape", "saturation", "sampled", "runs")
    assert {f"tables/{name}.{kind}" for name in made for kind in ("csv", "md")} <= names
    assert {"claims.json", "summary.json"} <= names
    assert len(names) == 2 * len(FIGURES) + 2 * len(made) + 2


def test_the_summary_names_every_input(built: report.Report) -> None:
    summary = json.loads((built.directory / "summary.json").read_text())
    base = built.directory.parent
    for name, digest in summary["inputs"].items():
        assert sha256_file(base / name) == digest
    assert {"E5/seed0/steps.csv", "E5/seed0/saturation.csv", "E0/seed0/items.csv"} <= set(summary["inputs"])
    assert set(summary["verdicts"]) == {f"C{i}" for i in range(1, 11)}
    claims = json.loads((built.directory / "claims.json").read_text())
    assert all(claim["verdict"] == summary["verdicts"][claim["id"]] for claim in claims)


def test_front_page_in_order(built: report.Report) -> None:
    page = built.front_page
    headings = ("What was claimed", "What was found", "How sure", "At which scale")
    places = [page.index(f"## {heading}\n") for heading in headings]
    assert places == sorted(places)
    found = page[places[1] : places[2]]
    assert "Of the paper's 10 claims" in found
    assert found.count("\n| C") == 10
    assert "smoke: one seed (0), so nothing here says" in page[places[2] : places[3]]
    assert "60 steps of 512 tokens" in page[places[3] :]
    assert "10,000 steps of 1,048,576 tokens" in page[places[3] :]
    for claim in built.claims:
        assert f"*{claim.verdict}.* {claim.sentence}" in built.findings_text
    assert built.missing_text == "All runs of this profile are complete and current."
    assert built.rules_text.count("\n") == 12


def test_an_incomplete_run_leaves_the_report_and_old_figures_go(built: report.Report, results: Path) -> None:
    tree = Path(shutil.copytree(built.directory.parent, results / "smoke"))
    assert (tree / "report/figures/ape.png").is_file()
    for name in ("E1", "E6"):
        shutil.rmtree(tree / name)
    (tree / "E5/seed0/steps.csv").write_text("step,loss\n")
    second = report.build_report("smoke")
    assert not (second.directory / "figures/ape.png").exists()
    assert not (second.directory / "tables/ape.csv").exists()
    assert "E5 (seed 0): steps.csv" in second.missing_text
    assert "E1 (seed 0): not run" in second.missing_text
    assert all("E5" not in figure.sentence for figure in second.figures)
    assert (second.directory / "figures/saturation_by_layer.png").is_file()


def test_nothing_usable_still_gives_a_list(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (results / "smoke").mkdir(parents=True)
    found = report.build_report("smoke")
    assert found.figures == []
    assert [table.name for table in found.tables] == ["claims"]
    report.print_summary("smoke")
    assert "missing: E8 (seed 0): not run" in capsys.readouterr().out


def test_no_results_is_one_clear_error(results: Path) -> None:
    for call in (report.build_report, report.print_summary, report_readme.readme_table):
        with pytest.raises(UserError, match="make reproduce PROFILE=smoke"):
            call("smoke")


def test_a_damaged_file_is_said_on_stderr_with_what_to_do(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(results)
    assert cli.main(["summary", "--profile", "smoke"]) == 0
    assert capsys.readouterr().err == ""
    (results / "smoke/E8/seed0/eval.json").write_text("{")
    assert cli.main(["summary", "--profile", "smoke"]) == cli.DAMAGED
    message = capsys.readouterr().err
    assert message.startswith(
        "error: damaged, and left out: E8 seed 0; restore the files, or make them again"
    )
    assert message.count("\n") == 1


def test_a_report_of_nothing_is_refused_and_leaves_nothing(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["report"], ["report", "--beside", "laptop"]):
        assert cli.main([*command, "--profile", "smoke"]) == 2
        assert "run: make reproduce PROFILE=smoke" in capsys.readouterr().err
    assert not results.exists()


def test_a_figure_names_no_folder(built: report.Report) -> None:
    assert repr(built.figures[0]) == f"<figure {built.figures[0].name}>"


def test_it_is_a_pure_function_of_the_results(built: report.Report, results: Path) -> None:
    write_tree(results)
    assert files(report.build_report("smoke").directory) == files(built.directory)


def test_printed_summary(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(results, "laptop", dials={"E8": Dial(turned_wrong=0.06)})
    report.print_summary("laptop")
    text = capsys.readouterr().out
    row = re.search(
        r"E8 max-window \+ BF16 warm-up, lr 1e-5 +arc_challenge +([\d.]+) +[\d.]+ +([\d.]+) +0\.22\n", text
    )
    assert row is not None
    table = benchmark_table(load_profile_results("laptop")).query(
        "experiment == 'E8' and task == 'arc_challenge'"
    )
    expected = table[["accuracy_pct", "drop_pct"]].iloc[0]
    assert [float(value) for value in row.groups()] == pytest.approx(list(expected), abs=0.006)
    assert expected["drop_pct"] > 5
    assert re.search(r"C4 +reproduced +most-recent saturates", text)
    assert str(results / "laptop" / "report") in text
    assert "None" not in text
    assert "nan" not in text


def executed(path: Path, *outputs: nbformat.NotebookNode, count: int | None = 1) -> Path:
    cell = new_code_cell("secret_code()", outputs=list(outputs), execution_count=count)
    nbformat.write(new_notebook(cells=[new_markdown_cell("# Title here"), cell]), path)
    return path


def test_the_page_opens_by_itself(tmp_path: Path) -> None:
    output = new_output("display_data", {"image/png": "iVBORw0KGgo=", "text/plain": "picture"})
    write_html(executed(tmp_path / "in.ipynb", output), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Title here" in page
    assert "data:image/png;base64,iVBORw0KGgo" in page
    assert "secret_code" not in page
    assert not re.search(r"<(script|img|iframe)[^>]*\bsrc\s*=\s*[\"']?(https?:)?//", page)
    assert not re.search(r"<link[^>]*\bhref\s*=\s*[\"']?(https?:)?//", page)
    assert "cdnjs" not in page
    assert not re.search(r"@import|url\([\"']?https?:", page)


def test_a_failed_or_unfinished_notebook_makes_no_page(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    error = new_output("error", ename="ValueError", evalue="x", traceback=[])
    bad = {
        "error": executed(tmp_path / "a.ipynb", error),
        "not run": executed(tmp_path / "b.ipynb", count=None),
        "missing": tmp_path / "none.ipynb",
        "not a readable notebook": tmp_path / "c.ipynb",
    }
    bad["not a readable notebook"].write_text("{")
    for reason, path in bad.items():
        with pytest.raises(UserError, match=reason):
            write_html(path, target)
    assert not target.exists()


def test_committed_results_are_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANGU_HIF8_RESULTS", str(ROOT / "results"))
    if not (ROOT / "results" / "laptop").is_dir():
        pytest.skip("results/laptop is not there")
    assert load_profile_results("laptop").missing == []


def test_notebook_is_thin_and_in_order() -> None:
    notebook = nbformat.read(NOTEBOOKS_DIR / "09_report.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    parameters = [cell.source for cell in code if "parameters" in cell.metadata.get("tags", [])]
    assert [line.split("  #")[0] for line in parameters[0].splitlines()] == [
        'profile = "laptop"',
        'beside = ""',
    ]
    assert len(parameters) == 1
    assert not any(re.search(r"^\s*def ", cell.source, re.MULTILINE) for cell in code)


RUN_NOTEBOOK = """
import sys, nbformat
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("torch is absent")
sys.meta_path.insert(0, NoTorch())
cells = [c for c in nbformat.read(sys.argv[1], as_version=4).cells if c.cell_type == "code"]
space = {"__name__": "__main__"}
for cell in cells:
    if "parameters" in cell.metadata.get("tags", []):
        space |= {"profile": sys.argv[2], "beside": sys.argv[3]}
    else:
        exec(cell.source, space)
assert len(space["report"].figures) == int(sys.argv.pop())
"""


@pytest.mark.parametrize(("beside", "num"), [("", len(FIGURES)), ("laptop", len(MAIN))])
def test_notebook_runs_without_torch(results: Path, beside: str, num: int) -> None:
    write_tree(results)
    if beside:
        write_tree(results, beside)
    path = NOTEBOOKS_DIR / "09_report.ipynb"
    command = [sys.executable, "-c", RUN_NOTEBOOK, str(path), "smoke", beside, str(num)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_torch_stays_out() -> None:
    program = "import sys; from pangu_hif8 import results, claims, tables, plots, report; "
    program += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0
