"""Effects as forest plots and bars, and tricks against tricks as a matrix; the numbers are those of the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import MIN_SEEDS, Effect
from paribus.report.analysis.effects import CellEffects, contributions, effect_measures, effects, singles
from paribus.report.effect_words import claimed
from paribus.report.model import Figure, Forest, Interval, Matrix, rounded, stored
from paribus.report.tables.cells import effect_cell, level_text, side_of
from paribus.report.tables.effects import CONTRIBUTIONS
from paribus.study.contrasts import FACTORIALS, interactions, main_effects, tricks_of
from paribus.study.plan import Row

FILLED = "Filled: shown after correction. "


def forest_figure(analysis: Analysis) -> Figure | None:
    """Return forest plots of the arms against the base; ``None`` without a difference from the base."""
    alone = singles(analysis)
    if not any(analysis.to_base.values()):
        return None
    found = effects(analysis)
    columns = [(analysis.score, {s.arm: analysis.to_base.get(s.arm) for s in alone})]
    columns += [(m, {s.arm: found[s.arm, m.key] for s in alone}) for m in effect_measures(analysis)]
    forests = []
    for measure, by_arm in columns:
        label = "tokens generated" if measure.key == "generated" else measure.label
        level = analysis.levels.score if measure is analysis.score else analysis.levels.symptom
        rows = [_claim(s.name, e, measure.better, level) for s in alone if (e := by_arm[s.arm]) is not None]
        unit = f" ({measure.unit})" if measure.unit else ""
        forests.append(
            Forest(key=f"forest.{measure.key}", title=label, x_label=f"Δ {label}{unit}", intervals=tuple(rows))
        )
    base = analysis.label(analysis.plan.base)
    paired = "paired by seed" if analysis.paired else "seeds not paired"
    return Figure(
        key="forest",
        title="What each arm moves, as a figure",
        caption=f"Difference from `{base}`, {paired}. {ends_text(analysis, forests, FILLED)}",
        forests=tuple(f for f in forests if f.intervals),
        table="effects",
    )


def answer_figure(analysis: Analysis) -> Figure | None:
    """Return the difference of every arm from the base in the score; ``None`` without one."""
    known = [(arm, e) for arm, e in analysis.to_base.items() if e is not None]
    if not known:
        return None
    score = analysis.score
    rows = [_claim(analysis.label(a), e, score.better, analysis.levels.score) for a, e in known]
    unit = f" ({score.unit})" if score.unit else ""
    forest = Forest(key="answer.score", title="", x_label=f"Δ {score.label}{unit}", intervals=tuple(rows), bars=False)
    return Figure(
        key="answer",
        title=f"Every arm against `{analysis.label(analysis.plan.base)}`",
        caption=ends_text(analysis, [forest], FILLED),
        forests=(forest,),
        table="comparisons",
        lead=True,
    )


def ends_text(analysis: Analysis, forests: Iterable[Forest], marks: str = "") -> str:
    """Return which rows of these plots have intervals, why others have none, and how to read colours and ``marks``."""
    rows = [row for forest in forests for row in forest.intervals]
    bare = [row for row in rows if row.low is None]
    few, flat = (any((row.n < MIN_SEEDS) is less for row in bare) for less in (True, False))
    why = " or ".join([*(["fewer than 3 seeds"] if few else []), *(["no spread"] if flat else [])])
    if len(bare) == len(rows):
        return f"No row has an interval: {why}. Grey: nothing is tested."
    text = f"{level_text(analysis)} t intervals{f'; none with {why}' if bare else ''}."
    neither = ", teal: neither is meant" if any(row.separated and not row.side for row in rows) else ""
    return f"{text} Blue: better, orange: worse{neither}, where the interval leaves out 0. {marks}Grey: undecided."


def interval_of(label: str, effect: Effect, better: str) -> Interval:
    """Return a row of a forest plot; without ends if it has fewer than three seeds or no noise."""
    estimate = effect.estimate
    known = estimate.n >= MIN_SEEDS and bool(estimate.sd)
    return Interval(
        label=label,
        value=rounded(estimate.value),
        low=stored(estimate.low) if known else None,
        high=stored(estimate.high) if known else None,
        n=estimate.n,
        separated=effect.separated,
        side=side_of(effect, better),
    )


def _claim(label: str, effect: Effect, better: str, level: float) -> Interval:
    """Return a row whose mark is filled if a sentence claims the effect at this level."""
    return replace(interval_of(label, effect, better), filled=claimed(effect, level))


def contribution_figure(analysis: Analysis) -> Figure | None:
    """Return the contributions of the tricks as bars with intervals; ``None`` if the report has no table of them."""
    found = contributions(analysis)
    keys = [k for k in CONTRIBUTIONS if any(getattr(c, k) for c in found)]
    if len(keys) < 2:
        return None
    score = analysis.score
    unit = f" ({score.unit})" if score.unit else ""
    forests = []
    for key in keys:
        known = [(c.trick, e) for c in found if (e := getattr(c, key)) is not None]
        rows = tuple(interval_of(trick, e, score.better) for trick, e in known)
        forest = Forest(
            key=f"contributions.{key}",
            title=CONTRIBUTIONS[key][0],
            x_label=f"Δ {score.label}{unit}",
            intervals=rows,
            bars=True,
        )
        forests.append(forest)
    return Figure(
        key="contributions.figure",
        title="What each trick contributes",
        caption=ends_text(analysis, forests, "This is before any correction. "),
        forests=tuple(forests),
        table="contributions",
    )


def matrix_figures(analysis: Analysis) -> Iterator[Figure]:
    """Yield a matrix of effects and interactions for each factorial, fraction and ``pairs``."""
    rows = analysis.plan.rows
    for design in dict.fromkeys(r.design for r in rows):
        chosen = [r for r in rows if r.design == design]
        if chosen[0].kind in (*FACTORIALS, "pairs") and len(tricks_of(chosen)) > 1:
            yield _figure(analysis, design, chosen)


def _figure(analysis: Analysis, design: str, rows: Sequence[Row]) -> Figure:
    pairs, fraction = rows[0].kind == "pairs", rows[0].kind == "fractional"
    names = tricks_of(rows)
    cells = CellEffects.of_rows(analysis, rows)
    effects = {frozenset([t]): e for t, e in (_alone(analysis, rows) if pairs else _main(cells, rows))}
    effects |= {frozenset(c.tricks): cells.effect(c.weights) for c in interactions(rows)}
    sizes = [abs(e.estimate.value) for e in effects.values() if e is not None]
    largest = max(sizes, default=0.0) or 1.0
    planned = len(analysis.plan.seeds)
    by_row = [[effects.get(frozenset((a, b))) for b in names[: i + 1]] for i, a in enumerate(names)]
    diagonal = "the trick alone, against the base" if pairs else "main effect"
    matrix = Matrix(
        key=f"{design}.matrix",
        title=f"{analysis.score.label}, `{design}`",
        names=names,
        cells=tuple(tuple(effect_cell(e, planned) for e in row) for row in by_row),
        shades=tuple(tuple(round(e.estimate.value / largest, 2) if e else 0.0 for e in row) for row in by_row),
    )
    return Figure(
        key=f"{design}.matrix.figure",
        title=f"Tricks against tricks in `{design}`",
        caption=f"On the diagonal: {diagonal}. Below it: interaction, the effect of one trick with the other on minus "
        "its effect with the other off. Darker is larger; grey text is not separated from 0, uncorrected."
        + (" The table lists which effects this fraction cannot separate." if fraction else ""),
        matrices=(matrix,),
        table=f"{design}.{'interactions' if pairs else 'effects'}",
    )


def _main(cells: CellEffects, rows: Sequence[Row]) -> Iterator[tuple[str, Effect | None]]:
    return ((c.tricks[0], cells.effect(c.weights)) for c in main_effects(rows))


def _alone(analysis: Analysis, rows: Sequence[Row]) -> Iterator[tuple[str, Effect | None]]:
    base = next(r.arm for r in rows if not r.tricks)
    return ((r.tricks[0], analysis.effect(r.arm, base, analysis.score)) for r in rows if len(r.tricks) == 1)
