"""What was declared after results: of plans in a real store, and what the report says of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paribus.recipe.recipe import fingerprint_of
from paribus.report.analysis.analysis import Analysis
from paribus.report.build import build_report
from paribus.report.declared import Declared, read_declared
from paribus.report.inputs import StudyData
from paribus.report.model import ReportModel
from paribus.stats.multiple_testing import holm
from paribus.store.store import Store
from paribus.study.plan import InterimRule, Plan, PlannedRun
from support.studies import Shape, made_up_study

SHAPE = Shape(seeds=3, steps=4, every=1, problems=400)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """An empty store."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    with Store.open(tmp_path) as opened:
        yield opened


def finish(store: Store, plan: Plan) -> None:
    """Submit a plan and record a result of each of its runs that has none."""
    study = store.add_study(plan)
    for claim in store.claim_many(study.id, 100, engine="local", worker="here"):
        store.start(claim.run_id, claim.token)
        store.finish(claim.run_id, claim.token, {})


def some_arms(data: StudyData, labels: Iterable[str], name: str = "later") -> StudyData:
    """The same runs under the plan of another file that has only these arms beside the base."""
    kept = {data.plan.base, *(a.key for a in data.plan.arms if a.label in {*labels})}
    plan = replace(
        data.plan,
        study=name,
        fingerprint=fingerprint_of([name, sorted(kept)]),
        arms=tuple(a for a in data.plan.arms if a.key in kept),
        rows=tuple(r for r in data.plan.rows if r.arm in kept and r.design == "solo"),
        runs=tuple(r for r in data.plan.runs if r.arm in kept),
    )
    return replace(data, plan=plan, runs=tuple(r for r in data.runs if r.arm in kept))


def declared_and_report(store: Store, data: StudyData) -> tuple[Declared, ReportModel]:
    """What the store knows of the newest plan of this name, and its report."""
    found = read_declared(store, store.study(data.plan.study))
    assert found is not None
    return found, build_report(replace(data, declared=found))


def single(model: ReportModel) -> str:
    """The sentence about the trick that the later file lists."""
    return next(w for w in model.words if w.startswith("`token_level`"))


def test_a_file_that_lists_one_trick_of_ten_is_exploratory(store: Store) -> None:
    """Its runs are reused and its p would be small: it is corrected over all arms, and nothing is claimed."""
    every = made_up_study(SHAPE)
    one = some_arms(every, ["token_level"])
    alone = next(e for e in Analysis(one).to_base.values() if e is not None)
    assert alone.p_adjusted is not None
    assert alone.p_adjusted < 0.03
    assert "lowered" in single(build_report(one))
    finish(store, every.plan)
    store.add_study(one.plan)
    found, model = declared_and_report(store, one)
    assert (found.late_arms, len(found.compared)) == (frozenset({one.plan.arms[1].key}), len(every.plan.arms) - 1)
    assert (found.known, dict(found.planned_by)) == (6, {("made-up", store.study("made-up").first_submitted_at): 6})
    effect = Analysis(replace(one, declared=found)).to_base[one.plan.arms[1].key]
    assert effect is not None
    assert effect.p_adjusted == pytest.approx(holm([alone.estimate.p, *[1.0] * 9])[0])
    assert "exploratory in held-out accuracy" in single(model)
    assert "after Holm over 10" in single(model)
    assert model.answer.startswith(
        "Exploratory: the arm had results before this plan was declared, so nothing is claimed of it. "
        "p is corrected over 10 arms, all that this store has compared with this base."
    )
    said = " ".join((model.answer, *model.summary, *model.words[:-1]))
    assert not [verb for verb in ("raised", "lowered") if f" {verb} held-out" in said]
    assert model.provenance["declared"].endswith("when 6 of its 6 runs had results")
    assert "`token_level`" in " ".join(w for w in model.warnings if w.startswith("Exploratory"))


