"""Dot plots of what training and quantization left: accuracy, answers, held-out loss, loss error.

A dot has its 95% interval; of several seeds that is the hull over rows and over seeds (comparisons.py), and a
small tick under it is one seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pangu_hif8 import paper
from pangu_hif8.comparisons import (
    Accuracy,
    accuracy_interval,
    compare_accuracy,
    compare_answer_nll,
    compare_heldout,
    loss_pairs,
    quantized_pairs,
)
from pangu_hif8.late_ape import common_start, late_ape
from pangu_hif8.metrics import Interval
from pangu_hif8.plot_style import dots_with_intervals, legend_below, new_figure, style
from pangu_hif8.results import ProfileResults
from pangu_hif8.run_checks import DOMAINS

TASK_TEXT = {
    "mmlu": "MMLU",
    "mmlu_continuation": "MMLU (continuation)",
    "hellaswag": "HellaSwag",
    "arc_easy": "ARC-Easy",
    "arc_challenge": "ARC-Challenge",
    "people": "Questions about people",
}
DOMAIN_TITLE = {"same_domain": "Same text as training", "second_domain": "Second domain"}


def plot_benchmarks(results: ProfileResults) -> Figure | None:
    """Accuracy of every experiment on every benchmark, with 95% intervals."""
    names = results.experiments()
    if not names:
        return None
    tasks = [task.name for task in results.settings.evaluation.tasks]
    with style():
        figure, axes = _task_panels(len(tasks), len(names))
        for panel, task in zip(axes.flat, tasks, strict=False):
            dots_with_intervals(panel, names, [accuracy_interval(results, name, task) for name in names])
            panel.set(title=TASK_TEXT.get(task, task), xlabel="accuracy (%)")
        _hide_rest(axes, len(tasks))
        figure.suptitle("Benchmark accuracy, with 95% intervals")
    return figure


def _task_panels(num: int, num_rows: int) -> tuple[Figure, Any]:
    columns = min(num, 2)
    rows = -(-num // columns)
    return new_figure(rows, columns, rows * (0.21 * num_rows + 0.75) + 0.4, sharey=True)


def _hide_rest(axes: Any, used: int) -> None:
    for panel in list(axes.flat)[used:]:
        panel.set_visible(False)


def plot_drops(results: ProfileResults) -> Figure | None:
    """Accuracy drop relative to the matched baseline, ours with 95% intervals and the paper's beside it."""
    pairs = quantized_pairs(results)
    if not pairs:
        return None
    tasks = [task.name for task in results.settings.evaluation.tasks]
    with style():
        figure, axes = _task_panels(len(tasks), len(pairs) + 1)
        for panel, task in zip(axes.flat, tasks, strict=False):
            _drop_panel(panel, results, pairs, task)
            panel.set(title=TASK_TEXT.get(task, task), xlabel="relative drop (%)")
        _hide_rest(axes, len(tasks))
        if any(panel.get_legend_handles_labels()[1] for panel in axes.flat):
            legend_below(figure, axes.flat)
        figure.suptitle("Accuracy drop against the matched baseline, 95% intervals (right is worse)")
    return figure


def _drop_panel(axes: Axes, results: ProfileResults, pairs: list[tuple[str, str]], task: str) -> None:
    found = [_relative_drop(compare_accuracy(results, *pair, [task])) for pair in pairs]
    dots_with_intervals(axes, [name for name, _ in pairs], found)
    published = [(row, paper.drop_pct(*pair, task)) for row, pair in enumerate(pairs)]
    shown = [(row + 0.28, value) for row, value in published if value is not None]
    if shown:
        axes.plot([], [], "o-", color="0.4", label="here")
        rows, values = zip(*shown, strict=True)
        look: dict[str, Any] = {"marker": "^", "s": 28, "facecolor": "white", "edgecolor": "black"}
        axes.scatter(values, rows, zorder=3, label="the paper's", **look)
    axes.axvline(0, color="0.3", lw=0.8)


