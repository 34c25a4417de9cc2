"""Several studies side by side: one table of the recipes of the first, with a row for each study that trained them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paribus.report.analysis.analysis import Analysis
from paribus.report.build import provenance
from paribus.report.inputs import StudyData
from paribus.report.model import Cell, Column, ReportModel, Table, TableRow
from paribus.report.side_by_side import analysed, comparison, settings
from paribus.report.tables.cells import INTERVALS, NOT_APPLICABLE, adjusted_cell, effect_cell, score_cell
from paribus.report.two_studies import Pair, compare, equivalence, late_margin, shared_margin, tested
from paribus.stats.multiple_testing import ALPHA


def compare_all(studies: Sequence[StudyData]) -> ReportModel:
    """Return the comparison of the first study with each other one as a report.

    Args:
        studies: two or more.

    Raises:
        ParibusError: two are the same plan, or Paribus did not train one of them.
    """
    if len(studies) == 2:
        return compare(*studies)
    first, *others = analyses = analysed(studies)
    pairs = tested(first, others, same=True)
    tables = (_results(first, others, pairs), settings(analyses, [f"study{i}" for i in range(len(analyses))]))
    return comparison(analyses, _summary(first, others, pairs), tables, _all(analyses))


def _results(first: Analysis, others: Sequence[Analysis], pairs: Sequence[Sequence[Pair]]) -> Table:
    margin = _margin(first, others)
    columns = (
        Column(key="study", label="study"),
        Column(key="trainer", label="trainer", note="the runner; its versions are below, under what else differs"),
        Column(key="score", label="score", unit=first.score.unit, note=first.score.note),
        Column(
            key="difference",
            label=f"Δ {first.plan.study}",
            unit=first.score.unit,
            note="the same recipe; Welch's t, unpaired",
        ),
        Column(key="p", label="p (Holm)", note="over the differences of this table"),
        *([Column(key="equivalent", label=f"within ±{margin:g}?", note=_TWO_SIDED)] if margin is not None else []),
    )
    rows = tuple(_rows(first, others, pairs, margin is not None))
    return Table(
        key="results",
        title=f"Results: {first.score.label}",
        answers="Did the same recipe reach the same score in each study?",
        first="Arm",
        columns=columns,
        rows=rows,
        notes=(
            *([INTERVALS] if any(c.low is not None for r in rows for c in r.cells) else []),
            *dict.fromkeys(
                f"`{b.plan.study}` is not tested: {p.reason}."
                for b, each in zip(others, pairs, strict=True)
                for p in each
                if p.reason
            ),
            *(["Equivalence is not tested: all studies must declare the same `margin`."] if margin is None else []),
            "A difference can come from anything that differs between the studies: see below.",
        ),
        main=True,
    )


_TWO_SIDED = "two one-sided tests against the margin, which all studies declare; p by Holm over the recipes in several"


def _margin(first: Analysis, others: Sequence[Analysis]) -> float | None:
    """Return the margin that all studies declare; ``None`` without one."""
    margins = {shared_margin(first, b) for b in others}
    return margins.pop() if len(margins) == 1 else None


def _rows(
    first: Analysis, others: Sequence[Analysis], pairs: Sequence[Sequence[Pair]], margin: bool
) -> Iterator[TableRow]:
    """Yield for each recipe of the first study its row, and those of the other studies; then what only others have."""
    for arm in first.plan.arms:
        blank = (NOT_APPLICABLE,) * (3 if margin else 2)
        yield TableRow(label=arm.label, cells=(*_tag(first), score_cell(first, arm.key), *blank))
        for b, each in zip(others, pairs, strict=True):
            pair = next((p for p in each if p.same and p.first is not None and p.first.key == arm.key), None)
            if pair is not None:
                yield TableRow(label=arm.label, cells=_cells(first, b, pair, margin))
    for b, each in zip(others, pairs, strict=True):
        for pair in each:
            if pair.second is not None and not pair.same:
                cells = (*_tag(b), score_cell(b, pair.second.key), *(NOT_APPLICABLE,) * (3 if margin else 2))
                yield TableRow(label=f"{pair.second.label} ({b.plan.study} alone)", cells=cells)


def _tag(a: Analysis) -> tuple[Cell, Cell]:
    return Cell(text=a.plan.study), Cell(text=a.plan.runner)


def _cells(first: Analysis, b: Analysis, pair: Pair, margin: bool) -> tuple[Cell, ...]:
    assert pair.second is not None  # the pair is one of the same recipe
    effect = pair.effect
    return (
        *_tag(b),
        score_cell(b, pair.second.key),
        effect_cell(effect, effect.estimate.n, better=first.score.better) if effect else NOT_APPLICABLE,
        adjusted_cell(effect),
        *([_equivalent(first, b, pair)] if margin else []),
    )


def _equivalent(first: Analysis, b: Analysis, pair: Pair) -> Cell:
    return NOT_APPLICABLE if pair.equivalence_p is None else equivalence(pair, late_margin(first, b))


def _all(analyses: Sequence[Analysis]) -> dict[str, str]:
    """Return what the numbers of the studies depend on: of each name the texts that differ."""
    found = [provenance(a) for a in analyses]
    names = dict.fromkeys(name for each in found for name in each)
    return {name: " / ".join(dict.fromkeys(each.get(name, "") for each in found)) for name in names}


def _summary(first: Analysis, others: Sequence[Analysis], pairs: Sequence[Sequence[Pair]]) -> list[str]:
    said = []
    margin = _margin(first, others)
    every = [p for each in pairs for p in each if p.effect is not None]
    apart = sum(bool(p.effect and p.effect.confirmed) for p in every)
    if every:
        what = f"differences in {first.score.label} to the same recipe in `{first.plan.study}`"
        said.append(f"{apart} of {len(every)} {what} are confirmed after Holm's correction.")
    else:
        said.append("No arm is tested against that of another study.")
    for b, each in zip(others, pairs, strict=True):
        compared = [p for p in each if p.equivalence_p is not None and margin is not None]
        shown = sum(p.equivalence_p is not None and p.equivalence_p < ALPHA for p in compared)
        if compared and not late_margin(first, b):
            what = f"{shown} of {len(compared)} recipes are equivalent to those of `{first.plan.study}`"
            said.append(f"`{b.plan.study}`: {what} within the declared margin of ±{margin:g}.")
        elif compared:
            said.append(f"`{b.plan.study}`: the margin was declared after results, so equivalence is exploratory.")
    return said
