"""The screen of a search: which settings were tried and how they rank. A ranking, never an effect."""

from __future__ import annotations

from paribus.report.analysis import Analysis
from paribus.report.growth import screen_scores
from paribus.report.model import Cell, Column, Table, TableRow, stored
from paribus.report.text import MISSING, NOT_APPLICABLE, number
from paribus.study.designs import value_label
from paribus.study.plan import Screen, Trial

DECIMALS = 3


def screen_table(analysis: Analysis) -> Table | None:
    """Return all trials, the best of each candidate first; ``None`` without a search."""
    screen = analysis.plan.screen
    if screen is None:
        return None
    scores = screen_scores(analysis.data)
    rows: list[TableRow] = []
    for candidate in screen.candidates:
        trials = [t for t in screen.trials if t.candidate == candidate.label]
        ranked = sorted(trials, key=lambda t: _worst_first(scores[t.candidate, t.number]), reverse=True)
        rows += [_row(screen, t, k, scores[t.candidate, t.number]) for k, t in enumerate(ranked, start=1)]
    score = analysis.score
    columns = (
        Column(key="rank", label="rank", note="of the trials of this candidate"),
        *(Column(key=path, label=path) for path in screen.rule.over),
        Column(key="screen", label="screen score", unit=score.unit, note=f"{score.label}, mean over the trial's seeds"),
        Column(key="status", label="status", note="confirmed: run anew on the seeds of the study"),
    )
    return Table(
        key=f"{screen.design}.screen",
        title=f"Screen `{screen.design}`: a ranking, not an effect",
        answers="Which settings did the search try for each candidate, and which did it choose?",
        first="Trial",
        columns=columns,
        rows=tuple(rows),
        notes=tuple(_notes(analysis, screen)),
    )


def _worst_first(score: float | None) -> tuple[bool, float]:
    return score is not None, score or 0.0


def _row(screen: Screen, trial: Trial, rank: int, score: float | None) -> TableRow:
    values = tuple(Cell(text=value_label(v), value=stored(v)) for v in trial.values.values())
    shown = MISSING if score is None else Cell(text=number(score, DECIMALS), value=stored(score), n=screen.rule.seeds)
    best = Cell(text="confirmed") if screen.confirmed and rank == 1 and score is not None else NOT_APPLICABLE
    status = Cell(text="no score") if score is None else best
    place = NOT_APPLICABLE if score is None else Cell(text=str(rank), value=float(rank))
    return TableRow(label=f"{trial.candidate}: trial {trial.number}", cells=(place, *values, shown, status))


def _notes(analysis: Analysis, screen: Screen) -> list[str]:
    rule = screen.rule
    seeds = f"{rule.seeds} seed{'s' if rule.seeds > 1 else ''} of its own"
    notes = [
        f"Each candidate got {rule.trials} trials, each with {seeds}; chosen by Optuna {screen.optuna or '(not yet)'}, "
        f"sampler {rule.sampler}, seed {rule.seed}.",
        "The best score of a screen is too high, as it was chosen for being high. So these scores have no interval and "
        "no test, and their runs enter no other table: the best setting of each candidate is run anew on fresh seeds.",
    ]
    for label, shares in screen.importance.items():
        parts = ", ".join(f"{path} {100 * share:.0f}%" for path, share in shares.items())
        notes.append(
            f"Importance for the score in the screen of `{label}`, by Optuna's {rule.importance}: {parts}. It rates "
            "where the search looked, and attributes nothing."
        )
    if screen.confirmed:
        lost = [r.label for r in screen.candidates if not _confirmed(analysis, r.label)]
        notes += [f"Without a setting that gave a score, and so not confirmed: {', '.join(lost)}."] if lost else []
    return notes


def _confirmed(analysis: Analysis, candidate: str) -> bool:
    return any(r.kind == "search" and r.label == f"{candidate}, tuned" for r in analysis.plan.rows)
