"""Metric series against the JSON lines that they are made from, and the report of a large study.

The home folder is made by the project's own writers: lines are appended one by one and packed, for some runs; the
others are copies of these, with the JSON lines, which nothing reads again, as hard links.

    python benchmarks/rollups.py
    python benchmarks/rollups.py --quick
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paribus.contract import Evaluate
from paribus.run_folder.folder import Evaluation, MetricLine, RunFolder, write_json
from paribus.run_folder.metrics import STEP_METRICS
from paribus.run_folder.series import Columns
from paribus.run_folder.series_file import RunSeries, pack
from paribus.store.store import Store
from paribus.study.plan import Plan
from support.plans import small_plan

COUNTERS = ("budget/gen_tokens", "budget/trained_tokens", "budget/optimizer_steps")
SHOWN = (
    "reward/correct_frac", "response/length_mean", "response/length_mean_incorrect", "response/truncated_frac",
    "policy/entropy", "group/zero_std_frac", "perf/time_step_s", *COUNTERS,
)  # fmt: skip
METRICS = tuple(dict.fromkeys([*SHOWN, *(m.name for m in STEP_METRICS)]))[:20]
POINTS = 300


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured: ``courses`` of the runs are written line by line."""

    arms: int
    seeds: int
    steps: int
    courses: int


FULL = Size(arms=100, seeds=10, steps=10_000, courses=40)
QUICK = Size(arms=10, seeds=10, steps=2_000, courses=4)


