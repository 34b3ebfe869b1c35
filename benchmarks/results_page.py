"""One page of all that the benchmarks have measured: results.md and ratios.png, from their tables.

python benchmarks/results_page.py [--out DIRECTORY]    # reads the CSVs there; measures nothing
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from asked import HERE, add_out, run_main
from block_table import CODES_SHARE, EVAL, PLAIN
from matplotlib.figure import Figure
from speed_goals import GOALS as FORMAT_GOALS
from speed_goals import MEMORY, read_medians
from step_table import CODES, INTERVAL
from threads import table_lines

from pangu_hif8.errors import UserError
from pangu_hif8.files import write_text
from pangu_hif8.page_plots import PALETTE
from pangu_hif8.plot_style import legend_below, new_figure, save_figure, style

PLACES = {
    "smoke": "smoke model",
    "laptop": "laptop model",
    "block": "block of the paper's shape",
    "gpu": "GPU",
}
WITHIN = ", within noise"
# Why what missed its goal did, by place or by step; the numbers are the tables' business.
REASONS = {
    "smoke": "in a model of half a million parameters a matrix product takes about as long as the look-ups "
    "of its operands, a good part of both being Python and launches of ops",
    EVAL: "the activations' look-ups are left, which an evaluation has to make as training does",
    CODES: "a look-up of the input to codes in the forward pass, and one back in backward",
}


ABOUT = (
    "Made by `make bench` from the tables beside it, which name machine and versions. Ratios are medians "
    f"within a round. {INTERVAL} [README](README.md) says how to read them."
)
RATIOS = "![Ratios with intervals and goals](ratios.png)"
FORMAT = "Why the format's own goals are missed: [README](README.md#measured-format_speedmd-format_speedcsv)."
NO_GPU = "Nothing has been measured on a GPU yet: `make bench-gpu` does it there, in about 10 minutes."


@dataclass(frozen=True)
class Row:
    """A ratio that has a goal, with its interval, as a table's line has it."""

    place: str
    what: str
    than: str
    ratio: float
    low: float
    high: float
    goal: float
    reached: str


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What a damaged table leads to in here becomes a UserError that names it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, csv.Error) as error:
        known = "git checkout has the committed one" if path.parent == HERE else "remove it"
        raise UserError(
            f"{path} is damaged ({type(error).__name__}: {error}); {known}, or measure it again"
        ) from error


def read(path: Path) -> list[dict[str, str]]:
    """A CSV's lines; none where it was not measured."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    if any(None in line or None in line.values() for line in lines):
        raise ValueError("a line has not as many cells as the first")
    return lines


def ratio_rows(directory: Path) -> list[Row]:
    """Every ratio of steps that has a goal: steps, block, GPU."""
    sources = [("", "step_time", "what"), ("block", "block_time", "step"), ("gpu", "gpu", "what")]
    found = []
    for place, name, column in sources:
        path = directory / f"{name}.csv"
        with reading(path):
            lines = [line for line in read(path) if line["goal"] and line["ratio"]]
            found += [_row(place or line["size"], line[column], line) for line in lines]
    return found


def _row(place: str, what: str, line: dict[str, str]) -> Row:
    if place not in PLACES:
        raise ValueError(f"no size is called {place!r}")
    numbers = [float(line[name]) for name in ("ratio", "low", "high", "goal")]
    return Row(place, what, line["than"], *numbers, line["reached"])


def goal_lines(rows: Sequence[Row]) -> list[str]:
    """The table of goals."""
    lines = ["| where | step | beside | ratio | interval | at most | reached |", "|---" * 7 + "|"]
    for r in rows:
        numbers = f"{r.ratio:.3f} | {r.low:.3f} to {r.high:.3f} | {r.goal:g}"
        lines.append(f"| {PLACES[r.place]} | {r.what} | {r.than} | {numbers} | {r.reached} |")
    return lines


def memory_line(directory: Path) -> str:
    """Inputs as codes beside float32's."""
    path = directory / "block_time.csv"
    with reading(path):
        kept = {line["step"]: line for line in read(path) if line["inputs_bytes"]}
        if not kept:
            return "Memory of a block: not measured."
        share, whole, peak = (
            int(kept[CODES][name]) / int(kept[PLAIN][name])
            for name in ("inputs_bytes", "kept_bytes", "peak_bytes")
        )
    reached = "yes" if share <= CODES_SHARE else "no"
    return (
        f"Inputs of the quantized linears kept as codes: {share:.4f} of float32's bytes, at most "
        f"{CODES_SHARE:g}: {reached}. Of all that a block keeps for backward that leaves {whole:.2f}, of the "
        f"step's peak {peak:.2f}."
    )


