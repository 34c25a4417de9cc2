"""Two studies side by side: which arms are the same, how the others differ, and tests where they mean something."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from paribus.recipe.recipe import difference
from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import MIN_SEEDS, Effect, corrected
from paribus.report.build import provenance
from paribus.report.inputs import StudyData
from paribus.report.model import Cell, Column, ReportModel, Table, TableRow
from paribus.report.side_by_side import analysed, comparison, settings
from paribus.report.tables.cells import (
    INTERVALS,
    NOT_APPLICABLE,
    adjusted_cell,
    effect_cell,
    interval_text,
    score_cell,
)
from paribus.report.tables.robustness import UNPAIRED, equivalence_cell, permutation_cell, permutation_note, testable
from paribus.stats.multiple_testing import ALPHA, holm
from paribus.study.plan import Arm
from paribus.text import plural

SHOWN = 6
"""Maximum number of differing paths in a cell."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """An arm of each study that are compared, or an arm of one study without a counterpart.

    Attributes:
        first: arm of the first study; ``None`` without a counterpart.
        second: arm of the second study; ``None`` without a counterpart.
        effect: second minus first; ``None`` if it is not tested.
        reason: why it is not tested; empty if it is.
        equivalence_p: of "they differ by the margin of both studies or more", after Holm's correction over the recipes
            that are in both; ``None`` without such a test.
    """

    first: Arm | None
    second: Arm | None
    effect: Effect | None = None
    reason: str = ""
    equivalence_p: float | None = None

    @property
    def same(self) -> bool:
        """Whether both have the same recipe."""
        return self.first is not None and self.second is not None and self.first.key == self.second.key


def compare(first: StudyData, second: StudyData) -> ReportModel:
    """Return the comparison of two studies as a report.

    Raises:
        ParibusError: both are the same plan, or Paribus did not train one of them.
    """
    a, b = analyses = analysed((first, second))
    (pairs,) = tested(a, [b], same=False)
    tables = (_results(a, b, pairs), _recipes(a, b, pairs), settings(analyses, ("first", "second")))
    return comparison(analyses, _summary(a, b, pairs), tables, _both(a, b))


def tested(a: Analysis, others: Sequence[Analysis], *, same: bool) -> list[list[Pair]]:
    """Return the pairs of the first study with each other one, with their tests, corrected over all of them.

    With ``same``, only arms with the same recipe are tested, not those with only the same label.
    """
    found = [(b, pair) for b in others for pair in _with_effects(a, b)]
    found = [(b, pair if pair.same or not same else replace(pair, effect=None, reason="")) for b, pair in found]
    effects = corrected(pair.effect for _, pair in found)
    alike = holm([_equivalence_p(a, b, pair, e) for (b, pair), e in zip(found, effects, strict=True)])
    done: dict[int, list[Pair]] = {id(b): [] for b in others}
    for (b, pair), effect, p in zip(found, effects, alike, strict=True):
        done[id(b)].append(replace(pair, effect=effect, equivalence_p=p))
    return [*done.values()]


def _equivalence_p(a: Analysis, b: Analysis, pair: Pair, effect: Effect | None) -> float | None:
    """Return p of the test that one recipe scores alike in both studies; ``None`` where that is not tested."""
    margin = shared_margin(a, b)
    if margin is None or effect is None or not pair.same or not effect.supported:
        return None
    return effect.estimate.equivalence_p(margin)


def _with_effects(a: Analysis, b: Analysis) -> list[Pair]:
    """Return the pairs with their effects before any correction, or with the reason why there is none."""
    pairs, general = _pairs(a, b), _not_comparable(a, b)
    merged = _merged(a, b)
    found = []
    for pair in pairs:
        if pair.first is None or pair.second is None:
            found.append(pair)
            continue
        reason = general or _too_alike(a, b, pair) or _too_few(a, b, pair)
        effect = None if reason else merged.effect(f"b/{pair.second.key}", f"a/{pair.first.key}", merged.score)
        found.append(replace(pair, effect=effect, reason=reason))
    return found


def shared_margin(a: Analysis, b: Analysis) -> float | None:
    """Return the margin that both studies declare; ``None`` unless it is one."""
    return a.plan.margin if a.plan.margin == b.plan.margin else None


def late_margin(a: Analysis, b: Analysis) -> bool:
    """Whether a study declared its margin when it had results."""
    return a.late("margin") or b.late("margin")


def _margin_note(a: Analysis, b: Analysis) -> list[str]:
    """Return why equivalence is not tested, if a study declares a margin."""
    if a.plan.margin == b.plan.margin:
        return []
    said = [f"`{x.plan.study}` {'none' if x.plan.margin is None else f'±{x.plan.margin:g}'}" for x in (a, b)]
    return [f"Equivalence is not tested: both studies must declare the same `margin`, and {said[0]}, {said[1]}."]


def _pairs(a: Analysis, b: Analysis) -> list[Pair]:
    """Return arms with the same recipe, then those with only the same label, then those without a counterpart."""
    of_b = {arm.key: arm for arm in b.plan.arms}
    same = [Pair(first=arm, second=of_b[arm.key]) for arm in a.plan.arms if arm.key in of_b]
    taken = {p.first.key for p in same if p.first}
    left = [arm for arm in a.plan.arms if arm.key not in taken]
    right = {arm.label: arm for arm in b.plan.arms if arm.key not in taken}
    named = [Pair(first=arm, second=right.pop(arm.label)) for arm in left if arm.label in right]
    matched = {p.first.key for p in named if p.first}
    alone = [Pair(first=arm, second=None) for arm in left if arm.key not in matched]
    return [*same, *named, *alone, *(Pair(first=None, second=arm) for arm in right.values())]


def _merged(a: Analysis, b: Analysis) -> Analysis:
    """Return both studies as one with unpaired seeds; prefixes keep their arms and runs apart."""
    arms = tuple(
        replace(arm, key=f"{side}/{arm.key}") for side, study in (("a", a), ("b", b)) for arm in study.plan.arms
    )
    runs = tuple(
        replace(run, arm=f"{side}/{run.arm}") for side, study in (("a", a), ("b", b)) for run in study.data.runs
    )
    plan = replace(a.plan, arms=arms, base=arms[0].key, rows=(), paired=False, margin=None)
    return Analysis(replace(a.data, plan=plan, runs=runs))


def _not_comparable(a: Analysis, b: Analysis) -> str:
    """Return why no arm of one study can be tested against one of the other; empty if they can."""
    one, other = a.evaluate, b.evaluate
    terms = {k: (v, getattr(b.primary_settings, k)) for k, v in a.primary_settings.model_dump().items() if k != "task"}
    terms["task of the set"] = (a.primary_settings.problems_text, b.primary_settings.problems_text)
    terms["checkpoint"] = (one.checkpoint, other.checkpoint)
    terms["primary"] = (one.primary_metric, other.primary_metric)
    differ = [f"{k} {v} and {w}" for k, (v, w) in terms.items() if v != w]
    if differ:
        return f"evaluated differently: {', '.join(differ)}"
    problems = [
        {e.problems for run in study.data.runs for e in run.evaluations if e.set == study.evaluate.primary_set}
        for study in (a, b)
    ]
    return "different held-out problems" if all(problems) and problems[0] != problems[1] else ""


def _too_alike(a: Analysis, b: Analysis, pair: Pair) -> str:
    assert pair.first is not None and pair.second is not None  # noqa: PT018 - only complete pairs are tested
    runs = {r.fingerprint for r in a.runs(pair.first.key)}
    shared = sum(r.fingerprint in runs for r in b.runs(pair.second.key))
    if not shared:
        return ""
    total = len(b.runs(pair.second.key))
    return (
        "the same runs"
        if shared == total == len(runs)
        else f"{shared} of {plural(total, 'run is', 'runs are')} the same"
    )


def _too_few(a: Analysis, b: Analysis, pair: Pair) -> str:
    counts = map(len, _scores(a, b, pair))
    return "" if min(counts) >= MIN_SEEDS else f"fewer than {MIN_SEEDS} seeds with a score"


def _results(a: Analysis, b: Analysis, pairs: Sequence[Pair]) -> Table:
    tested = [p for p in pairs if p.effect is not None]
    counts = [(len(first), len(second)) for first, second in (_scores(a, b, p) for p in tested)]
    exact = any(testable(*each) for each in counts)
    columns = (
        Column(key="recipe", label="recipe"),
        Column(key="first", label=a.plan.study, unit=a.score.unit, note=a.score.note),
        Column(key="second", label=b.plan.study, unit=b.score.unit, note=b.score.note),
        Column(key="difference", label="difference", unit=a.score.unit, note="second minus first; Welch's t, unpaired"),
        Column(key="p", label="p (Holm)", note="over the differences of this table"),
        *([Column(key="exact_p", label="exact p", note=UNPAIRED)] if exact else []),
        *_equivalent_column(a, b),
        Column(key="tested", label="tested?"),
    )
    rows = tuple(TableRow(label=_label(pair), cells=_cells(a, b, pair, exact)) for pair in pairs)
    return Table(
        key="results",
        title=f"Results: {a.score.label}",
        answers="Did the same recipe reach the same score in both studies?",
        first="Arm",
        columns=columns,
        rows=rows,
        notes=(
            *([INTERVALS] if any(c.low is not None for r in rows for c in r.cells) else []),
            *dict.fromkeys(note for each in counts for note in permutation_note(*each)),
            *_margin_note(a, b),
            *(["A difference can come from anything that differs between the studies: see below."] if tested else []),
        ),
        main=True,
    )


def _equivalent_column(a: Analysis, b: Analysis) -> list[Column]:
    margin = shared_margin(a, b)
    if margin is None:
        return []
    note = f"two one-sided tests against ±{margin:g}, which both studies declare; p by Holm over the recipes in both"
    return [Column(key="equivalent", label=f"within ±{margin:g}?", note=note)]


def equivalence(pair: Pair, late: bool) -> Cell:
    """Return whether the arms of a pair are equivalent within the margin; ``late``: it was declared after results."""
    return NOT_APPLICABLE if pair.equivalence_p is None else equivalence_cell(pair.equivalence_p, late=late)


def _cells(a: Analysis, b: Analysis, pair: Pair, exact: bool) -> tuple[Cell, ...]:
    alone = pair.first is None or pair.second is None
    recipe = f"only in {(a if pair.first else b).plan.study}" if alone else "same" if pair.same else "differs"
    effect = pair.effect
    by_splits = permutation_cell(*_scores(a, b, pair), a.share) if effect else NOT_APPLICABLE
    return (
        Cell(text=recipe),
        score_cell(a, pair.first.key) if pair.first else NOT_APPLICABLE,
        score_cell(b, pair.second.key) if pair.second else NOT_APPLICABLE,
        effect_cell(effect, effect.estimate.n, better=a.score.better) if effect else NOT_APPLICABLE,
        adjusted_cell(effect),
        *([by_splits] if exact else []),
        *([equivalence(pair, late_margin(a, b))] if shared_margin(a, b) is not None else []),
        NOT_APPLICABLE if alone else Cell(text=(pair.reason and f"no: {pair.reason}") or "yes"),
    )


def _scores(a: Analysis, b: Analysis, pair: Pair) -> tuple[Collection[float], Collection[float]]:
    """Return the scores of both arms of a pair."""
    assert pair.first is not None and pair.second is not None  # noqa: PT018 - only complete pairs are tested
    return a.values(pair.first.key, a.score).values(), b.values(pair.second.key, b.score).values()


def _recipes(a: Analysis, b: Analysis, pairs: Sequence[Pair]) -> Table:
    rows = []
    for pair in pairs:
        if pair.same:
            continue
        arm, study = (pair.first, b) if pair.first else (pair.second, a)
        assert arm is not None  # a pair has at least one arm
        other = pair.second if pair.first and pair.second else _nearest(arm, study.plan.arms)
        changes = difference(arm.recipe, other.recipe)
        texts = [f"{path}: {_short(x)} / {_short(y)}" for path, (x, y) in changes.items()]
        more = f", and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
        where = f"{other.label} ({study.plan.study})"
        cells = (Cell(text=where), Cell(text=", ".join(texts[:SHOWN]) + more), Cell(text=str(len(texts))))
        rows.append(TableRow(label=_label(pair), cells=cells))
    return Table(
        key="recipes",
        title="Arms that differ",
        answers="How does each arm differ from the nearest arm of the other study?",
        first="Arm",
        columns=(
            Column(
                key="nearest", label="compared with", note="the arm of the same name, else the one that differs least"
            ),
            Column(key="changes", label="differs in", note="path: here / there"),
            Column(key="count", label="paths"),
        ),
        rows=tuple(rows),
        notes=() if rows else ("Every arm has the same recipe as an arm of the other study.",),
    )


def _summary(a: Analysis, b: Analysis, pairs: Sequence[Pair]) -> list[str]:
    same = [p for p in pairs if p.same]
    tested = [p for p in pairs if p.effect is not None]
    of = f"{plural(len(a.plan.arms), 'arm')} of `{a.plan.study}` and {len(b.plan.arms)} of `{b.plan.study}`"
    found = [f"{plural(len(same), 'recipe is', 'recipes are')} in both, of {of}."]
    if not tested:
        reasons = dict.fromkeys(p.reason for p in pairs if p.reason)
        why = f": {'; '.join(reasons)}" if reasons else ""
        return [*found, f"No arm of one study is tested against an arm of the other{why}."]
    apart = [p for p in tested if p.effect and p.effect.confirmed]
    names = ", ".join(f"`{_label(p)}` {interval_text(p.effect.estimate, signed=True)}" for p in apart if p.effect)
    verdict = f"{len(apart)} of {len(tested)} differences in {a.score.label} are confirmed after Holm's correction"
    found.append(f"{verdict}: {names}." if apart else f"{verdict}.")
    if shown := _equivalent_words(a, b, pairs):
        return [*found, shown]
    return found if apart else [*found, "This does not prove that the studies agree."]


def _equivalent_words(a: Analysis, b: Analysis, pairs: Sequence[Pair]) -> str:
    """Return which of the recipes that are in both reach the same score; empty without a test of it."""
    compared = [p for p in pairs if p.equivalence_p is not None]
    if not compared:
        return ""
    margin = f"±{a.plan.margin:g}"
    if late_margin(a, b):
        return f"A margin of {margin} was declared after results: equivalence within it is exploratory."
    names = [f"`{_label(p)}`" for p in compared if p.equivalence_p is not None and p.equivalence_p < ALPHA]
    which = f": {', '.join(names)}" if names else ""
    return (
        f"{len(names)} of {len(compared)} recipes that are in both are equivalent within the declared margin of "
        f"{margin} (two one-sided tests, Holm){which}."
    )


def _both(a: Analysis, b: Analysis) -> dict[str, str]:
    left, right = provenance(a), provenance(b)
    return {name: text if right.get(name) == text else f"{text} / {right.get(name, '')}" for name, text in left.items()}


def _nearest(arm: Arm, others: Sequence[Arm]) -> Arm:
    return min(others, key=lambda other: len(difference(arm.recipe, other.recipe)))


def _label(pair: Pair) -> str:
    labels = dict.fromkeys(arm.label for arm in (pair.first, pair.second) if arm is not None)
    return " / ".join(labels)


def _short(value: object) -> str:
    return "none" if value is None else str(value)
