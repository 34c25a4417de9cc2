"""The view of the health page: a diagnosis, or those of an arm's seeds, as texts. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from paribus.health.diagnose import DETECTORS, when
from paribus.health.finding import RAISED, Diagnosis, Finding, Remedy, Status
from paribus.health.profile import Profile
from paribus.health.window import window_size
from paribus.recipe.recipe import Recipe, flatten
from paribus.report.render.plotly import COLOURS
from paribus.study.plan import Arm
from paribus_dashboards.data.verdicts import RunDiagnosis
from paribus_dashboards.format import plural, quoted, spaced
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
    evidence: str
    numbers: tuple[tuple[str, str], ...]
    experimental: bool
    remedies: tuple[RemedyView, ...]
    panel: str


@dataclass(frozen=True, kw_only=True)
class VerdictView:
    """The verdict on a run.

    Attributes:
        status: status of the worst finding.
        headline: one sentence: what, since when, the suspected cause, what to try.
        sentence: the whole diagnosis; empty if the headline says it all.
        detectors: all detectors.
        findings: raised findings, the suspected cause first.
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


def verdict_view(found: RunDiagnosis, profile: Profile, recipe: Recipe, drawn: Collection[str] = ()) -> VerdictView:
    """Lay out the diagnosis of a run.

    Args:
        found: the diagnosis.
        profile: the thresholds.
        recipe: the run's recipe.
        drawn: keys of the panels that have a curve.
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
    text = headline(diagnosis, recipe)
    return VerdictView(
        status=diagnosis.status,
        headline=text,
        sentence="" if text == diagnosis.sentence else diagnosis.sentence,
        detectors=tuple(_detector(f, profile) for f in diagnosis.findings),
        findings=tuple(_finding(f, drawn) for f in diagnosis.raised),
        judged_step=found.step,
        trouble=found.trouble,
    )


def headline(diagnosis: Diagnosis, recipe: Recipe) -> str:
    """Return what is wrong in one sentence, e.g. ``Critical: entropy collapse since step 212; suspect `clip.high``...

    What is suspected of the recipe, and the ablation, are the patch of the best supported remedy that has one: that of
    the finding with the earliest onset.
    """
    if diagnosis.first is None:
        return diagnosis.sentence
    first = diagnosis.first
    state = "Critical" if diagnosis.status == "critical" else "Warning"
    text = f"{state}: {spaced(first.detector)}{when(first)}"
    before = [spaced(f.detector) for f in diagnosis.raised[: diagnosis.raised.index(first)]]
    text += f", after {', '.join(before)}" if before else ""
    patch = next((r.patch for f in diagnosis.raised for r in f.remedies if r.patch), None)
    if patch is None:
        return f"{text}."
    values = flatten(recipe.model_dump(mode="json"))
    suspects = ", ".join(f"`{path}`" + (f" ({values[path]:g})" if _number(values.get(path)) else "") for path in patch)
    return f"{text}; suspect {suspects}; suggested ablation: `{patch_text(patch)}`."


def patch_text(patch: Mapping[str, Any]) -> str:
    """Return a patch as in a study file: ``clip.high: 0.28``."""
    import yaml

    text = yaml.safe_dump(dict(patch), default_flow_style=True, sort_keys=False, width=1000)
    return text.strip().removeprefix("{").removesuffix("}")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The verdict in one line, and its status."""

    status: Status
    text: str


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
    """

    title: str
    arm: str
    runs: tuple[RunView, ...]
    panels: tuple[PanelView, ...]
    absent: tuple[str, ...]
    smoothing: str
    here: str

    @property
    def one(self) -> bool:
        """Whether the page is about a single run."""
        return self.here.startswith("run=")

    @property
    def live(self) -> bool:
        """Whether one of the runs is live."""
        return any(run.live for run in self.runs)

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
    )


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
