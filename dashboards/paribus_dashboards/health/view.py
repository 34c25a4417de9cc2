"""The view of the health page: a diagnosis, or those of an arm's seeds, as texts. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from paribus.health.context import ALONE
from paribus.health.diagnose import DETECTORS, when
from paribus.health.finding import RAISED, Diagnosis, Finding, Remedy, Status, earlier
from paribus.health.profile import Profile
from paribus.health.window import window_size
from paribus.report.render.plotly import COLOURS
from paribus.study.plan import Arm
from paribus.text import plural
from paribus_dashboards.data.pace import Pace
from paribus_dashboards.data.verdicts import RunDiagnosis
from paribus_dashboards.format import STATUSES, quoted, spaced
from paribus_dashboards.health.figure import limits_text, panel_text
from paribus_dashboards.health.panels import KINDS, Panel, metrics_of

_LOOKS_FOR: Mapping[str, str] = {d.name: d.looks_for for d in DETECTORS}

WORST_FIRST: tuple[Status, ...] = (*RAISED, "unknown", "ok")

EVIDENCE: Mapping[str, str] = {
    "A": "ablated in its source",
    "B": "argued from the mechanism",
    "C": "practitioners' advice",
}
"""Meaning of the evidence levels of remedies."""


@dataclass(frozen=True, kw_only=True)
class RemedyView:
    """A remedy: its text, evidence level, source, and patch as in a study file."""

    text: str
    evidence: str
    meaning: str
    source: str
    patch: str


@dataclass(frozen=True, kw_only=True)
class DetectorView:
    """One detector: its status, the reason, and its thresholds with their sources."""

    detector: str
    title: str
    status: Status
    looks_for: str
    says: str
    thresholds: tuple[tuple[str, str, str], ...]
    raised: bool


@dataclass(frozen=True, kw_only=True)
class FindingView:
    """A finding and its remedies.

    Attributes:
        detector: name of the detector.
        title: the name with spaces.
        status: its status.
        when: onset, end and step of detection.
        onset: the step from which it holds; ``None`` without a step.
        evidence: the numbers in a sentence.
        numbers: names and values, with the thresholds.
        experimental: whether its thresholds have no source.
        remedies: what to try, the best supported first.
        panel: key of the panel that shows it; empty without one.
    """

    detector: str
    title: str
    status: Status
    when: str
    onset: int | None
    evidence: str
    numbers: tuple[tuple[str, str], ...]
    experimental: bool
    remedies: tuple[RemedyView, ...]
    panel: str


_OPEN = 2
"""Findings of a run that stand open: a row of cards."""


@dataclass(frozen=True, kw_only=True)
class VerdictView:
    """The verdict on a run.

    Attributes:
        status: status of the worst finding.
        headline: what, since when, and what the study adds to it.
        sentence: the whole diagnosis; empty if the headline says it all.
        detectors: all detectors.
        findings: raised findings, by onset.
        judged_step: newest step that the diagnosis covers.
        trouble: why records could not be read; empty if all could.
    """

    status: Status
    headline: str
    sentence: str
    detectors: tuple[DetectorView, ...]
    findings: tuple[FindingView, ...]
    judged_step: int
    trouble: str

    @property
    def shown(self) -> tuple[FindingView, ...]:
        """The findings that stand open: that of the headline and the first other one, so that curves are in sight."""
        headline = next((f for f in self.findings if f.status == self.status), None)
        others = [f for f in self.findings if f is not headline][: _OPEN - 1]
        return tuple(f for f in self.findings if f is headline or f in others)

    @property
    def folded(self) -> tuple[FindingView, ...]:
        """The other findings."""
        return tuple(f for f in self.findings if f not in self.shown)

    @property
    def notes(self) -> tuple[DetectorView, ...]:
        """What is worth knowing and no fault."""
        return tuple(d for d in self.detectors if d.status == "note")

    @property
    def counts(self) -> str:
        """How many detectors have which status, of those that raised nothing, e.g. ``25 ok, 3 not applicable``."""
        found = Counter(STATUSES[d.status][1] for d in self.detectors if not d.raised)
        return ", ".join(f"{n} {word}" for word, n in found.most_common())


def verdict_view(found: RunDiagnosis, profile: Profile, drawn: Collection[str] = (), context: str = "") -> VerdictView:
    """Lay out the diagnosis of a run.

    Args:
        found: the diagnosis.
        profile: the thresholds.
        drawn: keys of the panels that have a curve.
        context: what the study adds to its first finding.
    """
    diagnosis = found.diagnosis
    if diagnosis is None:
        text = "Not judged: the records cannot be read." if found.trouble else "Not judged yet."
        return VerdictView(
            status="unknown",
            headline=text,
            sentence="",
            detectors=(),
            findings=(),
            judged_step=0,
            trouble=found.trouble,
        )
    text = headline(diagnosis, context)
    return VerdictView(
        status=diagnosis.status,
        headline=text,
        sentence="" if text == diagnosis.sentence else diagnosis.sentence,
        detectors=tuple(_detector(f, profile) for f in diagnosis.findings),
        findings=tuple(_finding(f, drawn) for f in diagnosis.raised),
        judged_step=found.step,
        trouble=found.trouble,
    )


def headline(diagnosis: Diagnosis, context: str = "") -> str:
    """Return what is wrong in one or two sentences, e.g. ``Critical: length balloon since step 212. The arm ...``.

    Args:
        diagnosis: the diagnosis.
        context: what the study adds (:func:`~paribus.health.context.context_of`).
    """
    if diagnosis.first is None:
        return diagnosis.sentence
    first = diagnosis.first
    state = "Critical" if diagnosis.status == "critical" else "Warning"
    text = f"{state}: {spaced(first.detector)}{when(first)}"
    before = [spaced(f.detector) for f in earlier(diagnosis.raised, first)]
    text += f", after {', '.join(before)}" if before else ""
    return f"{text}. {context or ALONE}"


def patch_text(patch: Mapping[str, Any]) -> str:
    """Return a patch as in a study file: ``clip.high: 0.28``."""
    import yaml

    text = yaml.safe_dump(dict(patch), default_flow_style=True, sort_keys=False, width=1000)
    return text.strip().removeprefix("{").removesuffix("}")


def _detector(finding: Finding, profile: Profile) -> DetectorView:
    known = profile.thresholds.get(finding.detector, {})
    thresholds = tuple(
        (name, f"{t.value:g}", f"{t.source} (experimental)" if t.experimental else t.source)
        for name, t in known.items()
    )
    raised = finding.state in RAISED
    return DetectorView(
        detector=finding.detector,
        title=spaced(finding.detector),
        status=finding.state,
        looks_for=_LOOKS_FOR.get(finding.detector, ""),
        says=_when(finding) if raised else finding.evidence,
        thresholds=thresholds,
        raised=raised,
    )


def _when(finding: Finding) -> str:
    parts = [] if finding.step_onset is None else [f"since step {finding.step_onset}"]
    parts += [] if finding.step_cleared is None else [f"until {finding.step_cleared}"]
    parts += [] if finding.step_detected is None else [f"detected at {finding.step_detected}"]
    return ", ".join(parts)


def _finding(finding: Finding, drawn: Collection[str]) -> FindingView:
    return FindingView(
        detector=finding.detector,
        title=spaced(finding.detector),
        status=finding.state,
        when=_when(finding),
        onset=finding.step_onset,
        evidence=finding.evidence,
        numbers=tuple((name, f"{value:.4g}") for name, value in finding.numbers.items()),
        experimental=finding.experimental,
        remedies=tuple(map(_remedy, finding.remedies)),
        panel=next((k.key for k in KINDS if finding.detector in k.detectors and k.key in drawn), ""),
    )


def _remedy(remedy: Remedy) -> RemedyView:
    patch = patch_text(remedy.patch) if remedy.patch else ""
    return RemedyView(
        text=remedy.text,
        evidence=remedy.evidence,
        meaning=EVIDENCE[remedy.evidence],
        source=remedy.source,
        patch=patch,
    )


@dataclass(frozen=True, kw_only=True)
class PanelView:
    """A chart: its key, title, address of its data, description, limits, and whether it has a legend."""

    key: str
    title: str
    src: str
    text: str
    limits: str
    legend: bool


@dataclass(frozen=True, kw_only=True)
class RunView:
    """One run of the page.

    Attributes:
        digits: first digits of its fingerprint.
        arm: label of its arm.
        seed: its seed.
        state: its state, with spaces.
        live: whether an attempt is live.
        step: newest recorded step.
        steps: planned steps.
        reason: why it failed or was queued again; empty otherwise.
        verdict: the verdict on it.
        colour: colour of its line if the page shows several runs.
        pace: how fast it goes; ``None`` unless it is live.
        waits: whether it has not ended.
    """

    digits: str
    arm: str
    seed: int
    state: str
    live: bool
    step: int
    steps: int
    reason: str
    verdict: VerdictView
    colour: str = COLOURS[0]
    pace: Pace | None = None
    waits: bool = False


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The verdict, and its status."""

    status: Status
    text: str

    @property
    def first(self) -> str:
        """Its first sentence: what, and since when."""
        return self.text[: len(self.text) - len(self.rest)].rstrip()

    @property
    def rest(self) -> str:
        """What the study adds to it; empty for nothing."""
        return self.text.partition(". ")[2]


