"""The first lines of a report: what the study says, what it cost, and what the detectors found."""

from __future__ import annotations

from collections.abc import Sequence, Set

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import Effect
from paribus.report.analysis.effects import full_recipe, singles
from paribus.report.analysis.lost_runs import fragile, untrained
from paribus.report.assumptions import counts, tests_line
from paribus.report.design_words import any_tested, designs_tested
from paribus.report.effect_words import claimed, short_of, size_text
from paribus.report.exploratory import exploratory
from paribus.report.external import external_words
from paribus.report.figures.curves import device_time
from paribus.report.sentences import NOT_COMPARED, equivalent, lost_all
from paribus.report.tables.cells import decimals_for, interval_text, number, p_words
from paribus.report.tables.health import raised
from paribus.text import listed, plural

SHOWN = 4
"""Maximum number of arms that the answer names one by one."""


def answer(analysis: Analysis) -> str:
    """Return the answer: which arms improve the score, which lower it, what all tricks do, and what is undecided."""
    text = " ".join([*external_words(analysis), *exploratory(analysis), _of_all_runs(analysis)])
    pending = [r for r in analysis.data.runs if r.outcome == "pending"]
    if not pending:
        return text
    runs, tested, planned = len(analysis.data.runs), analysis.family, len(analysis.to_base)
    over = f"over {tested} of {planned} comparisons, " if 0 < tested < planned else ""
    how = f", corrected {over}not for looking early" if over else ", not corrected for looking early"
    how = how if any_tested(analysis) else ""
    arms = dict.fromkeys(f"`{analysis.label(r.arm)}`" for r in pending)
    left = listed(arms) if len(arms) <= SHOWN else f"{len(arms)} of {len(analysis.plan.arms)} arms"
    head = f"So far ({runs - len(pending)} of {plural(runs, 'run')}){how}"
    return f"{head}: {text[:1].lower()}{text[1:]} Not finished yet: {left}."


def _of_all_runs(analysis: Analysis) -> str:
    """Return the answer of the runs that ended, or why there is none and what the designs show nevertheless."""
    base = analysis.plan.base
    if not analysis.values(base, analysis.score):
        return " ".join([f"{NOT_COMPARED}, because {lost_all(analysis, base, 'the base')}.", *designs_tested(analysis)])
    found = [(f"`{s.name}`", e) for s in singles(analysis) if (e := analysis.to_base.get(s.arm)) is not None]
    if not found:
        if (ranking := analysis.plan.ranking) is not None and not ranking.confirmed:
            return f"{NOT_COMPARED} yet: the search `{ranking.design}` has not chosen its settings."
        scores = any(analysis.values(s.arm, analysis.score) for s in singles(analysis))
        why = "none has a score in a seed of the base" if scores else "no other arm has a score"
        if any(not analysis.same_meaning(s.arm, base, analysis.score) for s in singles(analysis)):
            why = "their trainers measure the score in other ways"
        return " ".join([f"{NOT_COMPARED}: {why}.", *designs_tested(analysis)])
    if not any(e.supported for _, e in found):
        what = f"No difference from the base is tested: {_too_few(analysis, found)} too few"
        said = [f"{what}. {_extremes(analysis, found)}", *_not_compared(analysis), *designs_tested(analysis)]
        return " ".join(said)
    said = [_shown(analysis, found), *_together(analysis), *_undecided(analysis, found), *_not_compared(analysis)]
    return " ".join([*said, *counts(analysis)])


def _too_few(analysis: Analysis, found: Sequence[tuple[str, Effect]]) -> str:
    """Return the number of runs that were compared, as the subject of a sentence."""
    planned = len(analysis.plan.seeds)
    if analysis.plan.external or any(e.estimate.n != planned for _, e in found):
        one = all(e.estimate.n == 1 for _, e in found)
        return f"{_seeds(analysis, [e for _, e in found])} {'is' if one else 'are'}"
    return "a single run per arm is" if planned == 1 else f"{planned} runs per arm are"


