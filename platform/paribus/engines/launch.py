"""How a job's Python process begins: ``python -m paribus.engines.launch KIND ... MODULE ARGUMENTS``.

``local PARENT GROUP MODULE ARGUMENTS``
    A job that ends with the process that started it (PARENT). GROUP is the folder of its control group; if it's
    empty, the job stays in its parent's.

``remote FILE MODULE ARGUMENTS``
    A job on a machine that a cluster chose. It leaves its exit status in FILE, because a cluster forgets its jobs
    soon after they end.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from paribus.engines.base import call_main
from paribus.engines.cgroup import join
from paribus.engines.process import die_with_parent, lead_group


def write_number(file: Path, number: int) -> None:
    """Write an exit status or a signal number atomically."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(f"{int(number)}\n")
    temporary.replace(file)


def main(arguments: Sequence[str]) -> int:
    """Run a module's ``main`` and return its exit status."""
    kind, *rest = arguments
    if kind == "local":
        parent, group, module, *rest = rest
        die_with_parent(int(parent))
        join(group)
        return call_main(module, rest)
    file, module, *rest = rest
    lead_group(os.getpid())
    try:
        code = call_main(module, rest)
    except Exception:
        traceback.print_exc()
        code = 1
    write_number(Path(file), code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
