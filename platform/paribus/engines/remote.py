"""``python -m paribus.engines.remote FILE MODULE ARGUMENTS``: a job on a machine that another program chose.

The exit status is left in FILE, because a cluster forgets its jobs soon after their end.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from paribus.engines.base import call_main
from paribus.engines.process import lead_group


def main(arguments: Sequence[str]) -> int:
    """Run a module's ``main`` and note what it returned."""
    file, module, *rest = arguments
    lead_group(os.getpid())
    try:
        code = call_main(module, rest)
    except Exception:
        traceback.print_exc()
        code = 1
    note = Path(file)
    temporary = note.with_name(f".{note.name}.{os.getpid()}")
    temporary.write_text(f"{code}\n")
    temporary.replace(note)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
