"""Effects over all cells of a design: contrasts of arm means, or of a fit where runs are missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from paribus.report.analysis import Analysis, Effect
from paribus.stats.sequential import at_look
from paribus.stats.unbalanced import Cells, Fit, fit_pairs
from paribus.study.contrasts import FACTORIALS
from paribus.study.plan import Row


class CellEffects:
    """Effects of a (fractional) factorial, or of any design, of which only the former is ever fitted."""

    def __init__(self, analysis: Analysis, cells: Cells) -> None:
        self.analysis = analysis
        self.cells = cells
        self._values = {arm: analysis.values(arm, analysis.score) for arm in cells}

    @classmethod
    def of_rows(cls, analysis: Analysis, rows: Iterable[Row]) -> CellEffects:
        """Return the effects of a design; its rows are cells where all tricks are crossed."""
        cells: dict[str, list[tuple[str, ...]]] = {}
        for row in rows:
            if row.kind in FACTORIALS:
                cells.setdefault(row.arm, []).append(row.tricks)
        return cls(analysis, cells)

    @property
    def unbalanced(self) -> bool:
        """Whether one cell has seeds that another lacks; where they are not paired, another number of them."""
        found = self._values.values()
        return len({frozenset(v) if self.analysis.plan.paired else len(v) for v in found}) > 1

    @cached_property
    def fit(self) -> Fit | None:
        """The fit to the runs that there are; ``None`` where none are missing, or too many."""
        if not self.unbalanced:
            return None
        analysis = self.analysis
        answers = {arm: analysis.answers(arm, analysis.score) for arm in self.cells}
        return fit_pairs(self.cells, self._values, paired=analysis.plan.paired, answers=answers)

    def effect(self, weights: Mapping[str, float]) -> Effect | None:
        """Return the weighted sum of cells, uncorrected; ``None`` without cells, or where no runs determine it."""
        analysis = self.analysis
        if self.fit is None or not weights:
            return analysis.contrast(weights, analysis.score)
        if (estimate := self.fit.contrast(weights)) is None:
            return None
        looked = at_look(estimate, analysis.share)
        return Effect(estimate=looked, by_seed=(), paired=analysis.plan.paired, runs=self.fit.runs)

    def notes(self, what: str = "effects") -> list[str]:
        """Return what was done about runs that are missing, if any are."""
        if not self.unbalanced:
            return []
        planned = len(self.cells) * len(self.analysis.plan.seeds)
        missing = planned - sum(map(len, self._values.values()))
        some = f"{missing} of {planned} runs {'is' if missing == 1 else 'are'} missing"
        if self.fit is None:
            return [f"{some}, too many for a fit with main effects and pairs: {what} are over the seeds of all cells."]
        return [
            f"{some}: {what} are from a fit with main effects and pairs, with one spread for all runs; interactions of "
            "three tricks or more count as noise."
        ]
