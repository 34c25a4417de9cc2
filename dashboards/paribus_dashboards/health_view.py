"""What the health page says of a run, or of the seeds of an arm: from a diagnosis to words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

from paribus.health.battery import BATTERY
from paribus.health.diagnose import Diagnosis, when
from paribus.health.finding import RAISED, Finding, Lamp, Remedy
from paribus.health.profile import Profile
from paribus.health.view import window
from paribus.recipe.recipe import Recipe, flatten
from paribus.report.figures import COLOURS
from paribus.study.plan import Arm
from paribus_dashboards.figures.health import limits_text, panel_text
from paribus_dashboards.panels import KINDS, Panel, metrics_of
from paribus_dashboards.verdicts import Judged

_LOOKS_FOR: Mapping[str, str] = {d.name: d.looks_for for d in BATTERY}

LAMP_ORDER: tuple[Lamp, ...] = (*RAISED, "unknown", "ok")

EVIDENCE: Mapping[str, str] = {
    "A": "ablated in its source",
    "B": "argued from the mechanism",
    "C": "practitioners' advice",
}
"""What the evidence levels of remedies mean."""


@dataclass(frozen=True, kw_only=True)
class RemedyView:
    """Something to try: what, how well supported, by whom, and the patch as a study file would write it."""

    text: str
    evidence: str
    meaning: str
    source: str
    patch: str


@dataclass(frozen=True, kw_only=True)
class LampView:
    """One detector: its lamp, why, and its thresholds with their sources."""

    detector: str
    words: str
    lamp: Lamp
    looks_for: str
    says: str
    thresholds: tuple[tuple[str, str, str], ...]
    raised: bool


@dataclass(frozen=True, kw_only=True)
class FindingView:
    """What a detector has found, with what to try.

    Attributes:
        detector: its name.
        words: the same, to be read.
        lamp: how bad it is.
        when: since when, until when, told when.
        evidence: the numbers in a sentence.
        numbers: names and values that they were held against.
        experimental: whether no source gives its thresholds.
        remedies: what to try, the best supported first.
        panel: key of the panel that shows it; empty if none does.
    """

    detector: str
    words: str
    lamp: Lamp
    when: str
    evidence: str
    numbers: tuple[tuple[str, str], ...]
    experimental: bool
    remedies: tuple[RemedyView, ...]
    panel: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on a run as it is shown.

    Attributes:
        lamp: the worst finding.
        headline: one sentence: what, since when, what is suspected, what to try.
        sentence: the whole diagnosis; empty where the headline says it all.
        lamps: all detectors.
        findings: what was raised, the suspected cause first.
        upto: the newest step that was judged.
        trouble: why not all could be read.
    """

    lamp: Lamp
    headline: str
    sentence: str
    lamps: tuple[LampView, ...]
    findings: tuple[FindingView, ...]
    upto: int
    trouble: str


def verdict_view(judged: Judged, profile: Profile, recipe: Recipe, drawn: Collection[str] = ()) -> Verdict:
    """Return the verdict on a run, to be laid out.

    Args:
        judged: what was found.
        profile: the thresholds.
        recipe: what it trains.
        drawn: keys of the panels that have a curve.
    """
    found = judged.diagnosis
    if found is None:
        waiting = "Not judged: the records cannot be read." if judged.trouble else "Not judged yet."
        return Verdict(
            lamp="unknown", headline=waiting, sentence="", lamps=(), findings=(), upto=0, trouble=judged.trouble
        )
    said = headline(found, recipe)
    return Verdict(
        lamp=found.lamp,
        headline=said,
        sentence="" if said == found.sentence else found.sentence,
        lamps=tuple(_lamp(f, profile) for f in found.findings),
        findings=tuple(_finding(f, drawn) for f in found.raised),
        upto=judged.step,
        trouble=judged.trouble,
    )


