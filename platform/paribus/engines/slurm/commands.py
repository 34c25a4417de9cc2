"""Slurm's commands: argument lists in, values out. Jobs are known by name, because Slurm reuses ids."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paribus.engines.base import JobState, Status
from paribus.engines.controller import Away
from paribus.errors import EngineError

_COMMANDS = ("sbatch", "squeue", "scancel")
_TIMEOUT_S = 30.0  # half of the lease that a waiting job holds
_COLUMNS = {"JobID": 24, "State": 24, "exit_code": 16, "Reason": 64, "Name": 160}
_GRES = re.compile(r"(?:^|,)gpu:(?:([^:,()]+):)?(\d+)")
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
_ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
}  # fmt: skip
_INTERRUPTED = {"CANCELLED", "PREEMPTED", "REVOKED"}
_LIMIT = re.compile(r"\b(?:Assoc|QOS)[A-Z]\w+")
_NETWORK = (
    "CONNRESET CONNABORTED CONNREFUSED NOTCONN SHUTDOWN PIPE HOSTUNREACH HOSTDOWN NETUNREACH NETDOWN NETRESET "
    "ADDRNOTAVAIL NOBUFS INTR"
)
# in a command's message when the controller dies: Slurm's own words, or the system's for a lost connection
_PASSING = (
    *(os.strerror(getattr(errno, f"E{name}")).lower() for name in _NETWORK.split()),
    "unable to contact",
    "timed out",
    "temporarily",
    "zero bytes",
    "socket",
    "communication",
    "backup controller",
    "slurmctld",
    "munge",
)


class Refused(Exception):
    """Slurm refuses the request; the message is Slurm's own."""

    @property
    def crowded(self) -> bool:
        """Whether the only problem may be the number of jobs.

        Slurm has one sentence for all limits; newer versions also name the limit.
        """
        said = str(self)
        limit = _LIMIT.search(said)
        return "SubmitJob" in limit[0] if limit else "limit" in said.lower() and "invalid" not in said.lower()


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A job as squeue lists it."""

    id: int
    status: Status


@dataclass(frozen=True, kw_only=True)
class Node:
    """What a node has."""

    cpus: int
    gpus: int


class Slurm:
    """Slurm's commands as this user."""

    def __init__(self) -> None:
        for name in _COMMANDS:
            if shutil.which(name) is None:
                raise EngineError(
                    f"the engine `slurm` needs the command `{name}`, which is not found on this machine. Run the same "
                    "command on a login node of the cluster, or choose another engine: --engine local."
                )
        self._user = str(os.getuid())

    def submit(self, script: Path) -> None:
        """Submit a batch script.

        Raises:
            Away: whether Slurm took the job is unknown; look for its name.
            Refused: Slurm did not take it.
        """
        _call("sbatch", "--parsable", str(script))

    def jobs(self) -> Mapping[str, Listed]:
        """Return this user's jobs by name; if several share a name, the live one, else the newest.

        Raises:
            Away: Slurm does not answer.
        """
        columns = ",".join(f"{name}:{width}" for name, width in _COLUMNS.items())
        try:
            lines = _call("squeue", "--noheader", "--states=all", f"--user={self._user}", f"--Format={columns}")
        except Refused as error:  # nothing in this request could be refused
            raise Away(str(error)) from error
        found: dict[str, Listed] = {}
        for name, listed in filter(None, map(_listed, lines.splitlines())):
            other = found.get(name)
            if other is None or _rank(listed) > _rank(other):
                found[name] = listed
        return found

    def nodes(self, partition: str | None, gpu_type: str | None) -> tuple[Node, ...]:
        """Return the nodes of a partition (``None``: all) with their GPUs of a type (``None``: any), if known.

        Raises:
            Away: Slurm does not answer.
        """
        chosen = () if partition is None else (f"--partition={partition}",)
        try:
            lines = _call("sinfo", "--noheader", "--Node", "--format=%N|%c|%G", *chosen)
        except Refused:
            return ()
        rows = {name: rest for name, *rest in (line.split("|", 2) for line in lines.splitlines())}  # once a partition
        found = (row for row in rows.values() if len(row) == 2 and row[0].isdecimal())
        return tuple(Node(cpus=int(cpus), gpus=_gpus(gres, gpu_type)) for cpus, gres in found)

    def cancel_waiting(self, job: str) -> None:
        """Remove a job from the queue, unless it has started."""
        self._cancel(job, "--state=PENDING")

    def cancel(self, job: str) -> None:
        """End a job, including one whose processes Slurm has lost and would list as running for minutes."""
        self._cancel(job)

    def signal(self, job: str, number: str) -> None:
        """Send a signal to a running job: to its first process, or ``KILL`` to all of its processes.

        Before a SIGKILL, Slurm sends SIGTERM and waits for the cluster's ``KillWait`` (30 s by default).
        """
        self._cancel(job, f"--signal={number}", *(() if number == "KILL" else ("--batch",)))

    def _cancel(self, job: str, *arguments: str) -> None:
        with suppress(Refused):  # it ended meanwhile, or the controller is busy and the caller asks again
            _call("scancel", "--quiet", f"--user={self._user}", f"--name={job}", *arguments)


