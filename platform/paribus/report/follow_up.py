"""The follow-up study: more seeds for undecided arms, and interactions if effects don't add up.

The results choose the arms and the number of seeds, so the follow-up uses fresh seeds only: with the seeds that made
the choice, its tests would find differences that don't exist in far more than 5% of studies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paribus.errors import ParibusError
from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import MIN_SEEDS, Effect
from paribus.report.analysis.effects import full_recipe, gaps
from paribus.report.effect_words import stands_out
from paribus.report.tables.cells import interval_text, number, p_text, precision
from paribus.stats.multiple_testing import ALPHA
from paribus.stats.power import CAP
from paribus.study.designs import Draft, drafts
from paribus.study.spec import Study
from paribus.text import plural

SETTLED = 5
"""Seeds from which a difference that is confirmed after the correction needs no further seeds."""


MOST_FACTORIAL, MOST_FRACTIONAL = 4, 10
"""Maximum number of tricks for a full factorial, and for a fraction."""


@dataclass(frozen=True, kw_only=True)
class FollowUp:
    """What to run next.

    Attributes:
        reasons: why, one sentence for each arm and design of the follow-up; empty if nothing is needed.
        left_out: what stays open without a follow-up, with the reason.
        changes: keys of the study file that replace the old ones; empty if nothing is needed.
    """

    reasons: tuple[str, ...]
    left_out: tuple[str, ...]
    changes: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Verdict:
    """The decision on one arm: a number of further seeds or none, with the reason; without a reason it is decided."""

    seeds: int = 0
    reason: str = ""


def follow_up(analysis: Analysis, study: Study, most: int) -> FollowUp:
    """Return what to run next.

    Args:
        analysis: of the study's runs.
        study: its file.
        most: seeds an arm that may be asked for.

    Raises:
        ParibusError: runs have not ended, the study has a search, or the file has other arms than were run.
    """
    if analysis.plan.ranking is not None:
        raise ParibusError(
            f"`{analysis.plan.study}` has a search, which confirms its best settings on fresh seeds by itself. "
            "`paribus next` is for studies whose file lists their arms."
        )
    _refuse_unfinished(analysis)
    rows = _drafts_by_arm(analysis, study)
    verdicts = {arm: _verdict(analysis, arm, effect, most) for arm, effect in analysis.to_base.items()}
    asked = {arm: v for arm, v in verdicts.items() if v.seeds}
    designs: dict[str, Any] = {}
    if asked:
        arms = {analysis.label(arm)[:64]: _listed(rows[arm]) for arm in asked}
        designs["undecided"] = {"kind": "list", "arms": arms}
    crossed, why = _interactions(analysis)
    if crossed:
        designs["interactions"] = crossed
    reasons = [*(v.reason for v in asked.values()), *([why] if why else [])]
    left_out = [*(v.reason for v in verdicts.values() if v.reason and not v.seeds), *_lost(analysis)]
    return FollowUp(
        reasons=tuple(reasons),
        left_out=tuple(left_out),
        changes=_changes(analysis, study, designs, [v.seeds for v in asked.values()]) if designs else {},
    )


def _refuse_unfinished(analysis: Analysis) -> None:
    pending = sum(r.outcome == "pending" for r in analysis.data.runs)
    if pending:
        raise ParibusError(
            f"{pending} of {len(analysis.data.runs)} runs of `{analysis.plan.study}` have not ended and can still "
            "change what is needed. Finish the study (paribus run), then try again."
        )


def _drafts_by_arm(analysis: Analysis, study: Study) -> dict[str, Draft]:
    """Return for each arm the row of the study file that makes it."""
    written = {(draft.design, draft.label): draft for draft in drafts(study)}
    found: dict[str, Draft] = {}
    for row in analysis.plan.rows:
        draft = written.get((row.design, row.label))
        if draft is None:
            raise ParibusError(
                f"the study file has no row `{row.label}` in `{row.design}`, which was run: it has changed since. "
                "Run it as it is, or give the file that was run."
            )
        found.setdefault(row.arm, draft)
    return found


def _verdict(analysis: Analysis, arm: str, effect: Effect | None, most: int) -> _Verdict:
    name = f"`{analysis.label(arm)}`"
    if effect is None or not effect.supported:
        return _Verdict(seeds=min(SETTLED, most), reason=f"{name} has too few seeds to be tested.")
    e = effect.estimate
    shown = analysis.equivalence.get(arm)
    apart = stands_out(effect, analysis.levels.score)
    if (apart and e.n >= SETTLED and not effect.exploratory) or not e.sd or (shown is not None and shown < ALPHA):
        return _Verdict()
    seen = f"{interval_text(e, signed=True)}, {e.n} {'pairs' if effect.paired else 'seeds'}"
    needed = analysis.seeds_to_find(effect, analysis.family)
    what = _what_to_find(analysis, effect)
    if apart:
        after = f"p {p_text(effect.p_adjusted).replace('<', '< ')} after Holm"
        how = "after its results were there" if effect.exploratory else "with few seeds"
        reason = f"{name} stood out {how} ({seen}, {after}): fresh seeds show whether that was luck."
        return _Verdict(seeds=min(max(SETTLED, needed or most), most), reason=reason)
    power = f"(80% power, {100 * analysis.levels.score:.2g}% over {analysis.family} comparisons)"
    if needed is None or needed > most:
        count = f"more than {CAP}" if needed is None else f"about {needed}"
        reason = f"{name} stays open ({seen}): {what} takes {count} seeds {power}, more than the {most} allowed."
        return _Verdict(reason=reason)
    needed = max(needed, MIN_SEEDS)
    return _Verdict(seeds=needed, reason=f"{name} is undecided ({seen}): {what} takes about {needed} seeds {power}.")


def _what_to_find(analysis: Analysis, effect: Effect) -> str:
    """Return the difference that the follow-up must detect, in words."""
    margin = analysis.plan.margin
    if margin is not None:
        return f"a difference of the declared margin, {margin:g},"
    return (
        f"a difference of {number(analysis.size_to_find(effect), precision(effect.estimate))}, half of this interval,"
    )


def _interactions(analysis: Analysis) -> tuple[Mapping[str, Any], str]:
    """Return the design that shows which tricks interact, if single effects don't add up; else nothing."""
    tricks = full_recipe(analysis.plan.rows)
    crossed = {row.kind for row in analysis.plan.rows} & {"factorial", "fractional", "pairs"}
    if crossed or not 2 < len(tricks) <= MOST_FRACTIONAL:
        return {}, ""
    found = gaps(analysis)
    gap = next((e for key in ("mean", "alone") if (e := found.get(key)) is not None and e.separated), None)
    if gap is None:
        return {}, ""
    size = interval_text(gap.estimate, signed=True)
    why = f"The effects of the tricks miss the total by {size} when added up, so tricks interact: "
    if len(tricks) <= MOST_FACTORIAL:
        return {"kind": "factorial", "tricks": [*tricks]}, f"{why}all combinations of the {len(tricks)} show which."
    design = {"kind": "fractional", "resolution": 5, "tricks": [*tricks]}
    return design, f"{why}a fraction of resolution V shows which two."


def _lost(analysis: Analysis) -> Iterable[str]:
    failed = sum(r.outcome == "failed" for r in analysis.data.runs)
    if failed:
        yield f"{plural(failed, 'run has', 'runs have')} failed: `paribus retry {analysis.plan.study}` tries again."


def _changes(analysis: Analysis, study: Study, designs: Mapping[str, Any], seeds: Sequence[int]) -> dict[str, Any]:
    start = study.seeds.start + max(study.seeds.n, study.seeds.max or 0)
    n = max([*seeds, MIN_SEEDS, *([study.seeds.n] if "interactions" in designs else [])])
    return {
        "study": f"{study.study[:59]}-next",
        "question": f"Does what {analysis.plan.study} showed or left open hold on fresh seeds?",
        "designs": dict(designs),
        "seeds": {"n": n, "paired": study.seeds.paired, "start": start},
    }


def _listed(draft: Draft) -> dict[str, Any]:
    """Return the arm as a ``list`` writes it."""
    own: dict[str, Any] = {}
    for step in draft.steps:
        own |= {} if step.place[0] == "tricks" else step.patch
    parts = {"preset": draft.preset, "tricks": [*draft.tricks], "set": own}
    return {key: value for key, value in parts.items() if value}
