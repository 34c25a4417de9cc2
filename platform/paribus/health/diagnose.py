"""All detectors, what they find in a run, and the diagnosis: by onset, causes before effects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paribus.health.detector import Detector, Setting, State, finding_of, initial_state, update
from paribus.health.detectors import (
    exploration,
    group_sampling,
    group_signal,
    heldout,
    integrity,
    responses,
    reward,
    updates,
)
from paribus.health.finding import RAISED, Diagnosis, Finding, earlier, leading, worst
from paribus.run_folder.folder import MetricLine

DETECTORS: tuple[Detector, ...] = (
    *integrity.DETECTORS,
    *group_sampling.DETECTORS,
    *updates.DETECTORS,
    *exploration.DETECTORS,
    reward.LENGTH,
    *responses.LENGTHS,
    reward.CRASH,
    *responses.DETECTORS,
    *reward.DETECTORS,
    *group_signal.DETECTORS,
    *heldout.DETECTORS,
)
"""All detectors, causes before effects: of two findings with the same onset, the first is listed first."""

States = Mapping[str, State]
"""Detector to its state; plain JSON."""


def initial_states(own: Sequence[Detector] = ()) -> States:
    """Return the states before the first line of a run."""
    return {d.name: initial_state() for d in (*DETECTORS, *own)}


def advance(setting: Setting, states: States, lines: Iterable[MetricLine]) -> tuple[States, list[Finding]]:
    """Judge more lines of a run; return the new states, and a finding for each status that changed."""
    known = tuple(lines)
    changes: list[Finding] = []
    after: dict[str, State] = {}
    for detector in (*DETECTORS, *setting.own):
        after[detector.name], found = update(detector, setting, states[detector.name], known)
        changes += found
    return after, changes


def findings(setting: Setting, states: States) -> tuple[Finding, ...]:
    """Return the finding of each detector on the run so far."""
    return tuple(finding_of(d, setting, states[d.name]) for d in (*DETECTORS, *setting.own))


def judge_lines(setting: Setting, lines: Iterable[MetricLine]) -> tuple[Finding, ...]:
    """Return the finding of each detector on a whole run; the lines must be ordered by step and have their signals."""
    return findings(setting, advance(setting, initial_states(setting.own), lines)[0])


_ORDER = {d.name: i for i, d in enumerate(DETECTORS)}
_SANITY = frozenset(d.name for d in DETECTORS if not d.metrics)
"""Detectors without required metrics: they judge any record, however little it holds."""


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A known combination of findings.

    Attributes:
        name: what it is called.
        all_of: detectors that must have raised.
        any_of: detectors of which at least one must have raised, too; empty: no further one is required.
        first: the detector whose onset must come before those of ``any_of``; empty: any order.
    """

    name: str
    all_of: tuple[str, ...]
    any_of: tuple[str, ...] = ()
    first: str = ""


PATTERNS = (
    Pattern(
        name="sampler and learner disagree, and the updates break",
        all_of=("mismatch",),
        any_of=("grad_spike", "reward_noise", "eval_regression", "nan"),
        first="mismatch",
    ),
    Pattern(
        name="exploration is lost",
        all_of=("entropy_collapse",),
        any_of=("zero_variance", "reward_stall", "clip_saturation_high"),
    ),
    Pattern(
        name="the policy broke",
        all_of=("reward_crash",),
        any_of=("entropy_collapse", "entropy_explosion", "degenerate_text"),
    ),
    Pattern(name="gibberish", all_of=("entropy_explosion",), any_of=("repetition", "truncation", "degenerate_text")),
    Pattern(name="length bias", all_of=("length_balloon", "truncation")),
    Pattern(
        name="the reward is not what is wanted", all_of=("reward_hacking",), any_of=("format_hacking", "kl_blowup")
    ),
)


def diagnose(findings: Sequence[Finding], *, damaged: bool = False, near: int = 0, lacks: str = "") -> Diagnosis:
    """Return the diagnosis of a run.

    Args:
        findings: of all detectors.
        damaged: whether some records could not be read; then the run is not ``ok``.
        lacks: what a run needs to be ``ok`` and this one does not have; empty: nothing.
        near: steps by which onsets must differ to count as different: the length of a window.
    """
    raised = _ordered([f for f in findings if f.state in RAISED], near)
    if raised:
        return Diagnosis(
            status=worst(findings), sentence=_sentence(raised), raised=tuple(raised), findings=tuple(findings)
        )
    judged = [f.detector for f in findings if f.state == "ok"]
    healthy = not (damaged or lacks or _SANITY.issuperset(_ORDER.keys() & judged))
    text = "Healthy" if healthy else "Some records cannot be read" if damaged else "Too little data to judge"
    text += f": {lacks}" if lacks and not damaged else ""
    counts = {s: sum(f.state == s for f in findings) for s in ("unknown", "not_applicable")}
    text += f" ({len(judged)} of {len(findings)} detectors ran, {counts['unknown']} without enough data, "
    text += f"{counts['not_applicable']} not applicable)."
    return Diagnosis(status="ok" if healthy else "unknown", sentence=text, raised=(), findings=tuple(findings))


def _ordered(raised: Sequence[Finding], near: int) -> list[Finding]:
    """Return findings by onset; among those whose onsets are near the earliest of them, causes before effects."""
    left, found = sorted(raised, key=_by_onset), []
    while left:
        first = left[0].step_onset or 0
        group = [f for f in left if (f.step_onset or 0) <= first + near]
        found += sorted(group, key=lambda f: _ORDER.get(f.detector, len(_ORDER)))
        left = left[len(group) :]
    return found


def _by_onset(finding: Finding) -> tuple[int, int]:
    onset = finding.step_onset
    return (0 if onset is None else onset, _ORDER.get(finding.detector, len(_ORDER)))


def _sentence(raised: Sequence[Finding]) -> str:
    """Return the status of the run and the finding that leads, with the findings before and after it."""
    first = leading(raised)
    before = earlier(raised, first)
    after = [f for f in raised if f is not first and f not in before]
    state = "Critical" if worst(raised) == "critical" else "Warning"
    text = f"{state}: {first.detector}{when(first)}: {first.evidence}"
    for word, others in (("before it", before), ("then", after)):
        if others:
            text += f"; {word} " + ", ".join(f"{f.detector} ({f.state}, step {f.step_onset})" for f in others)
    names = [p.name for p in PATTERNS if _matches(p, raised)]
    return f"{text}. Known pattern: {'; '.join(names)}." if names else f"{text}."


def when(finding: Finding) -> str:
    """Return `` since step 5 until step 9``, without the parts that are unknown."""
    since = "" if finding.step_onset is None else f" since step {finding.step_onset}"
    return since + ("" if finding.step_cleared is None else f" until step {finding.step_cleared}")


def _matches(pattern: Pattern, raised: Sequence[Finding]) -> bool:
    names = [f.detector for f in raised]
    if not set(pattern.all_of) <= set(names) or (pattern.any_of and not set(pattern.any_of) & set(names)):
        return False
    others = [n for n in names if n in pattern.any_of]
    return not pattern.first or all(names.index(pattern.first) < names.index(n) for n in others)
