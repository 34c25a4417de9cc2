"""The findings in words: templates filled with results of tests. They claim nothing beyond them, never "no effect"."""

from __future__ import annotations

import itertools

from paribus.report.adaptive import where
from paribus.report.analysis.analysis import MIN_SEEDS, Analysis, Effect
from paribus.report.analysis.effects import (
    Single,
    TestedDesign,
    effect_measures,
    effects,
    singles,
    stars,
    tested_designs,
)
from paribus.report.analysis.measures import Measure, score_steps, start_measure
from paribus.report.tables.cells import decimals_for, interval_text, listed, needed_text, number, p_words, precision
from paribus.report.tables.health import health_words
from paribus.stats.multiple_testing import ALPHA
from paribus.study.contrasts import Contrast
from paribus.study.plan import Row

NAMES = {
    "length": "length",
    "length_wrong": "the length of wrong answers",
    "truncated": "truncation",
    "entropy": "entropy",
    "zero_spread": "the share of zero-spread groups",
    "generated": "generated tokens",
}
"""Names of the measures of the table of effects in a sentence."""


SHARES = {1: "half", 2: "a quarter", 3: "an eighth"}
"""How much of an interaction of 2, 3 or 4 tricks enters a main effect that it is confounded with."""


def summary(analysis: Analysis) -> list[str]:
    """Return the answer in one paragraph: does the base learn, does the ladder rise, what does each arm do."""
    found = (_learning(analysis), *_ladders(analysis), *_designs(analysis), _singles(analysis), _seeds_rule(analysis))
    return [s for s in found if s]


def words(analysis: Analysis) -> list[str]:
    """Return one item for each arm against the base, each effect of several rows, and each arm with critical runs."""
    found = effects(analysis)
    arms = [_one_arm(analysis, single, found) for single in singles(analysis)]
    if any("*" in text for text in arms):
        arms.append(f"Marked {stars(analysis, found)}")
    designs = (text for design in tested_designs(analysis) for text in _design_words(analysis, design))
    return [*arms, *designs, *health_words(analysis)]


def warnings(analysis: Analysis) -> list[str]:
    """Return what lowers trust in the tables."""
    found = []
    for outcome, text in (
        ("failed", "failed (left out of the means)"),
        ("cancelled", "cancelled (left out of the means)"),
        ("stopped_early", "stopped early (counted with the last evaluation)"),
        ("pending", "not finished (left out of the means so far)"),
    ):
        lost = [r for r in analysis.data.runs if r.outcome == outcome]
        if lost:
            names = listed(dict.fromkeys(f"`{analysis.label(r.arm)}`" for r in lost))
            found.append(f"{len(lost)} of {len(analysis.data.runs)} runs {text}: {names}.")
    fragile = [f"`{analysis.label(arm)}`" for arm in analysis.to_base if analysis.fragile(arm)]
    if fragile:
        found.append(
            f"Fragile: the verdict against the base depends on how lost runs are counted for {listed(fragile)}."
        )
    found += _checkpoints(analysis)
    found += [note.message for note in analysis.plan.warnings if note.code != "cost"]  # costs are measured by now
    return found


def _checkpoints(analysis: Analysis) -> list[str]:
    """Return which runs have a score that does not follow the declared checkpoint rule."""
    found, runs, evaluate = [], analysis.data.runs, analysis.evaluate
    ends = [(r, score_steps(r, evaluate)) for r in runs if r.outcome in ("finished", "stopped_early")]
    few = [len(used) for r, used in ends if r.outcome == "finished" and 0 < len(used) < 3]
    if few and evaluate.checkpoint == "mean_of_last_3":
        most = max(few)
        found.append(
            f"{len(few)} of {len(runs)} runs have fewer than 3 evaluations after step 0: their score is the mean of "
            f"{'one' if most == 1 else f'at most {most}'}."
        )
    untrained = [r for r, used in ends if r.outcome == "stopped_early" and used and used[-1][0] == 0]
    if untrained:
        names = listed(dict.fromkeys(f"`{analysis.label(r.arm)}`" for r in untrained))
        found.append(
            f"{len(untrained)} of {len(runs)} runs were stopped before an evaluation: they count with the score before "
            f"training, which says nothing about them: {names}."
        )
    return found


