"""One of several processes of a run; :mod:`.launch` starts it. Imports what is heavy once it cannot outlive the run."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from paribus.engines.process import die_with_parent
from paribus.run_folder.attempt_files import read_job
from paribus.run_folder.folder import RunFolder
from paribus.run_folder.phases import STOP


def main() -> None:
    """Train, as the process that the first argument describes."""
    settings = json.loads(sys.argv[1])
    die_with_parent(settings["parent"])
    # both are for the parent, which ends its children in order; they may come to the whole group, or tree
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(STOP, signal.SIG_IGN)
    faulthandler.enable(sys.stderr)
    code = 1
    try:
        _train(settings)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        traceback.print_exc()
        reason = "".join(traceback.format_exception_only(error)).strip()
        note = Path(settings["scratch"]) / f"{settings['rank']}.error"
        note.write_text(reason, encoding="utf-8", errors="backslashreplace")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # whatever libraries do at the end of a process may wait for one that has gone


def _train(settings: dict[str, Any]) -> None:
    from paribus_runners.native.main import train
    from paribus_runners.native.world import World

    address, size = settings["address"], settings["size"]
    meeting = Path(settings["scratch"]) / "meeting" if address is None else (str(address[0]), int(address[1]))
    folder = RunFolder(Path(settings["folder"]))
    job = read_job(folder.job)
    samplers = job.recipe.compute.sampling_processes
    world = World.join(meeting, settings["rank"], size, cpu=settings["cpu"], nodes=settings["nodes"], samplers=samplers)
    train(folder, job, world)


if __name__ == "__main__":
    main()
