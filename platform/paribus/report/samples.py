"""Responses to the same held-out problems, one run of each arm, chosen by a rule that looks at no response."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from paribus.report.inputs import ArmSample, RunData
from paribus.run_folder.folder import RunFolder
from paribus.run_folder.samples import Sample, key_of, parse_sample

NEWEST = 4 << 20
"""Bytes at the end of a file of samples that are read."""

PROBLEMS = 2
"""Problems that a report shows."""

RULE = (
    "Chosen without looking at any response: of each arm its finished run with the lowest seed, its last evaluation, "
    "the first response it kept; of the problems that the most of these runs kept there, those whose name has the "
    "lowest hash."
)


def choose(found: Mapping[str, tuple[int, Sequence[Sample]]]) -> tuple[tuple[ArmSample, ...], ...]:
    """Return for each chosen problem the responses of the arms that have it; empty if no two arms share a problem.

    An arm that kept other problems than the rest empties nothing: the problems that the most arms have are chosen. Of a
    single arm they are its own.

    Args:
        found: arm to seed and the samples of the last evaluation of its run.
    """
    known = {arm: (seed, _firsts(samples)) for arm, (seed, samples) in found.items() if samples}
    if not known:
        return ()
    kept = Counter(problem for _, firsts in known.values() for problem in firsts)
    most = max(kept.values())
    if most < min(2, len(known)):
        return ()
    common = [problem for problem, arms in kept.items() if arms == most]
    chosen = sorted(common, key=lambda problem: (key_of(problem), problem))[:PROBLEMS]
    return tuple(
        tuple(
            ArmSample(arm=arm, seed=seed, sample=firsts[problem])
            for arm, (seed, firsts) in known.items()
            if problem in firsts
        )
        for problem in chosen
    )


def _firsts(samples: Sequence[Sample]) -> dict[str, Sample]:
    """Return problem to its first response."""
    found: dict[str, Sample] = {}
    for sample in sorted(samples, key=lambda s: s.number or 0):
        found.setdefault(sample.problem, sample)
    return found


def last_samples(path: Path, name: str) -> tuple[Sample, ...]:
    """Return the samples of the last evaluation of a set that the end of a file holds; empty without one.

    Args:
        path: ``samples.jsonl``; it need not exist.
        name: the evaluation set.
    """
    data = b""
    with suppress(OSError), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - NEWEST))
        data = file.read(NEWEST)
        data = data if size <= NEWEST else data[data.find(b"\n") + 1 :]
    lines = (parse_sample(line) for line in data.split(b"\n") if line.strip())
    samples = [s for s in lines if s is not None and s.set == name]
    last = max((s.step for s in samples), default=0)
    return tuple(s for s in samples if s.step == last)


def samples_of(
    home: Path, runs: Sequence[RunData], name: str, tokens: Mapping[str, int]
) -> tuple[tuple[ArmSample, ...], ...]:
    """Return the chosen responses of a study.

    Args:
        home: the home folder.
        runs: of the study.
        name: the evaluation set of the primary metric.
        tokens: fingerprint to the attempt whose result counts.
    """
    first: dict[str, RunData] = {}
    for run in sorted(runs, key=lambda r: r.seed):
        if run.outcome == "finished" and run.fingerprint in tokens:
            first.setdefault(run.arm, run)
    order = [run.arm for run in runs if run.arm in first]
    found = {
        arm: (first[arm].seed, last_samples(_folder(home, first[arm], tokens).samples, name))
        for arm in dict.fromkeys(order)
    }
    return choose(found)


def _folder(home: Path, run: RunData, tokens: Mapping[str, int]) -> RunFolder:
    return RunFolder.of(home, run.fingerprint, tokens[run.fingerprint])