def headline(diagnosis: Diagnosis, recipe: Recipe) -> str:
    """Return what is wrong in one sentence, e.g. ``Critical: entropy collapse since step 212; suspect `clip.high``...

    What is suspected of the recipe, and the ablation, are the patch of the best supported remedy that has one, as
    ``--as-study`` takes it: that of the finding with the earliest onset.
    """
    if diagnosis.first is None:
        return diagnosis.sentence
    first = diagnosis.first
    state = "Critical" if diagnosis.lamp == "critical" else "Warning"
    text = f"{state}: {words(first.detector)}{when(first)}"
    before = [words(f.detector) for f in diagnosis.raised[: diagnosis.raised.index(first)]]
    text += f", after {', '.join(before)}" if before else ""
    patch = next((r.patch for f in diagnosis.raised for r in f.remedies if r.patch), None)
    if patch is None:
        return f"{text}."
    values = flatten(recipe.model_dump(mode="json"))
    suspects = ", ".join(f"`{path}`" + (f" ({values[path]:g})" if _number(values.get(path)) else "") for path in patch)
    return f"{text}; suspect {suspects}; suggested ablation: `{patch_text(patch)}`."


def words(detector: str) -> str:
    """Return the name of a detector as it is read."""
    return detector.replace("_", " ")


def patch_text(patch: Mapping[str, Any]) -> str:
    """Return a patch as one writes it in a study file: ``clip.high: 0.28``."""
    import yaml

    text = yaml.safe_dump(dict(patch), default_flow_style=True, sort_keys=False, width=1000)
    return text.strip().removeprefix("{").removesuffix("}")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _lamp(finding: Finding, profile: Profile) -> LampView:
    known = profile.thresholds.get(finding.detector, {})
    thresholds = tuple(
        (name, f"{t.value:g}", f"{t.source} (experimental)" if t.experimental else t.source)
        for name, t in known.items()
    )
    raised = finding.state in RAISED
    return LampView(
        detector=finding.detector,
        words=words(finding.detector),
        lamp=finding.state,
        looks_for=_LOOKS_FOR.get(finding.detector, ""),
        says=_when(finding) if raised else finding.evidence,
        thresholds=thresholds,
        raised=raised,
    )


def _when(finding: Finding) -> str:
    parts = [] if finding.step_onset is None else [f"since step {finding.step_onset}"]
    parts += [] if finding.step_cleared is None else [f"until {finding.step_cleared}"]
    parts += [] if finding.step_detected is None else [f"told at {finding.step_detected}"]
    return ", ".join(parts)


