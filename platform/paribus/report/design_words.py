"""The effects of designs in words: those that combine more than two rows of a factorial, fraction, grid, ``pairs``."""

from __future__ import annotations

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import Effect
from paribus.report.analysis.effects import TestedDesign, tested_designs
from paribus.report.effect_words import claimed, count_text, p_of, score_sentence, size_text, undecided
from paribus.report.tables.cells import decimals_for, interval_text, number
from paribus.study.contrasts import Contrast
from paribus.text import listed

SHARES = {1: "half", 2: "a quarter", 3: "an eighth"}
"""How much of an interaction of 2, 3 or 4 tricks enters a main effect that it is confounded with."""


def any_tested(analysis: Analysis) -> bool:
    """Whether anything was tested that a sentence may claim: an arm against the base, or an effect of a design."""
    return bool(analysis.family or any(design.family for design in tested_designs(analysis)))


def designs(analysis: Analysis) -> list[str]:
    """Return a sentence for each design: which of its effects differ from 0."""
    return [_design(analysis, design) for design in tested_designs(analysis)]


def designs_tested(analysis: Analysis) -> list[str]:
    """Return what each design shows by its effects over several rows; nothing of a design without a test."""
    return [_design(analysis, design) for design in tested_designs(analysis) if design.family]


def _design(analysis: Analysis, design: TestedDesign) -> str:
    name = f"{design.kind.capitalize()} `{design.name}`"
    tested = [(c, e) for c, e in design.effects if e is not None and e.supported]
    if not tested:
        return f"{name}: no effect has the 3 seeds per arm that a test needs."
    parts = []
    for kind, one in (("main effects", True), ("interactions", False)):
        group = [(c, e) for c, e in tested if (len(c.tricks) == 1) is one]
        found = [(c, e) for c, e in group if claimed(e, analysis.levels.score)]
        moved = [f"{_subject(c)} {interval_text(e.estimate, signed=True)}" for c, e in found]
        if group:
            parts.append(f"{kind} that differ from 0: {len(moved) or 'none shown'} of {len(group)}")
            parts[-1] += f", {listed(moved)}" if moved else ""
    return f"{name}, after Holm's correction over {design.family} effects: {'; '.join(parts)}."


def design_words(analysis: Analysis, design: TestedDesign) -> list[str]:
    """Return a sentence for each effect that can be tested; undecided interactions share one."""
    tested = [(c, e) for c, e in design.effects if e is not None and e.supported]
    level = analysis.levels.score
    quiet = [(c, e) for c, e in tested if len(c.tricks) > 1 and not claimed(e, level) and e.detectable is not None]
    if len(quiet) < 2:
        return [_effect_sentence(analysis, design, c, e) for c, e in tested]
    found = [_effect_sentence(analysis, design, c, e) for c, e in tested if (c, e) not in quiet]
    reach = [number(e.detectable, decimals_for(e.estimate.se, e.detectable)) for _, e in quiet if e.detectable]
    ends = " to ".join(dict.fromkeys((min(reach, key=float), max(reach, key=float))))
    pairs = listed(f"`{c.name}`" for c, _ in quiet)
    limit = f"by itself, each could be detected from {ends} on"
    if any(e.detectable > analysis.largest for _, e in quiet if e.detectable):
        limit = f"by themselves, not all could be detected at a size of {analysis.largest:g} or less"
    hidden = " Confounded interactions can hide each other." if any(c.aliases for c, _ in quiet) else ""
    return [*found, f"Interactions in {analysis.score.label} undecided in `{design.name}`: {pairs}; {limit}.{hidden}"]


def _effect_sentence(analysis: Analysis, design: TestedDesign, contrast: Contrast, effect: Effect) -> str:
    place, aliases, label = f"in `{design.name}`", _aliases(contrast), analysis.score.label
    if contrast.aliases and claimed(effect, analysis.levels.score):  # no verb: it can be the effect of an alias
        size = interval_text(effect.estimate, signed=True)
        of = f"{count_text(effect)}; {p_of(effect, design.family)}"
        return f"{_subject(contrast)} {place} differs from 0 in {label}: {size} ({of}).{aliases}"
    if len(contrast.tricks) == 1:
        text = score_sentence(analysis, effect, design.family)
        mark = "," if claimed(effect, analysis.levels.score) else ":"
        others = "paths" if design.kind == "grid" else "tricks"
        return f"`{contrast.name}` {place}, averaged over the other {others}{mark} {text}.{aliases}"
    first, second = contrast.tricks
    if not claimed(effect, analysis.levels.score):
        return f"`{first}` and `{second}` {place}, interaction: {undecided(analysis, effect, design.family)}.{aliases}"
    more = "more" if effect.estimate.value > 0 else "less"
    found = f"together they give {size_text(effect)} {more} {label} than their separate effects added up"
    return f"`{first}` and `{second}` {place}: {found} ({count_text(effect)}; {p_of(effect, design.family)}).{aliases}"


def _subject(contrast: Contrast) -> str:
    """Return the name of an effect, with those that the arms of a fraction cannot separate from it."""
    return f"`{contrast.name}`, or {' or '.join(_others(contrast))}," if contrast.aliases else f"`{contrast.name}`"


def _others(contrast: Contrast) -> list[str]:
    signs = {"+": "", "-": "minus "}
    return [f"{signs[alias[0]]}`{alias[2:]}`" for alias in contrast.aliases]


def _aliases(contrast: Contrast) -> str:
    """Return the effects that the arms of a fraction cannot separate from this one."""
    if not contrast.aliases:
        return ""
    names = listed(_others(contrast))
    share = SHARES.get(contrast.aliases[0].count(" x "), "a part") if len(contrast.tricks) == 1 else ""
    part = f", {share} of which would be included in it" if share else ""
    return f" The arms cannot separate it from {names}{part}."
