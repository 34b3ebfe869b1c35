"""A writer may be killed at any moment: the newest checkpoint that it had finished is still there."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import time

import pytest
import torch
from checkpoint_writers import EXIT_AT_EVENT, parts_of, save, save_and_die, save_until_killed

from pangu_hif8.checkpoints import checkpoints, latest


@pytest.fixture(scope="module")
def forked():
    """Children of a process that has imported all they need, and nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "checkpoint_writers"])
    return context


def assert_whole(checkpoint, size: int = 64) -> None:
    assert checkpoint.facts == {"step": checkpoint.step} and checkpoint.score == 1 / checkpoint.step
    for part, tensors in parts_of(checkpoint.step, size).items():
        read = checkpoint.tensors(part)
        assert read.keys() == tensors.keys()
        assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


def test_kill_at_random_moments_costs_no_finished_checkpoint(tmp_path, forked, capsys):
    draw, finished = random.Random(0), 0
    for _ in range(10):
        told, tells = forked.Pipe(duplex=False)
        writer = forked.Process(target=save_until_killed, args=(tmp_path, tells))
        writer.start()
        tells.close()
        assert told.recv() >= finished  # where the last one stopped
        time.sleep(draw.uniform(0.0, 0.2))
        writer.kill()
        writer.join()
        finished = max([finished, *iter_told(told)])
        found = latest(tmp_path)
        assert (found.step if found else 0) in (finished, finished + 1)
        if found:
            assert_whole(found, 256)
    assert finished > 10 and capsys.readouterr().out == ""  # nothing damaged was met


def iter_told(told):
    while True:
        try:
            yield told.recv()
        except EOFError:
            return


def names(root) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@pytest.mark.parametrize(("step", "after"), [(4, (3, 4)), (3, (2, 3))], ids=["new", "replaced"])
def test_death_before_every_single_change_to_the_disk(tmp_path, forked, capsys, step, after):
    """Steps 2 and 3 stand; step 4 comes, or 3 again. Whatever was reached, no step that stood is lost."""
    before, root, code, event = tmp_path / "before", tmp_path / "root", EXIT_AT_EVENT, 0
    for earlier in (2, 3):
        save(before, earlier)
    while code == EXIT_AT_EVENT:
        event += 1
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(before, root)
        writer = forked.Process(target=save_and_die, args=(root, step, event))
        writer.start()
        writer.join()
        code = writer.exitcode
        found = checkpoints(root)
        assert found[0].step in (3, step) and {3} <= {c.step for c in found}
        for checkpoint in found:
            assert_whole(checkpoint)
        assert latest(root).step == found[0].step
        save(root, step)  # the next attempt gets through, and clears away what was left
        assert names(root) == [f"step-{kept:08d}" for kept in after]
    assert code == 0 and event > 20 and capsys.readouterr().out == ""