def _finding(finding: Finding, drawn: Collection[str]) -> FindingView:
    return FindingView(
        detector=finding.detector,
        words=words(finding.detector),
        lamp=finding.state,
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
    """A chart of the page: its heading, its address, what it shows in words, its limits, whether it needs a legend."""

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
        state: its state, to be read.
        live: whether it goes on.
        step: the newest recorded step.
        steps: planned ones.
        reason: why it failed or was put back; empty without trouble.
        verdict: what is wrong with it.
        colour: of its line where several runs are shown.
    """

    digits: str
    arm: str
    seed: int
    state: str
    live: bool
    step: int
    steps: int
    reason: str
    verdict: Verdict
    colour: str = COLOURS[0]


@dataclass(frozen=True, kw_only=True)
class Top:
    """The verdict in one line, and its lamp."""

    lamp: Lamp
    headline: str


@dataclass(frozen=True, kw_only=True)
class HealthView:
    """The health page.

    Attributes:
        title: heading.
        arm: key of the arm.
        runs: the run, or the runs of the arm by seed.
        panels: charts, those without any metric left out.
        absent: heading and metrics of those that are left out.
        smoothing: what is drawn.
        command: what writes the study that tests the remedies; empty without a remedy with a patch.
        here: query of the page.
    """

    title: str
    arm: str
    runs: tuple[RunView, ...]
    panels: tuple[PanelView, ...]
    absent: tuple[str, ...]
    smoothing: str
    command: str
    here: str

    @property
    def one(self) -> bool:
        """Whether the page is about a single run."""
        return self.here.startswith("run=")

    @property
    def live(self) -> bool:
        """Whether one of the runs goes on."""
        return any(run.live for run in self.runs)

    @property
    def top(self) -> Top:
        """What stands above all."""
        if self.one:
            return Top(lamp=self.runs[0].verdict.lamp, headline=self.runs[0].verdict.headline)
        return arm_top(self.runs)

    @property
    def raised(self) -> tuple[tuple[str, tuple[LampView | None, ...]], ...]:
        """Detectors that raised in some run, in words, with the lamp of each run; ``None`` where it did not raise."""
        by_run = [{x.detector: x for x in run.verdict.lamps if x.raised} for run in self.runs]
        known = [x.detector for run in self.runs for x in run.verdict.lamps]
        return tuple(
            (words(d), tuple(b.get(d) for b in by_run)) for d in dict.fromkeys(known) if any(d in b for b in by_run)
        )


def arm_top(runs: Sequence[RunView]) -> Top:
    """Return the verdict on an arm: how many seeds have which lamp, and what was found in most of them."""
    lamps = [run.verdict.lamp for run in runs]
    lamp: Lamp = next((x for x in LAMP_ORDER if x in lamps), "unknown")
    said = {"critical": "critical", "warn": "with a warning", "ok": "healthy", "unknown": "not judged"}
    counts = ", ".join(f"{lamps.count(x)} {text}" for x, text in said.items() if x in lamps)
    found = Counter(f.words for run in runs for f in run.verdict.findings if f.lamp == lamp)
    most = ", ".join(f"{name} in {n}" for name, n in found.most_common(3))
    text = f"{len(runs)} seed{'s' if len(runs) != 1 else ''}: {counts or 'none'}"
    return Top(lamp=lamp, headline=f"{text}; {most}." if most else f"{text}.")


def view(
    study: str,
    arm: Arm,
    runs: Sequence[RunView],
    panels: Sequence[Panel],
    *,
    names: Iterable[str],
    primary: str,
    single: bool,
    options: str = "",
) -> HealthView:
    """Return the page about one run, or about the seeds of an arm.

    Args:
        study: name of the study.
        arm: the arm.
        runs: the run, or those of the arm.
        panels: all panels, whose curves may be missing.
        names: metrics that were recorded.
        primary: the study's primary metric.
        single: whether it is about one run.
        options: what a command must name beside the run.
    """
    here = urlencode({"run": runs[0].digits}) if single else urlencode({"arm": arm.key})
    known = set(names)
    shown = [p for p in panels if metrics_of(p.kind, known, primary)]
    w = window(arm.recipe.schedule.steps)
    median = f"running median of the last {w} points, as the detectors take it"
    one = f"Bold: {median}; faint: as recorded; where a point stands for several steps, their range. Scores are not "
    one += "smoothed; bars: standard error over problems."
    testable = single and any(r.patch for f in runs[0].verdict.findings for r in f.remedies)
    return HealthView(
        title=f"{arm.label}, seed {runs[0].seed}" if single else arm.label,
        arm=arm.key,
        runs=tuple(replace(r, colour=COLOURS[i % len(COLOURS)]) for i, r in enumerate(runs)),
        panels=tuple(_panel(study, p, here) for p in shown),
        absent=tuple(
            f"{p.kind.title} ({', '.join(m.name or primary for m in p.kind.metrics)})" for p in panels if p not in shown
        ),
        smoothing=one if single else f"One line a seed: {median}; scores as recorded.",
        command=f"paribus health {runs[0].digits} --as-study{options}" if testable else "",
        here=here,
    )


def _panel(study: str, panel: Panel, here: str) -> PanelView:
    src = f"/data/study/{quote(study, safe='')}/health/{panel.kind.key}.json?{here}"
    return PanelView(
        key=panel.kind.key,
        title=panel.kind.title,
        src=src,
        text=panel_text(panel),
        limits=limits_text(panel.limits),
        legend=len(panel.curves) > 1 and here.startswith("run="),
    )