def _call(*command: str) -> str:
    # variables of an enclosing job, or of the user's own sbatch, would override the script
    own = {k: v for k, v in os.environ.items() if k == "SLURM_CONF" or not k.startswith(("SLURM_", "SBATCH_"))}
    try:
        result = subprocess.run(
            command,
            env=own,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT_S,
            start_new_session=True,  # Ctrl-C in the terminal must not cut a submission in half
        )
    except subprocess.TimeoutExpired as error:
        raise Away(f"{command[0]}: no reply in {_TIMEOUT_S:.0f} s") from error
    except OSError as error:  # a file system that is unavailable for a moment, or a full machine
        raise Away(f"{command[0]} could not be started: {error}") from error
    if result.returncode == 0:
        return result.stdout
    prefix = f"{command[0]}: error: "
    said = "; ".join(line.removeprefix(prefix).strip() for line in result.stderr.splitlines() if line.strip())
    said = "".join(c for c in said if c.isprintable()) or f"{command[0]} ended with exit status {result.returncode}"
    passing = result.returncode < 0 or any(text in said.lower() for text in _PASSING)
    raise Away(f"{command[0]}: {said}") if passing else Refused(said)


def _listed(line: str) -> tuple[str, Listed] | None:
    fields, start = {}, 0
    for name, width in _COLUMNS.items():
        fields[name] = line[start : start + width].strip()
        start += width
    if not fields["JobID"].isdecimal():  # not a job: an empty line, or output that the site adds
        return None
    state, code = fields["State"], _exit_code(fields["exit_code"])
    if state in _WAITING:
        status = Status(state=JobState.PENDING, reason=fields["Reason"])
    elif state in _ENDED:
        # a job that was cancelled before it started ends with 0, too
        known = code if state == "COMPLETED" or code else None
        status = Status(state=JobState.ENDED, exit_code=known, reason=state, interrupted=state in _INTERRUPTED)
    else:  # COMPLETING, and states of newer versions: some of its processes may still run
        status = Status(state=JobState.RUNNING)
    return fields["Name"], Listed(id=int(fields["JobID"]), status=status)


def _gpus(gres: str, gpu_type: str | None) -> int:
    """Return the number of GPUs in a node's resources, as in ``gpu:a100:4(S:0-1),shard:16``."""
    found = (match.groups() for match in _GRES.finditer(gres))
    return sum(int(count) for kind, count in found if gpu_type is None or kind == gpu_type)


def _exit_code(text: str) -> int | None:
    """Return the exit code in a wait status (``1792``) or in the form of newer versions (``7:0``)."""
    code, _, number = text.partition(":")
    if not code.isdigit():
        return None
    if number:
        return -int(number) if int(number) else int(code)
    with suppress(ValueError, OverflowError):  # no wait status
        return os.waitstatus_to_exitcode(int(code))
    return None


def _rank(listed: Listed) -> tuple[bool, int]:
    return listed.status.state is not JobState.ENDED, listed.id
