"""Two profiles side by side: verdicts, figures in pairs, tables of both, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from fake_results import Dial, write_tree

from pangu_hif8 import cli, stages
from pangu_hif8.claims import judge
from pangu_hif8.errors import UserError
from pangu_hif8.files import sha256_file
from pangu_hif8.report_beside import MAIN, BesideReport, build, build_beside
from pangu_hif8.report_folders import beside_dir
from pangu_hif8.results import load_profile_results


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BesideReport]:
    base = tmp_path_factory.mktemp("beside")
    write_tree(base, "smoke", seeds=(0, 1))
    write_tree(base, "laptop", dials={"E1": Dial(turned_wrong=0.3, second_shift=0.5)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PANGU_HIF8_RESULTS", str(base))
        return base, build_beside("laptop", "smoke")


def test_verdicts_stand_next_to_each_other(both: tuple[Path, BesideReport]) -> None:
    built = both[1]
    assert {name: len(found) for name, found in built.claims.items()} == {"laptop": 10, "smoke": 10}
    for one, two in zip(*built.claims.values(), strict=True):
        assert f"| {one.paper} | {one.verdict} | {two.verdict} |" in built.front_page
        assert f"*laptop*: *{one.verdict}.* {one.sentence}" in built.findings_text
        assert f"*smoke*: *{two.verdict}.* {two.sentence}" in built.findings_text
    verdicts = pd.read_csv(built.directory / "tables/verdicts.csv")
    assert list(verdicts["smoke"]) == [claim.verdict for claim in built.claims["smoke"]]
    assert "laptop: one seed (0)" in built.front_page
    assert "smoke: 2 seeds (0, 1), so brackets cover seeds" in built.front_page


def test_it_says_where_they_agree_and_where_not(both: tuple[Path, BesideReport]) -> None:
    claims = both[1].claims
    same = [a.id for a, b in zip(*claims.values(), strict=True) if a.verdict == b.verdict]
    assert f"Same verdict: {', '.join(same)}" in both[1].front_page
    assert len(same) < 10


def test_main_figures_come_in_pairs(both: tuple[Path, BesideReport]) -> None:
    built = both[1]
    assert [figure.name for figure in built.figures] == list(MAIN)
    for figure in built.figures:
        assert list(figure.sides) == ["laptop", "smoke"]
        html = figure._repr_html_()
        assert html.count('<img src="data:image/png;base64,') == 2
        assert html.index("<b>laptop</b>") < html.index("<b>smoke</b>")
    names = {path.name for path in (built.directory / "figures").iterdir()}
    assert names == {f"{name}-{profile}.png" for name in MAIN for profile in ("laptop", "smoke")}


def test_tables_hold_both(both: tuple[Path, BesideReport]) -> None:
    ape = pd.read_csv(both[1].directory / "tables/ape.csv")
    assert list(ape["profile"].value_counts()) == [6, 6]
    seeds = pd.read_csv(both[1].directory / "tables/seeds.csv")
    assert set(seeds["profile"]) == {"smoke"}  # the other has one seed


def test_the_summary_names_every_input(both: tuple[Path, BesideReport]) -> None:
    base, built = both
    inputs = json.loads((built.directory / "summary.json").read_text())["inputs"]
    assert {name.split("/")[0] for name in inputs} == {"laptop", "smoke"}
    for name, sha in inputs.items():
        assert sha256_file(base / name) == sha


def test_it_is_a_pure_function(
    both: tuple[Path, BesideReport], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PANGU_HIF8_RESULTS", str(both[0]))
    files = [path for path in both[1].directory.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    (both[1].directory / "figures" / "old.png").write_bytes(b"")
    build("laptop", "smoke")
    assert {path: path.read_bytes() for path in both[1].directory.rglob("*") if path.is_file()} == before


def test_a_profile_without_trained_runs_stands_beside(results: Path) -> None:
    write_tree(results, "laptop")
    (results / "smoke" / "E0" / "seed0").mkdir(parents=True)
    (results / "smoke" / "E0" / "seed0" / "run.json").write_text("{}")
    built = build_beside("laptop", "smoke")
    assert all(claim.verdict.startswith("not available") for claim in built.claims["smoke"])
    assert all(list(figure.sides) == ["laptop"] for figure in built.figures)
    assert "smoke: no trained run is usable" in built.front_page
    assert "Settled by laptop alone" in built.front_page


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ("nowhere", "unknown profile 'nowhere'; valid: "),
        ("smoke", "no results in .*smoke; run: make reproduce PROFILE=smoke"),
        ("laptop", "can't stand beside itself"),
    ],
)
def test_what_cannot_stand_beside(
    results: Path, capsys: pytest.CaptureFixture[str], beside: str, said: str
) -> None:
    write_tree(results, "laptop")
    with pytest.raises(UserError, match=said):
        build("laptop", beside)
    assert cli.main(["report", "--profile", "laptop", "--beside", beside]) == 2
    assert re.search(rf"^error: .*{said}", capsys.readouterr().err)
    assert not beside_dir("laptop", beside).exists()


def test_the_stage_writes_a_page_and_leaves_the_profiles_own_report_fresh(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(results, "laptop")
    write_tree(results, "smoke")

    def execute(source: Path, directory: Path, parameters: dict[str, str], *_: object) -> None:
        (directory / "executed.ipynb").write_text(json.dumps(parameters))

    monkeypatch.setattr(stages, "execute_notebook", execute)
    monkeypatch.setattr(stages, "write_page", lambda executed, page: page.write_text("page"))
    stages.stage_report("laptop")
    assert cli.main(["report", "--profile", "laptop", "--beside", "smoke"]) == 0
    executed = beside_dir("laptop", "smoke") / "executed.ipynb"
    assert json.loads(executed.read_text()) == {"profile": "laptop", "beside": "smoke"}
    assert executed.with_name("report.html").read_text() == "page"
    verdict = judge(load_profile_results("smoke"))[3].verdict
    assert verdict in capsys.readouterr().out
    assert stages.report_reason("laptop") is None
    assert stages.report_reason("laptop", "smoke") is None
    (results / "smoke/E5/seed0/run.json").write_text("{}")
    assert stages.report_reason("laptop", "smoke") == "results changed"
    executed.with_name("report.html").unlink()  # nothing of it belongs to the profile's own report
    assert stages.report_reason("laptop") is None
