"""The findings in words: templates filled with results of tests. They claim nothing beyond them, never "no effect"."""

from __future__ import annotations

import itertools
import math
from collections import Counter

from paribus.report.adaptive import where
from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.ceilings import Ceilings
from paribus.report.analysis.effect import MIN_SEEDS, Effect
from paribus.report.analysis.effects import Single, effect_measures, effects, singles, tested_designs
from paribus.report.analysis.lost_runs import fragile, untrained
from paribus.report.analysis.measures import (
    FAILED_REWARDS,
    Measure,
    failed_rewards,
    last_value,
    score_steps,
    start_measure,
)
from paribus.report.assumptions import counts, mixed_versions, one_spread_words
from paribus.report.ceiling_words import ceiling_words
from paribus.report.design_words import any_tested, design_words, designs
from paribus.report.effect_words import claimed, p_of, score_sentence, short_of, size_text
from paribus.report.exploratory import cautions
from paribus.report.external import runs_per_arm
from paribus.report.inputs import RunData
from paribus.report.tables.cells import (
    decimals_for,
    interval_text,
    level_text,
    number,
    p_words,
    percent,
    single_texts,
)
from paribus.report.tables.health import health_words
from paribus.report.tables.search import search_words
from paribus.run_folder.metrics import GENERATED, SAMPLED
from paribus.stats.intervals import mean_interval
from paribus.stats.multiple_testing import ALPHA, at_look
from paribus.study.plan import Row
from paribus.text import listed, plural

NAMES = {
    "length": "length",
    "length_wrong": "the length of wrong answers",
    "truncated": "truncation",
    "entropy": "entropy",
    "zero_spread": "the share of zero-spread groups",
    "generated": "generated tokens",
}
"""Names of the measures of the table of effects in a sentence."""


NOT_COMPARED = "No arm can be compared with the base"


def summary(analysis: Analysis, curves: Ceilings) -> list[str]:
    """Return the answer in one paragraph: does the base learn, does the ladder rise, what does each arm do."""
    found = (_learning(analysis), *_ladders(analysis), *designs(analysis), _singles(analysis))
    found += (*search_words(analysis), one_spread_words(analysis), ceiling_words(analysis, curves))
    return [s for s in (*found, _seeds_rule(analysis)) if s]


def words(analysis: Analysis) -> list[str]:
    """Return one item for each arm against the base, each effect of several rows, and each arm with critical runs.

    Only what a corrected test shows is said with a verb (:func:`claims_rule`).
    """
    found = effects(analysis)
    arms = [_one_arm(analysis, single, found) for single in singles(analysis)]
    crossed = [text for design in tested_designs(analysis) for text in design_words(analysis, design)]
    rule = [claims_rule(analysis)] if any_tested(analysis) else []
    return [*arms, *crossed, *rule, *health_words(analysis)]


def claims_rule(analysis: Analysis) -> str:
    """Return when a sentence of this report has a verb such as raised."""
    score, symptom = 100 * analysis.levels.score, 100 * analysis.levels.symptom
    curve, count = 100 * analysis.levels.curve, 100 * analysis.levels.one_spread
    crossed = any(design.effects for design in tested_designs(analysis))
    verbs = "raised, lowered, together they give or differs from 0" if crossed else "raised or lowered"
    more = (
        [f"for a ceiling, and for reached half of the base's gain sooner or later, below {curve:.2g}%"] if curve else []
    )
    more += [f"for a count of arms under one spread, below {count:.2g}%"] if counts(analysis) else []
    return (
        f"A sentence says {verbs} only where p after correction is below {score:.2g}% for {analysis.score.label} and "
        f"below {symptom:.2g}% for the rest{''.join(f'; {part}' for part in more)}. So at most 5% of studies in which "
        "no arm differs get one. Undecided does not mean that there is no difference."
    )


