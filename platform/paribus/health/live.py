"""Judges an attempt while it trains; the findings are those that judging the whole run afterwards would give."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paribus.contract import Job
from paribus.health.detector import Setting
from paribus.health.diagnose import Diagnosis, diagnose
from paribus.health.finding import Finding
from paribus.health.health_file import to_json
from paribus.health.judge import Records, parse_samples, read_attempts
from paribus.health.profile import load_profile
from paribus.health.registry import advance, findings, initial_states
from paribus.health.signals import with_signals
from paribus.run_folder.folder import Evaluation, MetricLine, RunFolder, read_evaluation, write_json


class LiveJudge:
    """Judges the metric lines of one attempt as they arrive, and keeps ``health.json`` in its folder up to date.

    It first judges what earlier attempts recorded before the first step of this one, as
    :func:`~paribus.health.judge.read_run` does. It depends on the records alone, so it can be restarted at any time.

    Args:
        folder: the attempt.
        job: what it trains.
    """

    def __init__(self, folder: RunFolder, job: Job) -> None:
        recipe = job.recipe
        self._folder = folder
        self._job = job
        self._setting = Setting(profile=load_profile(job.profile), recipe=recipe, planned=recipe.schedule.steps)
        self._states = initial_states()
        self._first: dict[str, Evaluation] = {}
        self._step: int | None = None
        self._read = 0
        self._ahead: list[dict[str, Any]] = []  # samples of steps whose metric lines have not arrived yet

    def take(self, lines: Sequence[MetricLine]) -> list[Finding]:
        """Judge lines, by step, and update ``health.json``; repeated steps are skipped.

        Returns:
            Findings that became critical with these lines; those of earlier attempts are not repeated.

        Raises:
            RunFolderError: an evaluation cannot be read.
            OSError: the file cannot be written.
        """
        if self._step is None and lines:
            self._judge_earlier_attempts(lines[0].step)
        fresh = []
        for line in lines:
            if self._step is None or line.step > self._step:
                fresh.append(line)
                self._step = line.step
        changes = self._judge(self._records(fresh))
        if fresh:
            self._write(diagnose(findings(self._setting, self._states)), fresh[-1])
        return [finding for finding in changes if finding.state == "critical"]

    def _judge_earlier_attempts(self, first: int) -> None:
        folders = [RunFolder(self._folder.path.parent / f"a{n}") for n in range(1, self._job.token)]
        found = read_attempts([folder for folder in folders if folder.path.is_dir()])
        lines = tuple(line for line in found.lines if line.step < first)
        if lines:
            self._step = lines[-1].step
            evaluations = tuple(e for e in found.evaluations if e.step < first)
            self._judge(Records(lines=lines, evaluations=evaluations, samples=found.samples, trouble=""))

    def _records(self, lines: Sequence[MetricLine]) -> Records:
        """Return lines with their evaluations and samples, which are read only if a line has an evaluation."""
        steps = [line.step for line in lines if any(name.startswith("eval/") for name in line.values)]
        files = sorted(f for step in steps for f in self._folder.evals.glob(f"*-{step:06d}.json"))
        evaluations = tuple(map(read_evaluation, files))
        if not steps:
            return Records(lines=tuple(lines), evaluations=evaluations, samples=(), trouble="")
        known = [*self._ahead, *parse_samples(self._new_samples().split(b"\n"))]
        samples = tuple(s for s in known if s.get("step") in steps)
        self._ahead = [s for s in known if isinstance(s.get("step"), int) and s["step"] > steps[-1]]
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
        write_json(self._folder.health, to_json(diagnosis, line, self._setting.profile.identity))
