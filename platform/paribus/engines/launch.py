"""``python -m paribus.engines.launch PARENT GROUP MODULE ARGUMENTS``: a job that ends with the engine that started it.

GROUP is the folder of its control group; empty: it stays in that of the engine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from paribus.engines.base import call_main
from paribus.engines.cgroup import join
from paribus.engines.process import die_with_parent


def main(arguments: Sequence[str]) -> int:
    """Run a module's ``main``."""
    parent, group, module, *rest = arguments
    die_with_parent(int(parent))
    join(group)
    return call_main(module, rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
