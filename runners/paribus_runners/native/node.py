"""What a run has on each node beyond the first: it starts the processes there, and ends with them or with the first."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

from paribus.engines.process import adopt_orphans, children, end_orphans, handled, restore_sigchld
from paribus.failures import KILLED
from paribus.run_folder.phases import DUMP, STOP
from paribus_runners.native.launch import run_here
from paribus_runners.native.nodes import Ranks, ended, failed
from paribus_runners.native.stopping import termination
from paribus_runners.native.world import at

_LOOK_S = 5.0
_DYING_S = 10.0


def main(arguments: Sequence[str]) -> int:
    """Run the processes that the first argument describes to their end.

    Returns:
        The exit status that :func:`.launch.launch` would have ended with; the first node reads it where all meet.
    """
    settings = json.loads(arguments[0])
    number, address = settings.pop("node"), settings.pop("address")
    ranks = Ranks(**settings, address=(address[0], address[1]))
    restore_sigchld()
    adopt_orphans()
    with termination() as asked, handled([STOP], asked.arrive), handled([DUMP], _dump):
        store = at((address[0], address[1]))
        threading.Thread(target=_end_with_the_first, args=(store,), daemon=True).start()
        code = 1
        try:
            run_here(ranks, number, os.environ, asked)
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception as error:
            traceback.print_exc()
            store.set(failed(number), str(error))
        finally:
            until = time.monotonic() + _DYING_S
            while not end_orphans(()) and time.monotonic() < until:
                time.sleep(0.01)
        store.set(ended(number), str(code))
    return code


def _dump() -> None:
    for pid in children():
        os.kill(pid, DUMP)


def _end_with_the_first(store: Any) -> None:
    """End this process, and the kernel its children, once the first node is gone: its store no longer answers."""
    while True:
        time.sleep(_LOOK_S)
        try:
            store.check([""])
        except RuntimeError:
            os._exit(KILLED + signal.SIGHUP)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
