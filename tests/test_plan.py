"""`plan`: the layout that fits, disk and hours, the text, what is refused, and the docs page."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_layering import WITHOUT_TORCH
from test_plan_memory import SMALL, llama_config

from pangu_hif8.config import ModelConfig, TaskConfig
from pangu_hif8.errors import UserError
from pangu_hif8.experiments import EXPERIMENTS
from pangu_hif8.files import write_json
from pangu_hif8.paths import ROOT
from pangu_hif8.plan import (
    advice,
    checkpoint_bytes,
    experiment_hours,
    layouts,
    make_plan,
    shard_bytes,
    total_hours,
)
from pangu_hif8.plan_hardware import SMALL_ALL_REDUCE_S, Cluster, get_gpu
from pangu_hif8.plan_memory import MemorySettings
from pangu_hif8.plan_scaling import scaling_plans, scaling_table
from pangu_hif8.plan_shape import OPENPANGU_1B, ModelShape
from pangu_hif8.plan_text import plan_text
from pangu_hif8.plan_time import (
    PUBLISHED,
)
from pangu_hif8.plan_workload import eval_task, load_workload, shape_of

PAPER = load_workload("paper")
NODE = Cluster(get_gpu("h100"), 8)


def test_the_high_figure_on_h100_is_the_published_runs_time() -> None:
    """The same GPUs, the low MFU and the published ratio give back the published hours."""
    plan = make_plan(PAPER, NODE)
    e8 = next(row for row in experiment_hours(plan) if row.experiment == "E8")
    assert (e8.plain_steps, e8.quantized_steps) == (500, 9500)
    assert e8.hours.high == pytest.approx(PUBLISHED.run_hours, rel=0.03)


def test_tokens_and_disk() -> None:
    assert PAPER.tokens == 10_485_760_000
    assert shard_bytes(PAPER) == 4 * PAPER.tokens == 41_943_040_000
    sizes = checkpoint_bytes(PAPER)
    assert sizes["one"] == 12 * OPENPANGU_1B.num_parameters
    assert sizes["while a run trains"] == 4 * sizes["one"]
    assert sizes["eight finished runs"] == 8 * 4 * OPENPANGU_1B.num_parameters


def test_hours_add_up() -> None:
    plan = make_plan(PAPER, NODE)
    rows = experiment_hours(plan)
    assert [row.experiment for row in rows] == [name for name in EXPERIMENTS if name != "E0"]
    assert all(row.plain_steps + row.quantized_steps == PAPER.steps for row in rows)
    evaluations = 9 * plan.evaluation.low / 3600
    assert total_hours(plan).low == pytest.approx(sum(row.hours.low for row in rows) + evaluations)
    by_name = {row.experiment: row.hours for row in rows}
    assert by_name["E6"].low < by_name["E8"].low < by_name["E7"].low < by_name["E4"].low


def test_a_layout_is_chosen_that_fits() -> None:
    plan = make_plan(PAPER, NODE)
    assert plan.fits and plan.memory.total <= plan.usable
    assert (plan.settings.micro_batch, plan.settings.checkpointing) == (8, False)
    assert plan.settings.micro_batch * plan.settings.accumulation_steps * 8 == PAPER.batch_size
    given = make_plan(PAPER, NODE, micro_batch=16, checkpointing=False)
    assert not given.fits and given.settings.micro_batch == 16
    assert make_plan(PAPER, NODE, micro_batch=16).settings.checkpointing


def test_what_does_not_fit_is_told_what_to_change() -> None:
    small = make_plan(PAPER, Cluster(get_gpu("rtx-4090"), 8))
    assert not small.fits
    assert advice(small) == ["shard the parameters: fsdp on the same GPUs fits"]
    huge = make_plan(PAPER.with_shape("llama-70b"), Cluster(get_gpu("rtx-4090"), 8))
    assert advice(huge)[0].startswith("GPUs that hold the whole float32 model (262.8 GiB)")
    seven = make_plan(PAPER.with_shape("openpangu-7b"), Cluster(get_gpu("a100-40g"), 4))
    assert advice(seven) == ["shard the parameters over more GPUs: fsdp on 2 nodes fits"]
    long = make_plan(replace(PAPER, sequence_length=128 * 1024), NODE)
    assert advice(long) == ["GPUs with more memory: sharding over more of these is not enough"]
    assert advice(make_plan(PAPER, NODE)) == []


def test_micro_batches_divide_what_a_gpu_gets() -> None:
    work = replace(PAPER, batch_size=24 * 8, micro_batch=16)
    assert [s.micro_batch for s in layouts(work, NODE, checkpointing=True)] == [12, 8, 6, 4, 3, 2, 1]


def test_a_models_folder_is_read(tmp_path: Path) -> None:
    """openPangu's own config.json, whose `bias` is that of attention; high-precision blocks by number."""
    shape = replace(OPENPANGU_1B, num_blocks=6, num_first_hp_blocks=2, num_last_hp_blocks=0)
    values = llama_config(shape).to_dict() | {"bias": True}
    del values["attention_bias"]
    write_json(tmp_path / "config.json", values)
    found = shape_of(ModelConfig(source="hub", name=str(tmp_path), hp_blocks=[0, 5]))
    assert replace(found, name=shape.name, source=shape.source) == shape