def _learning(analysis: Analysis) -> str:
    base, label = analysis.plan.base, analysis.score.label
    after, before = analysis.values(base, analysis.score), analysis.values(base, start_measure(analysis.evaluate))
    seeds = [s for s in after if s in before]
    subject = f"The base arm `{analysis.label(base)}`"
    if not seeds:
        return f"{subject} has no finished run yet, so nothing can be said about learning."
    ends = analysis.estimate(base, start_measure(analysis.evaluate)), analysis.estimate(base, analysis.score)
    if len(seeds) < MIN_SEEDS:
        pairs = listed(f"{number(before[s], 3)} to {number(after[s], 3)}" for s in seeds)
        few = "single run; training variance unknown" if len(seeds) == 1 else "2 runs, too few for an interval"
        return f"{subject} went from {pairs} in {label} ({few})."
    gain = analysis.gain(base)
    assert gain is not None and ends[0] is not None and ends[1] is not None  # noqa: PT018 - there are seeds
    text = f"{subject} went from {interval_text(ends[0])} to {interval_text(ends[1])} in {label}"
    verdict = "" if gain.separated else "; this is not separated from seed noise"
    moved = interval_text(gain.estimate, signed=True)
    return f"{text}, a change of {moved} (paired within {gain.estimate.n} runs, 95% t intervals){verdict}."


def _ladders(analysis: Analysis) -> list[str]:
    names = dict.fromkeys(r.design for r in analysis.plan.rows if r.kind == "cumulative")
    return [_ladder(analysis, n, [r for r in analysis.plan.rows if r.design == n]) for n in names]


def _ladder(analysis: Analysis, name: str, rows: list[Row]) -> str:
    steps = [(b, analysis.effect(b.arm, a.arm, analysis.score)) for a, b in itertools.pairwise(rows)]
    tested = [(row, e) for row, e in steps if e is not None and e.supported]
    if not tested:
        return f"Ladder `{name}`: no step has the 3 seeds per arm that a comparison needs."
    moved = [f"`{row.label}` {interval_text(e.estimate, signed=True)}" for row, e in tested if e.separated]
    count = f"{len(moved)} {'is' if len(moved) == 1 else 'are'}" if moved else "none is"
    testable = "" if len(tested) == len(steps) else f" that can be tested, of {len(steps)}"
    text = f"Ladder `{name}`: of its {len(tested)} steps{testable}, {count} separated from seed noise in "
    text += f"{analysis.score.label}, each given the rows above and without correction"
    text += f": {listed(moved)}." if moved else "."
    last = analysis.to_base.get(rows[-1].arm)
    if last is None or not last.supported:
        return text
    verdict = _verdict(last, analysis.family)
    return f"{text} Last row against the base: {interval_text(last.estimate, signed=True)}, {verdict}."


def _designs(analysis: Analysis) -> list[str]:
    return [_design(analysis, design) for design in tested_designs(analysis)]


def _design(analysis: Analysis, design: TestedDesign) -> str:
    name = f"{design.kind.capitalize()} `{design.name}`"
    tested = [(c, e) for c, e in design.effects if e is not None and e.supported]
    if not tested:
        return f"{name}: no effect has the 3 seeds per arm that a test needs."
    parts = []
    for kind, one in (("main effects", True), ("interactions", False)):
        group = [(c, e) for c, e in tested if (len(c.tricks) == 1) is one]
        moved = [f"`{c.name}` {interval_text(e.estimate, signed=True)}" for c, e in group if e.separated]
        if group:
            parts.append(f"{kind} separated from 0: {len(moved) or 'none'} of {len(group)}")
            parts[-1] += f", {listed(moved)}" if moved else ""
    kept = [f"`{c.name}`" for c, e in tested if e.confirmed]
    after = f"after Holm's correction over {design.family} effects: {listed(kept) if kept else 'none'}"
    return f"{name}: {'; '.join(parts)}; {after}."