@dataclass(frozen=True, kw_only=True)
class HealthView:
    """The health page.

    Attributes:
        title: title of the page.
        arm: key of the arm.
        runs: the run, or the runs of the arm by seed.
        panels: charts of the panels with a recorded metric.
        absent: title and metrics of the other panels.
        smoothing: how to read the curves.
        here: query string of the page.
        links: text and address of pages that show more of a single run.
    """

    title: str
    arm: str
    runs: tuple[RunView, ...]
    panels: tuple[PanelView, ...]
    absent: tuple[str, ...]
    smoothing: str
    here: str
    links: tuple[tuple[str, str], ...] = ()

    @property
    def one(self) -> bool:
        """Whether the page is about a single run."""
        return self.here.startswith("run=")

    @property
    def live(self) -> bool:
        """Whether one of the runs is live."""
        return any(run.live for run in self.runs)

    @property
    def waits(self) -> bool:
        """Whether one of the runs has not ended and may become live."""
        return any(run.waits for run in self.runs)

    @property
    def headline(self) -> Headline:
        """The verdict at the top of the page."""
        if self.one:
            return Headline(status=self.runs[0].verdict.status, text=self.runs[0].verdict.headline)
        return arm_headline(self.runs)

    @property
    def raised(self) -> tuple[tuple[str, tuple[DetectorView | None, ...]], ...]:
        """Detectors with a finding in some run: title and one entry per run, ``None`` if it has no finding there."""
        by_run = [{x.detector: x for x in run.verdict.detectors if x.raised} for run in self.runs]
        known = [x.detector for run in self.runs for x in run.verdict.detectors]
        return tuple(
            (spaced(d), tuple(b.get(d) for b in by_run)) for d in dict.fromkeys(known) if any(d in b for b in by_run)
        )


