"""Checkpoints: written whole or not at all, every bit kept, and the right ones kept."""

from __future__ import annotations

import math
import os
import shutil

import pytest
import torch
from checkpoint_writers import parts_of, save
from disk_full import no_file_larger_than

from pangu_hif8 import stored_checkpoint
from pangu_hif8.checkpoints import checkpoints, latest, open_checkpoint, save_checkpoint
from pangu_hif8.errors import UserError


def steps(root) -> list[int]:
    return [checkpoint.step for checkpoint in checkpoints(root)]


def contents(root) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.fixture
def root(tmp_path):
    """Checkpoints of steps 10 and 20."""
    for step in (10, 20):
        save(tmp_path / "checkpoints", step)
    return tmp_path / "checkpoints"


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool]


def test_every_tensor_comes_back_bit_for_bit(tmp_path):
    torch.manual_seed(0)
    saved = {str(dtype): (torch.randn(5, 7) * 3).to(dtype) for dtype in DTYPES}
    saved |= {
        "nan": torch.tensor([math.nan, math.inf, -0.0]),
        "scalar": torch.tensor(7.5),
        "none": torch.ones(0, 3),
    }
    path = save_checkpoint(tmp_path, 1, {"all": saved, "empty": {}}, {})
    read = open_checkpoint(path).tensors("all")
    assert read.keys() == saved.keys() and open_checkpoint(path).tensors("empty") == {}
    for name, tensor in saved.items():
        assert read[name].dtype == tensor.dtype and read[name].shape == tensor.shape
        assert (
            read[name].view(torch.uint8).equal(tensor.view(torch.uint8))
            if tensor.ndim
            else read[name] == tensor
        )