def _design_words(analysis: Analysis, design: TestedDesign) -> list[str]:
    """Return a sentence for each effect that can be tested; undetected interactions share one."""
    label = analysis.score.label
    tested = [(c, e) for c, e in design.effects if e is not None and e.supported]
    quiet = [(c, e) for c, e in tested if len(c.tricks) > 1 and not e.separated and e.detectable is not None]
    if len(quiet) < 2:
        return [_effect_sentence(label, design, c, e) for c, e in tested]
    found = [_effect_sentence(label, design, c, e) for c, e in tested if (c, e) not in quiet]
    reach = [number(e.detectable, decimals_for(e.estimate.se, e.detectable)) for _, e in quiet if e.detectable]
    ends = " to ".join(dict.fromkeys((min(reach, key=float), max(reach, key=float))))
    pairs = listed(f"`{c.name}`" for c, _ in quiet)
    limit = f"this study could detect {ends} or more, depending on the pair"
    hidden = " Confounded interactions can hide each other." if any(c.aliases for c, _ in quiet) else ""
    return [*found, f"No interaction in {label} detected in `{design.name}` for {pairs}; {limit}.{hidden}"]


def _effect_sentence(label: str, design: TestedDesign, contrast: Contrast, effect: Effect) -> str:
    e, place, aliases = effect.estimate, f"in `{design.name}`", _aliases(contrast)
    if len(contrast.tricks) == 1:
        text = _score_sentence(label, effect, design.family)
        mark = "," if effect.separated else ":"
        return f"`{contrast.name}` {place}, averaged over the other tricks{mark} {text}.{aliases}"
    first, second = contrast.tricks
    if not effect.separated:
        size = interval_text(e, signed=True)
        seen = f"no interaction in {label} detected ({size}, {_count(effect)}){_reach(effect)}"
        return f"`{first}` and `{second}` {place}: {seen}.{aliases}"
    more = "more" if e.value > 0 else "less"
    found = f"together they give {_size(effect)} {more} {label} than their separate effects added up"
    verdict = f"{_count(effect)}; {_verdict(effect, design.family)}"
    return f"`{first}` and `{second}` {place}: {found} ({verdict}).{aliases}"


def _aliases(contrast: Contrast) -> str:
    """Return the effects that the arms of a fraction cannot separate from this one."""
    if not contrast.aliases:
        return ""
    signs = {"+": "", "-": "minus "}
    names = listed(f"{signs[alias[0]]}`{alias[2:]}`" for alias in contrast.aliases)
    share = SHARES.get(contrast.aliases[0].count(" x "), "a part") if len(contrast.tricks) == 1 else ""
    part = f", {share} of which would be included in it" if share else ""
    return f" The arms cannot separate it from {names}{part}."


def _singles(analysis: Analysis) -> str:
    found = [(s, analysis.to_base.get(s.arm)) for s in singles(analysis)]
    tested = [(s, e) for s, e in found if e is not None and e.supported]
    if not tested:
        return ""
    moved = [f"`{s.name}` {interval_text(e.estimate, signed=True)}" for s, e in tested if e.separated]
    kept = [f"`{s.name}`" for s, e in tested if e.confirmed]
    head = f"Single arms separated from the base in {analysis.score.label}: {len(moved) or 'none'} of {len(tested)}"
    if not moved:
        return f"{head}."
    after = f"after Holm's correction over {analysis.family} comparisons: {listed(kept) if kept else 'none'}"
    return f"{head}, {listed(moved)}; {after}."


def _seeds_rule(analysis: Analysis) -> str:
    n = len(analysis.plan.seeds)
    if analysis.plan.interim is not None:
        few = "; with so few seeds all of this is only indicative" if n < 5 else ""
        return f"{where(analysis)}; intervals and p values are adjusted for the interim analyses{few}."
    if n == 1:
        return "Each arm is a single run, so training variance is unknown and differences between arms are not tested."
    if n == 2:
        return "Each arm has 2 runs: the tables show both values, and differences are not tested."
    if n < 5:
        return f"With {n} seeds per arm, all of this is only indicative."
    return ""


