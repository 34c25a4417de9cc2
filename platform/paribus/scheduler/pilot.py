"""Pilot runs: trains a few steps of each kind of run whose cost is unknown, on this machine, and records nothing.

``python -m paribus.scheduler.pilot RUNNER FOLDER`` trains the job in a folder. An engine starts it without
a supervisor, lease or store.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import ceil, fsum
from pathlib import Path

from paribus.attempt.runner_process import redirect_output
from paribus.contract import Job, Need, load_runner
from paribus.engines.base import Engine, EngineSettings, JobState, Spec, Status, load_engine, need_of
from paribus.errors import ParibusError, RunnerError
from paribus.failures import describe_exit, failure_in, last_line, storable
from paribus.home import make_home
from paribus.run_folder.folder import RunFolder, read_json, write_json
from paribus.scheduler.home_lock import lock_home
from paribus.scheduler.setup_jobs import SetupJobs, shared_parts
from paribus.study.pilot import Pilot, PilotTimes, pilot_times, shortened
from paribus.study.plan import Arm, Plan
from paribus.study.stages import located
from paribus.text import plural

LENGTH, EVALUATION = "response/length_mean", "perf/time_eval_s"
_LOOK_S = 0.05
_SCRATCH = "pilot-"
_ERROR = "error.txt"
"""File in the folder of a pilot with the message of the error that ended it, if that is one of Paribus."""


def run_pilots(
    plan: Plan, kinds: Sequence[tuple[Arm, ...]], settings: EngineSettings, home: Path, say: Callable[[str], None]
) -> tuple[Pilot, ...]:
    """Train a few steps of the first arm of each kind, one after the other.

    Run folders are temporary. What runs share (a tiny model) is made in the cache of the home folder, for the study.

    Args:
        plan: the study.
        kinds: groups of arms whose runs cost about the same.
        settings: those of the local engine.
        home: home folder; locked meanwhile, so that runs and pilots don't disturb each other.
        say: prints one line for the user.

    Raises:
        StoreError: another process works in the home folder.
        RunnerError: a pilot or its set-up job failed; the message says why.
    """
    make_home(home)
    with ExitStack() as stack:
        stack.enter_context(lock_home(home, "paribus plan --probe", "local"))
        for left in home.glob(f"{_SCRATCH}*"):  # by a killed process
            shutil.rmtree(left, ignore_errors=True)
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=home))
        engine = load_engine("local")(replace(settings, folder=Path(scratch) / "engine", slots=1))
        try:
            need = need_of(engine, plan.resources)
            parts = shared_parts(plan.runner, (arms[0] for arms in kinds))
            setup = SetupJobs(engine, home, plan.runner, parts, need, say)
            while setup.turn():
                time.sleep(_LOOK_S)
            found = []
            for arms in kinds:
                say(f"a few steps of `{arms[0].label}`")
                folder = _folder(plan, arms[0], need.gpus, home, Path(scratch))
                found.append(Pilot(arms=arms, times=_run_pilot(engine, need, folder, plan.runner, arms[0].label)))
            return tuple(found)
        finally:
            engine.close()


def _folder(plan: Plan, arm: Arm, gpus: float, home: Path, scratch: Path) -> RunFolder:
    """Return the folder of an arm's pilot, with its job: a short run that is evaluated only before and after it."""
    run = next(run for run in plan.runs if run.arm == arm.key)
    recipe = located(shortened(arm.recipe), home, plan.models_of(run.fingerprint))
    job = Job(
        run=run.fingerprint,
        study=plan.study,
        arm=arm.label,
        runner=plan.runner,
        options=plan.options,
        seed=run.seed,
        gpus=gpus,
        token=1,
        recipe=recipe,
        evaluate=plan.evaluate.with_every(recipe.schedule.steps),
        cache=str((home / "cache").resolve()),
    )
    folder = RunFolder.of(scratch, run.fingerprint, 1)
    folder.path.mkdir(parents=True)
    folder.job.write_text(job.model_dump_json(indent=1))
    return folder


def _run_pilot(engine: Engine, need: Need, folder: RunFolder, runner: str, label: str) -> PilotTimes:
    free = sorted((d for d in engine.devices() if d.kind == "gpu"), key=lambda d: d.used)
    gpus = tuple(d.name for d in free[: ceil(need.gpus)])
    name = folder.path.parent.name
    engine.submit(Spec(module=__name__, arguments=(runner, str(folder.path)), need=need, gpus=gpus), name)
    while (status := engine.poll([name])[name]).state is not JobState.ENDED:
        time.sleep(_LOOK_S)
    if status.exit_code != 0:
        raise RunnerError(f"the probe of `{label}` failed: {_why(status, folder)}")
    lines = list(folder.read_metrics())
    if len(lines) < 2:
        raise RunnerError(
            f"the probe of `{label}` wrote {plural(len(lines), 'metric line')}; it needs 2, one of them before training"
        )
    began = read_json(folder.attempt)["time_ms"]
    lengths = [line.values[LENGTH] for line in lines if LENGTH in line.values]
    return pilot_times(
        tuple((line.time_ms - began) / 1000 for line in lines),
        evaluation=lines[-1].values.get(EVALUATION),
        length=fsum(lengths) / len(lengths) if lengths else None,
        gpus=need.gpus,
    )


def _why(status: Status, folder: RunFolder) -> str:
    if (error := folder.path / _ERROR).exists():
        return error.read_text(encoding="utf-8")
    if status.exit_code is None:
        return status.reason or "its process was lost"
    reason, said = failure_in(folder.log, status.exit_code).reason, last_line(folder.log)
    return f"{reason}; its last line: {said}" if said and reason == describe_exit(status.exit_code) else reason


def main(arguments: Sequence[str]) -> int:
    """Train the job in a folder; its output goes to the folder's log."""
    runner, path = arguments
    folder = RunFolder(Path(path))
    redirect_output(folder)
    trained = load_runner(runner)
    trained.warm()
    write_json(folder.attempt, {"time_ms": time.time_ns() // 1_000_000})
    try:
        trained.run(folder.path)
    except ParibusError as error:
        said, _, _ = str(error).partition("\nTraceback ")  # that of the user's function, for a log
        (folder.path / _ERROR).write_text(storable(said), encoding="utf-8")
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
