"""Ceiling or efficiency in words: a verb only where a corrected test shows it, else why nothing can be said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.ceilings import AXES, Ceilings
from paribus.report.analysis.effect import MIN_SEEDS, Effect
from paribus.report.effect_words import claimed, size_text
from paribus.report.tables.ceilings import AXIS_NAMES, ratio_text
from paribus.report.tables.cells import interval_text
from paribus.text import listed, plural

NO_CEILING = "the curve does not identify a ceiling"


def ceiling_words(analysis: Analysis, found: Ceilings) -> str:
    """Return what the curves say of ceilings and of the cost of a score; empty before the first run has finished."""
    ended = [arm for arm in found.arms if any(r.outcome == "finished" for r in analysis.runs(arm))]
    if not ended:
        return ""
    known = [arm for arm in ended if found.identified(arm)]
    text = f"Ceiling or efficiency: {_ceilings(analysis, found, ended, known)}"
    return f"{text}{_compared(analysis, found)}"


def _ceilings(analysis: Analysis, found: Ceilings, ended: Sequence[str], known: Sequence[str]) -> str:
    base = analysis.plan.base
    if not known:
        why = found.fit(base).why if base in ended else found.fit(ended[0]).why
        whose = "the base" if base in ended else f"`{analysis.label(ended[0])}`"
        each = "no curve identifies a ceiling" if len(ended) > 1 else NO_CEILING
        return f"{each} ({whose}: {why})."
    if base not in known:
        why = found.fit(base).why if base in ended else "no finished run"
        names = listed(f"`{analysis.label(arm)}`" for arm in known)
        return f"of the base, {NO_CEILING} ({why}), so no ceiling is compared with it; identified: {names}."
    ceiling = found.ceiling(base)
    assert ceiling is not None  # it is identified
    planned = len(analysis.runs(base))
    few = f" over {ceiling.n} of {plural(planned, 'run')}" if ceiling.n != planned else ""
    few += "" if ceiling.n >= MIN_SEEDS else ", too few seeds for an interval"
    others = [arm for arm in ended if arm != base and arm not in known]
    text = f"the curve of the base has a ceiling of {interval_text(ceiling)} in {analysis.score.label}{few}"
    left = listed(f"`{analysis.label(arm)}`" for arm in others)
    return f"{text}; not identified: {left}." if others else f"{text}."


def _compared(analysis: Analysis, found: Ceilings) -> str:
    """Return which arms have another ceiling, or reach half of the base's gain at another cost."""
    tested = {key: e for key, e in found.effects.items() if e is not None and e.p_adjusted is not None}
    arms = dict.fromkeys(arm for arm, _ in tested)
    each = {
        arm: {w: e for (a, w), e in tested.items() if a == arm and claimed(e, analysis.levels.curve)} for arm in arms
    }
    shown = [_claims(analysis.label(arm), claims) for arm, claims in each.items() if claims]
    open_arms = [f"`{analysis.label(arm)}`" for arm, claims in each.items() if not claims]
    text = f" After Holm over {found.family} tests, {'; '.join(shown)}." if shown else ""
    text += f" Undecided whether higher or sooner: {listed(open_arms)}." if open_arms else ""
    return f"{text}{_untested(analysis, found)}"


def _untested(analysis: Analysis, found: Ceilings) -> str:
    """Return which arms would be compared, had no run been lost."""
    base = analysis.plan.base
    fits = [arm for arm in found.arms if arm != base and found.untested(arm) and found.fit(arm).whole is not None]
    if not fits or found.fit(base).whole is None or len(analysis.plan.seeds) < MIN_SEEDS:
        return ""
    if lost := len(found.lost(base)):
        return f" No arm is compared with the base, which lost {lost} of {plural(len(analysis.runs(base)), 'run')}."
    arms = (f"`{analysis.label(a)}` ({len(found.lost(a))} of {len(analysis.runs(a))})" for a in fits)
    return f" Not compared with the base, because runs were lost: {listed(arms)}."


def _claims(name: str, claims: Mapping[str, Effect]) -> str:
    """Return what is shown of one arm, for example that it raised the ceiling."""
    parts = []
    if "ceiling" in claims:
        effect = claims["ceiling"]
        parts.append(f"{'raised' if effect.estimate.value > 0 else 'lowered'} the ceiling by {size_text(effect)}")
    for when, sign in (("sooner", -1), ("later", 1)):
        costs = {a: claims[a] for a in AXES if a in claims and sign * claims[a].estimate.value > 0}
        ratios = listed(f"{ratio_text(e)} of its {AXIS_NAMES[a]}" for a, e in costs.items())
        parts += [f"reached half of the base's gain {when}, at {ratios}"] if costs else []
    return f"`{name}` {listed(parts)}"
