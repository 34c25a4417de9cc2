"""Score, mismatch and entropy of each arm of ``clip-family-cpu``: the table of docs/algorithms.md, from a home folder.

Mean and standard deviation over seeds. Mismatch and entropy are means over the last quarter of a run's steps.

    paribus run ablations/studies/clip_family_cpu.yaml
    python benchmarks/clip_family.py [HOME]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

import paribus

STUDY = "clip-family-cpu"
CURVES = {
    "mismatch, nats": "mismatch/logp_abs_diff_mean",
    "largest mismatch, nats": "mismatch/logp_abs_diff_max",
    "entropy, nats": "policy/entropy",
}


def late(found: Any, metric: str) -> dict[tuple[str, int], float]:
    """Return by arm and seed the mean of a metric over the last quarter of the steps of its run."""
    curves = found.curves(metric)
    rows = curves[curves["step"] > curves["step"].max() * 3 // 4]
    return {key: float(run["value"].mean()) for key, run in rows.groupby(["arm", "seed"], observed=True)}


def cell(values: Sequence[float]) -> str:
    """Return mean and standard deviation over seeds."""
    return f"{mean(values):.3f} ± {stdev(values):.3f}"


def main(home: str) -> None:
    """Print the table."""
    found = paribus.results(STUDY, home=home)
    scores = {(row.arm, row.seed): float(row.score) for row in found.runs().itertuples()}
    columns = {"score": scores} | {name: late(found, metric) for name, metric in CURVES.items()}
    print("| clip | " + " | ".join(columns) + " |")
    print("|---|" + "---:|" * len(columns))
    for arm in dict.fromkeys(arm for arm, _ in scores):
        cells = [cell([value for (name, _), value in column.items() if name == arm]) for column in columns.values()]
        print(f"| `{arm}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".paribus")