def test_tied_transposed_sliced_and_trained_tensors_are_stored_by_value(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    views = {"base": base, "tied": base, "transposed": base.T, "row": base[1], "column": base[:, 2]}
    views |= {"expanded": base[:1].expand(5, 4), "parameter": torch.nn.Parameter(base), "empty": base[:0]}
    read = open_checkpoint(save_checkpoint(tmp_path, 1, {"model": views}, {})).tensors("model")
    assert all(torch.equal(read[name], tensor) for name, tensor in views.items())
    assert base.equal(torch.arange(12.0).reshape(3, 4))


def test_step_score_and_facts_come_back(tmp_path):
    facts = {"identity": {"lr": 0.1}, "text": "Überlauf", "deep": {"list": [1, None, 1e-300]}}
    found = open_checkpoint(save_checkpoint(tmp_path, 12, {"model": {}}, facts, score=1 / 3))
    assert (found.step, found.score, found.facts) == (12, 1 / 3, facts)
    assert found.path == tmp_path / "step-00000012"


@pytest.mark.parametrize("facts", [{"loss": math.nan}, {"x": torch.ones(1)}, {"x": {1, 2}}])
def test_facts_that_json_can_not_hold_are_refused_before_anything_is_written(tmp_path, facts):
    with pytest.raises((TypeError, ValueError)):
        save_checkpoint(tmp_path / "new", 1, parts_of(1), facts)
    assert not (tmp_path / "new").exists()


def test_the_size_does_not_depend_on_the_step(tmp_path):
    sizes = []
    for step in (10, 1000):
        path = save_checkpoint(tmp_path, step, parts_of(step), {"identity": {"lr": 0.1}})
        sizes.append({file.name: file.stat().st_size for file in path.iterdir()})
    assert sizes[1].pop("checkpoint.json") - sizes[0].pop("checkpoint.json") == len("1000") - len("10")
    assert sizes[0] == sizes[1] and set(sizes[0]) == {"model.safetensors", "scaling.safetensors"}


def scored(root, scores, **options) -> list[int]:
    for step, score in enumerate(scores, start=1):
        save_checkpoint(root, step, {"model": {}}, {}, score=score, **options)
    return steps(root)


@pytest.mark.parametrize(
    ("scores", "keep_last", "kept"),
    [
        ([None] * 5, 2, [5, 4]),
        ([None] * 3, 1, [3]),
        ([None] * 3, 9, [3, 2, 1]),
        ([3.0, 1.0, 2.0, 4.0, 5.0], 2, [5, 4, 2]),
        ([3.0, 1.0, 2.0, 4.0, 0.5], 2, [5, 4]),
        ([1.0, 1.0, 2.0, 3.0], 1, [4, 2]),  # of equal ones the newest
        ([-1.0, 0.0, None, None], 1, [4, 1]),
        ([2.0, math.nan, -math.inf, math.inf, None], 1, [5, 1]),
    ],
)
def test_the_last_few_and_the_best_are_kept(tmp_path, scores, keep_last, kept):
    assert scored(tmp_path, scores, keep_last=keep_last) == kept
    assert len(list(tmp_path.iterdir())) == len(kept)


@pytest.mark.parametrize(("step", "keep_last"), [(-1, 2), (1, 0), (1, -3)])
def test_arguments_that_make_no_sense_are_refused(tmp_path, step, keep_last):
    with pytest.raises(UserError, match="step >= 0 and keep_last >= 1"):
        save_checkpoint(tmp_path, step, {}, {}, keep_last=keep_last)


def test_the_same_step_is_replaced(root):
    save_checkpoint(root, 20, {"model": {"x": torch.ones(2)}}, {"attempt": 2})
    found = latest(root)
    assert found.facts == {"attempt": 2} and found.tensors("model")["x"].tolist() == [1, 1]
    assert steps(root) == [20, 10] and not (found.path / "scaling.safetensors").exists()


def test_later_steps_of_an_earlier_attempt_are_not_counted_and_not_touched(root):
    save(root, 15)
    assert steps(root) == [20, 15, 10]
    save(root, 16)
    assert steps(root) == [20, 16, 15]


def test_there_is_none_to_resume_from(tmp_path):
    assert latest(tmp_path) is None and latest(tmp_path / "absent") is None
    assert checkpoints(tmp_path / "absent") == []
    (tmp_path / "step-00000001").write_text("a file")
    (tmp_path / "step-1").mkdir()
    assert latest(tmp_path) is None


@pytest.mark.parametrize("step", [20, 30], ids=["replaced", "new"])
@pytest.mark.parametrize("limit", [100, 10_000, 18_000])
def test_a_full_disk_leaves_the_others_and_nothing_else(root, step, limit):
    """Within the model's file (16.6 kB) and, as the part that is full is larger, within another."""
    before, parts = contents(root), parts_of(step) | {"zero": {"x": torch.zeros(9000)}}
    with no_file_larger_than(limit), pytest.raises(UserError, match=f"cannot write .*{step}.*free space"):
        save_checkpoint(root, step, parts, {})
    assert contents(root) == before and latest(root).step == 20
    assert sorted(path.name for path in root.iterdir()) == ["step-00000010", "step-00000020"]


def test_a_disk_that_is_full_only_for_checkpoint_json(root):
    before = contents(root)
    with no_file_larger_than(1000), pytest.raises(UserError, match=r"cannot write .*checkpoint\.json"):
        save_checkpoint(root, 20, {"model": {"x": torch.ones(3)}}, {"long": "x" * 2000})
    assert contents(root) == before


def test_too_little_space_is_said_before_anything_is_written(root, monkeypatch):
    before, large = contents(root), {"model": {"x": torch.ones(1_000_000)}}
    usage = shutil.disk_usage(root)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=4_199_999))
    with pytest.raises(UserError, match=r"needs 4\.2 MB, 4\.2 MB are free; free some space"):
        save_checkpoint(root, 30, large, {})
    assert contents(root) == before
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=4_200_000))
    assert save_checkpoint(root, 30, large, {}).is_dir()


def test_a_root_that_can_not_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*step-00000001: .*Check permissions"):
        save_checkpoint(tmp_path / "file" / "checkpoints", 1, {}, {})


def test_what_others_keep_in_the_directory_stays(root):
    (root / "notes").mkdir()
    (root / ".hidden.tmp").write_text("mine")
    save(root, 30)
    assert {"notes", ".hidden.tmp"} <= {path.name for path in root.iterdir()}


def test_an_interrupt_while_writing_changes_nothing(root, monkeypatch):
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    before = contents(root)
    monkeypatch.setattr(stored_checkpoint, "save_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(root, 20)
    assert contents(root) == before


def test_all_that_a_power_cut_could_take_is_on_disk_before_save_returns(root, monkeypatch):
    synced, real = set(), os.fsync

    def fsync(handle: int) -> None:
        real(handle)
        synced.add(os.fstat(handle).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    path = save_checkpoint(root, 30, parts_of(30), {})
    assert {entry.stat().st_ino for entry in (root, path, *path.iterdir())} <= synced