def warnings(analysis: Analysis) -> list[str]:
    """Return what lowers trust in the tables."""
    found = []
    ends = [(_end(analysis, r), r) for r in analysis.data.runs]
    for end, text in (
        ("failed", "failed (left out of the means)"),
        ("cancelled", "cancelled (left out of the means)"),
        ("stopped_early", "stopped early (counted with the last evaluation)"),
        ("unscored", "stopped early without an evaluation (left out of the means)"),
        ("pending", "not finished (left out of the means so far)"),
    ):
        lost = [r for e, r in ends if e == end]
        if lost:
            names = listed(dict.fromkeys(f"`{analysis.label(r.arm)}`" for r in lost))
            found.append(f"{len(lost)} of {plural(len(analysis.data.runs), 'run')} {text}: {names}.")
    unsure = [f"`{analysis.label(arm)}`" for arm in analysis.to_base if fragile(analysis, arm)]
    if unsure:
        found.append(
            f"Fragile: the verdict against the base depends on how lost runs are counted for {listed(unsure)}."
        )
    found += _failed_rewards(analysis)
    found += [*cautions(analysis), *mixed_versions(analysis), *_checkpoints(analysis), *_budgets(analysis)]
    seen = ("cost", "few_evaluations")  # the runs have shown these by now
    found += [f"{note.message.rstrip('.')}." for note in analysis.plan.warnings if note.code not in seen]
    return found


def _end(analysis: Analysis, run: RunData) -> str:
    """Return a run's outcome, or ``unscored`` if it was stopped before its first score."""
    stopped = run.outcome == "stopped_early"
    return "unscored" if stopped and run.seed not in analysis.values(run.arm, analysis.score) else run.outcome


def _failed_rewards(analysis: Analysis) -> list[str]:
    """Return which arms trained on rewards that were not computed."""
    shares: dict[str, list[float]] = {}
    for run in analysis.data.runs:
        if (share := failed_rewards(run)) is not None:
            shares.setdefault(analysis.label(run.arm), []).append(share)
    if not shares:
        return []
    count = sum(map(len, shares.values()))
    arms = listed(f"`{name}` ({percent(math.fsum(found) / len(found))})" for name, found in shares.items())
    return [
        f"In {count} of {plural(len(analysis.data.runs), 'run')} the reward of more than {FAILED_REWARDS:.0%} "
        "of the responses "
        f"failed: {arms}. A failed reward function scored `on_failure`, and a failed verifier counted as wrong. "
        "The first errors are in `stdout.log` of the run folder."
    ]


def _budgets(analysis: Analysis) -> list[str]:
    """Return which runs ended before they had spent their budget of generated tokens or of sampled prompts."""
    metrics = {"tokens": GENERATED, "prompts": SAMPLED}
    short: dict[str, Counter[str]] = {}
    spent = Counter[str]()
    for run in (r for r in analysis.data.runs if r.outcome == "finished"):
        schedule = analysis.plan.arm(run.arm).recipe.schedule
        budgets = {name: most for name in metrics if (most := getattr(schedule, name)) is not None}
        words = " or ".join(f"`schedule.{name}`" for name in budgets)
        if budgets and any((last_value(run, metrics[name]) or 0) >= most for name, most in budgets.items()):
            spent[words] += 1
        elif budgets:
            short.setdefault(words, Counter())[analysis.label(run.arm)] += 1
    return [
        f"{count.total()} of {plural(len(analysis.data.runs), 'run')} ended by `schedule.steps` before they had "
        f"spent {words}"
        f"{', so they cost less than the others' if spent[words] else ''}: "
        f"{listed(f'`{name}` ({n})' for name, n in count.items())}."
        for words, count in short.items()
    ]


