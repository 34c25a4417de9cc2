"""The checks of `paribus doctor`: problems of a home folder and its machine, each with a remedy. It changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

import sqlalchemy as sa

from paribus.audit.invariants import INVARIANTS, audit, statement
from paribus.audit.snapshot import Snapshot, snapshot
from paribus.audit.timed_check import Answer, TimedCheck
from paribus.engines import cgroup
from paribus.engines.base import GROUP
from paribus.engines.process import Identity
from paribus.errors import RunFolderError, StoreError, install_command
from paribus.masking import mask
from paribus.mlflow_sync.client import tracking_uri
from paribus.mlflow_sync.database_file import file_of, is_half_made
from paribus.mlflow_sync.offsets import dead_letters, refused_groups, refused_names
from paribus.mlflow_sync.process import mlflow_is_installed, refused_text
from paribus.run_folder.attempt_files import read_attempt
from paribus.run_folder.folder import SHORT, RunFolder
from paribus.store.migrate import revision_of
from paribus.store.reader import Reader
from paribus.store.states import LIVE, RunState
from paribus.text import plural

GIB = float(1 << 30)
DISK_CRITICAL, DISK_WARN = 1 * GIB, 10 * GIB
"""Free bytes below which runs are likely to fail, and below which you should make room."""

MLFLOW_SLOW_S = 2.0
_REASON = 200
_OLD_TABLES = "out-of-date database schema"
TIMEOUT_S = 30.0
"""Seconds to wait for MLflow or an engine."""

ORPHAN_S = 30.0
"""Seconds that processes may outlive their attempt."""

_OWN = ("local", "inline")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "9p")

Level = Literal["ok", "warn", "critical", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check.

    Attributes:
        name: what was checked, e.g. ``disk``.
        level: ``unknown`` if it could not be checked, or matters only if it is used.
        message: what was found.
        remedy: what to do; empty if nothing is wrong.
    """

    name: str
    level: Level
    message: str
    remedy: str = ""

    def __post_init__(self) -> None:
        """Hide credentials, whatever the check has read."""
        object.__setattr__(self, "message", mask(self.message))
        object.__setattr__(self, "remedy", mask(self.remedy))


def examine(home: Path, *, deep: bool = False) -> Iterator[Check]:
    """Yield the results of all checks. Slow checks start first and report last.

    Args:
        home: home folder; it need not exist.
        deep: check the hashes of all checkpoints.
    """
    names = sorted(e.name for e in entry_points(group=GROUP))
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="paribus-doctor-"))
        engines = {name: TimedCheck("engine", name, folder) for name in names}
        half_made = _half_made(home) if mlflow_is_installed() else None
        asked = mlflow_is_installed() and _uses_mlflow(home) and half_made is None
        mlflow = TimedCheck("mlflow", str(home)) if asked else None
        yield disk(home)
        try:
            reader = stack.enter_context(Reader.open(home))
            begun = time.perf_counter()
            seen = snapshot(reader, deep=deep)
            yield database(reader, time.perf_counter() - begun)
            yield from invariants(seen)
            yield orphans(home, seen)
            yield from replaced(seen)
        except StoreError as error:
            missing = not (home / "runs").exists()
            yield Check(name="database", level="unknown" if missing else "critical", message=str(error))
        yield groups()
        yield gpus()
        yield half_made or mlflow_server(home, mlflow.answer(TIMEOUT_S) if mlflow else None)
        yield from mlflow_names(home)
        yield from (engine(name, probe.answer(TIMEOUT_S)) for name, probe in engines.items())


def disk(home: Path) -> Check:
    """Check the free disk space."""
    place = next(p for p in (home.resolve(), *home.resolve().parents) if p.exists())
    free = shutil.disk_usage(place).free
    level: Level = "critical" if free < DISK_CRITICAL else "warn" if free < DISK_WARN else "ok"
    remedy = (
        "" if level == "ok" else f"Make room, or choose another folder with --home. Most space is used by {home}/runs."
    )
    return Check(name="disk", level=level, message=f"{free / GIB:.1f} GiB free at {place}", remedy=remedy)


def database(reader: Reader, seconds: float) -> Check:
    """Check where and how the database is stored."""
    with reader.database.read() as connection:
        revision = revision_of(connection)
        sqlite = reader.database.embedded
        mode = connection.execute(sa.text("PRAGMA journal_mode")).scalar_one() if sqlite else ""
    kept = f", journal mode {mode}" if sqlite else ""
    shown = f"{reader.database.name}, revision {revision}{kept}, read in {seconds:.2f} s"
    if sqlite and mode != "wal":
        remedy = "The file system does not support SQLite's WAL mode. Choose a folder on a local disk with --home."
        return Check(name="database", level="warn", message=shown, remedy=remedy)
    kind = _file_system(reader.home.resolve()) if sqlite else ""
    if kind in _REMOTE:
        remedy = "If several hosts open it there, SQLite may damage the file. Use a local disk or PostgreSQL."
        return Check(name="database", level="warn", message=f"{shown}, on {kind}", remedy=remedy)
    return Check(name="database", level="ok", message=shown)