def _seeds(analysis: Analysis, found: Sequence[Effect]) -> str:
    """Return how many seeds were compared, for example ``5 seeds``, or ``3 to 4 of 5 planned seeds``."""
    counts, planned = sorted({e.estimate.n for e in found}), len(analysis.plan.seeds)
    if counts == [planned]:
        return plural(planned, "seed")
    count = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    if analysis.plan.external:  # no number was planned
        return f"{count} {'seed' if count == '1' else 'seeds'}"
    return f"{count} of {plural(planned, 'planned seed')}"


def _shown(analysis: Analysis, found: Sequence[tuple[str, Effect]]) -> str:
    """Return the arms that differ from the base after correction, the better ones first."""
    label = analysis.score.label
    shown = [(name, e) for name, e in found if claimed(e, analysis.levels.score)]
    flat = [f"{name} {_plain(e.estimate.value)}" for name, e in found if e.untestable and e.estimate.value]
    equal = [name for name, e in found if e.untestable and not e.estimate.value]
    names = {f"`{s.name}`": s.arm for s in singles(analysis)}
    unsure = {name for name, _ in shown if fragile(analysis, names[name])}
    kind = _kind(analysis)
    sign = -1 if analysis.score.better == "lower" else 1
    better = [x for x in shown if sign * x[1].estimate.value > 0]
    worse = [x for x in shown if sign * x[1].estimate.value < 0]
    up, down = ("raised", "lowered") if sign > 0 else ("lowered", "raised")
    parts = [f"{_each(better, unsure, kind)} {up} {label}." if better else ""]
    parts += [f"No {kind} is shown to improve {label}." if not better and not flat and not equal else ""]
    parts += [f"{_each(worse, unsure, kind)} {down} {'it' if parts[-1] or parts[0] else label}." if worse else ""]
    same = f"In every seed the same difference in {label}"
    if not analysis.paired:
        same = f"All seeds of an arm agree in {label}"
    parts += [f"{same}, so without a test: {listed(flat)}." if flat else ""]
    parts += [f"The same {label} as the base in every seed, so without a test: {listed(equal)}." if equal else ""]
    return " ".join(p for p in parts if p)


def _plain(value: float) -> str:
    return number(value, decimals_for(None, value), signed=True)


def _kind(analysis: Analysis) -> str:
    """Return what the answer calls the arms that it compares one by one with the base."""
    return "trick" if all(s.trick for s in singles(analysis)) else "arm"


def _each(shown: Sequence[tuple[str, Effect]], unsure: Set[str], kind: str) -> str:
    if len(shown) > SHOWN:
        doubtful = sum(name in unsure for name, _ in shown)
        return f"{len(shown)} {kind}s{f' ({doubtful} fragile)' if doubtful else ''}"
    marks = dict.fromkeys(unsure, "; fragile")
    return listed(f"{name} ({interval_text(e.estimate, signed=True)}{marks.get(name, '')})" for name, e in shown)


def _together(analysis: Analysis) -> list[str]:
    """Return what all tricks of the ladder or of the full recipe do together, and the largest step."""
    ladder = [r for r in analysis.plan.rows if r.kind == "cumulative"]
    rows = [r for r in ladder if r.design == ladder[0].design] if ladder else []
    tricks = rows[-1].tricks if rows else full_recipe(analysis.plan.rows)
    full = {r.arm for r in analysis.plan.rows if len(tricks) > 1 and frozenset(r.tricks) == frozenset(tricks)}
    effect = analysis.to_base.get(full.pop()) if len(full) == 1 else None
    if effect is None or not effect.supported:
        return []
    every = "Both tricks" if len(tricks) == 2 else f"All {len(tricks)} tricks"
    if {s.name for s in singles(analysis) if s.trick} - set(tricks):  # or it would be read as those just named
        whole = f"`{rows[-1].design}`" if rows else "the full recipe"
        named = listed(f"`{t}`" for t in tricks)
        every = named if len(tricks) <= SHOWN else f"The {len(tricks)} tricks of {whole}"
    size = interval_text(effect.estimate, signed=True)
    if effect.untestable:
        return [f"{every} together, without a test: {_plain(effect.estimate.value)}."]
    if not claimed(effect, analysis.levels.score):
        how = "exploratory" if effect.exploratory else "undecided"
        return [f"{every} together are {how} ({size}{_p_after(effect)}{short_of(analysis, effect)})."]
    verb = "raised" if effect.estimate.value > 0 else "lowered"
    p = p_words(effect.p_adjusted or 0.0)
    return [f"{every} together {verb} it by {size_text(effect)} ({p} after correction)."]


