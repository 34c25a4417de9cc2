"""Judges runs from their files: run folders after the run or while it trains, and the logs of other trainers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paribus.contract import Job
from paribus.errors import RunFolderError
from paribus.health.detector import Detector, Setting, finding_of, initial_state, update
from paribus.health.diagnose import DETECTORS, advance, diagnose, findings, initial_states, judge_lines
from paribus.health.finding import Diagnosis, Finding, HealthFile, to_json
from paribus.health.import_logs import Log
from paribus.health.own_rules import setting_of
from paribus.health.profile import Profile
from paribus.health.signals import with_signals
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import TRAIN, Evaluation, MetricLine, RunFolder, read_evaluation, write_json
from paribus.run_folder.samples import Sample, parse_sample
from paribus.text import plural


@dataclass(frozen=True, kw_only=True)
class Records:
    """What a run has recorded over its attempts.

    Attributes:
        lines: metric lines, one per step.
        evaluations: by set and step.
        samples: responses to evaluated problems.
        trouble: why some records could not be read; empty if all could.
    """

    lines: tuple[MetricLine, ...]
    evaluations: tuple[Evaluation, ...]
    samples: tuple[Sample, ...]
    trouble: str


def judge_run(
    profile: Profile, records: Records, *, recipe: Recipe | None, primary: str, own: tuple[Detector, ...] = ()
) -> Diagnosis:
    """Return the diagnosis of a Paribus run.

    Args:
        profile: the thresholds.
        records: what it has recorded.
        recipe: what it trains; ``None`` if that is not known, as for the log of another trainer.
        primary: the study's primary metric.
        own: detectors beside those of Paribus.
    """
    lines = with_signals(records.lines, primary=primary, evaluations=records.evaluations, samples=records.samples)
    planned = len(records.lines) if recipe is None else recipe.schedule.steps
    setting = Setting(profile=profile, recipe=recipe, planned=planned, own=own)
    found, damaged = judge_lines(setting, lines), bool(records.trouble)
    if recipe is None:
        return diagnose(found, damaged=damaged, near=_near(setting, lines), lacks=lacks(records.lines))
    return diagnose(found, damaged=damaged, near=setting.w, lacks=_few_steps(len(records.lines)))


def judge_alone(
    detector: Detector, profile: Profile, records: Records, *, recipe: Recipe | None, primary: str
) -> Finding:
    """Return the finding of one detector on a Paribus run."""
    lines = with_signals(records.lines, primary=primary, evaluations=records.evaluations, samples=records.samples)
    planned = len(records.lines) if recipe is None else recipe.schedule.steps
    setting = Setting(profile=profile, recipe=recipe, planned=planned, own=(detector,))
    return finding_of(detector, setting, update(detector, setting, initial_state(), lines)[0])


def judge_log(profile: Profile, log: Log) -> Diagnosis:
    """Return the diagnosis of another trainer's log, whose recipe is unknown."""
    setting = Setting(profile=profile, planned=len(log.lines))
    found = judge_lines(setting, with_signals(log.lines))
    return diagnose(found, damaged=bool(log.trouble), near=_near(setting, log.lines), lacks=lacks(log.lines))


def _near(setting: Setting, lines: Sequence[MetricLine]) -> int:
    """Return the steps of a window: other trainers do not record every step."""
    steps = (lines[-1].step - lines[0].step) / max(len(lines) - 1, 1) if lines else 1.0
    return round(setting.w * steps)


LEAST = 8
"""Steps of the shortest run that can be ``ok``."""

_NEEDED = (
    ("reward", ("reward/mean", "reward/correct_frac")),
    ("length", ("response/length_mean",)),
    ("one of entropy, KL and gradient norm", ("policy/entropy", "kl/ref_k3", "optim/grad_norm")),
)
"""What the log of another trainer must have to be ``ok``."""


def _few_steps(count: int) -> str:
    return f"{plural(count, 'recorded step')}, at least {LEAST} are needed" if count < LEAST else ""


def lacks(lines: Sequence[MetricLine]) -> str:
    """Return what the log of another trainer needs to be ``ok`` and lacks; empty if it lacks nothing."""
    return _lacks(Counter(m for line in lines for m in line.values), len(lines))


def _lacks(seen: Mapping[str, int], steps: int) -> str:
    """Return the same, of a log in which each metric was seen so many times."""
    missing = [name for name, metrics in _NEEDED if max(seen.get(m, 0) for m in metrics) < LEAST]
    return _few_steps(steps) or (f"no {', no '.join(missing)} in {LEAST} steps or more" if missing else "")


def saved_diagnosis(file: HealthFile, own: Sequence[Detector] = ()) -> Diagnosis | None:
    """Return the diagnosis in ``health.json``; ``None`` if its detectors are not exactly those of this version."""
    findings = (*file.raised, *file.others)
    order = [d.name for d in (*DETECTORS, *own)]
    if {f.detector for f in findings} != set(order):
        return None
    ordered = tuple(sorted(findings, key=lambda f: order.index(f.detector)))
    return Diagnosis(status=file.status, sentence=file.sentence, raised=file.raised, findings=ordered)


def read_run(home: Path, fingerprint: str, token: int) -> Records:
    """Return what a run has recorded; an attempt replaces, from its first step on, what earlier attempts recorded.

    Args:
        home: the home folder.
        fingerprint: the run.
        token: fence token of its newest attempt.
    """
    return read_attempts([RunFolder.of(home, fingerprint, n) for n in range(1, token + 1)])