def _checkpoints(analysis: Analysis) -> list[str]:
    """Return which runs have a score that does not follow the declared checkpoint rule."""
    found, runs, evaluate = [], analysis.data.runs, analysis.evaluate
    ends = [(r, score_steps(r, evaluate)) for r in runs if r.outcome in ("finished", "stopped_early")]
    few = [len(used) for r, used in ends if r.outcome == "finished" and 0 < len(used) < 3]
    if few and evaluate.checkpoint == "mean_of_last_3":
        made = " or ".join(text for n, text in ((1, "a single one"), (2, "the mean of 2")) if n in few)
        found.append(
            f"Runs with fewer than 3 evaluations after step 0: {len(few)} of {len(runs)}. Their score is {made}."
        )
    broken = [r for r, used in ends if r.outcome == "finished" and used and _not_finite(analysis, r, used[0][0])]
    if broken:
        names = listed(dict.fromkeys(f"`{analysis.label(r.arm)}`" for r in broken))
        found.append(
            f"Runs with an evaluation that is not a finite number where their score is taken: {len(broken)} of "
            f"{len(runs)}. It is left out, and finite evaluations before it count: {names}."
        )
    bare = [r for r in runs if untrained(analysis, r)]
    if bare:
        names = listed(dict.fromkeys(f"`{analysis.label(r.arm)}`" for r in bare))
        found.append(
            f"Runs that were stopped before an evaluation: {len(bare)} of {len(runs)}. They count with the score "
            f"before training, which says nothing about them: {names}."
        )
    return found


def _not_finite(analysis: Analysis, run: RunData, first: int) -> bool:
    """Whether an evaluation from this step on is not a finite number."""
    found = run.recorded.series(analysis.score.metric, first=first)
    return len(found.finite().steps) < len(found.steps)


def _learning(analysis: Analysis) -> str:
    base, label = analysis.plan.base, analysis.score.label
    after, before = analysis.values(base, analysis.score), analysis.values(base, start_measure(analysis.evaluate))
    seeds = [s for s in after if s in before]
    subject = f"The base arm `{analysis.label(base)}`"
    if after and not seeds:
        return f"{subject} has no score before training, so how much it has learned is not known."
    if not seeds:
        return f"{NOT_COMPARED}, because {lost_all(analysis, base, subject[:1].lower() + subject[1:])}."
    ends = [analysis.estimate(base, start_measure(analysis.evaluate)), analysis.estimate(base, analysis.score)]
    if len(seeds) < max(len(before), len(after)):  # both ends are of the same runs
        ends = [at_look(mean_interval([each[s] for s in seeds]), analysis.share) for each in (before, after)]
    if len(seeds) < MIN_SEEDS:
        noise = analysis.answer_error(base, analysis.score)
        digits = decimals_for(noise, after[seeds[0]]) if noise else 3
        pairs = listed(f"{number(before[s], digits)} to {number(after[s], digits)}" for s in seeds)
        few = "single run; training variance unknown" if len(seeds) == 1 else "2 runs, too few for an interval"
        return f"{subject} went from {pairs} in {label} ({few})."
    gain = analysis.gain(base)
    assert gain is not None and ends[0] is not None and ends[1] is not None  # noqa: PT018 - there are seeds
    text = f"{subject} went from {interval_text(ends[0])} to {interval_text(ends[1])} in {label}"
    why = "all seeds agree, so there is no test" if gain.untestable else "undecided, because 0 is in this interval"
    verdict = "" if gain.separated else f"; {why}"
    moved = interval_text(gain.estimate, signed=True)
    how = f"paired within {gain.estimate.n} runs, {level_text(analysis)} t intervals"
    return f"{text}, a change of {moved} ({how}){verdict}."


def _ladders(analysis: Analysis) -> list[str]:
    names = dict.fromkeys(r.design for r in analysis.plan.rows if r.kind == "cumulative")
    return [_ladder(analysis, n, [r for r in analysis.plan.rows if r.design == n]) for n in names]


def _ladder(analysis: Analysis, name: str, rows: list[Row]) -> str:
    if rows[-1].arm == analysis.plan.base:
        return f"Ladder `{name}`: its last row is the base."
    last = analysis.to_base.get(rows[-1].arm)
    if last is None or not last.supported:
        return f"Ladder `{name}`: its last row and the base do not have the 3 seeds that a comparison needs."
    steps = [(b, analysis.effect(b.arm, a.arm, analysis.score)) for a, b in itertools.pairwise(rows)]
    whole = _against_base(analysis, last)
    known = [(row, e) for row, e in steps if e is not None and e.supported]
    if not known:
        return f"Ladder `{name}`: {whole}."
    row, step = max(known, key=lambda found: abs(found[1].estimate.value))
    size = interval_text(step.estimate, signed=True)
    return (
        f"Ladder `{name}`: {whole}. Its largest step, given the rows above and not tested: `{row.tricks[-1]}` {size}."
    )


