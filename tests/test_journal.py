"""The journal: every value back as it went in, and a resumed file equal to an uninterrupted one."""

from __future__ import annotations

import math
import os
import random
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest
from disk_full import no_file_larger_than

from pangu_hif8.errors import UserError
from pangu_hif8.journal import Journal, read_journal
from pangu_hif8.paths import ROOT


def entry(step: int) -> dict:
    return {"step": step, "loss": math.exp(-step / 7), "amax": [step / 3, 2.0**-step], "quantized": step > 2}


def written(path, num_steps: int):
    with Journal(path) as journal:
        for step in range(1, num_steps + 1):
            journal.append(entry(step))
    return path


@pytest.fixture
def path(tmp_path):
    """A journal of five steps."""
    return written(tmp_path / "run" / "journal.jsonl", 5)


def test_entries_come_back_in_order(path):
    assert read_journal(path) == [entry(step) for step in range(1, 6)]
    assert list(read_journal(path)[0]) == list(entry(1))


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def test_every_finite_float_comes_back_bit_for_bit(tmp_path):
    draw = random.Random(0)
    floats = [struct.unpack("<d", draw.randbytes(8))[0] for _ in range(20_000)]
    floats = [value for value in floats if math.isfinite(value)]
    floats += [0.0, -0.0, 5e-324, sys.float_info.max, sys.float_info.min, 0.1, 1 / 3, 1e16, 2.0**53]
    with Journal(tmp_path / "j") as journal:
        journal.append({"step": 1, "x": floats, "float64": np.float64(0.1)})
    back = read_journal(tmp_path / "j")[0]
    assert [bits(value) for value in back["x"]] == [bits(value) for value in floats]
    assert all(type(value) is float for value in back["x"]) and back["float64"] == 0.1


def test_nan_and_infinity_come_back_and_the_file_is_strict_json(tmp_path):
    values = {"step": 1, "loss": math.nan, "in": {"amax": [math.inf, -math.inf, 1.5]}, "none": None}
    with Journal(tmp_path / "j") as journal:
        journal.append(values)
    back = read_journal(tmp_path / "j")[0]
    assert math.isnan(back["loss"]) and back["in"] == values["in"] and back["none"] is None
    text = (tmp_path / "j").read_text()
    assert "NaN" not in text and "Infinity" not in text


def test_text_that_looks_like_a_number_or_a_line_end_stays_text(tmp_path):
    values = {"step": 1, "a": "nan", "b": "x\ny\u2028", "c": {}, "d": {"float": "inf"}}
    with Journal(tmp_path / "j") as journal:
        journal.append(values)
    assert read_journal(tmp_path / "j") == [values]


@pytest.mark.parametrize("bad", [{"$float": "nan"}, {1: 2}, {"deep": [{None: 1}]}])
def test_what_would_not_come_back_is_refused_and_leaves_no_trace(path, bad):
    before = path.read_bytes()
    with Journal.resume(path, 5) as journal:
        with pytest.raises(ValueError, match="key"):
            journal.append({"step": 6, "x": bad})
        assert path.read_bytes() == before
        journal.append(entry(6))
    assert len(read_journal(path)) == 6


@pytest.mark.parametrize("step", [5, 7, 0, 6.0, True, None])
def test_a_step_out_of_order_is_refused(path, step):
    with Journal.resume(path, 5) as journal, pytest.raises(ValueError, match="can't follow step 5"):
        journal.append({"step": step})


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("torn", [b"", b'{"step":6,"lo', b"\0" * 40])
def test_a_resumed_file_equals_an_uninterrupted_one(path, step, torn, tmp_path):
    path.write_bytes(path.read_bytes() + torn)
    with Journal.resume(path, step) as journal:
        assert path.read_bytes() == written(tmp_path / "kept", step).read_bytes()
        for following in range(step + 1, 9):
            journal.append(entry(following))
    assert path.read_bytes() == written(tmp_path / "whole", 8).read_bytes()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_resume_at_step_0_starts_anew_where_there_is_nothing(tmp_path):
    with Journal.resume(tmp_path / "new" / "j", 0) as journal:
        journal.append(entry(1))
    assert read_journal(tmp_path / "new" / "j") == [entry(1)]


