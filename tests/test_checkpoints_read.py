"""Reading checkpoints: a damaged one is passed over, and whatever is not this run's is refused by name."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from checkpoint_writers import save

from pangu_hif8 import stored_checkpoint
from pangu_hif8.checkpoints import checkpoints, latest, open_checkpoint, refuse_other, save_checkpoint
from pangu_hif8.errors import UserError
from pangu_hif8.files import digest, write_json


def steps(root) -> list[int]:
    return [checkpoint.step for checkpoint in checkpoints(root)]


@pytest.fixture
def root(tmp_path):
    """Checkpoints of steps 10 and 20."""
    for step in (10, 20):
        save(tmp_path / "checkpoints", step)
    return tmp_path / "checkpoints"


def truncate(path):
    path.write_bytes(path.read_bytes()[:-2])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def put_another_in_place(path):
    path.write_bytes(b"{}")


DAMAGE = [truncate, flip_a_bit, put_another_in_place, os.truncate, os.unlink]
FILES = ["model.safetensors", "scaling.safetensors", "checkpoint.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_newest_is_passed_over_and_named(root, capsys, name, damage):
    path = root / "step-00000020" / name
    damage(path, 0) if damage is os.truncate else damage(path)
    assert latest(root).step == 10
    assert (steps(root) == [20, 10]) == (damage is flip_a_bit and name != "checkpoint.json")
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and "step 20" in out and str(path) in out
    with pytest.raises(UserError, match=name if path.exists() else "is missing|is no checkpoint"):
        open_checkpoint(path.parent)
    shutil.rmtree(root / "step-00000010")
    with pytest.raises(UserError, match=r"no checkpoint in .* is sound .*Remove"):
        latest(root)
    save(root, 20)  # writing that step again repairs it
    assert latest(root).tensors("model")["bias"].tolist() == [20, 20, 20]


def test_every_flipped_byte_of_checkpoint_json_is_found(root):
    path = root / "step-00000020" / "checkpoint.json"
    whole = path.read_bytes()
    for index in range(len(whole)):
        for change in (1, 0x80):
            path.write_bytes(whole[:index] + bytes([whole[index] ^ change]) + whole[index + 1 :])
            if json_equal(whole, path.read_bytes()):
                continue  # a space for another, say: it reads the same
            with pytest.raises(UserError, match=r"checkpoint\.json"):
                open_checkpoint(path.parent)


def json_equal(one: bytes, other: bytes) -> bool:
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


def test_a_renamed_checkpoint_does_not_pass_for_another_step(root, capsys):
    (root / "step-00000020").rename(root / "step-00000030")
    assert latest(root).step == 10 and "holds step 20" in capsys.readouterr().out
    assert open_checkpoint(root / "step-00000030").step == 20


def with_values(path, **changes):
    values = json.loads((path / "checkpoint.json").read_text()) | changes
    del values["facts_sha256"]
    write_json(path / "checkpoint.json", values | {"facts_sha256": digest(values)})


@pytest.mark.parametrize("version", [0, -1, None, "1", 1.0, True])
def test_a_version_that_never_was_is_damage(root, version, capsys):
    with_values(root / "step-00000020", version=version)
    assert latest(root).step == 10 and "states no version that exists" in capsys.readouterr().out


def test_a_newer_version_is_refused_not_passed_over(root):
    with_values(root / "step-00000020", version=stored_checkpoint.CHECKPOINT_VERSION + 1)
    for attempt in (lambda: latest(root), lambda: open_checkpoint(root / "step-00000020")):
        with pytest.raises(UserError, match="has version 2, this pangu_hif8 reads up to 1; update it"):
            attempt()


@pytest.mark.parametrize("text", ["[]", "null", '"x"', '{"format": "other"}', "{}", "", "\0\0", "[" * 10**5])
def test_foreign_json_is_refused(root, text):
    (root / "step-00000020" / "checkpoint.json").write_text(text)
    with pytest.raises(UserError, match=r"is missing, damaged or cut short|is not of a checkpoint"):
        open_checkpoint(root / "step-00000020")


def test_a_path_that_is_no_checkpoint_is_refused(root, tmp_path):
    for path, fault in [
        (tmp_path / "absent", "does not exist"),
        (root / "step-00000020" / "checkpoint.json", "is a file"),
        (tmp_path, "it has no checkpoint.json"),
        (root, "name one of those inside, such as step-00000020"),
    ]:
        with pytest.raises(UserError, match=fault):
            open_checkpoint(path)


def test_a_missing_part_is_named(tmp_path):
    checkpoint = open_checkpoint(save_checkpoint(tmp_path, 1, {"model": {}, "optimizer": {}}, {}))
    with pytest.raises(UserError, match=r"checkpoint has no scaling state: .*only model, optimizer"):
        checkpoint.tensors("scaling")


def test_contents_are_hashed_once_an_object_and_before_use(root, monkeypatch):
    hashed = []
    real = stored_checkpoint.sha256_file
    monkeypatch.setattr(stored_checkpoint, "sha256_file", lambda path: hashed.append(path.name) or real(path))
    listed, found = checkpoints(root)[0], latest(root)
    assert sorted(hashed) == ["model.safetensors", "scaling.safetensors"]
    found.tensors("model"), found.tensors("model"), found.verify()
    assert len(hashed) == 2
    flip_a_bit(root / "step-00000020" / "model.safetensors")
    with pytest.raises(UserError, match="sha256 differs"):
        listed.tensors("model")


IDENTITY = {"lr": 1e-4, "experiment": "E5", "seed": 0, "layers": [3, 4], "compile": False, "note": None}


def checkpoint_of(root, facts):
    return open_checkpoint(save_checkpoint(root, 1, {"model": {}}, facts))


def test_the_same_run_passes(tmp_path):
    checkpoint = checkpoint_of(tmp_path, {"identity": IDENTITY})
    refuse_other(checkpoint, IDENTITY)
    refuse_other(checkpoint, IDENTITY | {"layers": (3, 4)})


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"lr": 1e-5}, "another run: lr is 0.0001 there, 1e-05 here. Use"),
        ({"seed": False}, "seed is 0 there, false here"),
        ({"compile": None}, "compile is false there, null here"),
        ({"layers": [3]}, r"layers is \[3, 4\] there, \[3\] here"),
        ({"world_size": 2}, "world_size is absent there, 2 here"),
        (dict.fromkeys(IDENTITY, "x"), 'compile is false there, "x" here; .*; layers is .*; and 3 more. Use'),
    ],
)
def test_another_run_is_refused_with_what_differs(tmp_path, changes, fault):
    checkpoint = checkpoint_of(tmp_path, {"identity": IDENTITY})
    with pytest.raises(UserError, match=fault):
        refuse_other(checkpoint, IDENTITY | changes)


def test_a_setting_that_only_the_checkpoint_has_is_a_difference(tmp_path):
    checkpoint = checkpoint_of(tmp_path, {"identity": IDENTITY})
    with pytest.raises(UserError, match="note is null there, absent here"):
        refuse_other(checkpoint, {key: value for key, value in IDENTITY.items() if key != "note"})


def test_a_checkpoint_that_says_no_identity_is_refused(tmp_path):
    with pytest.raises(UserError, match="does not say which run"):
        refuse_other(checkpoint_of(tmp_path, {}), IDENTITY)
