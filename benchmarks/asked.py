"""What a benchmark is asked for on its command line is checked before it measures; what ends it is one line.

An empty table in the place of one that took minutes would be a loss: counts are at least 1, and a folder that
can't be written to is found first. Tables are written at the end, each whole: an interrupted benchmark leaves
those that were there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pangu_hif8.commands import count
from pangu_hif8.errors import UserError

__all__ = ["HERE", "add_out", "count", "run_main"]

HERE = Path(__file__).parent
INTERRUPTED = 130  # exit status


def add_out(parser: argparse.ArgumentParser) -> None:
    """`--out`, the folder of the tables; by default that of the committed ones."""
    parser.add_argument("--out", type=_folder, default=str(HERE), help="beside this script by default")


def _folder(text: str) -> Path:
    """The path, which need not be there yet, if a file can be made in what of it is there."""
    path = Path(text).absolute()
    there = next(place for place in (path, *path.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            return path
    except OSError as error:
        raise argparse.ArgumentTypeError(f"can't write to {text}: {error.strerror}") from error


def run_main(main: Callable[[], None]) -> None:
    """Run a benchmark; where it fails, one line on standard error and the exit status."""
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
    except subprocess.CalledProcessError as error:
        said = error.stderr or ""  # where it went to the terminal, it has been read
        sys.exit(f"{said}error: a measuring process ended with status {error.returncode}")
    except KeyboardInterrupt:
        print("interrupted; tables are as they were", file=sys.stderr)
        sys.exit(INTERRUPTED)
