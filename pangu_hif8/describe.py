"""One run in sentences computed from its files, for its own notebook."""

from __future__ import annotations

from pathlib import Path

from pangu_hif8.comparisons import overshoot, taken_steps
from pangu_hif8.experiments import EXPERIMENTS
from pangu_hif8.results import quantized_rows
from pangu_hif8.run_checks import GRADIENT
from pangu_hif8.run_files import RunResult, open_run


def describe_run(run_dir: Path | str) -> str:
    """One run in sentences computed from its files. Raises UserError when they are not usable."""
    run = open_run(run_dir)
    title = EXPERIMENTS[run.experiment].title + (" with changed parameters" if run.config.custom else "")
    parts = [f"**{run.experiment} ({title}), seed {run.seed}.**", *_training_text(run), *_scaling_text(run)]
    scores = [
        f"{name} {100 * task['value']:.1f}% (± {100 * task['stderr']:.1f})"
        for name, task in run.summary["tasks"].items()
    ]
    heldout = run.summary["heldout"]
    parts.append(f"Accuracy: {', '.join(scores)}.")
    parts.append(
        f"Held-out loss: {heldout['same_domain']['loss']:.4f} nats on the same text, "
        f"{heldout['second_domain']['loss']:.4f} on the second domain."
    )
    return " ".join(parts)


def _training_text(run: RunResult) -> list[str]:
    if run.steps is None:
        return ["The checkpoint as it came, evaluated and not trained."]
    num, losses = max(1, len(run.steps) // 10), taken_steps(run.steps)["loss"]
    first, last = losses.head(num).mean(), losses.tail(num).mean()
    text = (
        f"In {len(run.steps)} steps of {run.info['tokens_per_step']} tokens the training loss went from "
        f"{first:.3f} to {last:.3f} nats (means of the first and last {num} steps)."
    )
    skipped = f"Skipped, because loss or gradient was not finite: {run.num_skipped} of the steps."
    return [text, skipped] if run.num_skipped else [text]


def _scaling_text(run: RunResult) -> list[str]:
    rows, info = quantized_rows(run), run.info
    if rows is None:
        return [] if run.steps is None else ["No layer was converted."]
    share = rows.groupby("kind")["saturated"].mean() * 100
    over = overshoot(rows[rows["kind"] != GRADIENT])
    text = (
        f"{info['num_converted_linears']} of {info['num_linears']} linear layers were converted to HiF8 and "
        f"quantized from step {info['quantized_from_step']}; {share['input']:.1f}% of input and "
        f"{share['weight']:.1f}% of weight (tensor, step) pairs exceeded their estimate"
    )
    parts = [text + (f", at most by a factor of {over.max():.2f}." if over.size else ".")]
    if GRADIENT in share:
        parts.append(f"Gradients were quantized as well: {share[GRADIENT]:.1f}% of their pairs did.")
    return parts
