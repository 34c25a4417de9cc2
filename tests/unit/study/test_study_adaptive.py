"""Seeds that are added by looks, as study files declare them."""

import json

import pytest

from paribus.errors import StudyFileError
from paribus.store.models import PLAN
from paribus.study.adaptive import interim_text, next_interim, runs_between
from paribus.study.expand import make_plan
from paribus.study.load import load_study
from paribus.testing.fake_runner import FakeRunner

HEAD = """\
study: growing
runner: fake
base: {preset: grpo}
tricks: {token_level: {aggregation: token_batch}}
designs: {solo: {kind: add_one}}
"""


@pytest.fixture
def load(tmp_path):
    """A function from the value of `seeds` to the study."""

    def of(seeds):
        (tmp_path / "study.yaml").write_text(f"{HEAD}seeds: {seeds}\n")
        return load_study(tmp_path / "study.yaml")

    return of


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ("{min: 3, max: 8}", r":6:14: seeds.min: .*`until` is missing$"),
        ("{min: 3}", r":6:14: seeds.min: .*`max` and `until` are missing$"),
        ("{spending: pocock}", r":6:19: seeds.spending: .*: `min`, `max` and `until` are missing$"),
        ("{min: 3, max: 8, until: decided, n: 3}", r":6:44: seeds.n: .*no `n`: `n` is there$"),
        ("{min: 3, max: 8, n: 3}", r":6:28: seeds.n: .*`until` is missing, and `n` is there$"),
        ("{min: 8, max: 4, until: decided}", r":6:22: seeds.max: `max` must be above `min`"),
        ("{min: 3, max: 8, until: decided, looks: [3, 5]}", r":6:48: seeds.looks: `looks` must rise from `min` to"),
        ("{min: 3, max: 8, until: decided, looks: [3, 8, 5, 8]}", r"`looks` must rise"),
        ("{min: 3, max: 40, until: decided}", r":6:14: seeds.min: a look at 3 of 40 seeds .* `spending: pocock`"),
        ("{min: 2, max: 8, until: decided}", r":6:14: seeds.min: must be >= 3"),
        ("{min: 3, max: 8, until: sure}", r":6:32: seeds.until: `sure` is not allowed: write `decided`, or"),
        ("{min: 3, max: 8, until: {width: 0}}", r":6:40: seeds.until.width: must be > 0"),
        ("{min: 3, max: 8, until: {widht: 0.1}}", r":6:33: seeds.until.widht: .*Did you mean `width`"),
        ("{min: 3, max: 8, until: {}}", r":6:32: seeds.until: .*`width`"),
        ("{min: 3, max: 8, until: decided, spending: brien}", r":6:51: seeds.spending: .*Allowed: `obrien_fleming`"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(load, seeds, message):
    """File, line, column, and what is allowed."""
    with pytest.raises(StudyFileError, match=message):
        load(seeds)


def test_a_plan_with_looks_knows_all_its_runs(load):
    """The runs of all looks are those of the same file with `n`, each with its fingerprint; only the first are asked
    for.
    """
    plan = make_plan(load("{min: 3, max: 8, looks: [3, 5, 8], until: {width: 0.02}}"), FakeRunner())
    whole = make_plan(load("{n: 8}"), FakeRunner())
    assert (*plan.runs, *plan.later) == whole.runs
    assert (runs_between(plan), plan.seeds, plan.look) == ((6, 16), (0, 1, 2), 1)
    second = next_interim(plan)
    third = next_interim(second)
    assert (second.seeds, third.runs, third.later, next_interim(third)) == ((0, 1, 2, 3, 4), whole.runs, (), None)
    assert "3, 5 and 8 seeds an arm, O'Brien-Fleming" in interim_text(plan.interim)
    assert PLAN.validate_json(PLAN.dump_json(plan)) == plan


def test_the_rule_is_part_of_the_plans_identity(load):
    """Another rule is another study; a plan without looks is what it was before there were any."""
    rules = (
        "{n: 3}", "{min: 3, max: 5, until: decided}", "{min: 3, max: 6, until: decided}",
        "{min: 3, max: 5, until: {width: 0.1}}", "{min: 3, max: 5, until: decided, spending: pocock}",
    )  # fmt: skip
    plans = [make_plan(load(rule), FakeRunner()) for rule in rules]
    assert len({p.fingerprint for p in plans}) == len(rules)
    old = json.loads(PLAN.dump_json(plans[0]))
    assert {"notes", "looks", "screen"} <= set(old)  # the names under which plans have always been stored
    for name in ("looks", "later", "origin"):
        del old[name]
    assert PLAN.validate_python(old, strict=False) == plans[0]