def _against_base(analysis: Analysis, effect: Effect) -> str:
    """Return what a row does to the score, e.g. ``its last row lowered held-out accuracy by 0.15 [0.10, 0.19]``."""
    label, level = analysis.score.label, analysis.levels.score
    if claimed(effect, level):
        verb = "raised" if effect.estimate.value > 0 else "lowered"
        return f"its last row {verb} {label} by {size_text(effect)} against the base ({p_of(effect, analysis.family)})"
    size = interval_text(effect.estimate, signed=True)
    if effect.untestable:
        why = "every seed has the same difference" if effect.paired else "all seeds of an arm agree"
        return f"its last row against the base, without a test, because {why} in {label}: {size}"
    what = "exploratory" if effect.exploratory else "undecided"
    test = p_of(effect, analysis.family) + short_of(analysis, effect)
    return f"its last row against the base is {what} in {label}, {size} ({test})"


def _singles(analysis: Analysis) -> str:
    found = [(s, analysis.to_base.get(s.arm)) for s in singles(analysis)]
    tested = [(s, e) for s, e in found if e is not None and e.supported]
    if not tested:
        return ""
    shown = [(s, e) for s, e in tested if claimed(e, analysis.levels.score)]
    kept = [f"`{s.name}` {interval_text(e.estimate, signed=True)}" for s, e in shown]
    same = [
        f"`{s.name}` {number(e.estimate.value, decimals_for(None, e.estimate.value), signed=True)}"
        for s, e in tested
        if e.untestable
    ]
    unclear = [(s, e) for s, e in tested if not e.untestable and not claimed(e, analysis.levels.score)]
    left = [f"`{s.name}`" for s, e in unclear if not e.exploratory]
    after_results = [f"`{s.name}`" for s, e in unclear if e.exploratory]
    comparisons = f"{analysis.family} comparison{'s' if analysis.family > 1 else ''}"
    after = f", after Holm's correction over {comparisons}" if analysis.family else ""
    head = f"Single arms that differ from the base in {analysis.score.label}{after}"
    text = f"{head}: {listed(kept) if kept else 'none shown'}"
    text += f"; undecided: {listed(left)}" if left else ""
    text += f"; exploratory: {listed(after_results)}" if after_results else ""
    return f"{text}{f'; without any spread and so without a test: {listed(same)}' if same else ''}."


def _seeds_rule(analysis: Analysis) -> str:
    sizes = sorted(runs_per_arm(analysis))
    n = sizes[-1]
    if analysis.plan.interim is not None:
        few = "; with so few seeds all of this is only indicative" if n < 5 else ""
        return f"{where(analysis)}; intervals and p values are adjusted for the interim analyses{few}."
    if n == 1:
        return "Each arm is a single run, so training variance is unknown and differences between arms are not tested."
    if n == 2:
        most = "" if len(sizes) == 1 else "at most "
        return f"Each arm has {most}2 runs: the tables show the value of each, and differences are not tested."
    if n < 5 and analysis.family:
        count = f"{n}" if len(sizes) == 1 else f"{sizes[0]} to {n}"
        return f"With {count} seeds per arm, all of this is only indicative."
    return ""