def invariants(seen: Snapshot) -> Iterator[Check]:
    """Check the invariants of the store."""
    violations = audit(seen)
    broken = {v.invariant for v in violations}
    for v in violations:
        message = f"{v.rows}: {v.message} (expected: {statement(v.invariant)})"
        yield Check(name=v.invariant, level=v.level, message=message, remedy=v.remedy)
    kept = len(INVARIANTS) - len(broken)
    counts = (
        f"{plural(len(seen.runs), 'run')}, {plural(len(seen.attempts), 'attempt')}, "
        f"{plural(len(seen.results), 'result')}"
    )
    yield Check(name="invariants", level="ok", message=f"{kept} of {len(INVARIANTS)} hold: {counts}")


def orphans(home: Path, seen: Snapshot) -> Check:
    """Check that no process on this host belongs to an attempt that has ended."""
    leases = {(r.id, r.token): r.lease_until for r in seen.runs if r.state in LIVE}
    left = []
    for attempt in seen.attempts:
        over = leases.get((attempt.run_id, attempt.token)) if attempt.ended_at is None else attempt.ended_at
        if over is None or seen.now < over + ORPHAN_S:
            continue
        left += [i.pid for i in _processes(RunFolder.of(home, attempt.fingerprint, attempt.token)) if i.alive()]
    left = [pid for pid in left if pid != os.getpid()]
    if not left:
        return Check(name="processes", level="ok", message="no attempt that has ended left processes on this host")
    groups = " ".join(f"-{pid}" for pid in left)
    remedy = f"Kill them with their process groups: kill -9 {groups}"
    return Check(
        name="processes",
        level="critical",
        message=plural(len(left), "process of ended attempts still runs", "processes of ended attempts still run"),
        remedy=remedy,
    )


def _processes(folder: RunFolder) -> list[Identity]:
    try:
        here = read_attempt(folder)
        return [Identity.read(here[name]) for name in ("supervisor", "runner")]
    except (RunFolderError, KeyError):
        return []


def groups() -> Check:
    """Check how leftover processes of a run are found on this machine."""
    group, why = cgroup.make(f"paribus-doctor-{os.getpid()}")
    if group is None:
        shown = f"not available: {why}. Leftover processes are found by their parents and environment instead"
        return Check(name="cgroup", level="ok", message=shown)
    cgroup.remove(group)
    return Check(
        name="cgroup", level="ok", message=f"each run of the local engine gets its own cgroup in {group.parent}"
    )