def _p_after(effect: Effect) -> str:
    return "" if effect.p_adjusted is None else f", {p_words(effect.p_adjusted)} after correction"


def _undecided(analysis: Analysis, found: Sequence[tuple[str, Effect]]) -> list[str]:
    unclear = [(n, e) for n, e in found if e.supported and not e.untestable and not claimed(e, analysis.levels.score)]
    alike = [f"`{s.name}`" for s in singles(analysis) if equivalent(analysis, s.arm)]
    left = [name for name, e in unclear if not e.exploratory and name not in alike]
    after = [f"{name} ({interval_text(e.estimate, signed=True)}{_p_after(e)})" for name, e in unclear if e.exploratory]
    few = [name for name, e in found if not e.supported]
    names, same = (
        listed(some) if len(some) <= SHOWN else f"{len(some)} of {len(found)} {_kind(analysis)}s"
        for some in (left, alike)
    )
    seeds = _seeds(analysis, [e for _, e in unclear]) if unclear else ""
    parts = (
        (alike, f"Equivalent to the base within ±{analysis.plan.margin or 0:g}: {same}."),
        (left, f"Undecided at {seeds}: {names}."),
        (after, f"Exploratory at {seeds}: {listed(after)}."),
        (few, f"Too few runs for a test: {listed(few)}."),
    )
    return [text for found_here, text in parts if found_here]


def _not_compared(analysis: Analysis) -> list[str]:
    """Return which arms have no difference from the base and why, and which have one of stopped runs alone."""
    arms = [(f"`{s.name}`", analysis.runs(s.arm), analysis.values(s.arm, analysis.score)) for s in singles(analysis)]
    lost = [name for name, runs, _ in arms if all(r.outcome in ("failed", "cancelled") for r in runs)]
    ended = [(name, runs, scores) for name, runs, scores in arms if all(r.outcome != "pending" for r in runs)]
    no_score = [name for name, _, scores in ended if not scores and name not in lost]
    bare = [f"`{s.name}`" for s in singles(analysis) if _bare(analysis, s.arm)]
    early = [name for name, runs, scores in arms if scores and all(r.outcome == "stopped_early" for r in runs)]
    stopped = [name for name in early if name not in bare]
    base, score = analysis.plan.base, analysis.score
    apart = [s for s in singles(analysis) if analysis.to_base.get(s.arm) is None and analysis.values(s.arm, score)]
    elsewhere = [f"`{s.name}`" for s in apart if not analysis.same_meaning(s.arm, base, score)]
    no_seed = [f"`{s.name}`" for s in apart if analysis.same_meaning(s.arm, base, score)]
    parts = (
        (lost, f"Not compared, because every run was lost: {listed(lost)}."),
        (no_score, f"Not compared, because no run has a finite score: {listed(no_score)}."),
        (elsewhere, f"Not compared, because trainers measure the score in other ways: {listed(elsewhere)}."),
        (no_seed, f"Not compared, because no seed is also one of the base: {listed(no_seed)}."),
        (bare, f"Stopped before an evaluation, so that the score before training counts: {listed(bare)}."),
        (stopped, f"Every run stopped early, and counts with its last evaluation: {listed(stopped)}."),
    )
    return [text for found_here, text in parts if found_here]


def _bare(analysis: Analysis, arm: str) -> bool:
    """Whether all scores of an arm are those before training, of runs that were stopped before an evaluation."""
    scored = [r for r in analysis.runs(arm) if r.seed in analysis.values(arm, analysis.score)]
    return bool(scored) and all(untrained(analysis, r) for r in scored)


