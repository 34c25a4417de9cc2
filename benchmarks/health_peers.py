"""What rldoctor 0.2.0 and rlwatch 0.5.1 say of runs; runs in their own environment, without Paribus.

    PEERS/bin/python benchmarks/health_peers.py scenarios SEEDS STEPS    # rldoctor's own simulated runs, as JSON
    PEERS/bin/python benchmarks/health_peers.py judge < RUNS       # one JSON list of records a line

Records have TRL's names, which both tools know. An alarm is a warning or worse; rlwatch is called as its `attach` does,
with its default settings, metric by metric.
"""

from __future__ import annotations

import json
import sys
from typing import Any

Records = list[dict[str, Any]]


def doctor(records: Records) -> list[str]:
    """Names of rldoctor's detectors that warn or are critical."""
    from rl_doctor import Severity, diagnose, run_from_records

    return [f.detector for f in diagnose(run_from_records(records)).findings if f.severity >= Severity.WARNING]


def watch(records: Records) -> list[str]:
    """Names of rlwatch's detectors that raised an alert."""
    from rlwatch.config import RLWatchConfig
    from rlwatch.detectors import DetectorSuite

    suite, found = DetectorSuite(RLWatchConfig()), set()
    for r in records:
        alerts = suite.check_step(
            int(r["step"]),
            entropy=r.get("entropy"),
            kl_divergence=r.get("kl"),
            reward_mean=r.get("reward"),
            reward_std=r.get("reward_std"),
            loss=r.get("loss"),
            grad_norm=r.get("grad_norm"),
        )
        found |= {a.detector for a in alerts}
    return sorted(found)


FIRST = 50
"""The first seed: rules were made on those from 0, and on runs of 200, 400 and 800 steps."""


def scenarios(seeds: int, steps: int) -> None:
    """Print rldoctor's own runs, one a line, as scenario, what should be found, records."""
    from rl_doctor.simulate import EXPECTED_DETECTIONS, SCENARIOS, simulate

    for scenario in SCENARIOS:
        for seed in range(FIRST, FIRST + seeds):
            records = simulate(scenario, seed=seed, n_steps=steps)[0]
            print(json.dumps([scenario, EXPECTED_DETECTIONS[scenario], records]))


if __name__ == "__main__":
    if sys.argv[1] == "scenarios":
        scenarios(int(sys.argv[2]), int(sys.argv[3]))
    else:
        for line in sys.stdin:
            records = json.loads(line)
            print(json.dumps({"rldoctor": doctor(records), "rlwatch": watch(records)}), flush=True)