def arm_headline(runs: Sequence[RunView]) -> Headline:
    """Return the verdict on an arm: the number of seeds by status, and the most frequent of the worst findings."""
    statuses = [run.verdict.status for run in runs]
    worst: Status = next((x for x in WORST_FIRST if x in statuses), "unknown")
    titles = {"critical": "critical", "warn": "with a warning", "ok": "healthy", "unknown": "not judged"}
    counts = ", ".join(f"{statuses.count(x)} {title}" for x, title in titles.items() if x in statuses)
    found = Counter(f.title for run in runs for f in run.verdict.findings if f.status == worst)
    most = ", ".join(f"{name} in {n}" for name, n in found.most_common(3))
    text = f"{plural(len(runs), 'seed')}: {counts or 'none'}"
    return Headline(status=worst, text=f"{text}; {most}." if most else f"{text}.")


def view(
    study: str,
    arm: Arm,
    runs: Sequence[RunView],
    panels: Sequence[Panel],
    *,
    names: Iterable[str],
    primary: str,
    base: str,
    single: bool,
    number: str = "",
) -> HealthView:
    """Return the page about one run, or about the seeds of an arm.

    Args:
        study: name of the study.
        arm: the arm.
        runs: the run, or the runs of the arm.
        panels: all panels, also those without curves.
        names: recorded metrics.
        primary: the study's primary metric.
        base: key of the base.
        single: whether the page is about one run.
        number: which page of the arm's seeds; empty for the first.
    """
    here = (
        urlencode({"run": runs[0].digits})
        if single
        else urlencode({"arm": arm.key} | ({"page": number} if number else {}))
    )
    known = set(names)
    shown = [p for p in panels if metrics_of(p.kind, known, primary)]
    w = window_size(arm.recipe.schedule.steps)
    median = f"running median of the last {w} points, as the detectors use it"
    one = f"Bold: {median}. Faint: recorded values, or their range if a point covers several steps. Scores are not "
    one += "smoothed; bars are standard errors over problems."
    return HealthView(
        title=f"{arm.label}, seed {runs[0].seed}" if single else arm.label,
        arm=arm.key,
        runs=tuple(replace(r, colour=COLOURS[i % len(COLOURS)]) for i, r in enumerate(runs)),
        panels=tuple(_panel(study, p, here) for p in shown),
        absent=tuple(
            f"{p.kind.title} ({', '.join(m.name or primary for m in p.kind.metrics)})" for p in panels if p not in shown
        ),
        smoothing=one if single else f"One line per seed: {median}; scores as recorded.",
        here=here,
        links=_links(study, arm, base, runs[0]) if single else (),
    )


def _links(study: str, arm: Arm, base: str, run: RunView) -> tuple[tuple[str, str], ...]:
    """Return the training samples at the onset of the headline's finding, and the comparison with the base."""
    here, found = f"/study/{quoted(study)}", []
    first = next((f for f in run.verdict.findings if f.status == run.verdict.status), None)
    if first is not None and first.onset is not None:
        query = urlencode({"run": run.digits, "set": "train", "step": first.onset})
        found.append((f"Samples at step {first.onset}", f"{here}/samples?{query}"))
    if arm.key != base:
        found.append(("Compare with the base", f"{here}/compare?{urlencode([('arm', base), ('arm', arm.key)])}"))
    return tuple(found)


def _panel(study: str, panel: Panel, here: str) -> PanelView:
    src = f"/data/study/{quoted(study)}/health/{panel.kind.key}.json?{here}"
    return PanelView(
        key=panel.kind.key,
        title=panel.kind.title,
        src=src,
        text=panel_text(panel),
        limits=limits_text(panel.limits),
        legend=len(panel.curves) > 1 and here.startswith("run="),
    )
