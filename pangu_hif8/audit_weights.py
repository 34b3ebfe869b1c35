"""A2: weights stored and updated in bfloat16, without float32 master copies."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pangu_hif8.audit_parts import Pair, across, not_there, outcome_rows, rate_of, reasons, there, with_prefix
from pangu_hif8.comparisons import ape_interval, compare_accuracy, compare_heldout
from pangu_hif8.errors import UserError
from pangu_hif8.page_facts import Facts
from pangu_hif8.page_plots import GREY, PALETTE, Dot, draw_dots
from pangu_hif8.plot_style import legend_below, new_figure, style
from pangu_hif8.results import ProfileResults
from pangu_hif8.run import directory_of
from pangu_hif8.run_files import RunResult
from pangu_hif8.sections import Section
from pangu_hif8.variant_runs import machine_of

SAYS = "BF16 training; the low learning rate forgets less."
DOES = (
    "It keeps the weights in bfloat16 and has no float32 master copies: an AdamW step that is smaller than "
    "half of a weight's last place is rounded away, and at the low learning rate most are."
)


def build_weights(results: ProfileResults) -> Section:
    """The share of weights that a step moves at all, and what follows for forgetting."""
    title = "bfloat16 weights without master copies: does a step move anything?"
    names = [v.id for v in with_prefix(results, "A2-")]
    found = [name for name in names if results.of(name)]
    if not found:
        return Section("A2", title, SAYS, DOES, missing=reasons(results, names))
    facts = Facts()
    moved = _moved_text(results, facts, found)
    parts = [moved, _forgetting(results, facts), *_same_settings(results, facts)]
    against = [(name, name.replace("bfloat16", "float32")) for name in found if name.endswith("bfloat16")]
    pairs = there(results, [*((name, "E0") for name in found), *against])
    return Section(
        id="A2",
        title=title,
        says=SAYS,
        does=DOES,
        measured=" ".join(part for part in parts if part)
        + across(results, pairs)
        + not_there(results, names),
        numbers=facts.numbers,
        table=_table(results, pairs),
        figure=_figure(results, found),
        finding=moved.removesuffix(_LATE),
    )


def moved_shares(run: RunResult) -> pd.Series:
    """Share of the matrices' elements that a step moved, by sampled step, 0 to 1."""
    path = directory_of(run.config) / "steps.csv"
    table = pd.read_csv(path)
    if "moved_share" not in table:
        raise UserError(f"{path} has no column moved_share; run the experiment again")
    return table.set_index("step")["moved_share"].dropna()


def _moved(results: ProfileResults, name: str) -> pd.Series:
    """Mean over seeds, in percent."""
    return pd.concat([moved_shares(run) for run in results.of(name)]).groupby(level=0).mean() * 100


def _moved_text(results: ProfileResults, facts: Facts, names: list[str]) -> str:
    parts = []
    for name in names:
        moved = _moved(results, name)
        if len(moved):
            first = facts.value(f"{name}_moved_first_pct", float(moved.iloc[0]), ".3g", "%")
            last = facts.value(f"{name}_moved_last_pct", float(moved.iloc[-1]), ".3g", "%")
            steps = [facts.value(f"{name}_moved_{end}_step", int(moved.index[i]), "d") for end, i in _ENDS]
            parts.append(f"{_words(results, name)}: {first} in step {steps[0]}, {last} in step {steps[1]}")
    text = "; ".join(parts)
    return f"Elements of the weight matrices that a step moves at all: {text}.{_LATE}" if parts else ""


_LATE = " The learning rate falls to zero, and the last step's is the smallest."


_ENDS = (("first", 0), ("last", -1))


def _words(results: ProfileResults, name: str) -> str:
    return f"{name.rsplit('-', 1)[1]}, {rate_of(results, name.split('-')[1])}"


