"""`python -m pangu_hif8`."""

from __future__ import annotations

import sys

from pangu_hif8.cli import main

if __name__ == "__main__":
    sys.exit(main())
