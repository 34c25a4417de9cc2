"""First screens of made-up studies, kept as files: answer, totals, sentences of the designs, leading table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paribus.report.build import build_report
from paribus.report.inputs import StudyData
from paribus.report.model import ReportModel
from paribus.report.render.text import table_to_markdown
from paribus.study.expand import make_plan
from paribus.study.load import load_study
from paribus.testing.fake_runner import FakeRunner
from support.curves import curved_study
from support.studies import Shape, made_up_results

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


def first_screen(model: ReportModel) -> str:
    """What the first screen says, as text."""
    lead = [table_to_markdown(t) for t in model.tables if t.lead]
    main = [f"- {t.title}" for t in model.main_tables()]
    parts = [f"# {model.title}", model.question, model.answer, *model.totals, *model.summary, *lead, "\n".join(main)]
    return "\n\n".join(parts) + "\n"


@pytest.mark.parametrize("name", ["grid", "ceiling"])
def test_first_screens(name: str, tmp_path: Path) -> None:
    """The first screen of each is as kept; PARIBUS_UPDATE_GOLDEN=1 writes the files anew."""
    text = first_screen(build_report({"grid": grid, "ceiling": ceiling}[name](tmp_path)))
    path = GOLDEN / f"{name}.md"
    if os.environ.get("PARIBUS_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text
