"""Which runs of a study were trained in another environment than the rest."""

from __future__ import annotations

from collections import Counter

from paribus.report.analysis.analysis import Analysis
from paribus.report.tables.cells import listed
from paribus.run_folder.folder import INITIAL_WEIGHTS

LEFT_OUT = {
    INITIAL_WEIGHTS, "not read",  # said by another row of the provenance
    "paribus", "git", "git_commit", "rewards",  # the fingerprint of a run covers them
    "platform", "processor", "threads",  # change the order of sums at most
}  # fmt: skip
"""What may differ between the runs of a table without a word."""


def mixed_versions(analysis: Analysis) -> list[str]:
    """Return in which versions and devices the runs differ, and of which arms; nothing if all are alike."""
    arms = {run.fingerprint: analysis.label(run.arm) for run in analysis.data.runs}
    environments = {f: e for f, e in analysis.data.environments.items() if f in arms}
    names = dict.fromkeys(name for each in environments.values() for name in each if name not in LEFT_OUT)
    found = []
    for name in names:
        values = {f: each[name] for f, each in environments.items() if name in each}
        counts = Counter(values.values())
        if len(counts) > 1:
            usual, _ = counts.most_common(1)[0]
            others = [f"{value} in {_where(values, value, arms)}" for value in counts if value != usual]
            found.append(f"{name} {usual} in {counts[usual]} of {len(values)} runs, {listed(others)}")
    if not found:
        return []
    return [f"Runs were trained in different environments, which can make arms differ: {'; '.join(found)}."]


def _where(values: dict[str, str], value: str, arms: dict[str, str]) -> str:
    counts = Counter(arms[f] for f, v in values.items() if v == value)
    return listed(f"`{arm}` ({count})" for arm, count in counts.items())
