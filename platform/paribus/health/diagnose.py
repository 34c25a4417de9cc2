"""From findings to a diagnosis: what comes first is the suspected cause, and known courses of events get their name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paribus.health.battery import BATTERY
from paribus.health.finding import RAISED, Finding, Lamp, worst

_ORDER = {d.name: i for i, d in enumerate(BATTERY)}
_ALWAYS = frozenset(d.name for d in BATTERY if not d.metrics)
"""Detectors that find nothing to complain of in any record, however little it holds."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """A course of events.

    Attributes:
        name: what it is called.
        all_of: detectors that must have raised.
        any_of: detectors of which one must have raised, too; empty: none is asked for.
        first: the detector that must have begun before the others; empty: any order.
    """

    name: str
    all_of: tuple[str, ...]
    any_of: tuple[str, ...] = ()
    first: str = ""


COURSES = (
    Course(
        name="sampler and learner disagree, and the updates break",
        all_of=("mismatch",),
        any_of=("grad_spike", "reward_noise", "eval_regression", "nan"),
        first="mismatch",
    ),
    Course(
        name="exploration is lost",
        all_of=("entropy_collapse",),
        any_of=("zero_variance", "reward_stall", "clip_saturation_high"),
    ),
    Course(name="gibberish", all_of=("entropy_explosion",), any_of=("repetition", "truncation", "degenerate_text")),
    Course(name="length bias", all_of=("length_balloon", "truncation")),
    Course(name="the reward is not what is wanted", all_of=("reward_hacking",), any_of=("format_hacking", "kl_blowup")),
)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What is wrong with a run.

    Attributes:
        lamp: the worst finding; green if none raised and a detector could judge that needs some metric.
        sentence: the verdict.
        raised: findings that warn or are critical, by onset: the suspected cause first.
        findings: those of all detectors.
    """

    lamp: Lamp
    sentence: str
    raised: tuple[Finding, ...]
    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding | None:
        """The first finding that is as bad as the run; what was raised before it may be its cause."""
        return _leading(self.raised) if self.raised else None


def diagnose(findings: Sequence[Finding], *, damaged: bool = False) -> Diagnosis:
    """Return the diagnosis of a run.

    Args:
        findings: of all detectors.
        damaged: whether there are records that could not be read; then nothing is green.
    """
    raised = sorted((f for f in findings if f.state in RAISED), key=_when)
    if raised:
        return Diagnosis(
            lamp=worst(findings), sentence=_sentence(raised), raised=tuple(raised), findings=tuple(findings)
        )
    fine = [f.detector for f in findings if f.state == "ok"]
    counts = {s: sum(f.state == s for f in findings) for s in ("unknown", "not_applicable")}
    healthy = not (damaged or _ALWAYS.issuperset(fine))
    said = "Healthy" if healthy else "Nothing is known"
    if damaged:
        said = "Not known, as not all of its records can be read"
    said += f": {len(fine)} of {len(findings)} detectors judged, {counts['unknown']} without data, "
    said += f"{counts['not_applicable']} not applicable."
    return Diagnosis(lamp="ok" if healthy else "unknown", sentence=said, raised=(), findings=tuple(findings))


def _when(finding: Finding) -> tuple[int, int]:
    onset = finding.step_onset
    return (0 if onset is None else onset, _ORDER.get(finding.detector, len(_ORDER)))


def _leading(raised: Sequence[Finding]) -> Finding:
    return next((f for f in raised if f.state == "critical"), raised[0])


def _sentence(raised: Sequence[Finding]) -> str:
    """Return the verdict: the first critical finding, else the first warning, with what came before and after it."""
    first = _leading(raised)
    place = raised.index(first)
    text = f"{'Critical' if first.state == 'critical' else 'Warning'}: {first.detector}{when(first)}: {first.evidence}"
    for word, others in (("before it", raised[:place]), ("then", raised[place + 1 :])):
        if others:
            text += f"; {word} " + ", ".join(f"{f.detector} ({f.state}, step {f.step_onset})" for f in others)
    names = [c.name for c in COURSES if _happened(c, raised)]
    return f"{text}. This is the course of: {'; '.join(names)}." if names else f"{text}."


def when(finding: Finding) -> str:
    """Return `` since step 5 until step 9``, or what is known of it."""
    since = "" if finding.step_onset is None else f" since step {finding.step_onset}"
    return since + ("" if finding.step_cleared is None else f" until step {finding.step_cleared}")


def _happened(course: Course, raised: Sequence[Finding]) -> bool:
    names = [f.detector for f in raised]
    if not set(course.all_of) <= set(names) or (course.any_of and not set(course.any_of) & set(names)):
        return False
    others = [n for n in names if n in course.any_of]
    return not course.first or all(names.index(course.first) < names.index(n) for n in others)
