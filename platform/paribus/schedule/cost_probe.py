"""Trains a few steps of each kind of run whose cost is not known, on this machine; nothing of it is recorded.

``python -m paribus.schedule.cost_probe RUNNER FOLDER`` trains the job in a folder, as an engine starts it: without a
supervisor, lease or store.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, fsum
from pathlib import Path

from paribus.engines.base import Engine, EngineSettings, JobState, Need, Spec, load_engine
from paribus.errors import RunnerError
from paribus.schedule.child import redirect_output
from paribus.schedule.holder import hold
from paribus.schedule.preparation import Preparation
from paribus.schedule.prepare import shared_parts
from paribus.study.job import Job
from paribus.study.plan import Arm, Plan
from paribus.study.probe import Probed, Times, shortened, times_of
from paribus.study.runner import load_runner
from paribus.track.folder import RunFolder, read_json, write_json

LENGTH, EVALUATION = "response/length_mean", "perf/time_eval_s"
_LOOK_S = 0.05
_LOG = 2000
"""Characters of the log that an error shows."""


def probe(
    plan: Plan, kinds: Sequence[tuple[Arm, ...]], settings: EngineSettings, home: Path, say: Callable[[str], None]
) -> tuple[Probed, ...]:
    """Train a few steps of the first arm of each kind, one after the other.

    Run folders lie in a temporary folder and are removed; what runs share (a tiny model) is made in the cache of the
    home folder, where the study finds it.

    Args:
        plan: the study.
        kinds: arms whose runs cost about the same.
        settings: of the local engine.
        home: home folder; held meanwhile, so that no run and no probe disturb each other.
        say: takes one line for people.

    Raises:
        StoreError: another process works in the home folder.
        RunnerError: a probe or its preparation failed; the message holds the end of its log.
    """
    home.mkdir(parents=True, exist_ok=True)
    with hold(home, "paribus plan --probe", "local"), tempfile.TemporaryDirectory(prefix="paribus-probe-") as scratch:
        engine = load_engine("local")(replace(settings, folder=Path(scratch) / "engine", slots=1))
        try:
            need = engine.need(plan.resources)
            parts = shared_parts(arms[0].recipe for arms in kinds)
            preparation = Preparation(engine, home, plan.runner, parts, need, say)
            while preparation.turn():
                time.sleep(_LOOK_S)
            found = []
            for arms in kinds:
                say(f"a few steps of `{arms[0].label}`")
                folder = _folder(plan, arms[0], home, Path(scratch))
                found.append(Probed(arms=arms, times=_one(engine, need, folder, plan.runner, arms[0].label)))
            return tuple(found)
        finally:
            engine.close()


def _folder(plan: Plan, arm: Arm, home: Path, scratch: Path) -> RunFolder:
    """Return the folder of the probe of an arm, with its job: a run that is evaluated before and after, not between."""
    run = next(run for run in plan.runs if run.arm == arm.key)
    recipe = shortened(arm.recipe)
    job = Job(
        run=run.fingerprint,
        study=plan.study,
        arm=arm.label,
        runner=plan.runner,
        seed=run.seed,
        token=1,
        recipe=recipe,
        evaluate=plan.evaluate.model_copy(update={"every": recipe.schedule.steps}),
        cache=str((home / "cache").resolve()),
    )
    folder = RunFolder.of(scratch, run.fingerprint, 1)
    folder.path.mkdir(parents=True)
    folder.job.write_text(job.model_dump_json(indent=1))
    return folder


def _one(engine: Engine, need: Need, folder: RunFolder, runner: str, label: str) -> Times:
    free = sorted((d for d in engine.devices() if d.kind == "gpu"), key=lambda d: d.used)
    gpus = tuple(d.name for d in free[: ceil(need.gpus)])
    name = folder.path.parent.name
    engine.submit(Spec(module=__name__, arguments=(runner, str(folder.path)), need=need, gpus=gpus), name)
    while (status := engine.poll([name])[name]).state is not JobState.ENDED:
        time.sleep(_LOOK_S)
    if status.exit_code != 0:
        said = folder.log.read_text(errors="replace")[-_LOG:] if folder.log.exists() else ""
        raise RunnerError(f"the probe of `{label}` ended with exit status {status.exit_code}:\n{said}")
    lines = list(folder.read_metrics())
    if len(lines) < 2:
        raise RunnerError(f"the probe of `{label}` wrote {len(lines)} metric lines: it takes one before training too")
    began = read_json(folder.attempt)["time_ms"]
    lengths = [line.values[LENGTH] for line in lines if LENGTH in line.values]
    return times_of(
        tuple((line.time_ms - began) / 1000 for line in lines),
        evaluation=lines[-1].values.get(EVALUATION),
        length=fsum(lengths) / len(lengths) if lengths else None,
        gpus=need.gpus,
    )


def main(arguments: Sequence[str]) -> int:
    """Train the job in a folder; what is printed goes to its log."""
    runner, path = arguments
    folder = RunFolder(Path(path))
    redirect_output(folder)
    trained = load_runner(runner)
    trained.warm()
    write_json(folder.attempt, {"time_ms": time.time_ns() // 1_000_000})
    trained.run(folder.path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