def test_the_p_of_the_larger_family_is_no_smaller_than_in_the_whole_study(store: Store) -> None:
    """The other arms count as if their p values were the largest: an upper bound of Holm over all of them."""
    every = made_up_study(SHAPE)
    one = some_arms(every, ["token_level"])
    finish(store, every.plan)
    store.add_study(one.plan)
    found, _ = declared_and_report(store, one)
    arm = one.plan.arms[1].key
    late, whole = Analysis(replace(one, declared=found)).to_base[arm], Analysis(every).to_base[arm]
    assert late is not None
    assert whole is not None
    assert late.p_adjusted is not None
    assert whole.p_adjusted is not None
    assert late.p_adjusted >= whole.p_adjusted


def test_a_plan_before_its_results_is_not_exploratory_and_stays_so(store: Store) -> None:
    """Also when the same command is typed again after the results, which submits the plan once more."""
    data = made_up_study(SHAPE)
    finish(store, data.plan)
    first = store.study("made-up").first_submitted_at
    store.add_study(data.plan)
    assert store.study("made-up").submitted_at > first == store.study("made-up").first_submitted_at
    found, model = declared_and_report(store, data)
    assert (found.known, found.late, len(found.compared)) == (0, False, 10)
    assert model.answer == build_report(data).answer
    assert model.provenance["declared"].endswith("before any of its results")


def test_arms_may_be_added_but_none_left_out(store: Store) -> None:
    """A plan with all earlier arms and a new one is as declared; the same without one of them is not."""
    every = made_up_study(SHAPE)
    first = some_arms(every, ["dynamic_sampling", "token_level"], "first")
    more = some_arms(every, ["dynamic_sampling", "token_level", "soft_overlong"], "more")
    less = some_arms(every, ["token_level", "soft_overlong"], "less")
    finish(store, first.plan)
    store.add_study(more.plan)
    assert declared_and_report(store, more)[0].late_arms == frozenset()
    store.add_study(less.plan)
    by_label = {a.label: a.key for a in every.plan.arms}
    assert declared_and_report(store, less)[0].late_arms == {
        by_label["token_level"]
    }  # the other one has no results yet


def test_seeds_that_are_added_after_a_look_are_exploratory(store: Store) -> None:
    """Three seeds were looked at, and five are planned then: no test holds its level, so nothing is claimed."""
    few, many = (replace(made_up_study(replace(SHAPE, seeds=n))) for n in (3, 5))
    finish(store, few.plan)
    finish(store, many.plan)
    found, model = declared_and_report(store, many)
    assert found.late_arms == {a.key for a in many.plan.arms[1:]}
    assert model.answer.startswith("Exploratory: 10 of 10 arms had results before")


def test_looks_may_not_be_dropped_after_results(store: Store) -> None:
    """Each look has a share of the error rate; without the rule the first look would have all of it."""
    plain = made_up_study(SHAPE)
    rule = InterimRule(at=(3, 6), spending="obrien_fleming", width=None)
    finish(store, replace(plain.plan, interim=rule, fingerprint=fingerprint_of("looks")))
    store.add_study(plain.plan)
    assert declared_and_report(store, plain)[0].late_arms == {a.key for a in plain.plan.arms[1:]}


def test_a_study_that_adds_seeds_may_add_an_arm(store: Store) -> None:
    """Its rule was declared before all results, so what it grows to later was, too."""
    rule = InterimRule(at=(3, 5), spending="obrien_fleming", width=None)
    few, many = (made_up_study(replace(SHAPE, seeds=n)) for n in (3, 5))
    labels = [a.label for a in few.plan.arms[1:]]
    first = some_arms(few, labels[:-1], "looks").plan
    finish(store, replace(first, interim=rule))
    wider = replace(few.plan, study="looks", interim=rule, fingerprint=fingerprint_of("wider"))
    store.add_study(wider)
    grown = replace(many.plan, study="looks", interim=rule, origin=wider.fingerprint, fingerprint=fingerprint_of("on"))
    finish(store, grown)
    found = read_declared(store, store.study("looks"))
    assert found is not None
    assert found.late_arms == frozenset()


def test_a_rule_for_pairs_may_not_be_dropped_after_results(store: Store) -> None:
    """Pairs always are another test than pairs where they help."""
    plain = made_up_study(SHAPE)
    finish(store, replace(plain.plan, pairing="where_it_helps", fingerprint=fingerprint_of("rule")))
    store.add_study(plain.plan)
    assert declared_and_report(store, plain)[0].late_arms == {a.key for a in plain.plan.arms[1:]}


