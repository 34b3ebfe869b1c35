"""`make rehearse` in parts: its profile is the paper's but for sizes, its files are read, its steps fail."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pangu_hif8.config import load_profile
from pangu_hif8.errors import UserError
from pangu_hif8.files import write_json
from pangu_hif8.paths import ROOT, prepared_dir

sys.path.insert(0, str(ROOT / "tools"))

import rehearse
from rehearsal import checks, items, profile, steps
from rehearsal.checkpoint import NUM_EMBEDDINGS, write_checkpoint
from rehearsal.jobs import Place
from rehearsal.text import write_texts

SIX = ["mmlu", "gsm8k", "minerva_math", "hellaswag", "arc_easy", "arc_challenge"]


def flat(values: Any, name: str = "") -> dict[str, Any]:
    """Settings by dotted name; a list's by number."""
    if isinstance(values, list):
        values = dict(enumerate(values))
    if not isinstance(values, dict):
        return {name: values}
    return {key: v for part, inner in values.items() for key, v in flat(inner, f"{name}.{part}").items()}


def test_the_profile_is_the_papers_but_for_sizes_and_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every setting of both, the defaults that neither file names included."""
    monkeypatch.setenv("PANGU_HIF8_PROFILES", str(profile.write_profile(tmp_path, tmp_path / "hub").parent))
    paper, ours = (flat(load_profile(name).model_dump()) for name in ("paper", "rehearsal"))
    assert set(paper) == set(ours)
    sizes = {f".{name}" for name in profile.SIZES}
    places = {f".{name}" for name in profile.places(tmp_path)}
    counts = {f".evaluation.tasks.{number}.num_items" for number in range(6)}
    texts = {".name", ".title", ".description"}
    assert {key for key in ours if ours[key] != paper[key]} == sizes | places | counts | texts
    assert all(ours[key] < paper[key] for key in sizes)
    assert all(str(ours[key]).startswith(str(tmp_path)) for key in places)


def test_it_is_derived_and_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper = load_profile("paper")
    other = paper.model_copy(update={"train": paper.train.model_copy(update={"compile": True})})
    monkeypatch.setattr(profile, "load_profile", lambda name: other)
    assert profile.derived(tmp_path)["train"]["compile"]
    assert [task["name"] for task in profile.derived(tmp_path)["evaluation"]["tasks"]] == SIX


def test_only_what_cant_be_scored_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(task: Any) -> None:
        if task.name == "minerva_math":
            raise UserError("minerva_math needs sympy")

    monkeypatch.setattr(profile, "check_hub_task", refuse)
    assert profile.unscorable() == {"minerva_math": "minerva_math needs sympy"}
    values = profile.derived(tmp_path, frozenset(profile.unscorable()))
    assert [task["name"] for task in values["evaluation"]["tasks"]] == [n for n in SIX if n != "minerva_math"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The rehearsal's files, with invented items, prepared by its profile."""
    made = Place(tmp_path_factory.mktemp("rehearsal"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PANGU_HIF8_CACHE", str(made.root / "empty"))  # no wheel with real items
        assert "invented items" in steps.files(made)
        assert "odd documents counted" in prepare_here(made, patch)
    return made


def prepare_here(made: Place, patch: pytest.MonkeyPatch) -> str:
    """The prepare step, in this process."""
    from pangu_hif8.prepare import prepare

    patch.setenv("PANGU_HIF8_CACHE", str(made.root / "cache"))
    patch.setenv("PANGU_HIF8_PROFILES", str(made.profiles))
    prepare("rehearsal")
    return checks.prepared(prepared_dir("rehearsal"), NUM_EMBEDDINGS)


def test_the_checkpoint_is_openpangus_in_small(place: Place) -> None:
    from transformers import AutoModelForCausalLM

    from pangu_hif8.config import QuantConfig
    from pangu_hif8.linear import converted_linears, prepare_qat

    folder = prepared_dir_of(place) / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert sum(p.numel() for p in model.parameters()) == int((place.root / "parameters").read_text())
    prepare_qat(model, QuantConfig(amax_compute_algo="max_window"), 3, 2)
    assert len(converted_linears(model)) == 63
    assert model.config.attention_bias and not model.config.mlp_bias


def prepared_dir_of(place: Place) -> Path:
    return place.root / "cache" / "prepared" / "rehearsal"


def test_the_tokenizer_puts_bos_in_front(place: Place) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(prepared_dir_of(place) / "model")
    assert tokenizer("What is 3 and 4?").input_ids[0] == tokenizer.bos_token_id == 1


def test_another_count_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "NUM_ITEMS", 5)
    with pytest.raises(UserError, match=r"has 3 items, not 5"):
        checks.prepared(prepared_dir_of(place), NUM_EMBEDDINGS)


def test_the_prepare_notebook_shows_these_shards(place: Place) -> None:
    """Their manifest has other keys than the laptop's."""
    import pandas as pd

    from pangu_hif8.files import read_json

    notebook = json.loads((ROOT / "notebooks" / "00_prepare.ipynb").read_text())
    (cell,) = [c for c in notebook["cells"] if "manifest.json" in "".join(c["source"])]
    names = {"pd": pd, "read_json": read_json, "profile": "rehearsal"}
    names["prepared_dir"] = lambda name: place.root / "cache" / "prepared" / name
    *lines, last = cell["source"]
    exec("".join(lines), names)
    assert list(eval(last, names).index) == ["heldout", "second_domain", "train"]


def test_a_wheels_items_are_real_and_the_shortest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [{"question": "q" * size, "answer": "#### 1"} for size in range(60, 0, -1)]
    sub = items.subtasks("gsm8k")[0]
    chosen, exemplars = items._real(sub, rows, tmp_path)
    assert [len(row["question"]) for row in chosen] == list(range(1, items.NUM_ITEMS + 1))
    assert len(exemplars) == items.NUM_EXEMPLARS
    assert not any(row in exemplars for row in chosen)


def test_odd_documents_are_among_the_text(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    write_texts(tmp_path)
    found = sorted(tmp_path.rglob("sample/10BT/*.parquet"))
    texts = [value.as_buffer().to_pybytes() for path in found for value in pq.read_table(path)["text"]]
    assert len(found) == 3
    assert b"" in texts and any(b"caf\xe9" in text for text in texts)
    assert max(map(len, texts)) > 5000


def test_a_checkpoint_is_never_written_over(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        write_checkpoint(tmp_path, ["text"])


def test_files_that_differ_are_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "steps.csv").write_text("1")
    checks.same_bytes(tmp_path / "a", tmp_path / "b", ("steps.csv",))
    (tmp_path / "b" / "steps.csv").write_text("2")
    with pytest.raises(UserError, match=r"steps\.csv of .* differ"):
        checks.same_bytes(tmp_path / "a", tmp_path / "b", ("steps.csv",))


def written_run(folder: Path, experiment: str, quantized: list[int], world: int = 2) -> Path:
    directory = folder / experiment / "seed0"
    write_json(directory / "run.json", {"world_size": world, "parallel": "ddp"})
    rows = "".join(f"{step},1.0,{flag}\n" for step, flag in enumerate(quantized, 1))
    (directory / "steps.csv").write_text("step,loss,quantized\n" + rows)
    return directory


def test_a_run_is_looked_at(tmp_path: Path) -> None:
    """E1 never quantizes, E5 from the first step, E8 after its warm-up."""
    for experiment, quantized in (("E1", [0, 0, 0]), ("E5", [1, 1, 1]), ("E8", [0, 0, 1])):
        checks.trained(written_run(tmp_path, experiment, quantized), 2, 3, 2)
        with pytest.raises(UserError, match="other steps than it should"):
            checks.trained(written_run(tmp_path, experiment, [0, 1, 1]), 2, 3, 2)
        with pytest.raises(UserError, match="was not trained by 2"):
            checks.trained(written_run(tmp_path, experiment, quantized, world=1), 2, 3, 2)
        with pytest.raises(UserError, match="not whole"):
            checks.trained(written_run(tmp_path, experiment, quantized), 2, 4, 2)


def test_no_folder_of_others_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis").touch()
    with pytest.raises(UserError, match="not empty and no rehearsal's"):
        rehearse.fresh(Place(tmp_path))
    assert (tmp_path / "thesis").exists()
    with pytest.raises(UserError, match="can't take a path with blanks"):
        rehearse.fresh(Place(tmp_path / "a b"))
    rehearse.fresh(Place(tmp_path / "new"))
    (tmp_path / "new" / "old").touch()
    rehearse.fresh(Place(tmp_path / "new"))
    assert [path.name for path in (tmp_path / "new").iterdir()] == [".rehearsal"]


def test_a_step_that_fails_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(place: Place) -> str:
        raise UserError("it does not hold")

    monkeypatch.setattr(
        rehearse, "STEPS_IN_ORDER", {"first": lambda place: "fine", "second": fail, "no": fail}
    )
    monkeypatch.setattr(sys, "argv", ["rehearse.py", str(tmp_path / "here")])
    assert rehearse.main() == 2
    out, err = capsys.readouterr()
    assert out.startswith("[ 1/3] first") and out.rstrip().endswith("fine") and len(out.splitlines()) == 1
    log = tmp_path / "here" / "rehearsal.log"
    assert err == f"error: rehearsal, step second: it does not hold (all words in {log})\n"
    assert not (tmp_path / "here" / "rehearsal.json").exists()


def test_a_second_call_asks_make_and_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(rehearse, "STEPS_IN_ORDER", {"one": lambda place: calls.append("one") or "fine"})
    monkeypatch.setattr(rehearse, "again", lambda place: calls.append("again") or "up to date")
    monkeypatch.setattr(sys, "argv", ["rehearse.py", str(tmp_path / "here")])
    assert [rehearse.main(), rehearse.main()] == [0, 0]
    assert calls == ["one", "again"]
    assert capsys.readouterr().out.splitlines()[-1].startswith("rehearsal: up to date; it took 0 s")
    monkeypatch.setattr(rehearse, "code_digest", lambda: "another version")
    assert rehearse.main() == 0 and calls == ["one", "again", "one"]


def test_the_code_digest_follows_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearse, "ROOT", tmp_path)
    (tmp_path / "pangu_hif8").mkdir()
    (tmp_path / "pangu_hif8" / "a.py").write_text("1")
    before = rehearse.code_digest()
    time.sleep(0.01)
    (tmp_path / "pangu_hif8" / "a.py").write_text("2")
    assert rehearse.code_digest() != before
