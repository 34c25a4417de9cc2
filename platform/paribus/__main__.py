"""``python -m paribus`` is the same program as ``paribus``."""

from paribus.cli import main

main()
