"""The command line on the tiny profile, as a script for launchers."""

from __future__ import annotations

import sys

from tiny_runs import command

if __name__ == "__main__":
    sys.exit(command(sys.argv[1:], batch_size=4, micro_batch_size=1))
