"""What the tests of the answer assume, and what the data say about it: one spread, pairs of seeds, one environment."""

from __future__ import annotations

from collections import Counter

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.levels import FEWEST_ARMS
from paribus.report.analysis.one_spread import OneSpread, one_spread
from paribus.report.effect_words import claimed
from paribus.report.tables.cells import interval_text, number
from paribus.report.tables.robustness import NOT_POOLED, check_of
from paribus.run_folder.folder import INITIAL_WEIGHTS
from paribus.stats.pairing import least_correlation
from paribus.text import listed, plural

LEFT_OUT = {
    INITIAL_WEIGHTS, "not read",  # said by another row of the provenance
    "paribus", "git", "git_commit", "rewards",  # the fingerprint of a run covers them
    "platform", "processor", "threads", "responses_at_a_time", "tokens_a_pass",  # change the order of sums at most
}  # fmt: skip
"""What may differ between the runs of a table without a word."""


def counts(analysis: Analysis) -> list[str]:
    """Return how many arms differ from the base with and without one spread for all arms; nothing without that test."""
    whole = one_spread(analysis)
    if whole is None or not whole.by_arm or not analysis.family or analysis.late_arms:
        return []
    compared = [e for e in analysis.to_base.values() if e is not None]
    arms, alone = len(compared), sum(claimed(e, analysis.levels.score) for e in compared)
    with_it = len(whole.different)
    return [
        f"Shown to differ from the base: {with_it} of {plural(arms, 'arm')} if all arms share one "
        f"spread, {alone} of {arms} without that."
    ]


def tests_line(analysis: Analysis) -> str:
    """Return how arms are compared with the base, whether pairs help, and whether the spreads are alike."""
    if not analysis.family:
        return ""
    return f"Tests: {pairs_words(analysis)}. {_spreads(analysis)}".strip()


def pairs_words(analysis: Analysis) -> str:
    """Return whether seeds are paired, by which rule, and the correlation that says whether pairs help."""
    plan, r = analysis.plan, analysis.correlation
    if not plan.paired:
        return "seeds are not paired (Welch)"
    how = "paired by seed" if analysis.paired else "not paired (Welch)"
    declared = "as declared" if plan.pairing == "always" else "by the declared rule"
    rule = "as without a rule" if analysis.late("pairing") else declared
    if r is None:
        return f"{how}, {rule}; the correlation of seeds is not known"
    least = least_correlation(len(analysis.values(plan.base, analysis.score)))
    return f"{how}, {rule}: seeds correlate by {number(r, 2)} over arms, and pairs help from {least:.2f} on"


def _spreads(analysis: Analysis) -> str:
    whole = one_spread(analysis)
    if whole is None:
        few = len(analysis.plan.arms) < FEWEST_ARMS
        return "" if few else f"No test with one spread for all arms: {NOT_POOLED}."
    if not whole.by_arm:
        return f"No test with one spread for all arms: {check_of(whole.spread)}."
    test = f"Dunnett, p below {100 * whole.level:.2g}%"
    return f"One spread for all arms ({test}) is an assumption; its check: {check_of(whole.spread)}."


def one_spread_words(analysis: Analysis) -> str:
    """Return which arms differ from the base if all arms share one spread, with their simultaneous intervals."""
    whole = one_spread(analysis)
    if whole is None or not whole.by_arm or analysis.late_arms:
        return ""
    return f"If all arms share one spread, by Dunnett's test: {_named(analysis, whole)}."


def _named(analysis: Analysis, whole: OneSpread) -> str:
    label = analysis.score.label
    if not whole.different:
        return f"none of {plural(len(whole.by_arm), 'arm')} is shown to differ from the base in {label}"
    arms = [f"`{analysis.label(a)}` {interval_text(whole.by_arm[a], signed=True)}" for a in whole.different]
    return f"these differ from the base in {label}, with intervals that hold for all arms at once: {listed(arms)}"


def mixed_versions(analysis: Analysis) -> list[str]:
    """Return in which versions and devices the runs differ, and of which arms; nothing if all are alike."""
    arms = {run.fingerprint: analysis.label(run.arm) for run in analysis.data.runs}
    environments = {f: e for f, e in analysis.data.environments.items() if f in arms}
    names = dict.fromkeys(name for each in environments.values() for name in each if name not in LEFT_OUT)
    found = []
    for name in names:
        values = {f: each[name] for f, each in environments.items() if name in each}
        counts = Counter(values.values())
        if len(counts) > 1:
            usual, _ = counts.most_common(1)[0]
            others = [f"{value} in {_where(values, value, arms)}" for value in counts if value != usual]
            found.append(f"{name} {usual} in {counts[usual]} of {len(values)} runs, {listed(others)}")
    if not found:
        return []
    return [f"Runs were trained in different environments, which can make arms differ: {'; '.join(found)}."]


def _where(values: dict[str, str], value: str, arms: dict[str, str]) -> str:
    counts = Counter(arms[f] for f, v in values.items() if v == value)
    return listed(f"`{arm}` ({count})" for arm, count in counts.items())
