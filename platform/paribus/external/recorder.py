"""The process beside a program that :func:`paribus.track` tracks: it records what the program appends to its spool.

``python -m paribus.external.recorder FOLDER``. It gives the metrics their canonical names, writes the run folder,
judges the run, and keeps the store up to date. It ends when the program has ended and that is recorded. If the program
was killed, its run has failed. If both were killed, the next recorder of the home folder finds the spool.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from paribus.attempt.supervisor import HealthMonitor
from paribus.contract import Job
from paribus.engines.process import Identity
from paribus.errors import LostLease, ParibusError, StoreError
from paribus.external.live_names import LiveNames
from paribus.external.plan import ExternalRun, Terms, external_job, external_plan, refuse_trained, steps_alone
from paribus.external.spool import FOLDER, About, Spool
from paribus.health.liveness import nan
from paribus.home import since_boot
from paribus.recipe.recipe import fingerprint_of
from paribus.run_folder.folder import MetricLine, RunFolder, write_json
from paribus.run_folder.native_names import NamesFile
from paribus.store.states import RECORDED, TRACKED, RunState
from paribus.store.store import Store
from paribus.study.plan import Plan
from paribus.version import VERSION

TICK_S = 0.2
HELD_S = 2.0
"""Seconds after which a step counts as complete, though the next one has not begun: an evaluation may follow."""

BEAT_S = 15.0
RETRY_S = 5.0
PATIENCE_S = 60.0
"""Seconds for which a recorder tries to record the end of a program."""


class Recorder:
    """Records one spool.

    Args:
        spool: the folder; its lock is held.
        say: prints one line into the log.
    """

    def __init__(self, spool: Spool, say: Callable[[str], None]) -> None:
        self._spool = spool
        self._say = say
        raw = json.loads(spool.about.read_text())
        self._about = About(**{**raw, "stop_on": tuple(raw["stop_on"])})
        self._program = Identity.read(self._about.process)
        state = json.loads(spool.state.read_text()) if spool.state.exists() else {}
        self._run: tuple[int, int] | None = (state["run"], state["token"]) if state else None
        self._fingerprint: str = state.get("fingerprint", "")
        self._offset: int = state.get("offset", 0)
        self._names = LiveNames(state.get("trainer", "") or self._about.trainer)
        self._newest: int = state.get("newest", -1)
        self._dropped: int = state.get("dropped", 0)
        self._follows = spool.claiming.exists()  # a recorder that was killed may have entered the run
        self._line: MetricLine | None = None  # the newest step, which may get more values
        self._written: MetricLine | None = None
        self._since = 0.0
        self._folder: RunFolder | None = None
        self._health: HealthMonitor | None = None
        self._kept: NamesFile | None = None
        if state:
            self._open_folder()

    def record(self) -> bool:
        """Record until the program has ended; return whether the end is recorded."""
        beat = retry = 0.0
        ended_at: float | None = None
        while True:
            over = self._spool.end.exists() or not self._program.alive()  # looked at before the last records are read
            now = since_boot()
            ended_at = now if over and ended_at is None else ended_at
            if now >= retry:
                try:
                    try:
                        self._take(over=over)
                    finally:  # also if the disk is full: the store may be elsewhere
                        if self._run is not None and not over and now >= beat:
                            beat = now + BEAT_S
                            self._beat()
                    if over:
                        return self._finish()
                except LostLease as error:
                    return self._refuse(f"the run was taken over: {error}")
                except Refused as error:
                    return self._refuse(str(error))
                except (ParibusError, OSError) as error:
                    self._say(f"again in {RETRY_S:g} s: {type(error).__name__}: {error}")
                    retry = now + RETRY_S
            if ended_at is not None and now - ended_at > PATIENCE_S:
                return False
            time.sleep(TICK_S)

    # ---- the store -------------------------------------------------------------------------------

    def _store(self) -> Store:
        return Store.open(self._spool.home)

    def _begin(self, first: Mapping[str, Any]) -> None:
        """Enter the run into the study, when its first metrics show which there are, and make its folder."""
        names = self._names.learn(first)
        with self._store() as store:
            if self._run is None:  # else the run has been entered, and its folder could not be written
                self._spool.claiming.touch()
                claim = store.begin_external(self._about.study, lambda *x: self._join(names, *x), worker())
                if claim is None and self._follows:
                    raise StoreError("the recorder before this one may hold the run, until its claim is over")
                if claim is None:
                    arm, seed = self._about.arm, self._about.seed
                    raise Refused(f"another program tracks the arm `{arm}` with seed {seed} now")
                self._run, self._fingerprint = (claim.run_id, claim.token), claim.fingerprint
            plan = store.study(self._about.study).plan
        self._write_folder(plan, self._run[1])
        self._save()
        self._open_folder()

    def _join(
        self, names: frozenset[str], known: Plan | None, state_of: Callable[[str], RunState | None]
    ) -> tuple[Plan, str]:
        """Return the plan of the study with this run; a run with a result is not written again, but has a successor."""
        about = self._about
        try:
            if known is not None:
                refuse_trained(known)
        except ParibusError as error:
            raise Refused(str(error)) from error
        number = 1
        while state_of(fingerprint := self._identity(number)) in RECORDED:
            number += 1
        run = ExternalRun(arm=about.arm, seed=about.seed, fingerprint=fingerprint, steps=max(1, about.steps))
        primary = about.primary or (known.evaluate.primary if known else self._names.primary(names))
        terms = Terms(base=about.base or None, primary=primary)
        with suppress(ParibusError):  # a base that has not been tracked yet
            return external_plan(about.study, [run], terms, known), fingerprint
        return external_plan(about.study, [run], Terms(primary=primary), known), fingerprint

    def _identity(self, number: int) -> str:
        return fingerprint_of(["external tracked", self._about.study, self._about.arm, self._about.seed, number])

    def _beat(self) -> None:
        assert self._run is not None  # there is a run to keep alive
        with self._store() as store:
            if store.renew(*self._run).cancel:
                self._ask_to_stop("cancelled with `paribus cancel`")

    def _finish(self) -> bool:
        """Record the end; the program has appended its last record."""
        if self._run is None:  # it logged nothing
            return self._refuse("it has logged no metric")
        end = json.loads(self._spool.end.read_text()) if self._spool.end.exists() else {"status": "lost"}
        stop = self._spool.stop.read_text() if self._spool.stop.exists() else ""
        payload = {
            "status": "succeeded",
            "origin": TRACKED,
            "trainer": self._names.trainer,
            "steps": self._newest,
            "names": self._names.sources,
            **({"dropped": self._dropped} if self._dropped else {}),
        }
        with self._store() as store:
            if end["status"] == "succeeded":
                early = stop.startswith(STOPPED)
                payload |= {"status": "stopped_early", "reason": stop.removeprefix(STOPPED)} if early else {}
                assert self._folder is not None  # since there is a run
                write_json(self._folder.result, payload)
                store.finish(*self._run, payload, stopped_early=early)
            else:
                lost = f"its program ended after step {self._newest} without `finish`"
                store.lose(*self._run, str(end.get("reason", lost)))
        return True

    def _refuse(self, why: str) -> bool:
        self._say(why)
        self._spool.refused.write_text(why)
        return True

    # ---- records ---------------------------------------------------------------------------------

    def _take(self, *, over: bool) -> None:
        """Read what the program has appended since, and write the steps that are complete."""
        for end, record in self._read():
            if self._folder is None:
                self._begin(record["values"])
            self._add(record)
            self._offset = end
        late = since_boot() - self._since > HELD_S
        if self._line is not None and (over or late):
            self._write()
        if self._health is not None:
            self._judge([], ended=over)

    def _read(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the next complete records, however long, each with the offset at which it ends."""
        with suppress(FileNotFoundError), self._spool.records.open("rb") as file:
            file.seek(at := self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                at += len(line)
                with suppress(ValueError):  # the program's disk was full in the middle of it
                    yield at, json.loads(line)

    def _add(self, record: Mapping[str, Any]) -> None:
        """Add the values of a record to its step; write the step before when a new one begins."""
        step = int(record["step"])
        if step < self._newest or (self._line is not None and step < self._line.step):
            self._dropped += 1
            return
        if self._line is not None and step > self._line.step:
            self._write()
        values, sources = self._names.line({k: float(v) for k, v in record["values"].items()})
        before = next((x for x in (self._line, self._written) if x is not None and x.step == step), None)
        self._line = MetricLine(
            step=step,
            time_ms=int(record["time_ms"]),
            values={**(before.values if before else {}), **values},
            sources={**(before.sources if before else {}), **sources},
        )
        self._since = since_boot()

    def _write(self) -> None:
        """Append the newest step to the run folder, and judge it."""
        assert self._line is not None  # there is a step
        assert self._folder is not None  # since its run has begun
        assert self._kept is not None  # as the folder
        self._kept.save()
        if self._line.values:
            self._folder.append_metrics(self._line)
        line = self._written = self._line
        self._line = None
        self._newest = line.step
        self._save()
        self._judge([line], ended=False)

    def _judge(self, lines: list[MetricLine], *, ended: bool) -> None:
        assert self._health is not None  # as the folder
        for finding in (nan(lines), *self._health.look(lines, ended=ended)):
            if finding.state == "critical" and finding.detector in self._about.stop_on:
                self._ask_to_stop(f"{STOPPED}{finding.detector}: {finding.evidence}")

    def _ask_to_stop(self, why: str) -> None:
        if not self._spool.stop.exists():
            self._spool.stop.write_text(why)

    def _save(self) -> None:
        assert self._run is not None  # since it has begun
        run, token = self._run
        state = {"run": run, "token": token, "fingerprint": self._fingerprint, "offset": self._offset}
        state |= {"trainer": self._names.trainer, "newest": self._newest, "dropped": self._dropped}
        write_json(self._spool.state, state, synced=False)

    # ---- the run folder --------------------------------------------------------------------------

    def _write_folder(self, plan: Plan, token: int) -> None:
        folder = RunFolder.of(self._spool.home, self._fingerprint, token)
        folder.path.mkdir(parents=True, exist_ok=True)
        about = {"origin": TRACKED, "trainer": self._names.trainer}
        run = ExternalRun(arm=self._about.arm, seed=self._about.seed, fingerprint=self._fingerprint)
        recipe, stop_on = steps_alone(max(1, self._about.steps)), self._about.stop_on
        job = external_job(plan, run, recipe, token, self._spool.home, about, stop_on)
        folder.job.write_text(job.model_dump_json(indent=1))
        for before in range(token - 1, 0, -1):  # the same names as in the attempt before, in whatever order they come
            with suppress(FileNotFoundError):
                shutil.copyfile(RunFolder.of(self._spool.home, self._fingerprint, before).names, folder.names)
                break
        write_json(folder.environment, {"paribus": VERSION, **about})
        here = {"supervisor": Identity.of(os.getpid()).to_json(), "runner": self._program.to_json()}
        write_json(folder.attempt, {"token": token, **here})

    def _open_folder(self) -> None:
        assert self._run is not None  # since it has begun
        self._folder = RunFolder.of(self._spool.home, self._fingerprint, self._run[1])
        job = Job.model_validate_json(self._folder.job.read_bytes())
        self._health = HealthMonitor(self._folder, job, since_boot)
        self._kept = NamesFile(self._folder)
        self._names.native = self._kept.names


def worker() -> str:
    """Return the worker of tracked attempts: no scheduler of this host takes them for its own, or takes them over."""
    return f"{socket.gethostname()}, {TRACKED}"


STOPPED = "stop_on: "
"""Before the reason of a stop by a detector."""


class Refused(ParibusError):
    """The run is not recorded."""


def main(path: str) -> int:
    """Record a spool, and then those of this home folder that killed recorders have left."""
    own = Spool(Path(path))
    with suppress(OSError):
        os.nice(10)
    for spool in (own, *(Spool(p) for p in sorted((own.home / FOLDER).iterdir()) if p != own.path)):
        try:
            _record(spool, own=spool is own)
        except Exception:  # another spool must not keep this one from its end, or the other way round
            traceback.print_exc()
    return 0


def _record(spool: Spool, *, own: bool) -> None:
    """Record a spool that no other recorder has; delete it when that is done."""
    if not spool.about.is_file() or spool.refused.exists():
        return
    with spool.lock.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if not own and Identity.read(json.loads(spool.about.read_text())["process"]).alive():
            return  # its own recorder is about to start
        done = Recorder(spool, _say).record()
        if done and not spool.refused.exists():
            shutil.rmtree(spool.path, ignore_errors=True)


def _say(text: str) -> None:
    """Print a line into the log, unless the disk is full."""
    with suppress(OSError):
        print(text, flush=True)  # noqa: T201 - its log


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
