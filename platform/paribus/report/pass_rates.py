"""Solved within k responses: unbiased pass@k by arm, as a table and as curves over k."""

from __future__ import annotations

from paribus.report.analysis import MIN_SEEDS, Analysis
from paribus.report.model import Column, Figure, Line, Panel, Table, TableRow, kept
from paribus.report.tables import finished, interval_notes, seeds_cell
from paribus.report.text import MISSING, mean_cell
from paribus.stats.intervals import Estimate, mean_interval
from paribus.stats.sequential import at_look


def pass_table(analysis: Analysis) -> Table | None:
    """Return pass@k by k; ``None`` where one response a problem was drawn, or none were counted."""
    ks = _ks(analysis)
    found = _by_arm(analysis, ks)
    if not found:
        return None
    rows = []
    for arm in (a.key for a in analysis.plan.arms):
        each = found.get(arm, [])
        cells = [mean_cell(values, estimate, finished(analysis, arm), short=False) for values, estimate in each]
        cells = cells or [MISSING] * len(ks)
        rows.append(TableRow(label=analysis.label(arm), cells=(seeds_cell(analysis, arm), *cells)))
    columns = (
        Column(key="seeds", label="seeds", note="finished / planned"),
        *(Column(key=f"pass_at_{k}", label=f"pass@{k}", unit="fraction") for k in ks),
    )
    return Table(
        key="pass_at_k",
        title="Solved within k responses",
        answers="Does an arm solve more problems, or the same ones more often?",
        first="Configuration",
        columns=columns,
        rows=tuple(rows),
        notes=(
            f"Unbiased pass@k from {analysis.evaluate.samples} responses a problem, evaluations as for the score.",
            *interval_notes(rows),
        ),
    )


def pass_figure(analysis: Analysis) -> Figure | None:
    """Return pass@k over k, one line an arm; ``None`` where there is no table of it."""
    ks = _ks(analysis)
    lines = tuple(_line(analysis.label(arm), ks, [e for _, e in each]) for arm, each in _by_arm(analysis, ks).items())
    if not lines:
        return None
    panel = Panel(
        key="pass_at_k.curves",
        title="pass@k",
        x_label="k, responses a problem",
        y_label="pass@k (fraction)",
        lines=lines,
        ticks=tuple(map(float, ks)),
    )
    return Figure(
        key="pass_at_k.figure",
        title="Solved within k responses",
        caption="Unbiased pass@k, mean over seeds, with a 95% t band from 3 seeds on. Lines that meet at large k: the "
        "same problems, solved more often.",
        panels=(panel,),
        table="pass_at_k",
    )


def _ks(analysis: Analysis) -> list[int]:
    samples = analysis.evaluate.samples
    return sorted({2**i for i in range(samples.bit_length())} & {*range(samples + 1)} | {samples})


def _by_arm(analysis: Analysis, ks: list[int]) -> dict[str, list[tuple[dict[int, float], Estimate]]]:
    """Return for each arm with counts, and each k, the values by seed and their mean; empty at one response."""
    if len(ks) < 2:
        return {}
    rates = {a.key: analysis.pass_rates(a.key, ks) for a in analysis.plan.arms}
    found = {}
    for arm, by_seed in rates.items():
        if by_seed:
            each = [{seed: run[i] for seed, run in by_seed.items()} for i in range(len(ks))]
            found[arm] = [(v, at_look(mean_interval([*v.values()]), analysis.share)) for v in each]
    return found


def _line(label: str, ks: list[int], means: list[Estimate]) -> Line:
    ends = [(e.value if e.low is None else e.low, e.value if e.high is None else e.high) for e in means]
    low, high = zip(*ends, strict=True) if means[0].n >= MIN_SEEDS else ((), ())
    x, mean = tuple(map(float, ks)), kept(e.value for e in means)
    return Line(arm=label, n=means[0].n, x=x, mean=mean, low=kept(low), high=kept(high))
