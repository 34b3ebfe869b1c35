"""The memory part of a plan as text: every variant's parts, whether it fits, what each block keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pangu_hif8.plan import Plan, advice
from pangu_hif8.plan_hardware import GIB
from pangu_hif8.plan_memory import USABLE_SHARE, MemorySettings, saved_by_block
from pangu_hif8.plan_moments import Memory, training_memory


def gib(num_bytes: float) -> str:
    """Bytes as GiB with one digit."""
    return f"{num_bytes / GIB:.1f}"


def table(rows: Iterable[Iterable[object]]) -> list[str]:
    """Rows aligned in columns, the first to the left and the others to the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = []
    for first, *rest in texts:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  " + "  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return lines


def _variants(settings: MemorySettings) -> dict[str, MemorySettings]:
    full, saved = replace(settings, checkpointing=False), replace(settings, checkpointing=True)
    return {
        "BF16": replace(full, quantized=False),
        "BF16, ckpt": replace(saved, quantized=False),
        "HiF8": full,
        "HiF8, ckpt": saved,
        "HiF8, 8-bit saved": replace(full, save_codes=True),
    }


def memory_lines(plan: Plan) -> Iterator[str]:
    """The parts of one GPU's memory by variant, and the verdict."""
    settings = plan.settings
    variants = _variants(settings)
    found = {name: training_memory(plan.workload.shape, s) for name, s in variants.items()}
    yield (
        f"Memory of one GPU at its worst moment, GiB: micro-batch {settings.micro_batch}, "
        f"{settings.accumulation_steps} accumulation steps, {settings.precision} autocast"
    )
    yield from table(_memory_rows(found, plan.usable))
    yield "  ckpt: activation checkpointing. 8-bit saved: inputs kept as codes (--inputs-as-codes)."
    yield (
        f"  Usable: {gib(plan.usable)} of the {plan.cluster.gpu.memory_gib} GiB that torch reports "
        f"({USABLE_SHARE:.0%}, assumed: context, collectives' buffers, fragmentation)"
    )
    yield from _verdict(plan)


def _memory_rows(found: dict[str, Memory], usable: float) -> Iterator[list[str]]:
    yield ["", *found]
    for part in dict.fromkeys(part for memory in found.values() for part in memory.parts):
        yield [part, *(gib(m.parts[part]) if part in m.parts else "-" for m in found.values())]
    yield ["in all", *(gib(m.total) for m in found.values())]
    yield ["fits", *("yes" if m.total <= usable else "NO" for m in found.values())]


def _verdict(plan: Plan) -> Iterator[str]:
    settings, work = plan.settings, plan.workload
    kind = "with" if settings.checkpointing else "without"
    layout = f"micro-batch {settings.micro_batch} {kind} activation checkpointing"
    if not plan.fits:
        lacking = max(plan.memory.total, plan.whole_model) - plan.usable
        yield f"DOES NOT FIT: {layout} lacks {gib(lacking)} GiB. Change:"
        yield from (f"  - {line}" for line in advice(plan))
        return
    yield f"Fits: {layout}, {gib(plan.memory.total)} GiB (worst moment: {plan.memory.moment})"
    if settings.micro_batch < work.micro_batch:
        yield f"  The profile's micro-batch is {work.micro_batch}; a smaller one changes nothing but rounding"


def saved_lines(plan: Plan) -> Iterator[str]:
    """What autograd keeps of one block, tensor by tensor."""
    yield "Saved for the backward pass by one block, bytes a token"
    shape, codes = plan.workload.shape, replace(plan.settings, save_codes=True)
    kinds = (
        saved_by_block(shape, plan.settings, quantized=False),
        saved_by_block(shape, plan.settings, quantized=True),
        saved_by_block(shape, codes, quantized=True),
    )
    rows = [["", "BF16", "HiF8", "HiF8, 8-bit saved"]]
    rows += [[name, *(f"{kind[name]:,.0f}" for kind in kinds)] for name in kinds[0]]
    rows += [["in all", *(f"{sum(kind.values()):,.0f}" for kind in kinds)]]
    yield from table(rows)
