"""A run that is stopped and resumed gives the bytes of one that never was, and nothing else is resumed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tiny_runs import NUM_STEPS, Crash, Job, execute, outputs, prepared_here

from pangu_hif8.checkpoints import checkpoints, open_checkpoint, save_checkpoint
from pangu_hif8.errors import Preempted, UserError
from pangu_hif8.files import read_json
from pangu_hif8.journal import read_journal

MICRO = {"micro_batch_size": 1}
JOBS = {
    "unquantized": Job("E1"),
    "most recent": Job("E2"),
    "smoothing": Job("E3"),
    "current": Job("E4", MICRO),
    "max window": Job("E5"),
    "warm-up": Job("E8", MICRO),
    "gradients": Job("E8", MICRO | {"gradients": True}),
    "gradients from the start": Job("E5", {"gradients": True}),
    "adaptive warm-up": Job(
        "E8", {"bf16_warmup_steps": 4, "adaptive_warmup_spread": 100.0, "amax_history_len": 2}
    ),
    "interval and margin": Job("E3", {"amax_update_interval": 2, "margin": -0.5}),
    "as published": Job(
        "E8",
        MICRO | {"history_unit": "micro_batch", "warmup_history": "emptied", "reduce_amax": False},
    ),
    "bfloat16 weights": Job("E5", {"weight_dtype": "bfloat16", "record_moved_share": True}),
    "recomputed": Job("E8", {"activation_checkpointing": True, "gradients": True}),
    "skipped step": Job("E8", MICRO, nan=(2, 4)),
}


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> None:
    prepared_here()


def changed(job: Job, **values) -> Job:
    return Job(**{**job.__dict__, **values})


def stopped(job: Job, directory: Path, step: int) -> None:
    """Run until SIGTERM in that step; its checkpoint is there afterwards."""
    with pytest.raises(Preempted) as notice:
        execute(changed(job, stop=step), directory)
    assert notice.value.step == step
    assert (directory / "progress" / f"step-{step:08d}").is_dir()


def crashed(job: Job, directory: Path, step: int, every: int = 1, keep: int = 9) -> None:
    saving = {"checkpoint_every": every, "keep_checkpoints": keep}
    with pytest.raises(Crash):
        execute(changed(job, crash=step, settings=job.settings | saving), directory)


@pytest.mark.parametrize("name", JOBS)
def test_stopped_after_every_step_and_resumed_each_time(name: str, tmp_path: Path) -> None:
    job, one, many = JOBS[name], tmp_path / "one", tmp_path / "many"
    execute(job, one)
    for step in range(1, NUM_STEPS):
        stopped(job, many, step)
    execute(job, many)
    assert outputs(many) == outputs(one)
    assert read_json(many / "run.json")["resumed_from"] == list(range(1, NUM_STEPS))
    assert sorted(path.name for path in many.iterdir()) == sorted(path.name for path in one.iterdir())


def test_the_jobs_above_are_what_they_are_called(tmp_path: Path) -> None:
    execute(JOBS["adaptive warm-up"], tmp_path / "adaptive")
    assert read_json(tmp_path / "adaptive" / "run.json")["quantized_from_step"] == 3
    execute(JOBS["skipped step"], tmp_path / "skipped")
    assert read_json(tmp_path / "skipped" / "run.json")["num_skipped_steps"] == 2
    rows = (tmp_path / "skipped" / "steps.csv").read_text().splitlines()
    assert [row.split(",")[5] for row in rows[1:]] == ["0", "1", "0", "1", "0"]


@pytest.mark.parametrize("step", range(1, NUM_STEPS))
def test_one_stop_before_at_and_after_the_switch(step: int, tmp_path: Path) -> None:
    job = Job("E8", MICRO | {"gradients": True}, nan=(1,))
    execute(job, tmp_path / "one")
    stopped(job, tmp_path / "many", step)
    execute(job, tmp_path / "many")
    assert outputs(tmp_path / "many") == outputs(tmp_path / "one")


@pytest.mark.parametrize("crash", range(2, NUM_STEPS + 1))
def test_a_crash_costs_the_steps_since_the_last_checkpoint_only(crash: int, tmp_path: Path) -> None:
    job = Job("E8")
    execute(job, tmp_path / "one")
    crashed(job, tmp_path / "many", crash, every=2, keep=1)
    execute(job, tmp_path / "many")
    assert outputs(tmp_path / "many") == outputs(tmp_path / "one")
    assert read_json(tmp_path / "many" / "run.json")["resumed_from"] == [(crash - 1) // 2 * 2][: crash > 2]


def test_skipped_steps_in_a_row_are_counted_across_a_stop(tmp_path: Path) -> None:
    job = Job("E8", nan=(2, 3, 4))
    stopped(job, tmp_path, 3)
    with pytest.raises(UserError, match=r"step 4: loss nan.* 3 steps in a row"):
        execute(job, tmp_path)


def test_an_earlier_checkpoint_by_its_path_drops_the_later_ones(tmp_path: Path) -> None:
    job, directory = Job("E8"), tmp_path / "many"
    execute(job, tmp_path / "one")
    crashed(job, directory, 5)
    stopped(changed(job, resume=str(directory / "progress" / "step-00000002")), directory, 3)
    assert [c.step for c in checkpoints(directory / "progress")] == [3, 2]
    execute(job, directory)
    assert outputs(directory) == outputs(tmp_path / "one")
    assert read_json(directory / "run.json")["resumed_from"] == [2, 3]


def test_a_checkpoint_from_elsewhere_brings_its_journal(tmp_path: Path) -> None:
    job, directory = Job("E8"), tmp_path / "many"
    execute(job, tmp_path / "one")
    crashed(job, directory, 4)
    shutil.move(directory / "progress", tmp_path / "backup")
    from_backup = changed(job, resume=str(tmp_path / "backup" / "step-00000002"))
    stopped(changed(job, resume="never"), directory, 1)
    stopped(from_backup, directory, 3)
    execute(job, directory)
    assert outputs(directory) == outputs(tmp_path / "one")
    (tmp_path / "backup" / "journal.jsonl").unlink()
    with pytest.raises(UserError, match=r"journal\.jsonl is missing, so steps 1 to 2 can't be resumed"):
        execute(from_backup, tmp_path / "third")
    assert not list((tmp_path / "third").iterdir())


@pytest.mark.parametrize("what", ["training code", "base model", "token shards", "library versions"])
def test_another_identity_is_refused_by_path_and_set_aside_by_auto(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job("E8")
    execute(job, tmp_path / "one")
    directory = tmp_path / "many"
    stopped(job, directory, 3)
    other = changed(job, identity={what: "another"})
    with pytest.raises(UserError, match=f'is of another run: {what} is "[0-9a-f]+" there, "another" here'):
        execute(changed(other, resume=str(directory / "progress" / "step-00000003")), directory)
    stopped(other, directory, 1)
    assert f"{what} is" in capsys.readouterr().out
    assert (directory / "progress.old" / "step-00000003").is_dir()
    execute(job, directory)  # its own settings are back: the attempt that was set aside goes on
    assert "resumed after step 3" in capsys.readouterr().out
    assert outputs(directory) == outputs(tmp_path / "one")
    assert not list(directory.glob("progress*"))


def test_other_settings_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped(Job("E8"), tmp_path, 3)
    other = Job("E8", {"lr": 3.0e-4, "amax_history_len": 7})
    with pytest.raises(UserError, match=r"lr 0\.0001 there, 0\.0003 here.*amax_history_len 64 there, 7 here"):
        execute(changed(other, resume=str(tmp_path / "progress" / "step-00000003")), tmp_path)
    execute(changed(other, nan=(1,)), tmp_path)
    out = capsys.readouterr().out
    assert "not resumed" in out and "lr 0.0001 there, 0.0003 here" in out and "starting over" in out
    assert read_json(tmp_path / "run.json")["resumed_from"] == []


def test_never_starts_over_and_a_start_without_a_checkpoint_displaces_nothing(tmp_path: Path) -> None:
    job = Job("E8")
    stopped(job, tmp_path, 3)
    crashing = changed(job, resume="never", crash=2)
    for _ in range(2):
        with pytest.raises(Crash):
            execute(crashing, tmp_path)
        assert not checkpoints(tmp_path / "progress")
        assert [c.step for c in checkpoints(tmp_path / "progress.old")] == [3]


def resaved(directory: Path, step: int, drop_part: str = "", drop_tensor: str = "") -> str:
    """Write a checkpoint again, sound in form, without a part or tensor; its path."""
    root = directory / "progress"
    found = open_checkpoint(root / f"step-{step:08d}")
    parts = {name.removesuffix(".safetensors"): load_file(found.path / name) for name in found.files}
    parts = {
        part: {name: t for name, t in tensors.items() if name != drop_tensor}
        for part, tensors in parts.items()
        if part != drop_part
    }
    return str(save_checkpoint(root, step, parts, found.facts))


@pytest.mark.parametrize(
    ("drop", "match"),
    [
        ({"drop_part": "scaling"}, "has no scaling state"),
        ({"drop_part": "optimizer"}, "has no optimizer state"),
        ({"drop_part": "rng"}, "has no rng state"),
        ({"drop_tensor": "history"}, "no scaling state 'history'"),
        ({"drop_tensor": "running"}, "no scaling state 'running'"),
        ({"drop_tensor": "model.norm.weight"}, "first model.norm.weight"),
        ({"drop_tensor": "model.norm.weight.exp_avg"}, "only part of AdamW's state for model.norm.weight"),
    ],
)
def test_a_checkpoint_without_a_part_of_the_state_is_refused(
    drop: dict[str, str], match: str, tmp_path: Path
) -> None:
    stopped(Job("E8"), tmp_path, 2)
    path = resaved(tmp_path, 2, **drop)
    for resume in (path, "auto"):
        with pytest.raises(UserError, match=match):
            execute(Job("E8", resume=resume), tmp_path)


@pytest.mark.parametrize("how", ["flipped", "truncated", "removed"])
def test_damage_is_refused_by_path_and_passed_over_by_auto(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, directory = Job("E8"), tmp_path / "many"
    execute(job, tmp_path / "one")
    crashed(job, directory, 5)
    damage(directory / "progress" / "step-00000004" / "optimizer.safetensors", how)
    with pytest.raises(UserError, match=r"optimizer\.safetensors"):
        execute(changed(job, resume=str(directory / "progress" / "step-00000004")), directory)
    execute(job, directory)
    assert "passed over the checkpoint of step 4" in capsys.readouterr().out
    assert read_json(directory / "run.json")["resumed_from"] == [3]
    assert outputs(directory) == outputs(tmp_path / "one")


def damage(file: Path, how: str) -> None:
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    if how == "removed":
        file.unlink()
    else:
        file.write_bytes(content if how == "flipped" else content[:-5])


def test_where_all_are_damaged_nothing_starts_over_unasked(tmp_path: Path) -> None:
    job = Job("E8")
    stopped(job, tmp_path, 2)
    damage(tmp_path / "progress" / "step-00000002" / "model.safetensors", "flipped")
    with pytest.raises(UserError, match=r"no checkpoint in .* is sound .*Remove .* to start anew"):
        execute(job, tmp_path)
    execute(changed(job, resume="never"), tmp_path)
    assert read_json(tmp_path / "run.json")["resumed_from"] == []


@pytest.mark.parametrize("path", ["nowhere", "", "progress"])
def test_a_path_that_is_no_checkpoint_is_refused(path: str, tmp_path: Path) -> None:
    stopped(Job("E8"), tmp_path, 2)
    match = "does not exist" if path == "nowhere" else "is no checkpoint"
    with pytest.raises(UserError, match=match):
        execute(Job("E8", resume=str(tmp_path / path)), tmp_path)
    assert not (tmp_path / "run.json").exists()


def test_a_journal_that_ends_before_the_checkpoint_is_refused(tmp_path: Path) -> None:
    stopped(Job("E8"), tmp_path, 3)
    journal = tmp_path / "progress" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:2]))
    for resume in ("auto", str(tmp_path / "progress" / "step-00000003")):
        with pytest.raises(UserError, match="ends at step 2, before step 3"):
            execute(Job("E8", resume=resume), tmp_path)
    assert (tmp_path / "progress" / "step-00000003").is_dir()


def test_a_checkpoint_does_not_grow_with_the_steps(tmp_path: Path) -> None:
    job = Job("E8", {"steps": 41, "amax_history_len": 16}, {"telemetry_every": 0})
    crashed(job, tmp_path, 41, every=10)
    early, late = (tmp_path / "progress" / f"step-{step:08d}" for step in (10, 40))
    sizes = [{f.name: f.stat().st_size for f in directory.iterdir()} for directory in (early, late)]
    facts = [size.pop("checkpoint.json") for size in sizes]
    assert sizes[0] == sizes[1] and len(sizes[0]) == 4
    assert abs(facts[0] - facts[1]) < 20  # the digits of the score


def test_the_best_checkpoint_is_kept_beside_the_last(tmp_path: Path) -> None:
    crashed(Job("E8", settings={"lr_scale": 1e-9}), tmp_path, 5, keep=1)
    kept = {c.step: c.score for c in checkpoints(tmp_path / "progress")}
    losses = [entry["loss"] for entry in read_journal(tmp_path / "progress" / "journal.jsonl")]
    best = min(range(1, 5), key=lambda step: losses[step - 1])
    assert kept.keys() == {4, best}
    assert all(score == losses[step - 1] for step, score in kept.items())