def test_arms_without_results_do_not_shrink_the_family(store: Store) -> None:
    """A later file with the one trick of interest, and ten arms that never run."""
    every = made_up_study(SHAPE)
    one = some_arms(every, ["token_level"])
    finish(store, every.plan)
    pending = tuple(replace(a, key=f"{k:012x}", label=f"pending {k}") for k, a in enumerate(every.plan.arms[1:]))
    plan = replace(one.plan, arms=(*one.plan.arms, *pending), fingerprint=fingerprint_of("pending"))
    store.add_study(plan)
    found, _ = declared_and_report(store, replace(one, plan=plan))
    assert Analysis(replace(one, plan=plan, declared=found)).family == 10


def test_a_margin_that_comes_with_fresh_arms_is_declared_in_time(store: Store) -> None:
    """The base alone, which another study has trained, tells nothing of the arms."""
    every = made_up_study(SHAPE)
    first, fresh = (some_arms(every, [a.label], f"of-{a.key}") for a in every.plan.arms[1:3])
    finish(store, first.plan)
    with_margin = replace(fresh, plan=replace(fresh.plan, margin=0.1))
    store.add_study(with_margin.plan)
    found, _ = declared_and_report(store, with_margin)
    assert (found.late, found.known) == (False, 3)


def test_terms_that_are_added_after_results(store: Store) -> None:
    """A margin, a correction and a rule for pairs that come with the results are named; two of them do not count."""
    plain = made_up_study(replace(SHAPE, noise=0.1, problems=4000))
    finish(store, plain.plan)
    terms: dict[str, Any] = {"margin": 0.2, "symptom_correction": "benjamini_hochberg", "pairing": "where_it_helps"}
    for name, value in terms.items():
        plan = replace(plain.plan, **{name: value}, fingerprint=fingerprint_of(name))
        store.add_study(plan)
        found, model = declared_and_report(store, replace(plain, plan=plan))
        assert found.late_arms == frozenset()
        assert found.late_terms == {{"symptom_correction": "symptoms"}.get(name, name)}
        assert "Declared after results were there: the " in model.answer
    late = Analysis(replace(plain, plan=plan, declared=found))
    assert late.paired
    margin = replace(plain.plan, margin=0.2, fingerprint=fingerprint_of("margin"))
    words = " ".join(
        build_report(replace(plain, plan=margin, declared=replace(found, late_terms=frozenset({"margin"})))).words
    )
    assert "equivalent" not in words
    assert "Exploratory: within ±0.2 of the base" in words


def test_fresh_seeds_are_a_family_of_their_own(store: Store) -> None:
    """What `paribus next` writes has fresh runs, base included: nothing of it was known, whatever the store has."""
    data = made_up_study(SHAPE)
    finish(store, data.plan)
    runs = tuple(
        PlannedRun(fingerprint=fingerprint_of([r.fingerprint, "fresh"]), arm=r.arm, seed=r.seed + 3, order=r.order)
        for r in data.plan.runs
    )
    fresh = replace(data.plan, study="fresh", seeds=(3, 4, 5), runs=runs, fingerprint=fingerprint_of("fresh"))
    store.add_study(fresh)
    found = read_declared(store, store.study("fresh"))
    assert found is not None
    assert (found.known, found.late, len(found.compared)) == (0, False, 0)


def test_a_plan_that_grew_was_declared_with_its_rule(store: Store) -> None:
    """Seeds that a declared rule adds were declared with it, before the results that led to them."""
    few, many = (made_up_study(replace(SHAPE, seeds=n)).plan for n in (3, 5))
    finish(store, few)
    grown = replace(many, origin=few.fingerprint)
    store.add_study(grown)
    found = read_declared(store, store.study("made-up"))
    assert found is not None
    assert (found.at, found.late) == (store.studies()[0].first_submitted_at, False)


def test_without_a_recorded_time_nothing_is_said(store: Store) -> None:
    """A plan from an archive of an older version has no time of its first submission."""
    data = made_up_study(SHAPE)
    finish(store, data.plan)
    unknown = replace(store.study("made-up"), first_submitted_at=0.0)
    assert read_declared(store, unknown) is None
    assert "declared" not in build_report(data).provenance
