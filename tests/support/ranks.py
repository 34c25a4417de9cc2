"""Several processes of one run, as forks of the test's process: they need not import torch again."""

from __future__ import annotations

import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paribus.contract import PREEMPTED
from paribus_runners.native.world import World


def in_ranks(size: int, scratch: Path, action: Callable[[World], Any], samplers: int = 0) -> list[Any]:
    """Return what ``action`` returns in each of ``size`` processes, of which some only sample; all must succeed."""
    ends = ends_of_ranks(size, scratch, action, samplers)
    assert ends == [0] * size, f"exit statuses {ends}"
    return [pickle.loads((scratch / f"{rank}.pickle").read_bytes()) for rank in range(size)]


def ends_of_ranks(size: int, scratch: Path, action: Callable[[World], Any], samplers: int = 0) -> list[int]:
    """Return the exit status of each process; when one fails or is killed, the others are killed, too."""
    scratch.mkdir(parents=True)
    ranks: dict[int, int] = {}
    for rank in range(size):
        if (pid := os.fork()) == 0:
            _be_rank(rank, size, scratch, action, samplers)
        ranks[pid] = rank
    ends = [0] * size
    while ranks:
        for pid, rank in list(ranks.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                ends[rank] = os.waitstatus_to_exitcode(status)
                del ranks[pid]
        if any(end not in (0, PREEMPTED) for end in ends):
            for pid in ranks:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return ends


def _be_rank(rank: int, size: int, scratch: Path, action: Callable[[World], Any], samplers: int) -> None:
    code = 1
    try:
        found = action(World.join(scratch / "meeting", rank, size, cpu=True, samplers=samplers))
        (scratch / f"{rank}.pickle").write_bytes(pickle.dumps(found))
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