def seconds(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def spread(values: Sequence[float], digits: str = ".2f") -> str:
    """Return the median, with the smallest and the largest value."""
    return f"{statistics.median(values):{digits}} ({min(values):{digits}} to {max(values):{digits}})"


# ---- the home folder -----------------------------------------------------------------------------


def course(plan: Plan, size: Size, number: int) -> tuple[list[MetricLine], list[Evaluation]]:
    """Return lines and evaluations of a run; all numbers but counters and scores use their whole mantissa."""
    dice = random.Random(number)
    lines, evaluations = [], []
    skill = 0.3 + dice.gauss(0, 0.01)
    for step in range(size.steps + 1):
        done = step / size.steps
        values = {name: 0.5 + 0.3 * done + dice.gauss(0, 0.02) for name in METRICS if name not in COUNTERS}
        values |= {name: float((2000 + 10 * number) * (i + 1) * step) for i, name in enumerate(COUNTERS)}
        if step % plan.evaluate.every == 0:
            found = evaluation(plan, step, skill + 0.3 * done, dice)
            evaluations.append(found)
            values[plan.evaluate.primary_metric] = sum(found.correct) / (len(found.correct) * found.samples)
        lines.append(MetricLine(step=step, time_ms=1_700_000_000_000 + 1000 * step, values=values if step else {
            k: v for k, v in values.items() if k == plan.evaluate.primary_metric}))  # fmt: skip
    return lines, evaluations


def evaluation(plan: Plan, step: int, skill: float, dice: random.Random) -> Evaluation:
    """Return an evaluation with counts by problem."""
    problems, k = plan.evaluate.problems, plan.evaluate.samples
    correct = tuple(sum(dice.random() < skill for _ in range(k)) for _ in range(problems))
    return Evaluation(
        step=step,
        set="heldout",
        samples=k,
        problems=tuple(f"p{i}" for i in range(problems)),
        correct=correct,
        truncated=(0,) * problems,
        tokens=(100 * k,) * problems,
        tokens_correct=tuple(100 * c for c in correct),
        answers=tuple({"right": c, "wrong": k - c} for c in correct),
    )


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What writing cost: seconds to append the lines and to pack them, bytes of both, points; one entry a course."""

    append: list[float]
    packing: list[float]
    lines: list[int]
    series: list[int]
    points: list[int]


def fill(
    home: Path,
    plan: Plan,
    size: Size,
    *,
    leave: int = 0,
    also: Callable[[RunFolder, list[MetricLine]], None] | None = None,
) -> Costs:
    """Make a store and the folders of all runs but some at the end, and measure the writing.

    Args:
        home: folder that does not exist yet.
        plan: its runs.
        size: how many of them are written line by line.
        leave: runs that are never claimed.
        also: writes more of a run that was written line by line.
    """
    costs = Costs(append=[], packing=[], lines=[], series=[], points=[])
    made: list[RunFolder] = []
    with Store.open(home) as store:
        study = store.add_study(plan)
        for _ in plan.runs[: len(plan.runs) - leave]:
            claim = store.claim(study.id, engine="none", worker="benchmark")
            assert claim is not None
            store.start(claim.run_id, claim.token)
            folder = RunFolder.of(home, claim.fingerprint, claim.token)
            if len(made) < size.courses:
                lines, evaluations = course(plan, size, len(made))
                write(folder, lines, evaluations, costs)
                if also:
                    also(folder, lines)
                made.append(folder)
            else:
                arm, seed = int(claim.arm.removeprefix("arm")), claim.seed
                copy(made[(7 * arm + 3 * seed) % len(made)], folder)
            store.finish(claim.run_id, claim.token, {"status": "succeeded"})
    return costs


def write(folder: RunFolder, lines: list[MetricLine], evaluations: list[Evaluation], costs: Costs) -> None:
    """Write a run, and note what its lines cost."""
    folder.path.mkdir(parents=True)
    costs.append.append(seconds(lambda: [folder.append_metrics(line) for line in lines]))
    for found in evaluations:
        folder.write_evaluation(found)
    write_json(folder.result, {"status": "succeeded"})
    costs.packing.append(seconds(lambda: pack(folder, ended=True)))
    costs.lines.append(folder.metrics.stat().st_size)
    costs.series.append(folder.series.stat().st_size)
    costs.points.append(sum(len(line.values) for line in lines))


def copy(made: RunFolder, folder: RunFolder) -> None:
    """Copy a run; its lines become a hard link."""
    shutil.copytree(made.path, folder.path, ignore=shutil.ignore_patterns(made.metrics.name))
    os.link(made.metrics, folder.metrics)


# ---- what is measured ----------------------------------------------------------------------------


def show_writing(costs: Costs) -> None:
    """Print bytes a point and the cost of packing beside that of appending."""
    points = costs.points
    both = [a / p for a, p in zip(costs.series, points, strict=True)]
    print(f"bytes a point, points and buckets: {spread(both)}; as JSON lines: "
          f"{spread([a / p for a, p in zip(costs.lines, points, strict=True)])}")  # fmt: skip
    ratio = [a / b for a, b in zip(costs.packing, costs.append, strict=True)]
    each = [1e6 * a / p for a, p in zip(costs.append, points, strict=True)]
    print(f"packing over appending the lines: {spread(ratio)}; appending: {spread(each)} us a point")


def show_reading(home: Path, plan: Plan) -> float:
    """Print what one series costs, and one metric of all runs, against parsing the lines; return the latter ratio."""
    name, runs = "policy/entropy", [r.fingerprint for r in plan.runs]
    some = runs[:: max(1, len(runs) // 20)]
    parsed = [seconds(lambda r=r: Columns.of(RunFolder.of(home, r, 1).read_metrics()).series(name)) for r in some]
    full = [seconds(lambda r=r: RunSeries(home, r, 1).series(name)) for r in some]
    few = [seconds(lambda r=r: RunSeries(home, r, 1).series(name, least=POINTS)) for r in some]
    for label, found in (("each point", full), (f"{POINTS} points or more", few)):
        ratio = [a / b for a, b in zip(parsed, found, strict=True)]
        print(f"one series, {label}: {spread([1000 * s for s in found])} ms; parsing the lines takes "
              f"{spread(ratio, '.0f')} times as long")  # fmt: skip
    lines = statistics.fmean(parsed) * len(runs)
    for label, least in (("each point", None), (f"{POINTS} points or more", POINTS)):
        taken = seconds(lambda n=least: [RunSeries(home, r, 1).series(name, least=n) for r in runs])
        print(f"one metric of {len(runs)} runs, {label}: {taken:.2f} s; parsing the lines of all, from "
              f"{len(some)} of them: {lines:.0f} s, {lines / taken:.0f} times as long")  # fmt: skip
    return lines / taken


def show_report(home: Path, study: str, out: Path) -> tuple[float, float, float]:
    """Print and return seconds, peak memory in GB and size of the page in MB of ``paribus report``."""
    code = "from paribus.cli import paribus; paribus()"
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", code, "report", study, "--home", str(home), "--out", str(out)], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    taken = time.perf_counter() - begun
    assert status == 0, status
    page, memory = (out / "report.html").stat().st_size / 1e6, usage.ru_maxrss * 1024 / 1e9
    cpu = usage.ru_utime + usage.ru_stime
    print(f"paribus report: {taken:.1f} s ({cpu:.1f} s of CPU), at most {memory:.2f} GB, report.html {page:.1f} MB")
    return taken, memory, page


def main() -> int:
    """Make the home folder, measure, and hold it against the bounds that were asked for."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="100 runs of 2,000 steps")
    options.add_argument("--home", type=Path, help="keep the home folder here, or use it if it is there")
    options.add_argument("--ratio-above", type=float, default=0.0, help="of lines over series, one metric of all runs")
    options.add_argument("--seconds-below", type=float, default=math.inf, help="for the report")
    options.add_argument("--gb-below", type=float, default=math.inf, help="for the report")
    options.add_argument("--page-below", type=float, default=5.0, help="MB of the page")
    asked = options.parse_args()
    size = QUICK if asked.quick else FULL
    plan = small_plan("scale", arms=size.arms, seeds=size.seeds, steps=size.steps)
    plan = replace(plan, evaluate=Evaluate(every=size.steps // 20, problems=200, samples=4))
    print(
        f"{len(plan.runs)} runs ({size.arms} arms x {size.seeds} seeds) x {size.steps} steps x {len(METRICS)} metrics"
    )
    with tempfile.TemporaryDirectory() as scratch:
        home = asked.home or Path(scratch) / "home"
        if not home.exists():
            show_writing(fill(home, plan, size))
        ratio = show_reading(home, plan)
        taken, memory, page = show_report(home, plan.study, Path(scratch) / "report")
    kept = (ratio > asked.ratio_above, taken < asked.seconds_below, memory < asked.gb_below, page <= asked.page_below)
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
