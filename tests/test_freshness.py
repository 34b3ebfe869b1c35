"""Stamps: what makes a stage stale, and what does not."""

from __future__ import annotations

import os

import pytest

from pangu_hif8 import freshness
from pangu_hif8.errors import UserError
from pangu_hif8.files import atomic_path, read_json, write_json, write_text
from pangu_hif8.freshness import stale_reason, write_stamp


@pytest.fixture
def stage(tmp_path):
    """A finished stage with one small and one large output."""
    write_text(tmp_path / "steps.csv", "step,loss\n1,2.0\n")
    (tmp_path / "model.bin").write_bytes(b"x" * (freshness.ALWAYS_REHASH_BELOW + 1))
    inputs = {"lr": "a", "code": "b"}
    write_stamp(tmp_path / "s.stamp", inputs, [tmp_path / "steps.csv", tmp_path / "model.bin"])
    return tmp_path, inputs


def reason(stage, **changes):
    directory, inputs = stage
    return stale_reason(directory / "s.stamp", inputs | changes)


def test_fresh_and_not_made(stage, tmp_path):
    assert reason(stage) is None
    assert stale_reason(tmp_path / "none.stamp", {}) == "not made yet"


def test_changed_new_and_dropped_inputs_are_named(stage):
    assert reason(stage, lr="other") == "lr changed"
    assert reason(stage, extra="c") == "extra changed"
    assert stale_reason(stage[0] / "s.stamp", {"lr": "a"}) == "code changed"


@pytest.mark.parametrize("name", ["steps.csv", "model.bin"])
def test_missing_truncated_and_altered_outputs_are_found(stage, name):
    path = stage[0] / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert reason(stage) == f"{name} is damaged or changed"
    path.write_bytes(b"y" + whole[1:])
    assert reason(stage) == f"{name} is damaged or changed"
    path.unlink()
    assert reason(stage) == f"{name} is missing"


def test_a_touched_but_equal_file_is_fresh(stage):
    for name in ("steps.csv", "model.bin"):
        os.utime(stage[0] / name, (1, 1))
    assert reason(stage) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"inputs": 3, "outputs": {}}',
        '{"inputs": {"lr": "a", "code": "b"}, "outputs": {"steps.csv": {}}}',
    ],
)
def test_a_damaged_stamp_is_stale(stage, text):
    (stage[0] / "s.stamp").write_text(text)
    assert reason(stage) == "stamp is damaged"


def test_output_digest_follows_content(stage):
    directory, inputs = stage
    before = freshness.output_digest(directory / "s.stamp")
    write_stamp(directory / "s.stamp", inputs | {"lr": "z"}, [directory / "steps.csv"])
    assert freshness.output_digest(directory / "s.stamp") != before


def test_source_digest_follows_imports(tmp_path, monkeypatch):
    monkeypatch.setattr(freshness, "PACKAGE", tmp_path)
    (tmp_path / "a.py").write_text("from pangu_hif8.b import x\n")
    (tmp_path / "b.py").write_text("def f():\n    import pangu_hif8.c\n    from pangu_hif8 import d\n")
    for name in "cde":
        (tmp_path / f"{name}.py").write_text("")
    compute = freshness.source_digest.__wrapped__
    before = compute("a")
    (tmp_path / "e.py").write_text("changed = 1")
    assert compute("a") == before
    for name in "abcd":
        text = (tmp_path / f"{name}.py").read_text()
        (tmp_path / f"{name}.py").write_text(text + "\nx = 1\n")
        assert compute("a") != before
        (tmp_path / f"{name}.py").write_text(text)
    assert compute("a") == before


def test_train_code_covers_the_numerics_and_not_the_report():
    names = set(freshness._closure(("train_stage",)))
    assert {"hif8", "amax", "scaling", "fake_quantize", "linear", "train", "corpus"} <= names
    assert not names & {"plots", "report", "claims", "tables", "cli", "stages", "evaluate"}


def test_a_locked_directory_is_waited_for_then_refused(tmp_path):
    second = freshness.exclusive(tmp_path, "E5", timeout_s=0.1)
    message = "E5 is still being made by another process"
    with freshness.exclusive(tmp_path, "E5"), pytest.raises(UserError, match=message):
        second.__enter__()


def _fail_half_way(path):
    path.write_text("half")
    raise RuntimeError


def test_atomic_path_leaves_nothing_behind_on_failure(tmp_path):
    final = tmp_path / "deep" / "file.json"
    write_json(final, {"a": 1})
    with pytest.raises(RuntimeError), atomic_path(final) as temporary:
        _fail_half_way(temporary)
    assert read_json(final) == {"a": 1}
    assert [p.name for p in final.parent.iterdir()] == ["file.json"]


def test_unwritable_and_damaged_files_are_user_errors(tmp_path):
    (tmp_path / "file").write_text("{")
    with pytest.raises(UserError, match="cannot write"):
        write_text(tmp_path / "file" / "below.txt", "x")
    with pytest.raises(UserError, match="damaged"):
        read_json(tmp_path / "file")
    with pytest.raises(UserError, match="missing"):
        read_json(tmp_path / "nothing.json")
    locked = freshness.exclusive(tmp_path / "file" / "dir", "x")
    with pytest.raises(UserError, match="cannot write"):
        locked.__enter__()