def read_attempts(folders: Iterable[RunFolder]) -> Records:
    """Return what attempts, the oldest first, have recorded; of each attempt, lines after a damaged one are ignored."""
    lines: dict[int, MetricLine] = {}
    evaluations: dict[tuple[str, int], Evaluation] = {}
    samples: list[Sample] = []
    trouble = ""
    for folder in folders:
        found: list[MetricLine] = []
        try:
            found.extend(folder.read_metrics())
            evaluated = folder.read_evaluations()
        except RunFolderError as error:
            trouble, evaluated = str(error), ()
        if not found:
            continue
        first = found[0].step
        lines = {s: x for s, x in lines.items() if s < first} | {x.step: x for x in found}
        evaluations = {k: e for k, e in evaluations.items() if k[1] < first} | {(e.set, e.step): e for e in evaluated}
        samples = [s for s in samples if s.step < first] + _read_samples(folder.samples)
    ordered = tuple(lines[s] for s in sorted(lines))
    known = tuple(evaluations[k] for k in sorted(evaluations))
    return Records(lines=ordered, evaluations=known, samples=tuple(samples), trouble=trouble)


def _read_samples(path: Path) -> list[Sample]:
    try:
        with path.open("rb") as file:
            return _evaluated(file)
    except OSError:
        return []


def _evaluated(lines: Iterable[bytes]) -> list[Sample]:
    """Return the samples of evaluations among lines of ``samples.jsonl``; no detector uses those of training."""
    return [sample for sample in map(parse_sample, lines) if sample is not None and sample.set != TRAIN]


class LiveJudge:
    """Judges the metric lines of one attempt as they arrive, and keeps ``health.json`` in its folder up to date.

    It first judges what earlier attempts recorded before the first step of this one, as
    :func:`~paribus.health.judge.read_run` does. It depends on the records alone, so it can be restarted at any time.

    Args:
        folder: the attempt.
        job: what it trains.
    """

    def __init__(self, folder: RunFolder, job: Job) -> None:
        recipe = job.known_recipe
        self._folder = folder
        self._job = job
        profile, own = setting_of(job.profile, job.rules)
        planned = None if recipe is None else recipe.schedule.steps
        self._setting = Setting(profile=profile, recipe=recipe, planned=planned, own=own)
        self._states = initial_states(own)
        self._first: dict[str, Evaluation] = {}
        self._step: int | None = None
        self._read = 0
        self._seen: Counter[str] = Counter()
        self._judged = 0
        self._ahead: list[Sample] = []  # samples of steps whose metric lines have not arrived yet

    def take(self, lines: Sequence[MetricLine]) -> list[Finding]:
        """Judge lines, by step, and update ``health.json``; repeated steps are skipped.

        Returns:
            Findings that became critical with these lines; those of earlier attempts are not repeated.

        Raises:
            RunFolderError: an evaluation cannot be read.
        """
        if self._step is None and lines:
            self._judge_earlier_attempts(lines[0].step)
        fresh = []
        for line in lines:
            if self._step is None or line.step > self._step:
                fresh.append(line)
                self._step = line.step
        changes = self._judge(self._records(fresh))
        self._judged += len(fresh)
        self._seen.update(m for line in fresh for m in line.values)
        if fresh:
            few = _few_steps(self._judged) if self._job.known_recipe else _lacks(self._seen, self._judged)
            found = findings(self._setting, self._states)
            with suppress(OSError):  # the next lines bring another; what is found must stop the run all the same
                self._write(diagnose(found, near=self._setting.w, lacks=few), fresh[-1])
        return [finding for finding in changes if finding.state == "critical"]

    def _judge_earlier_attempts(self, first: int) -> None:
        folders = [RunFolder(self._folder.path.parent / f"a{n}") for n in range(1, self._job.token)]
        found = read_attempts([folder for folder in folders if folder.path.is_dir()])
        lines = tuple(line for line in found.lines if line.step < first)
        if lines:
            self._step, self._judged = lines[-1].step, len(lines)
            evaluations = tuple(e for e in found.evaluations if e.step < first)
            self._judge(Records(lines=lines, evaluations=evaluations, samples=found.samples, trouble=""))

    def _records(self, lines: Sequence[MetricLine]) -> Records:
        """Return lines with their evaluations and samples, which are read only if a line has an evaluation."""
        steps = [line.step for line in lines if any(name.startswith("eval/") for name in line.values)]
        files = sorted(f for step in steps for f in self._folder.evals.glob(f"*-{step:06d}.json"))
        evaluations = tuple(map(read_evaluation, files))
        if not steps:
            return Records(lines=tuple(lines), evaluations=evaluations, samples=(), trouble="")
        known = [*self._ahead, *_evaluated(self._new_samples().split(b"\n"))]
        samples = tuple(s for s in known if s.step in steps)
        self._ahead = [s for s in known if s.step > steps[-1]]
        return Records(lines=tuple(lines), evaluations=evaluations, samples=samples, trouble="")

    def _judge(self, records: Records) -> list[Finding]:
        lines = with_signals(
            records.lines,
            primary=self._job.evaluate.primary_metric,
            evaluations=(*self._first.values(), *records.evaluations),
            samples=records.samples,
        )
        for evaluation in records.evaluations:
            self._first.setdefault(evaluation.set, evaluation)
        self._states, changes = advance(self._setting, self._states, lines)
        return changes

    def _new_samples(self) -> bytes:
        path: Path = self._folder.samples
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._read += end
        return data[:end]

    def _write(self, diagnosis: Diagnosis, line: MetricLine) -> None:
        write_json(self._folder.health, to_json(diagnosis, line, self._setting.identity))
