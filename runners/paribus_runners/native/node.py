"""What a run has on each node beyond the first: it starts the processes there, and ends with them."""

from __future__ import annotations

import json
import os
import sys
import traceback

from paribus.engines.process import children, handled, restore_sigchld
from paribus.run_folder.phases import DUMP
from paribus_runners.native.launch import run_here
from paribus_runners.native.nodes import STOP, Ranks, failed
from paribus_runners.native.stopping import termination
from paribus_runners.native.world import at


def main() -> None:
    """Run the processes that the first argument describes to their end.

    Raises:
        SystemExit: as :func:`.launch.launch`; with status 1 after an error, which the first node reports.
    """
    settings = json.loads(sys.argv[1])
    number, address = settings.pop("node"), settings.pop("address")
    ranks = Ranks(**settings, address=(address[0], address[1]))
    restore_sigchld()
    with termination() as asked, handled([STOP], asked.arrive), handled([DUMP], _dump):
        store = at((address[0], address[1]))
        try:
            run_here(ranks, number, os.environ, asked)
        except Exception as error:
            traceback.print_exc()
            store.set(failed(number), str(error))
            sys.exit(1)


def _dump() -> None:
    for pid in children():
        os.kill(pid, DUMP)


if __name__ == "__main__":
    main()
