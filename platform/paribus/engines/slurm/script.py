"""What a job requests from Slurm, and the batch script that says so."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from paribus.contract import Need, Resources
from paribus.engines.base import GRACE, ON_NODE, PATIENCE, Spec
from paribus.engines.options import ClusterOptions, run_need
from paribus.errors import EngineError
from paribus.text import plural

_LEAD_S = 15
"""Seconds between the end of a run's grace and the end of the job's time limit."""

_EARLY_S = 60
"""Seconds by which Slurm may send a signal too early."""

_DIRECTIVE = re.compile(r"--(?P<name>[a-z][a-z-]*)(=[^\x00-\x1f\x7f]+)?$")
_OURS = {
    "array": "each run is a separate job",
    "cpus-per-task": "write `cpus`",
    "chdir": "jobs run in the folder where `paribus run` was started",
    "error": "logs are beside the script",
    "export": "jobs get the environment of `paribus run`",
    "gres": "write `gpus`",
    "job-name": "jobs are known by their names",
    "mem": "write `memory`",
    "nodes": "a study declares `nodes` in its `resources`",
    "no-requeue": "it is always set",
    "ntasks": "a run has one task on each node",
    "ntasks-per-node": "a run has one task on each node",
    "open-mode": "logs are beside the script",
    "output": "logs are beside the script",
    "partition": "write `partition`",
    "account": "write `account`",
    "requeue": "Paribus itself starts runs again",
    "signal": "write `grace`",
    "time": "write `time`",
    "wait": "Paribus itself waits",
}


def _directive(text: str) -> str:
    match = _DIRECTIVE.match(text)
    if match is None:
        raise ValueError(f"`{text[:60]}` is not an option of sbatch: write it as --name or --name=value")
    if match["name"] in _OURS:
        raise ValueError(f"--{match['name']} cannot be set here: {_OURS[match['name']]}")
    return text


def _shaped(pattern: str, remedy: str) -> AfterValidator:
    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(f"`{text[:60]}` is not allowed: {remedy}")
        return text

    return AfterValidator(check)


def _seconds(time: str) -> int:
    days, _, clock = time.rpartition("-")
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


_Word = Annotated[str, _shaped(r"[A-Za-z0-9_.,:+@-]+", "letters, digits and _ . , : + @ - only")]
_Size = Annotated[str, _shaped(r"[1-9][0-9]*[KMGT]", "write a number and K, M, G or T, as in 16G")]
_Time = Annotated[
    str, _shaped(r"([0-9]+-)?[0-9]+:[0-5][0-9]:[0-5][0-9]", "write hours:minutes:seconds, as in 4:00:00 or 2-00:00:00")
]
_Count = Annotated[int, Field(ge=1)]


class SlurmOptions(ClusterOptions):
    """Options of the engine ``slurm``.

    Attributes:
        partition: partition, or several with commas; absent: the cluster's default.
        account: account to charge; absent: the user's default.
        time: time limit of a job. A run that needs longer writes a checkpoint and continues in the next job.
        gpus: GPUs of a run whose study declares none.
        gpu_type: their type, as the cluster names it.
        cpus: CPU cores of a run whose study declares none.
        memory: main memory of a run; absent: the cluster's default.
        extra: further options of sbatch, e.g. ``--qos=high``.
        jobs: jobs in Slurm's queue at a time.
        grace: seconds that a run gets to write a checkpoint.
        poll: seconds between two looks at Slurm's queue.
        host: name or address under which the nodes reach this machine; absent: its host name.
        port: TCP port that supervisors report to; 0: any free port.
    """

    partition: _Word | None = None
    account: _Word | None = None
    time: _Time | None = None
    gpus: Annotated[int, Field(ge=0)] = 0
    gpu_type: _Word | None = None
    cpus: _Count = 1
    memory: _Size | None = None
    extra: tuple[Annotated[str, AfterValidator(_directive)], ...] = ()
    jobs: _Count = 50
    grace: _Count = 90
    poll: Annotated[float, Field(gt=0, strict=False)] = 5.0
    host: _Word | None = None
    port: Annotated[int, Field(ge=0, le=65535)] = 0

    @model_validator(mode="after")
    def _time_to_train(self) -> SlurmOptions:
        least = self.grace + _LEAD_S + 2 * _EARLY_S
        if self.time is not None and _seconds(self.time) < least:
            raise ValueError(
                f"`time: {self.time}` leaves no time to train: with `grace: {self.grace}` Slurm may ask a job to stop "
                f"{self.grace + _LEAD_S + _EARLY_S} s before its end. Allow at least {least} s."
            )
        return self

    def need(self, resources: Resources) -> Need:
        """Return what a run holds; the study's declaration takes precedence. Slurm gives whole GPUs only."""
        need = run_need(resources, gpus=self.gpus, cpus=self.cpus)
        return replace(need, gpus=float(ceil(need.gpus)))

    def about(self, need: Need) -> str:
        """Return what each job requests, in a few words."""
        kind = f" ({self.gpu_type})" if self.gpu_type and need.gpus else ""
        gpus = f"{plural(round(need.gpus), 'GPU')}{kind}" if need.gpus else "no GPU"
        memory, time = self.memory or "default memory", self.time or "default time"
        on = f" on {need.nodes} nodes" if need.nodes > 1 else ""
        return f"partition {self.partition or 'default'}, {gpus}, {need.cpus:.0f} CPU{on}, {memory}, {time} per run"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a job runs and writes.

    Attributes:
        folder: folder for scripts, logs and exit statuses; all nodes see it.
        cwd: working folder.
        python: interpreter; all nodes see it.
    """

    folder: Path
    cwd: Path
    python: str


def batch_script(spec: Spec, job: str, options: SlurmOptions, place: Place) -> str:
    """Return the batch script of a job; Python replaces the shell, so that signals reach it.

    Raises:
        EngineError: a folder has a name that Slurm's scripts can't contain.
    """
    need = spec.need or options.need(Resources())
    note = place.folder / f"{job}.exit"
    command = [place.python, "-m", "paribus.engines.launch", "remote", str(note), spec.module, *spec.arguments]
    lines = ["#!/bin/bash", *(f"#SBATCH {d}" for d in _directives(job, options, need, place)), ""]
    lines += [f"export {GRACE}={options.grace} {PATIENCE}={options.patience_s:g}"]
    lines += [f"export {ON_NODE}={shlex.quote(_on_node(options, need.a_node))}"] if need.nodes > 1 else []
    lines += [] if need.gpus else ["export CUDA_VISIBLE_DEVICES="]
    if (
        need.threads is not None
    ):  # as many threads as with the local engine, so that numbers do not depend on the engine
        lines += [f'export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{need.threads}}}"']
    return "\n".join([*lines, f"exec {shlex.join(command)}", ""])


def _directives(job: str, options: SlurmOptions, need: Need, place: Place) -> Iterator[str]:
    yield f"--job-name={job}"
    yield f"--nodes={need.nodes}"
    yield f"--ntasks={need.nodes}"
    if need.nodes > 1:
        yield "--ntasks-per-node=1"
    yield from _a_node(options, need.a_node)
    if options.memory:
        yield f"--mem={options.memory}"
    if options.time:
        yield f"--time={options.time}"
    if options.partition:
        yield f"--partition={options.partition}"
    if options.account:
        yield f"--account={options.account}"
    yield "--no-requeue"
    yield f"--signal=B:TERM@{options.grace + _LEAD_S}"
    yield "--export=ALL"
    yield f"--chdir={_quoted(str(place.cwd))}"
    yield "--open-mode=append"
    yield f"--output={_quoted(str(place.folder / f'{job}.log').replace('%', '%%'))}"
    yield from (f"{name}{sign}{_quoted(value)}" for name, sign, value in (e.partition("=") for e in options.extra))


def _a_node(options: SlurmOptions, need: Need) -> Iterator[str]:
    yield f"--cpus-per-task={need.cpus:.0f}"
    if need.gpus:
        yield f"--gres=gpu:{f'{options.gpu_type}:' if options.gpu_type else ''}{need.gpus:.0f}"


def _on_node(options: SlurmOptions, need: Need) -> str:
    """Return the words that start a command on another node of the job, beside whatever runs there."""
    alone = ("--overlap", "--nodes=1", "--ntasks=1", "--kill-on-bad-exit=1", "--input=none", "--mpi=none")
    return " ".join(["srun", *alone, "--quiet", *_a_node(options, need), "--relative={node}"])


def _quoted(text: str) -> str:
    """Quote for an ``#SBATCH`` line: inside double quotes, only ``"`` is special; log names swallow backslashes."""
    if not text.isprintable() or "\\" in text:
        raise EngineError(f"Slurm's batch scripts cannot hold {text!r}: no backslashes and no control characters")
    if re.fullmatch(r"[\w./:,+@%=-]*", text):
        return text
    return '"' + text.replace('"', '\\"') + '"'
