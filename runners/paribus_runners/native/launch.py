"""Starts the processes of a run that has several, on one node or more, and ends all of them when one has failed.

They are children of the runner's process and in its group, so that a signal to the runner reaches them, and the kernel
kills them when it ends. This process computes nothing: it sees at once that one has died, so no other waits for it, and
no time limit is needed that would also end a slow one.

On each other node of the run, a process (:mod:`.node`) does the same for those there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from paribus.contract import PREEMPTED, Job
from paribus.errors import ParibusError, RunnerError
from paribus.failures import KILLED
from paribus.scratch import make
from paribus_runners.native.nodes import OtherNode, Ranks, other_nodes
from paribus_runners.native.stopping import Termination, termination
from paribus_runners.rewards.pool import WORKERS, workers

THREADS = "PARIBUS_THREADS"
"""Environment variable: number of threads that a run uses on a CPU, all of its processes together."""
CORES = "OMP_NUM_THREADS"
"""Environment variable: the same where :data:`THREADS` is unset; engines set it to ``resources.cpus``."""

COMMAND = (sys.executable, "-P", "-m", "paribus_runners.native.rank")
"""What starts one process. It imports torch again: a process that has computed cannot fork its threads and devices."""

PARTS = "parts"
"""Folder of an attempt in which its processes leave parts of checkpoints (:mod:`.checkpoint_parts`)."""

_LOOK_S = 0.05
_STOPPED = (PREEMPTED, -signal.SIGTERM)


def threads() -> int:
    """Return how many threads a run uses: ``PARIBUS_THREADS``, else ``OMP_NUM_THREADS``, else one.

    Raises:
        ParibusError: ``PARIBUS_THREADS`` is not a positive number.
    """
    wanted = os.environ.get(THREADS)
    if wanted is not None and not _is_count(wanted):
        raise ParibusError(f"{THREADS} is {wanted!r}: set it to a number of threads, 1 or more, or unset it")
    cores = os.environ.get(CORES, "1").split(",")[0].strip()  # OpenMP's list holds one number for each nested level
    return int(wanted or (cores if _is_count(cores) else 1))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0


def processes_of(job: Job) -> tuple[int, bool]:
    """Return in how many processes a job trains, and whether on a CPU: one a GPU, else as many as its options say.

    Raises:
        ParibusError: it wants processes on a CPU, and holds a GPU.
    """
    wanted = job.options.own.get("processes")
    if wanted is None:
        return max(1, int(job.gpus)), False
    if job.gpus:
        raise ParibusError(
            f"`runner.processes: {wanted}` is for CPUs, and this run holds {job.gpus:g} GPUs, each of which gets a "
            "process: remove it, or set `resources: {gpus: 0}`"
        )
    return int(wanted), True


def launch(folder: Path, size: int, *, cpu: bool, nodes: int = 1, samplers: int = 0) -> None:
    """Train the job in ``folder`` in ``size`` processes.

    Args:
        folder: the folder of the attempt.
        size: number of processes, above 1.
        cpu: whether they train on a CPU, also where there is a GPU.
        nodes: number of nodes, of which each has an equal part of the processes; this is the first one.
        samplers: how many of the processes sample and do nothing else; 0: all sample.

    Raises:
        ParibusError: an environment variable has no valid value, or the engine has not given several nodes.
        RunnerError: one of them has failed; its traceback is on standard error.
        SystemExit: with status 75 when the run was asked to stop; with more than :data:`paribus.failures.KILLED` if a
            signal has killed one of them.
    """
    ranks = Ranks(folder=str(folder), size=size, nodes=nodes, cpu=cpu)
    graders = min(samplers or size, size // nodes)
    environment = _environment(size, graders, cpu=cpu)
    others = other_nodes(ranks, environment) if nodes > 1 else nullcontext((ranks, ()))
    try:
        with termination() as asked, others as found:
            run_here(found[0], 0, environment, asked, found[1])
    finally:
        shutil.rmtree(folder / PARTS, ignore_errors=True)  # what the first process has not taken


def run_here(
    ranks: Ranks, node: int, environment: Mapping[str, str], asked: Termination, others: Sequence[OtherNode] = ()
) -> None:
    """Run the processes of this node to their end, and watch those that do the same on others; as :func:`launch`."""
    with make("meeting") as meeting:
        scratch = meeting.path
        asked.begun = True  # the children decide what there is to keep
        started: list[subprocess.Popen[bytes]] = []
        try:
            for rank in ranks.of(node):
                settings = {**asdict(ranks), "scratch": str(scratch), "rank": rank, "parent": os.getpid()}
                command = [*COMMAND, json.dumps(settings)]
                started.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL))
            passed_on = False
            while _running(started, others):
                _raise_failure(started, others, ranks, node, scratch)
                if asked.is_set() or _stopped(started, others):
                    for other in others:
                        other.ask_to_stop()
                    if not passed_on:
                        _terminate(started)
                    passed_on = True
                time.sleep(_LOOK_S)
            _raise_failure(started, others, ranks, node, scratch)
        except KeyboardInterrupt:  # they ignore Ctrl-C, and on SIGTERM they keep what they have; a second one kills
            _terminate(started)
            _wait(started)
            raise
        finally:
            for process in started:
                process.kill()
            _wait(started)
    if started[0].returncode:
        raise SystemExit(PREEMPTED)


def _running(started: Sequence[subprocess.Popen[bytes]], others: Sequence[OtherNode]) -> bool:
    return None in [process.poll() for process in started] or any(other.running() for other in others)


def _stopped(started: Sequence[subprocess.Popen[bytes]], others: Sequence[OtherNode]) -> bool:
    return any(p.returncode in _STOPPED for p in started) or any(other.stopped for other in others)


def _terminate(started: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in started:
        process.terminate()


def _wait(started: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in started:
        process.wait()


def _environment(size: int, graders: int, *, cpu: bool) -> dict[str, str]:
    """Return the environment of each process: it gets its part of the threads and of the reward workers.

    Args:
        size: processes of the run.
        graders: processes of a node that grade what they sample.
        cpu: whether they train on a CPU.
    """
    own = {name: value for name, value in os.environ.items() if name != THREADS}
    own |= {CORES: str(max(1, threads() // size)), WORKERS: str(max(1, workers() // graders))}
    return own | ({"CUDA_VISIBLE_DEVICES": ""} if cpu else {})


def _raise_failure(
    started: Sequence[subprocess.Popen[bytes]], others: Sequence[OtherNode], ranks: Ranks, node: int, scratch: Path
) -> None:
    """Raise the error of the process that has failed, if one has."""
    for rank, process in zip(ranks.of(node), started, strict=True):
        code, who = process.returncode, f"process {rank} of {ranks.size}"
        if code is None or code == 0 or code in _STOPPED:
            continue
        if code < 0:
            name = (
                signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
            )  # real-time ones lack one
            sys.stderr.write(f"{who} was killed by {name}\n")
            raise SystemExit(KILLED - code)
        if code > KILLED:  # it has said why
            raise SystemExit(code)
        note = scratch / f"{rank}.error"
        reason = note.read_text(encoding="utf-8") if note.exists() else f"exit status {code}"
        raise RunnerError(f"{who} failed: {reason}")
    for other in others:
        other.raise_failure()
