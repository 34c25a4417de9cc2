"""``python -m paribus.engines.launch PARENT MODULE ARGUMENTS``: a job that ends with the engine that started it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from paribus.engines.base import call_main
from paribus.engines.process import die_with_parent


def main(arguments: Sequence[str]) -> int:
    """Run a module's ``main``."""
    parent, module, *rest = arguments
    die_with_parent(int(parent))
    return call_main(module, rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