LINES = [b'{"step":%d}\n' % step for step in range(1, 6)]


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([], "ends at step 0"),
        (LINES[:3], "ends at step 3, before step 4"),
        ([*LINES[:3], LINES[3][:-1]], "line 4 is damaged or cut short"),
        ([*LINES[:3], LINES[3][:6]], "line 4 is damaged or cut short"),
        ([*LINES[:1], *LINES[2:]], "line 2 has step 3"),
        ([*LINES[:2], *LINES[1:]], "line 3 has step 2"),
        ([*LINES, LINES[1]], "line 6 repeats a step"),
        ([*LINES[:1], b"\n", *LINES[2:]], "line 2 is damaged"),
        ([*LINES[:1], b'{"step":2.0}\n', *LINES[2:]], "line 2 is damaged"),
        ([*LINES[:1], b'{"step":2,"x":NaN}\n', *LINES[2:]], "line 2 is damaged"),
        ([*LINES[:1], b'{"step":2,"x":{"$float":[]}}\n', *LINES[2:]], "line 2 is damaged"),
        ([*LINES[:1], b"\xff\xfe\n", *LINES[2:]], "line 2 is damaged"),
        ([*LINES[:1], b"[" * 100_000 + b"\n", *LINES[2:]], "line 2 is damaged"),
    ],
)
def test_a_journal_that_lacks_a_step_is_refused_and_left_alone(tmp_path, lines, fault):
    path = tmp_path / "j"
    path.write_bytes(b"".join(lines))
    with pytest.raises(UserError, match=fault):
        Journal.resume(path, 4)
    assert path.read_bytes() == b"".join(lines) and list(tmp_path.iterdir()) == [path]


def test_a_damaged_line_after_the_step_does_not_matter(tmp_path):
    path = tmp_path / "j"
    path.write_bytes(b"".join(LINES[:2]) + b"\xff\n" + LINES[4])
    with Journal.resume(path, 2) as journal:
        journal.append({"step": 3})
    assert path.read_bytes() == b"".join(LINES[:3])


def test_a_missing_journal_is_refused(tmp_path):
    with pytest.raises(UserError, match="is missing, so steps 1 to 3"):
        Journal.resume(tmp_path / "j", 3)
    with pytest.raises(UserError, match="can't be read"):
        read_journal(tmp_path / "j")


def test_a_new_journal_never_takes_an_old_one(path, tmp_path):
    before = path.read_bytes()
    with pytest.raises(UserError, match="resume that run"):
        Journal(path)
    assert path.read_bytes() == before
    (tmp_path / "empty").touch()
    assert len(read_journal(written(tmp_path / "empty", 2))) == 2


def test_reading_stops_before_a_torn_line_and_refuses_a_damaged_one(path):
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert len(read_journal(path)) == 4
    path.write_bytes(whole.replace(b'{"step":3', b'{"step":,', 1))
    with pytest.raises(UserError, match="line 3 is damaged"):
        read_journal(path)


def test_a_full_disk_leaves_whole_lines_that_can_be_resumed(path):
    whole = path.read_bytes()
    journal = Journal.resume(path, 5)
    with no_file_larger_than(len(whole) + 10), pytest.raises(UserError, match="Check free space"):
        journal.append(entry(6))
    assert path.read_bytes() == whole
    journal.append(entry(6))  # there is room again
    journal.close()
    assert read_journal(path) == [entry(step) for step in range(1, 7)]


def test_a_half_line_that_can_not_be_taken_back_is_passed_over(path, monkeypatch):
    def fail(handle: int, size: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "ftruncate", fail)
    with Journal.resume(path, 5) as journal, no_file_larger_than(path.stat().st_size + 10):
        with pytest.raises(UserError, match="Check free space"):
            journal.append(entry(6))
    assert path.read_bytes()[-10:] == b'{"step":6,' and len(read_journal(path)) == 5


def test_sync_reaches_the_disk_and_names_its_failure(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with Journal.resume(path, 5) as journal:
        synced.clear()
        journal.sync()
        assert synced == [journal._file.fileno()]

        def fail(handle: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(UserError, match="No space left on device"):
            journal.sync()


WRITER = """
import sys
from pathlib import Path
from pangu_hif8.journal import Journal
with Journal(Path(sys.argv[1])) as journal:
    for step in range(1, 10**9):
        journal.append({"step": step, "x": [step / 3] * 50})
        if step == 20:
            print("running", flush=True)
"""


def test_a_killed_writer_loses_no_line_that_it_wrote(tmp_path):
    path = tmp_path / "j"
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"running\n"
        writer.send_signal(signal.SIGKILL)
    entries = read_journal(path)
    assert len(entries) >= 20 and entries[-1]["x"] == [len(entries) / 3] * 50
    with Journal.resume(path, 20) as journal:
        journal.append({"step": 21})
    assert len(read_journal(path)) == 21