@pytest.mark.parametrize("profile", ["smoke", "laptop", "paper"])
def test_profiles_can_be_planned(profile: str) -> None:
    work = load_workload(profile)
    text = plan_text(profile, gpus=1, gpu="h100")
    assert f"{work.shape.num_parameters:,} parameters" in text and "\nFits: " in text


def test_the_plans_text() -> None:
    text = plan_text("paper", gpus=8, gpu="h100", details=True)
    assert max(map(len, text.splitlines())) <= 100
    for part in (
        "1,155,912,192 parameters (tied embeddings)",
        "63 linears in 21 of 26 blocks quantized: 126 tensors, 105 scales",
        "10,485,760,000 tokens a run",
        "33.9% of this GPU's peak",
        "amax all-reduce: 105 floats, 420 bytes",
        "gate, silu(gate), up",
    ):
        assert part in text
    assert [line.split()[0] for line in text.splitlines() if re.match(r"  E\d", line)] == list(EXPERIMENTS)[
        1:
    ]
    assert "more than there is" in plan_text("paper", gpus=8, gpu="a100-80g")
    assert "DOES NOT FIT" in plan_text("paper", gpus=8, gpu="rtx-4090")
    assert "Between GPUs: nothing" in plan_text("paper", gpus=1, gpu="h200")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (dict(gpu="h1000"), "unknown GPU 'h1000'; valid: h100, h200"),
        (dict(gpus=0), "gpus must be a whole number from 1"),
        (dict(gpus=2.5), "gpus must be a whole number from 1"),
        (dict(nodes=-1), "nodes must be a whole number from 1"),
        (dict(gpus=7), "can't be shared equally by 7 GPUs"),
        (dict(nodes=1024), "can't be shared equally by 8192 GPUs"),
        (dict(micro_batch=3), "does not divide the global batch"),
        (dict(micro_batch=0), "micro_batch must be a whole number from 1"),
        (dict(parallel="tp"), "parallel is ddp or fsdp"),
        (dict(model="gpt-2"), "unknown model 'gpt-2'; valid: openpangu-1b"),
        (dict(profile="papers"), "unknown profile 'papers'; valid: laptop, paper, smoke"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any], says: str) -> None:
    values: dict[str, Any] = dict(profile="paper", gpus=8, gpu="h100") | changes
    with pytest.raises(UserError, match=re.escape(says)):
        plan_text(values.pop("profile"), **values)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (dict(hidden_size=0), "hidden_size must be a whole number"),
        (dict(num_key_value_heads=3), "not a multiple"),
        (dict(num_blocks=2), "leave none to quantize"),
    ],
)
def test_impossible_models_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        replace(SMALL, **changes)


def test_other_bad_input_is_refused() -> None:
    with pytest.raises(UserError, match="no hidden_size or num_attention_heads"):
        ModelShape.from_config("x", {"vocab_size": 3})
    with pytest.raises(UserError, match="steps must be a whole number"):
        replace(PAPER, steps=0)
    with pytest.raises(UserError, match="warmup_steps must lie between"):
        replace(PAPER, warmup_steps=10_000)
    with pytest.raises(UserError, match="does not know the size of task 'piqa'"):
        eval_task(TaskConfig(name="piqa", num_items=10, metric="acc"))
    with pytest.raises(UserError, match="does not know the size of task 'people'"):
        eval_task(TaskConfig(name="people", metric="acc"))
    with pytest.raises(UserError, match="does not know the size of model 'owner/other'"):
        shape_of(ModelConfig(source="hub", name="owner/other"))
    with pytest.raises(UserError, match="sequence_length must be a whole number"):
        MemorySettings(1, 0)


def test_the_docs_page_has_the_computed_table() -> None:
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    table = page.split("<!-- scaling:begin -->\n")[1].split("<!-- scaling:end -->")[0]
    assert table.strip() == scaling_table(), "put the output of `python -m pangu_hif8.plan_scaling` there"
    assert f"({SMALL_ALL_REDUCE_S['node'] * 1e6:.0f} us in a node, assumed)" in page


def test_what_the_docs_page_says_of_its_table() -> None:
    one, seven, seventy = scaling_plans()
    assert one.settings.parallel == "ddp" and seven.settings.parallel == "fsdp"
    assert (seven.cluster.nodes, seven.settings.checkpointing, seven.fits) == (1, False, True)
    assert (seventy.cluster.nodes, seventy.settings.parallel, seventy.settings.checkpointing) == (
        4,
        "fsdp",
        True,
    )
    assert seventy.step_fits and not seventy.fits and seventy.whole_model > seventy.cluster.gpu.memory
    assert seven.step.gradients > 0.5 * seven.step.compute.low
    assert seventy.step.gradients > 0.5 * seventy.step.compute.low


def test_no_torch_is_needed() -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, "pangu_hif8.plan_text"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
