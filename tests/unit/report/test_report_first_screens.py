"""First screens of made-up studies, kept as files: answer, totals, sentences of the designs, leading table."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from paribus.contract import EvaluationSet
from paribus.report.adaptive import next_block
from paribus.report.build import build_report
from paribus.report.declared import Declared
from paribus.report.inputs import StudyData
from paribus.report.model import ReportModel
from paribus.report.render.text import table_to_markdown
from paribus.study.expand import make_plan
from paribus.study.load import load_study
from paribus.study.plan import Plan
from paribus.testing.fake_runner import FakeRunner
from support.curves import curved_study
from support.studies import Shape, made_up_results, made_up_study

GOLDEN = Path(__file__).parents[2] / "golden" / "report" / "first_screens"

GRID = """\
study: grid
question: Which clip range, and does it depend on the scale of advantages?
base: {preset: grpo, set: {kl: off, schedule: {steps: 4, minibatches: 8}}}
designs:
  levels: {kind: grid, over: {clip.high: [0.2, 0.28], scale: [group_std, none]}}
seeds: {n: 3}
evaluate: {every: 1, problems: 200}
budget: {prior: {low: 1.0, expected: 1.0, high: 2.0}}
"""


def grid(folder: Path) -> StudyData:
    """A grid of two paths with an interaction."""
    (folder / "grid.yaml").write_text(GRID)
    plan = make_plan(load_study(folder / "grid.yaml"), FakeRunner())
    gain = {a.key: 0.1 * ("0.28" in a.label) * (1 + ("none" in a.label)) for a in plan.arms}
    return made_up_results(plan, lambda arm, seed: 0.4 + gain[arm] + 0.005 * seed)


def ceiling(folder: Path) -> StudyData:
    """A faster arm and one with a higher ceiling."""
    shape = Shape(seeds=5, steps=100, every=4, designs=("add_one",), tricks=("clip_higher", "token_level"), problems=2)

    def curve(arm: str, step: int) -> float:
        top, middle = {"clip_higher": (0.6, 9), "token_level": (0.7, 18)}.get(arm, (0.6, 18))
        return 0.2 + (top - 0.2) / (1 + (middle / step) ** 2) if step else 0.2

    return curved_study(shape, curve)


FRACTION = """\
study: fraction
base: {preset: grpo, set: {kl: off, schedule: {steps: 4, minibatches: 8}}}
tricks:
  a: {clip.high: 0.28}
  b: {aggregation: token_batch}
  c: {scale: none}
  d: {filter: {kind: drop, metric: correct}}
designs: {half: {kind: fractional, resolution: 4}}
seeds: {n: 4}
evaluate: {every: 1, problems: 200}
"""

SEARCH = """\
study: search
base: {preset: grpo, set: {kl: off, schedule: {steps: 4, minibatches: 8}}}
tricks: {a: {aggregation: token_batch}}
designs:
  lr:
    kind: search
    over: {optimizer.learning_rate: {low: 1.0e-5, high: 1.0e-3, log: true}}
    trials: 4
    seeds: 2
    tricks: [a]