def _one_arm(analysis: Analysis, single: Single, found: dict[tuple[str, str], Effect | None]) -> str:
    name = f"`{single.name}` alone" if single.trick else f"`{single.name}`"
    score = analysis.to_base.get(single.arm)
    if score is None:
        return f"{name}: no finished run to compare with the base."
    if not score.supported:
        n = score.estimate.n
        few = "single run; training variance unknown" if n == 1 else f"{n} runs, too few for a test"
        each = [d for _, d in score.by_seed] or [score.estimate.value]
        seen = listed(number(d, 3, signed=True) for d in each)
        return f"{name}: {analysis.score.label} {seen} against the base ({few})."
    known = [(m, e) for m in effect_measures(analysis) if (e := found[single.arm, m.key]) is not None]
    quiet = [NAMES[m.key] for m, e in known if e.supported and e.estimate.sd and not e.separated]
    parts = [f"{name}{'' if score.separated else ':'} {_score_sentence(analysis.score.label, score, analysis.family)}."]
    parts += _equivalent(analysis, single.arm)
    for verb, sign in (("lowered", -1), ("raised", 1)):
        moved = [_moved(m, e) for m, e in known if e.separated and sign * e.estimate.value > 0]
        parts += [f"It {verb} {listed(moved)}."] if moved else []
    parts += [f"Not separated from seed noise: {listed(quiet)}."] if quiet else []
    return " ".join(parts)


def _equivalent(analysis: Analysis, arm: str) -> list[str]:
    """Return that the arm is equivalent to the base, if a test against the declared margin shows it."""
    p = analysis.equivalence.get(arm)
    if p is None or p >= ALPHA:
        return []
    margin = f"the declared margin of ±{analysis.plan.margin:g}"
    return [f"It is equivalent to the base within {margin} ({p_words(p)}, two one-sided tests, Holm)."]


def _moved(measure: Measure, effect: Effect) -> str:
    unit = measure.unit.removesuffix("tokens").strip() if measure.key == "generated" else measure.unit
    size = f"{NAMES[measure.key]} by {_size(effect)}"
    return size + (f" {unit}" if unit not in ("fraction", "") else "") + ("*" if effect.confirmed else "")


def _score_sentence(label: str, effect: Effect, family: int) -> str:
    e = effect.estimate
    if effect.separated:
        verb = "raised" if e.value > 0 else "lowered"
        return f"{verb} {label} by {_size(effect)} ({_count(effect)}; {_verdict(effect, family)})"
    seen = f"no difference in {label} detected ({interval_text(e, signed=True)}, {_count(effect)})"
    return f"{seen}{_reach(effect)}"


def _reach(effect: Effect) -> str:
    """Return what the study could have detected, and how many seeds the observed difference would need."""
    if effect.detectable is None:
        return ""
    reach = number(effect.detectable, decimals_for(effect.estimate.se, effect.detectable))
    return f"; this study could detect {reach} or more; the observed difference would need {needed_text(effect)}"


def _verdict(effect: Effect, family: int) -> str:
    if effect.p_adjusted is None:
        return "the same in every pair, so it cannot be tested"
    after = p_words(effect.p_adjusted)
    if effect.confirmed:
        return f"{after} after Holm over {family}"
    if effect.separated:
        return f"separated by itself, but {after} after Holm over {family}"
    return "not separated from seed noise"


def _count(effect: Effect) -> str:
    if effect.runs is not None:
        return f"fit to {effect.runs} runs"
    return f"{effect.estimate.n} {'seed pairs' if effect.paired else 'seeds per arm'}"


def _size(effect: Effect) -> str:
    """Return the size of a separated effect without its sign, for example ``3.5 [2.5, 4.5]``."""
    e = effect.estimate
    decimals = precision(e)
    ends = sorted(abs(x) for x in (e.low, e.high) if x is not None)
    return f"{number(abs(e.value), decimals)} [{', '.join(number(x, decimals) for x in ends)}]"
