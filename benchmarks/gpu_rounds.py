"""Turns in rounds within a limited time; what fails or runs out of memory is noted, the others go on."""

from __future__ import annotations

import gc
import random
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import gpu_table as table
import torch
from gpu_table import Memory, Timings

from pangu_hif8.errors import UserError

TIME_IS_UP = "not run: the time was used up"
Turn = Callable[[], float]  # runs something; seconds
Result = TypeVar("Result")


@dataclass(frozen=True)
class Budget:
    """Until when (of `clock`, in seconds) something may go on."""

    ends: float
    clock: Callable[[], float] = time.monotonic

    def allows(self, seconds: float) -> bool:
        """Whether what takes so long would end in time."""
        return self.clock() + seconds < self.ends

    def part(self, share: float) -> Budget:
        """That share of the time that is left."""
        now = self.clock()
        return Budget(now + share * (self.ends - now), self.clock)


def attempt(what: Callable[[], Result]) -> tuple[Result | None, str]:
    """What it returns, or None and why there is nothing; its memory is free again then."""
    try:
        return what(), ""
    except torch.OutOfMemoryError:
        why = "out of memory"
    except (ImportError, UserError) as error:
        why = str(error)
    except Exception as error:  # compilers, drivers and peers raise what they like: the others go on
        traceback.print_exc()
        why = f"{type(error).__name__}: {error}"
    free_memory()
    return None, (why.strip().splitlines() or ["unknown"])[0]


def free_memory() -> None:
    """Give back what nobody holds, cycles included."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def ready(found: Timings, makers: Mapping[str, Callable[[], Turn]], budget: Budget) -> dict[str, Turn]:
    """The turns of those that can run, warmed up; `found` says why the others can't."""
    turns, longest = {}, 0.0
    for name, make in makers.items():
        if not budget.allows(longest):
            found[name].note = TIME_IS_UP
            continue
        print(f"  {name}: warming up", flush=True)
        started = budget.clock()
        turn, why = attempt(make)
        longest = max(longest, budget.clock() - started)
        found[name].note = f"not run: {why}" if why else ""
        if turn:
            turns[name] = turn
    return turns


def run_rounds(found: Timings, turns: dict[str, Turn], num: int, budget: Budget) -> None:
    """Give each a turn in every round; one that fails leaves `turns` and what memory it holds."""
    rng, longest = random.Random(0), 0.0
    for number in range(num):
        if not budget.allows(longest):
            for name in turns:
                found[name].note = f"{number} of {num} rounds: the time was used up" if number else TIME_IS_UP
            return
        started = budget.clock()
        for name in rng.sample(list(turns), len(turns)):
            took, why = attempt(turns[name])
            if took is None:
                found[name].note = f"stopped after {number} of {num} rounds: {why}"
                del turns[name]
            else:
                found[name].times_s.append(took)
        longest = max(longest, budget.clock() - started)


def say(rows: Iterable[table.Timing | Memory], why: str) -> None:
    """Note on rows that nothing was said of why a whole part failed."""
    for row in rows:
        if why and row.note == table.NOT_YET:
            row.note = f"not run: {why}"