seeds: {n: 3}
evaluate: {every: 1, problems: 200}
budget: {prior: {low: 1.0, expected: 1.0, high: 2.0}}
"""

ADD_ONE = Shape(designs=("add_one",), tricks=("clip_higher", "soft_overlong"))


def planned(folder: Path, text: str) -> Plan:
    """The plan of a study file."""
    (folder / "study.yaml").write_text(text)
    return make_plan(load_study(folder / "study.yaml"), FakeRunner())


def fraction(folder: Path) -> StudyData:
    """Half a factorial of four tricks, of which one moves the score."""
    plan = planned(folder, FRACTION)
    on = {row.arm: row.tricks for row in plan.rows}
    return made_up_results(plan, lambda arm, seed: 0.4 + 0.15 * ("a" in on[arm]) + noise(arm, seed))


def search(folder: Path) -> StudyData:
    """A search that has chosen, of which all runs have ended."""
    pytest.importorskip("optuna")
    plan, data = planned(folder, SEARCH), None
    while plan is not None:
        on = {row.arm: row.label for row in plan.rows}  # the keys of trials depend on how a machine rounds
        data = made_up_results(plan, lambda arm, seed, on=on: 0.4 + noise(on.get(arm, "trial"), seed))
        plan = next_block(data, FakeRunner())
    assert data is not None
    return data


def searching(folder: Path) -> StudyData:
    """A search before its first trial."""
    return made_up_results(planned(folder, SEARCH), lambda arm, seed: 0.4 + noise(arm, seed))


def noise(arm: str, seed: int) -> float:
    """What a run has of its own."""
    return random.Random(f"{arm}/{seed}").gauss(0, 0.01)


def all_the_same(*scores: float) -> StudyData:
    """Five seeds that agree, with one score for each arm."""
    shape = replace(ADD_ONE, seeds=5, tricks=("clip_higher", "soft_overlong")[: len(scores) - 1], noise=0.0)
    labels = dict(zip(("base", *shape.tricks), scores, strict=True))
    return curved_study(shape, lambda arm, step: labels[arm] if step else 0.2, noise=0.0)


def to_nan() -> StudyData:
    """One run of an arm whose evaluations are no number from the middle on."""
    shape = replace(ADD_ONE, seeds=4, steps=40, every=2, problems=2)
    data = curved_study(shape, lambda arm, step: 0.6 - 0.4 / (1 + step / 4) + 0.05 * (arm == "clip_higher"))
    arm, name = data.plan.arms[1].key, data.plan.evaluate.primary_metric
    runs = []
    for run in data.runs:
        lines = tuple(
            replace(x, values={**x.values, name: math.nan}) if name in x.values and x.step > 20 else x
            for x in run.lines
        )
        runs.append(replace(run, lines=lines) if (run.arm, run.seed) == (arm, 1) else run)
    return replace(data, runs=tuple(runs))


def lost(label: str) -> StudyData:
    """All runs of one arm failed."""
    return made_up_study(replace(ADD_ONE, seeds=4, outcomes=tuple((label, seed, "failed") for seed in range(4))))


def late(*, margin: float | None = None) -> StudyData:
    """A plan made after results: of its arms, or of its margin alone."""
    data = made_up_study(replace(ADD_ONE, seeds=5))
    arms = frozenset(a.key for a in data.plan.arms if a.label == "soft_overlong" and margin is None)
    known = Declared(
        at=1_767_000_000.0,
        known=len(data.runs),
        late_arms=arms,
        late_terms=frozenset() if margin is None else frozenset({"margin"}),
        compared=frozenset({*arms, "another-arm"}) if arms else frozenset(),
        planned_by={("earlier", 1_766_000_000.0): len(data.runs)},
    )
    return replace(data, plan=replace(data.plan, margin=margin), declared=known)


def two_sets() -> StudyData:
    """A second evaluation set on which the arms do something else."""
    data = made_up_study(replace(ADD_ONE, seeds=4))
    other = EvaluationSet(every=2, problems=30, samples=1)
    evaluate = data.plan.evaluate.model_copy(update={"sets": {"aime": other}})
    runs = []
    for run in data.runs:
        lines = tuple(
            replace(x, values={**x.values, "eval/aime/avg_at_1": 0.2 + noise(run.arm, run.seed)})
            if x.step % 2 == 0
            else x
            for x in run.lines
        )
        runs.append(replace(run, lines=lines))
    return replace(data, plan=replace(data.plan, evaluate=evaluate), runs=tuple(runs))


STUDIES: dict[str, Callable[[Path], StudyData]] = {
    "grid": grid,
    "ceiling": ceiling,
    "one_seed": lambda _: made_up_study(replace(ADD_ONE, seeds=1)),
    "two_seeds": lambda _: made_up_study(replace(ADD_ONE, seeds=2)),
    "total_success": lambda _: all_the_same(0.0, 1.0),
    "total_failure": lambda _: all_the_same(0.0, 0.0, 0.0),
    "nan": lambda _: to_nan(),
    "lost_arm": lambda _: lost("clip_higher"),
    "lost_base": lambda _: lost("base"),
    "identical_arms": lambda _: all_the_same(0.6, 0.6, 0.6),
    "fraction": fraction,
    "late_plan": lambda _: late(),
    "late_margin": lambda _: late(margin=0.05),
    "two_sets": lambda _: two_sets(),
    "search": search,
    "searching": searching,
}


def first_screen(model: ReportModel) -> str:
    """What the first screen says, as text."""
    lead = [table_to_markdown(t) for t in model.tables if t.lead]
    main = [f"- {t.title}" for t in model.main_tables()]
    parts = [f"# {model.title}", model.question, model.answer, *model.totals, *model.summary, *lead, "\n".join(main)]
    return "\n\n".join(parts) + "\n"


@pytest.mark.parametrize("name", STUDIES)
def test_first_screens(name: str, tmp_path: Path) -> None:
    """The first screen of each is as kept; PARIBUS_UPDATE_GOLDEN=1 writes the files anew."""
    text = first_screen(build_report(STUDIES[name](tmp_path)))
    path = GOLDEN / f"{name}.md"
    if os.environ.get("PARIBUS_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text
