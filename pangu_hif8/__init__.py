"""HiF8 W8A8 quantization-aware training: the eight experiments of a paper, and the parts to reuse.

The package root imports nothing heavy, so that the report rebuilds where torch is absent.
"""

__version__ = "0.1.0"