def _one_arm(analysis: Analysis, single: Single, found: dict[tuple[str, str], Effect | None]) -> str:
    name = f"`{single.name}` alone" if single.trick else f"`{single.name}`"
    score = analysis.to_base.get(single.arm)
    if score is None:
        return f"{name}: {_not_compared(analysis, single.arm)}."
    if not score.supported:
        n = score.estimate.n
        few = "single run; training variance unknown" if n == 1 else f"{n} runs, too few for a test"
        if score.paired and any(len(analysis.values(a, analysis.score)) > n for a in (single.arm, analysis.plan.base)):
            few = f"{'one seed pair' if n == 1 else f'{n} seed pairs'}, too few for a test"
        return f"{name}: {analysis.score.label} {listed(single_texts(score))} against the base ({few})."
    known = [(m, e) for m in effect_measures(analysis) if (e := found[single.arm, m.key]) is not None]
    level = analysis.levels.symptom
    mark = "" if claimed(score, analysis.levels.score) else ":"
    parts = [f"{name}{mark} {score_sentence(analysis, score, analysis.family)}."]
    parts += [_both_scores(analysis, single.arm)] if score.untestable and score.estimate.value else []
    parts += _equivalent(analysis, single.arm)
    for verb, sign in (("lowered", -1), ("raised", 1)):
        moved = [_moved(m, e) for m, e in known if claimed(e, level) and sign * e.estimate.value > 0]
        parts += [f"It {verb} {listed(moved)}."] if moved else []
    alone = [_shifted(m, e) for m, e in known if e.separated and not claimed(e, level)]
    parts += [f"Not claimed, though its interval leaves out 0: {listed(alone)}."] if alone else []
    quiet = [NAMES[m.key] for m, e in known if e.supported and e.estimate.sd and not e.separated]
    parts += [f"Undecided: {listed(quiet)}."] if quiet else []
    return " ".join(parts)


def _both_scores(analysis: Analysis, arm: str) -> str:
    """Return the scores behind a difference without spread."""
    ends = []
    for each, whose in ((analysis.plan.base, "base"), (arm, "arm")):
        values = dict.fromkeys(number(v, 3) for v in analysis.values(each, analysis.score).values())
        ends.append(
            f"{listed(values)} in all seeds of the {whose}" if len(values) == 1 else f"{whose} {listed(values)}"
        )
    return f"Scores: {', '.join(ends)}."


def _not_compared(analysis: Analysis, arm: str) -> str:
    """Return why an arm has no difference from the base."""
    base = analysis.plan.base
    for each, whose in ((base, "the base"), (arm, "the arm")):
        if not analysis.values(each, analysis.score):
            return f"cannot be compared, because {lost_all(analysis, each, whose)}"
    if not analysis.same_meaning(arm, base, analysis.score):
        return "cannot be compared, because its trainer and that of the base measure the score in other ways"
    return "cannot be compared, because it and the base have no seed in common"


def lost_all(analysis: Analysis, arm: str, whose: str) -> str:
    """Return how the runs of an arm without a score ended."""
    ended = [r.outcome for r in analysis.runs(arm)]
    if "pending" in ended:
        return f"{whose} has no finished run yet"
    how = listed(f"{o.replace('_', ' ')} ({ended.count(o)})" for o in dict.fromkeys(ended))
    if {"finished", "stopped_early"} & {*ended}:
        return f"no run of {whose} has a finite score: {how}"
    return f"every run of {whose} was lost: {how}"


def equivalent(analysis: Analysis, arm: str) -> bool:
    """Return whether the arm is equivalent to the base, by a test against a margin that was declared in time."""
    p = analysis.equivalence.get(arm)
    return p is not None and p < ALPHA and not analysis.late("margin") and arm not in analysis.late_arms


def _equivalent(analysis: Analysis, arm: str) -> list[str]:
    """Return that the arm is equivalent to the base, if a test against the declared margin shows it."""
    p = analysis.equivalence.get(arm)
    if p is None or p >= ALPHA:
        return []
    if not equivalent(analysis, arm):
        why = (
            "the margin was declared after results" if analysis.late("margin") else "it was declared after its results"
        )
        return [
            f"Exploratory: within ±{analysis.plan.margin:g} of the base ({p_words(p)}, two one-sided tests), but {why}."
        ]
    margin = f"the declared margin of ±{analysis.plan.margin:g}"
    return [f"It is equivalent to the base within {margin} ({p_words(p)}, two one-sided tests, Holm)."]


def _moved(measure: Measure, effect: Effect) -> str:
    return f"{NAMES[measure.key]} by {size_text(effect)}{_unit(measure)}"


def _shifted(measure: Measure, effect: Effect) -> str:
    return f"{NAMES[measure.key]} {interval_text(effect.estimate, signed=True)}{_unit(measure)}"


def _unit(measure: Measure) -> str:
    unit = measure.unit.removesuffix("tokens").strip() if measure.key == "generated" else measure.unit
    return f" {unit}" if unit not in ("fraction", "") else ""