def _forgetting(results: ProfileResults, facts: Facts) -> str:
    parts = []
    for base in ("E1", "E6"):
        pair = (f"A2-{base}-bfloat16", f"A2-{base}-float32")
        if results.pairs(*pair):
            loss = facts.nats(f"{pair[0]}_heldout", compare_heldout(results, *pair, "second_domain"))
            score = facts.points(f"{pair[0]}_accuracy", compare_accuracy(results, *pair).difference)
            parts.append(f"{rate_of(results, base)}: {score} and {loss}")
    text = "bfloat16 minus float32, in accuracy and in the second domain's loss, at "
    return f"{text}{'; at '.join(parts)}." if parts else ""


def _same_settings(results: ProfileResults, facts: Facts) -> list[str]:
    """What two runs of the same settings differ by: nothing on one processor."""
    pairs = there(results, [(f"A2-{base}-float32", base) for base in ("E1", "E6")])
    return [_repeated(results, facts, *pair) for pair in pairs]


def _repeated(results: ProfileResults, facts: Facts, name: str, base: str) -> str:
    first, second = (machine_of(results.of(run)[0]) for run in (name, base))
    facts.numbers |= {f"{name}_machine": first, f"{base}_machine": second}
    where = f"two processors ({second}; {first})" if first != second else "one processor"
    if _are_identical(results, name, base):
        return (
            f"{name} repeats {base}'s settings on {where}, with the same losses and answers to the last bit."
        )
    ape = facts.percent(f"{name}_ape", ape_interval(results, name, base, quantized=False), 4)
    loss = facts.nats(f"{name}_repeated_heldout", compare_heldout(results, name, base, "same_domain"))
    score = facts.points(f"{name}_repeated_accuracy", compare_accuracy(results, name, base).difference)
    return (
        f"{name} repeats {base}'s settings on {where}: the training losses differ by {ape} (APE), held-out "
        f"loss by {loss}, accuracy by {score}."
    )


def _are_identical(results: ProfileResults, name: str, base: str) -> bool:
    for run, other in results.pairs(name, base):
        assert run.steps is not None and other.steps is not None
        if not (run.steps.equals(other.steps) and run.heldout.equals(other.heldout)):
            return False
        if not run.items.equals(other.items):
            return False
    return True


def _table(results: ProfileResults, pairs: list[Pair]) -> pd.DataFrame:
    rows = outcome_rows(results, pairs)
    for row in rows:
        moved = _moved(results, str(row["run"])) if row["minus"] == "E0" else pd.Series(dtype=float)
        row |= {f"moved_step_{step}_pct": share for step, share in moved.items()}
    return pd.DataFrame(rows)


def _figure(results: ProfileResults, names: list[str]) -> Figure:
    with style():
        figure, axes = new_figure(1, 2, 3.4, width_ratios=[1, 1])
        for name in names:
            _line(axes[0][0], results, name)
        axes[0][0].set(xlabel="optimizer step", ylabel="elements moved by a step (%)", yscale="log")
        axes[0][0].set_title("Weights that move")
        axes[0][0].yaxis.set_major_formatter("{x:g}")
        pairs = there(results, [(name, "E0") for name in names])
        dots = [
            Dot(
                _words(results, name), compare_heldout(results, name, "E0", "second_domain"), *_look(name)[:2]
            )
            for name, _ in pairs
        ]
        draw_dots(axes[0][1], dots)
        axes[0][1].set(title="Second domain", xlabel="loss minus E0's (nats)")
        legend_below(figure, axes[0][0], columns=2)
        figure.suptitle("Weights in bfloat16 (blue) and in float32 (grey)")
    return figure


def _look(name: str) -> tuple[Any, str, str]:
    """Colour by type; marker and line by learning rate."""
    color = PALETTE[0] if name.endswith("bfloat16") else GREY
    return (color, "o", "-") if "-E1-" in name else (color, "s", "--")


def _line(axes: Axes, results: ProfileResults, name: str) -> None:
    moved = _moved(results, name)
    color, marker, line = _look(name)
    look: dict[str, Any] = {"color": color, "marker": marker, "ls": line, "ms": 4.5}
    axes.plot(moved.index, moved, label=_words(results, name), **look)
