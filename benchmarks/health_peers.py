"""What rldoctor 0.2.0, rlwatch 0.5.1 and post-training-toolkit 0.2.0 say of runs; without Paribus.

    PEERS/bin/python benchmarks/health_peers.py scenarios SEEDS STEPS    # rldoctor's own simulated runs, as JSON
    PEERS/bin/python benchmarks/health_peers.py judge < RUNS       # one JSON list of records a line
    PYTHONPATH=TOOLKIT TRL/bin/python benchmarks/health_peers.py toolkit < RUNS

It runs in an environment of the tools. Records have TRL's names. An alarm is a warning or worse; rlwatch is called as
its `attach` does, with its default settings, metric by metric. The toolkit is called as TRL calls its callback.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
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


LOOKS = 20
"""How often the toolkit looks at a run; its default, every tenth step, gives it more chances to alarm."""

ITS_NAMES = {
    "completions/mean_length": ("completion_length", "output_length_mean"),
    "completions/clipped_ratio": ("truncation_rate",),
    "grad_norm": ("grad_norm",),
    "reward_std": ("reward_std", "group_reward_std"),
    "sampling/importance_sampling_ratio/mean": ("importance_sampling_ratio",),
}
"""TRL's name to those under which the toolkit's rules look for the metric; its callback knows older names."""


def toolkit(records: Records, *, renamed: bool) -> list[str]:
    """Types of the toolkit's insights of medium or high severity, all its rules (Python and YAML) together.

    Args:
        records: with TRL's names, by step.
        renamed: whether its rules also get what its callback does not know by TRL's names of today.
    """
    from post_training_toolkit import DiagnosticsCallback

    call = DiagnosticsCallback(live_warning_interval=max(1, len(records) // LOOKS), auto_diagnostics=False)
    call._trainer_type, call._initialized, call._is_distributed = "grpo", True, False
    call._metric_mappings = call._build_metric_mappings("grpo")
    if renamed:
        call._metric_mappings |= {n: [trl] for trl, names in ITS_NAMES.items() for n in names}
        call._metric_mappings["clip_fraction"] = ["clip_fraction"]
    found: set[str] = set()
    call._handle_live_insights = lambda insights, *_: found.update(i.type for i in insights if i.severity != "low")
    call._handle_critical_failure = lambda *_: found.add("critical_failure")
    for number, record in enumerate(records, start=1):
        clipped = record.get("clip_ratio/low_mean", 0.0) + record.get("clip_ratio/high_mean", 0.0)
        logs = {k: v for k, v in {**record, "clip_fraction": clipped}.items() if not isinstance(v, str)}
        call.on_log(None, SimpleNamespace(global_step=number), SimpleNamespace(), logs=logs)
    return sorted(found)


def in_yaml(names: list[str]) -> list[str]:
    """Those of the toolkit's insights that its YAML rules make."""
    from post_training_toolkit.heuristics import load_heuristics_for_trainer

    rules = {rule.name for rule in load_heuristics_for_trainer("grpo")}
    return [name for name in names if name in rules]


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
    elif sys.argv[1] == "toolkit":
        for line in sys.stdin:
            records = json.loads(line)
            names = toolkit(records, renamed=True)
            said = {"callback": toolkit(records, renamed=False), "renamed": names, "yaml": in_yaml(names)}
            print(json.dumps(said), flush=True)
    else:
        for line in sys.stdin:
            records = json.loads(line)
            print(json.dumps({"rldoctor": doctor(records), "rlwatch": watch(records)}), flush=True)