def gpus() -> Check:
    """Check the GPUs of this machine."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Check(name="gpu", level="ok", message="nvidia-smi is not installed: runs train on the CPU")
    query = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        shown = subprocess.run(
            query, capture_output=True, text=True, errors="replace", check=True, timeout=TIMEOUT_S
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        remedy = "Run nvidia-smi: its message says what is wrong with the driver."
        return Check(name="gpu", level="warn", message=f"nvidia-smi failed: {error}", remedy=remedy)
    names = [line.strip() for line in shown.splitlines() if line.strip()]
    counted = ", ".join(f"{names.count(n)} x {n}" for n in dict.fromkeys(names))
    return Check(name="gpu", level="ok", message=counted or "nvidia-smi lists no GPU: runs train on the CPU")


def replaced(seen: Snapshot) -> Iterator[Check]:
    """Check that no run is queued only for a plan that a newer plan of its study has replaced."""
    newest = {s.name: s.id for s in sorted(seen.studies, key=lambda s: (s.submitted_at, s.id))}
    served = {k.run_id for k in seen.links if k.study_id in newest.values() and not k.withdrawn}
    queued = {r.id for r in seen.runs if r.state is RunState.QUEUED} - served
    names = {s.id: s.name for s in seen.studies}
    waiting = {(names[k.study_id], k.run_id) for k in seen.links if k.run_id in queued and not k.withdrawn}
    for name, count in sorted(Counter(name for name, _ in waiting).items()):
        message = plural(count, f"run of {name} is", f"runs of {name} are")
        message += " queued for an earlier version of the study, and not trained"
        remedy = (
            f"To train them, submit the earlier file again. To drop them, run paribus cancel {name} when {name} is done"
        )
        yield Check(name="replaced", level="warn", message=message, remedy=remedy)


def mlflow_server(home: Path, answer: Answer | None) -> Check:
    """Check MLflow."""
    if not mlflow_is_installed():
        remedy = install_command("mlflow")
        return Check(
            name="mlflow", level="unknown", message="not installed: metrics are not copied to MLflow", remedy=remedy
        )
    if answer is None:
        return Check(name="mlflow", level="unknown", message="no run of this home folder has been copied to MLflow yet")
    if answer.error:
        remedy = "Runs go on and are copied later. Check MLFLOW_TRACKING_URI and the server."
        if _OLD_TABLES in answer.error:
            remedy = f"Stop all programs that use it, copy it, then: mlflow db upgrade {tracking_uri(home)}"
        return Check(name="mlflow", level="critical", message=answer.error, remedy=remedy)
    seconds, doubled = float(answer.value["seconds"]), dict(answer.value["doubled"])
    shown = f"one write and one read took {seconds * 1000:.0f} ms"
    if doubled:
        named = ", ".join(sorted(doubled)[:3])
        message = (
            f"{plural(sum(doubled.values()), 'step')} of {plural(len(doubled), 'run')} in MLflow "
            f"{'has' if sum(doubled.values()) == 1 else 'have'} more than one point: {named}"
        )
        return Check(name="mlflow", level="warn", message=message, remedy=_once(home))
    if seconds > MLFLOW_SLOW_S:
        remedy = "MLflow will lag behind the runs, which do not wait for it."
        return Check(name="mlflow", level="warn", message=shown, remedy=remedy)
    return Check(name="mlflow", level="ok", message=shown)


def mlflow_names(home: Path) -> Iterator[Check]:
    """Check that MLflow has taken all metrics and all runs."""
    if dead := dead_letters(home):
        shown = "; ".join(f"run {run[:SHORT]}: {reason[:_REASON]}" for run, reason in list(dead.items())[:3])
        message = f"{plural(len(dead), 'run is', 'runs are')} not completely in MLflow, which refuses a part: {shown}"
        remedy = "Their run folders have everything. When the cause is gone: paribus doctor --replay"
        yield Check(name="mlflow", level="warn", message=message, remedy=remedy)
    if groups := refused_groups(home):
        shown = "; ".join(f"{name}: {reason[:_REASON]}" for name, reason in list(groups.items())[:3])
        message = f"MLflow refuses {plural(len(groups), 'parent run')} of studies and arms, or links to them: {shown}"
        remedy = "The runs themselves are not affected. When the cause is gone: paribus doctor --replay"
        yield Check(name="mlflow groups", level="warn", message=message, remedy=remedy)
    if names := refused_names(home):
        remedy = "MLflow allows letters, digits, spaces and _ - . / : in a name. Reports and dashboards have them, too."
        yield Check(name="mlflow names", level="warn", message=refused_text(names), remedy=remedy)


def _half_made(home: Path) -> Check | None:
    file = file_of(tracking_uri(home))
    if file is None or not is_half_made(file):
        return None
    message = f"{file} is half-made: the creation of its tables was killed. It holds no run"
    remedy = "Nothing: the next paribus run or paribus scheduler sets it aside and makes a new one."
    return Check(name="mlflow", level="warn", message=message, remedy=remedy)


def _once(home: Path) -> str:
    """Return how to have every point once: MLflow cannot delete single points."""
    file = file_of(tracking_uri(home))
    known = "Reports and dashboards do not read them. To have them once,"
    if file is None:
        return f"{known} delete the experiment in MLflow for good (mlflow gc): the next start uploads all of its runs."
    return f"{known} stop Paribus and mv {file} {file}.old: the next start uploads all runs again."


def _uses_mlflow(home: Path) -> bool:
    uri = tracking_uri(home)
    return not uri.startswith("sqlite:///") or Path(uri.removeprefix("sqlite:///")).is_file()


def engine(name: str, answer: Answer) -> Check:
    """Check one engine."""
    if not answer.error:
        return Check(name=f"engine {name}", level="ok", message=str(answer.value))
    level: Level = "critical" if name in _OWN else "unknown"
    remedy = f"You need it only for --engine {name}." if level == "unknown" else "Reinstall Paribus."
    return Check(name=f"engine {name}", level=level, message=answer.error, remedy=remedy)


def _file_system(path: Path) -> str:
    """Return the type of the file system of a path; empty on systems other than Linux."""
    try:
        mounts = [line.split()[1:3] for line in os.fsdecode(Path("/proc/mounts").read_bytes()).splitlines()]
    except OSError:
        return ""
    holding = [(len(place), kind) for place, kind in mounts if path.is_relative_to(place)]
    return max(holding, default=(0, ""))[1]