def _extremes(analysis: Analysis, found: Sequence[tuple[str, Effect]]) -> str:
    """Return the arms with the largest and the smallest difference from the base, untested, that say something."""
    bare = {f"`{s.name}`" for s in singles(analysis) if _bare(analysis, s.arm)}
    found = [(name, e) for name, e in found if name not in bare] or found
    ordered = sorted(found, key=lambda x: x[1].estimate.value)
    ends = [ordered[-1], ordered[0]] if len(ordered) > 1 else ordered
    values = [number(e.estimate.value, decimals_for(e.answers, e.estimate.value), signed=True) for _, e in ends]
    head = "Differences" if all(e.estimate.n == 1 for _, e in found) else "Mean differences"
    head = f"{head} from the base in {analysis.score.label}"
    if len(ends) > 1 and ends[0][1].estimate.value == ends[1][1].estimate.value:
        return f"{head}: {values[0]} for each arm with a score."
    texts = [f"{name} {value}" for (name, _), value in zip(ends, values, strict=True)]
    return f"{head}: {' to '.join(texts)}."


def totals(analysis: Analysis) -> tuple[str, ...]:
    """Return one line on the tests and what they assume, one of what all runs cost, one of what the detectors found."""
    return tuple(text for text in (tests_line(analysis), _cost(analysis), _health(analysis)) if text)


def _cost(analysis: Analysis) -> str:
    runs = analysis.data.runs
    tokens = analysis.costs["generated"]
    spent = [v for a in analysis.plan.arms for v in analysis.values(a.key, tokens).values()]
    seconds = {a.key: analysis.values(a.key, analysis.costs["seconds"]) for a in analysis.plan.arms}
    unit, per_second = device_time(analysis)
    timed = [r for r in runs if seconds[r.arm].get(r.seed)]
    time = sum(seconds[r.arm][r.seed] * (r.gpus or 1.0) for r in timed) * per_second
    if not any(spent):
        return ""
    total, known = sum(spent), len(spent)
    which = plural(known, "run") if known == len(runs) else f"{known} of {plural(len(runs), 'run')}"
    outcomes = {"failed": "failed runs", "cancelled": "cancelled runs", "pending": "unfinished runs"}
    left_out = [words for outcome, words in outcomes.items() if any(r.outcome == outcome for r in runs)]
    left_out += [f"{plural(len(analysis.data.screened), 'run')} of the search"] if analysis.data.screened else []
    left_out += ["repeated attempts"] if any(r.attempts > 1 for r in runs) else []
    without = f" (without {listed(left_out)})" if left_out else ""
    said = f"Cost: {which}{without}, {number(total, decimals_for(None, total))} {tokens.unit} generated"
    if not timed:
        return f"{said}; their time is not known."
    part = "" if len(timed) >= known else f" (of {plural(len(timed), 'run')}; of the others it is not known)"
    return f"{said}, {number(time, decimals_for(None, time))} {unit} of training and evaluation{part}."


def _health(analysis: Analysis) -> str:
    checked = [r for r in analysis.data.runs if r.health and r.health.status != "unknown"]
    if not checked:
        return ""
    statuses = [str(r.health.status) for r in checked if r.health]
    words = {"critical": "critical", "warn": "with a warning", "ok": "ok"}
    counts = [f"{statuses.count(status)} {text}" for status, text in words.items() if status in statuses]
    rest = len(analysis.data.runs) - len(checked)
    unknown = f"; {rest} not checked" if rest else ""
    critical = [e for e in raised(checked) if e.state == "critical"]
    most = [e.detector for e in critical if e.runs == critical[0].runs]
    each = " each" if len(most) > 1 else ""
    worst = f" Critical most often: {listed(most)}, in {critical[0].runs}{each}." if most else ""
    return f"Health: of {plural(len(checked), 'checked run')} {listed(counts)}{unknown}.{worst}"
