"""The table of a search: every setting that was tried, ranked, and how much each path mattered."""

from __future__ import annotations

from paribus.report.adaptive import trial_scores
from paribus.report.analysis.analysis import Analysis
from paribus.report.model import Cell, Column, Table, TableRow, stored
from paribus.report.tables.cells import MISSING, NOT_APPLICABLE, number
from paribus.study.designs import value_label
from paribus.study.plan import SearchRanking, Trial
from paribus.text import plural

DECIMALS = 3
"""Decimals of a score of a search, which has no interval to round by."""

FEW_TRIALS = 10
"""Trials for each path of a search below which the note says that importance is not known."""


def search_table(analysis: Analysis) -> Table | None:
    """Return all trials, the best of each arm first; ``None`` without a search."""
    ranking = analysis.plan.ranking
    if ranking is None:
        return None
    scores = trial_scores(analysis.data)
    rows: list[TableRow] = []
    for candidate in ranking.candidates:
        trials = [t for t in ranking.trials if t.candidate == candidate.label]
        ranked = sorted(trials, key=lambda t: _worst_first(scores[t.candidate, t.number]), reverse=True)
        rows += [_trial_row(ranking, t, k, scores[t.candidate, t.number]) for k, t in enumerate(ranked, start=1)]
    score = analysis.score
    columns = (
        Column(key="rank", label="rank", note="among the trials of this arm"),
        *(Column(key=path, label=path) for path in ranking.rule.over),
        Column(key="screen", label="search score", unit=score.unit, note=f"{score.label}, mean over the trial's seeds"),
        Column(key="status", label="status", note="confirmed: run again on the seeds of the study"),
    )
    return Table(
        key=f"{ranking.design}.screen",
        title=f"Search `{ranking.design}`: a ranking, not an effect",
        answers="Which settings did the search try for each arm, and which did it choose?",
        first="Trial",
        columns=columns,
        rows=tuple(rows),
        notes=tuple(_search_notes(analysis, ranking)),
    )


def search_words(analysis: Analysis) -> list[str]:
    """Return how much each path mattered in the search of each arm, or why that is not known."""
    ranking = analysis.plan.ranking
    if ranking is None or not ranking.confirmed or len(ranking.rule.over) < 2:
        return []
    if not ranking.importance and ranking.rule.importance:
        return [f"Search `{ranking.design}`: which path mattered can't be rated, because the scores of its trials tie."]
    if not ranking.importance:
        return [
            f"Search `{ranking.design}`: which path mattered is not rated; `importance: ped_anova` in its design asks "
            "Optuna for it."
        ]
    few = ranking.rule.trials < FEW_TRIALS * len(ranking.rule.over)
    doubt = f", but {ranking.rule.trials} trials are too few to rely on it" if few else ""
    found = []
    for label, shares in ranking.importance.items():
        path, share = max(shares.items(), key=lambda each: each[1])
        found.append(
            f"Search `{ranking.design}` for `{label}`: `{path}` mattered most in the settings that were tried, with "
            f"{100 * share:.0f}% of the importance (Optuna's {ranking.rule.importance}, no test){doubt}."
        )
    return found


def _worst_first(score: float | None) -> tuple[bool, float]:
    return score is not None, score or 0.0


def _trial_row(ranking: SearchRanking, trial: Trial, rank: int, score: float | None) -> TableRow:
    values = tuple(Cell(text=value_label(v), value=stored(v)) for v in trial.values.values())
    shown = MISSING if score is None else Cell(text=number(score, DECIMALS), value=stored(score), n=ranking.rule.seeds)
    best = Cell(text="confirmed") if ranking.confirmed and rank == 1 and score is not None else NOT_APPLICABLE
    status = Cell(text="no score") if score is None else best
    place = NOT_APPLICABLE if score is None else Cell(text=str(rank), value=float(rank))
    return TableRow(label=f"{trial.candidate}: trial {trial.number}", cells=(place, *values, shown, status))


def _search_notes(analysis: Analysis, ranking: SearchRanking) -> list[str]:
    rule = ranking.rule
    seeds = f"{plural(rule.seeds, 'seed')} of its own"
    notes = [
        f"Each arm got {plural(rule.trials, 'trial')}, each with {seeds}; chosen by Optuna "
        f"{ranking.optuna or '(not yet)'}, "
        f"sampler {rule.sampler}, seed {rule.seed}.",
        "The best score of a search is biased upwards, because it was chosen for being high. So these scores have no "
        "interval and no test, and no other table uses their runs: the best setting of each arm is run again on fresh "
        "seeds.",
    ]
    paths = len(rule.over)
    if ranking.importance and rule.trials < FEW_TRIALS * paths:
        notes.append(
            f"{rule.trials} trials for {paths} paths are too few to say which path matters (rule: {FEW_TRIALS} a "
            "path): another search would rank them otherwise."
        )
    for label, shares in ranking.importance.items():
        parts = ", ".join(f"{path} {100 * share:.0f}%" for path, share in shares.items())
        notes.append(
            f"Importance for the score in the search for `{label}`, by Optuna's {rule.importance}: {parts}. It "
            "describes where the search looked; it is not an attribution."
        )
    if ranking.confirmed:
        lost = [r.label for r in ranking.candidates if not _confirmed(analysis, r.label)]
        notes += [f"Not confirmed, because no setting gave a score: {', '.join(lost)}."] if lost else []
    return notes


def _confirmed(analysis: Analysis, candidate: str) -> bool:
    return any(r.kind == "search" and r.label == f"{candidate}, tuned" for r in analysis.plan.rows)
