"""One difference in words: what a test shows of it, or what is known of one that no test shows."""

from __future__ import annotations

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import Effect
from paribus.report.tables.cells import decimals_for, interval_text, needed_text, number, p_words, precision
from paribus.stats.multiple_testing import ALPHA


def claimed(effect: Effect, level: float) -> bool:
    """Whether a sentence may say that this effect is there: never of one that was declared after its results."""
    return not effect.exploratory and stands_out(effect, level)


def stands_out(effect: Effect, level: float) -> bool:
    """Whether the test of an effect is below the level of a claim, whenever it was declared."""
    return effect.supported and effect.p_adjusted is not None and effect.p_adjusted < level


def score_sentence(analysis: Analysis, effect: Effect, family: int) -> str:
    """Return what a difference in the score is, with a verb where a test of this family shows it."""
    if claimed(effect, analysis.levels.score):
        verb = "raised" if effect.estimate.value > 0 else "lowered"
        return f"{verb} {analysis.score.label} by {size_text(effect)} ({count_text(effect)}; {p_of(effect, family)})"
    return undecided(analysis, effect, family)


def undecided(analysis: Analysis, effect: Effect, family: int) -> str:
    """Return what is known of a difference that no test shows, what the study could detect, and the seeds it takes."""
    e, label = effect.estimate, analysis.score.label
    if effect.untestable:
        same = number(e.value, decimals_for(None, e.value), signed=True) if e.value else "the same"
        pairs = "in every seed pair" if effect.paired else "between seeds that all agree"
        return f"{label} {same} {pairs} ({e.n}). Nothing varies, so a test has no spread to compare with: no p"
    what = "exploratory" if effect.exploratory else "undecided"
    text = f"{what} in {label}, {interval_text(e, signed=True)} ({count_text(effect)}; {p_of(effect, family)}"
    text += f"{short_of(analysis, effect)})"
    if effect.detectable is None:
        return text
    size, most = analysis.size_to_find(effect), analysis.largest
    what = "the declared margin" if analysis.plan.margin is not None else "half of this interval"
    seeds = needed_text(analysis.seeds_to_find(effect, family))
    reach = f"a difference could be detected from {number(effect.detectable, decimals_for(e.se, effect.detectable))} on"
    reach = reach if effect.detectable <= most else f"no difference of {most:g} or less could be detected"
    more = f". To show one of {number(size, precision(e))}, {what}, takes {seeds}" if size <= most else ""
    return f"{text}; by itself, {reach}{more}"


def p_of(effect: Effect, family: int) -> str:
    """Return p after Holm's correction over a family of this size, for example ``p = 0.03 after Holm over 4``."""
    return f"{p_words(effect.p_adjusted)} after Holm over {family}" if effect.p_adjusted is not None else "no test"


def short_of(analysis: Analysis, effect: Effect) -> str:
    """Return what a claim takes where p has the star of the tables and is not small enough for a verb, else nothing."""
    near = effect.p_adjusted is not None and effect.p_adjusted < ALPHA and not effect.exploratory
    return f"; a claim takes p below {100 * analysis.levels.score:.2g}%" if near else ""


def count_text(effect: Effect) -> str:
    """Return how many seeds a difference is of, for example ``5 seed pairs``."""
    return f"{effect.estimate.n} {'seed pairs' if effect.paired else 'seeds per arm'}"


def size_text(effect: Effect) -> str:
    """Return the size of a separated effect without its sign, for example ``3.5 [2.5, 4.5]``."""
    e = effect.estimate
    decimals = precision(e)
    ends = sorted(abs(x) for x in (e.low, e.high) if x is not None)
    return f"{number(abs(e.value), decimals)} [{', '.join(number(x, decimals) for x in ends)}]"