def _relative_drop(found: Accuracy) -> Interval:
    """The difference in percent of the baseline, a loss above 0."""
    scale = 100 / found.baseline if found.baseline > 0 else float("nan")
    d = found.difference
    by_seed = tuple(-value * scale for value in d.by_seed)
    return Interval(-d.value * scale, -d.high * scale, -d.low * scale, by_seed=by_seed)


def plot_heldout(results: ProfileResults) -> Figure | None:
    """Held-out loss of every trained run minus the untouched checkpoint's, on both domains."""
    panels: list[Panel] = [
        (DOMAIN_TITLE[domain], "loss minus E0's (nats)", _heldout(results, domain)) for domain in DOMAINS
    ]
    return _against_e0(results, panels, "Held-out loss against the untouched checkpoint (right is worse)")


Panel = tuple[str, str, Callable[[str], Interval]]


def _heldout(results: ProfileResults, domain: str) -> Callable[[str], Interval]:
    return lambda name: compare_heldout(results, name, "E0", domain)


def _against_e0(results: ProfileResults, panels: list[Panel], title: str) -> Figure | None:
    names = [name for name in results.experiments() if name != "E0" and results.pairs(name, "E0")]
    if not names:
        return None
    with style():
        figure, axes = new_figure(1, 2, 0.24 * len(names) + 1.4, sharey=True)
        for panel, (heading, xlabel, measure) in zip(axes[0], panels, strict=True):
            dots_with_intervals(panel, names, [measure(name) for name in names])
            panel.axvline(0, color="0.3", lw=0.8)
            panel.set(title=heading, xlabel=xlabel)
        figure.suptitle(title)
    return figure


def plot_answer_nll(results: ProfileResults) -> Figure | None:
    """The true answers' negative log-likelihood over all items: against E0, and against the baseline."""
    names = [name for name in results.experiments() if name != "E0" and results.pairs(name, "E0")]
    panels = {"Minus the untouched E0": [(name, "E0") for name in names]}
    panels |= {"Minus the baseline": quantized_pairs(results)}
    panels = {title: pairs for title, pairs in panels.items() if pairs}
    if not panels:
        return None
    with style():
        figure, axes = new_figure(1, len(panels), 0.24 * max(map(len, panels.values())) + 1.4)
        for panel, (title, pairs) in zip(axes[0], panels.items(), strict=True):
            found = [compare_answer_nll(results, *pair) for pair in pairs]
            dots_with_intervals(panel, [name for name, _ in pairs], found)
            panel.axvline(0, color="0.3", lw=0.8)
            panel.set(title=title, xlabel="nats per item")
        _short_labels(axes[0][1:])
        figure.suptitle("Negative log-likelihood of the true answers (right is worse)")
    return figure


def _short_labels(panels: Any) -> None:
    """The right panel's rows differ from the left's: its ids stand at it, the names only on the left."""
    for panel in panels:
        names = [text.get_text().split()[0] for text in panel.get_yticklabels()]
        panel.set_yticks(panel.get_yticks(), names)


def plot_late_ape(results: ProfileResults) -> Figure | None:
    """Mean APE by estimator over the steps that all quantized runs quantize."""
    found = {n: i for n, baseline in loss_pairs(results) if (i := late_ape(results, n, baseline))}
    if not found:
        return None
    with style():
        figure, axes = new_figure(1, 1, 0.24 * len(found) + 1.5)
        panel = axes[0][0]
        dots_with_intervals(panel, list(found), list(found.values()))
        panel.axvline(paper.ape_pct(True), color="black", ls=":", lw=1.2, label="the paper's E8")
        panel.set(xlabel=f"mean APE (%), steps from {common_start(results)} on", xlim=(0, None))
        legend_below(figure, panel)
        figure.suptitle("Training loss error by estimator after the warm-up, 95% intervals")
    return figure
