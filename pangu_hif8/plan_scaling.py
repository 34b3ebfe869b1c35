"""How the paper's run grows with the model: the table of docs/scaling.md, so that no figure there is typed.

`python -m pangu_hif8.plan_scaling` prints it; a test compares it with the page.
"""

from __future__ import annotations

from collections.abc import Sequence

from pangu_hif8.plan import EXAMINED_NODES, Plan, experiment_hours, make_plan
from pangu_hif8.plan_hardware import GIB, Cluster, get_gpu
from pangu_hif8.plan_memory import FLOAT32, Parallel
from pangu_hif8.plan_time import quantizing_bytes
from pangu_hif8.plan_workload import Workload, load_workload

MODELS = ("openpangu-1b", "openpangu-7b", "llama-70b")
GPU, GPUS_A_NODE = "h100", 8


def scaling_plans() -> list[Plan]:
    """For each model, the paper's work on the fewest nodes that hold it: with DDP, or else with FSDP."""
    return [_smallest(load_workload("paper", name)) for name in MODELS]


def _smallest(work: Workload) -> Plan:
    kinds: tuple[Parallel, ...] = ("ddp", "fsdp")
    clusters = [Cluster(get_gpu(GPU), GPUS_A_NODE, nodes) for nodes in EXAMINED_NODES]
    plans = [make_plan(work, cluster, parallel=kind) for kind in kinds for cluster in clusters]
    return next((plan for plan in plans if plan.step_fits), plans[-1])


def scaling_table() -> str:
    """The Markdown table: one column a model."""
    plans = scaling_plans()
    rows = [[name, *map(cell, plans)] for name, cell in _ROWS]
    return "\n".join(_markdown(["", *(plan.workload.shape.name for plan in plans)], rows))


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _layout(plan: Plan) -> str:
    settings, nodes = plan.settings, plan.cluster.nodes
    extra = ", checkpointing" if settings.checkpointing else ""
    place = f"{nodes} node{'' if nodes == 1 else 's'}, {settings.parallel.upper()}"
    return f"{place}, micro-batch {settings.micro_batch}{extra}" + (
        "" if plan.step_fits else " (does not fit)"
    )


def _hours(plan: Plan) -> str:
    hours = next(row.hours for row in experiment_hours(plan) if row.experiment == "E6")
    return f"{hours.low:.1f} to {hours.high:.1f}"


def _states(plan: Plan) -> str:
    parts = ("weights, float32", "gradients, float32", "AdamW moments, float32")
    return f"{sum(plan.memory.parts[part] for part in parts) / GIB:.1f} GiB"


def _gathered(plan: Plan) -> str:
    parts = (size for part, size in plan.memory.parts.items() if part.startswith("FSDP"))
    return f"{sum(parts) / GIB:.1f} GiB" if plan.settings.is_sharded else "-"


def _gradient_bytes(plan: Plan) -> int:
    return FLOAT32 * plan.workload.shape.num_parameters


def _scale_bytes(plan: Plan) -> int:
    return FLOAT32 * plan.workload.shape.num_scales


_ROWS = (
    ("parameters", lambda p: f"{p.workload.shape.num_parameters / 1e9:.2f} billion"),
    ("FLOPs a token", lambda p: f"{p.workload.shape.train_flops_per_token(1024):.2e}"),
    ("fewest nodes of 8 H100 that hold a step", _layout),
    ("weights, gradients, AdamW a GPU", _states),
    ("worst moment a GPU", lambda p: f"{p.memory.total / GIB:.1f} GiB"),
    ("of it, FSDP's whole weights and gradients", _gathered),
    ("whole float32 model (start, evaluation)", lambda p: f"{p.whole_model / GIB:.1f} GiB"),
    ("BF16 run, hours there", _hours),
    ("HiF8's extra traffic a step and GPU", lambda p: f"{_traffic(p):,.0f} GB, {p.step.traffic:.2f} s"),
    ("computation of a step", lambda p: f"{p.step.compute.low:.1f} s"),
    ("exchange of a step (weights, gradients)", lambda p: f"{p.step.gradients:.2f} s"),
    ("gradients", lambda p: f"{_gradient_bytes(p) / 1e9:.1f} GB"),
    ("amaxes", lambda p: f"{p.workload.shape.num_scales} floats, {_scale_bytes(p):,} bytes"),
    ("amaxes in bytes of gradients", lambda p: f"1 in {_gradient_bytes(p) // _scale_bytes(p):,}"),
    ("checkpoint", lambda p: f"{3 * _gradient_bytes(p) / 1e9:,.0f} GB"),
)


def _traffic(plan: Plan) -> float:
    return quantizing_bytes(plan.workload.shape, plan.settings) / 1e9


if __name__ == "__main__":
    print(scaling_table())