def format_lines(directory: Path) -> Iterator[str]:
    """How many settings of each of the format's goals reach it."""
    path = directory / "format_speed.csv"
    with reading(path):
        medians = read_medians(path.read_text(encoding="utf-8")) if path.is_file() else {}
    yield from ("| goal of the format alone | result | reached |", "|---" * 3 + "|")
    for goal in FORMAT_GOALS:
        for index, memory in enumerate(MEMORY):
            ratios = [
                r for r in (goal.ratio(index, by_name) for by_name in medians.values()) if r is not None
            ]
            reached = sum(map(goal.is_reached, ratios))
            yield f"| {goal.text} | memory that is {memory} | {reached} of {len(ratios)} settings |"


def missed(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each goal that was not reached, or not beyond the noise, then the reasons."""
    open_rows = [row for row in rows if row.reached != "yes"]
    for r in open_rows:
        shown = "not shown" if r.reached.endswith(WITHIN) else "missed"
        where = f"{PLACES[r.place]}: {r.what}, over {r.than}"
        yield f"- {where}: {shown}, {r.ratio:.3f} [{r.low:.3f}, {r.high:.3f}] for {r.goal:g}"
    yield ""
    yield from dict.fromkeys(
        f"The {PLACES.get(key, key)}: {REASONS[key]}."
        for r in open_rows
        for key in (r.place, r.what)
        if key in REASONS and r.reached.startswith("no")
    )


def draw(rows: Sequence[Row]) -> Figure:
    """Every ratio with its interval and its goal."""
    with style():
        figure, axes = new_figure(1, 1, 0.28 * len(rows) + 1.6)
        panel = axes.flat[0]
        places = list(range(len(rows)))[::-1]
        for row, y in zip(rows, places, strict=True):
            color = PALETTE[list(PLACES).index(row.place)]
            panel.plot([row.low, row.high], [y, y], color=color, lw=1.6)
            panel.plot(row.ratio, y, "o", color=color, ms=4)
            panel.plot(row.goal, y, "|", color="0.2", ms=11, mew=1.4, label="_" if y else "goal, at most")
        panel.axvline(1, color="0.5", lw=0.8, zorder=0)
        panel.set_yticks(places, [_label(row) for row in rows])
        panel.set(xlabel="step time, ratio")
        panel.grid(visible=False, axis="y")
        figure.suptitle("What HiF8 costs a step: median ratio and interval")
        legend_below(figure, panel, columns=1)
    return figure


def _label(row: Row) -> str:
    short = {", telemetry on": " + telemetry", ", inputs kept as codes": " + codes"}
    short["evaluation: frozen weights / evaluation: "] = "frozen evaluation / "
    text = f"{row.what} / {row.than}"
    for long, word in short.items():
        text = text.replace(long, word)
    return f"{PLACES[row.place].split()[0]}: {text}"


def _picture(directory: Path, title: str, name: str) -> str:
    return f"![{title}]({name})" if (directory / name).is_file() else "Not measured yet."


def thread_lines(path: Path) -> list[str]:
    """The table of threads and runs at once."""
    if not path.is_file():
        return ["Not measured."]
    with reading(path):
        return table_lines(path.read_text(encoding="utf-8"))


def page(directory: Path, rows: Sequence[Row]) -> str:
    """The text of results.md."""
    tables = sorted(p for p in directory.glob("*.md") if p.stem not in ("README", "results"))
    parts = {
        "# What the benchmarks measured": [ABOUT],
        "## Goals": [*goal_lines(rows), "", memory_line(directory), "", *format_lines(directory), "", RATIOS],
        "## Not reached, or not beyond the noise": [*missed(rows), "", FORMAT],
        "## Where a step's time goes": [_picture(directory, "Step by part", "profile.png")],
        "## How the cost grows": [_picture(directory, "Growth", "growth.png")],
        "## Threads, and runs at once": thread_lines(directory / "threads.csv"),
        "## All tables": [f"- [{p.stem}]({p.name})" for p in tables],
        "## On a GPU": ["[gpu.md](gpu.md)" if (directory / "gpu.csv").is_file() else NO_GPU],
    }
    return "\n".join(line for title, lines in parts.items() for line in (title, "", *lines, ""))


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="One page of all that the benchmarks have measured.")
    add_out(parser)
    directory = parser.parse_args(arguments).out
    rows = ratio_rows(directory)
    save_figure(draw(rows), directory, "ratios")
    write_text(directory / "results.md", page(directory, rows))
    print(f"wrote {directory / 'results.md'}")


if __name__ == "__main__":
    run_main(main)
