"""The curves on which thresholds were set: smooth shapes with autoregressive Gaussian noise, one metric at a time.

    python benchmarks/health_tuning.py    # seconds: prints alarms on healthy and on failing curves for each rule

`health.py` measures on other curves (`health_curves.py`): a threshold that only fits these here shows there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paribus.health.detector import Setting, finding_of, initial_state, update
from paribus.health.diagnose import DETECTORS
from paribus.health.profile import load_profile
from paribus.run_folder.folder import MetricLine

STEPS, RUNS = 600, 60
Curves = Mapping[str, np.ndarray]
T = np.arange(STEPS)


def noise(rng: np.random.Generator, scale: float) -> np.ndarray:
    """AR(1) with coefficient 0.3 to 0.6 and this standard deviation."""
    phi = rng.uniform(0.3, 0.6)
    found = np.zeros(STEPS)
    for i, e in enumerate(rng.normal(0, scale * (1 - phi**2) ** 0.5, STEPS)):
        found[i] = phi * (found[i - 1] if i else 0.0) + e
    return found


def curve(rng: np.random.Generator, before: np.ndarray, after: float | None, over: float, scale: float) -> np.ndarray:
    """A curve that turns towards ``after`` at step 200 over so many steps; noise as a share of its level."""
    bent = before.copy()
    if after is not None:
        share = 1 - np.exp(-np.clip(T - 200, 0, None) / over)
        bent = before * (1 - share) + after * share
    return bent + bent[0] * noise(rng, scale) if after is None else bent * (1 + noise(rng, scale))


def healthy(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """All metrics of a run without a fault, before noise."""
    rise = rng.uniform(0.2, 0.5) * T / STEPS
    entropy = rng.uniform(0.3, 0.9)
    return {
        "policy/entropy": entropy * (0.35 + 0.65 * np.exp(-T / rng.uniform(60, 300))),
        "signal/reward": rng.uniform(0.2, 0.4) + rise,
        "response/length_mean": rng.uniform(200, 900) * (1 + rise),
        "response/truncated_frac": np.full(STEPS, rng.uniform(0.0, 0.02)),
        "optim/grad_norm": np.full(STEPS, rng.uniform(0.1, 1.0)),
        "kl/ref_k3": rng.uniform(0.0002, 0.001) * T**0.6 + 1e-4,
        "group/zero_std_frac": np.full(STEPS, rng.uniform(0.15, 0.4)),
    }


FAULTS: Mapping[str, tuple[str, float, float]] = {
    "entropy_collapse": ("policy/entropy", 0.02, 60),
    "entropy_explosion": ("policy/entropy", 1.8, 60),
    "length_balloon": ("response/length_mean", 3000.0, 150),
    "length_collapse": ("response/length_mean", 30.0, 60),
    "truncation": ("response/truncated_frac", 0.3, 60),
    "zero_variance": ("group/zero_std_frac", 0.85, 60),
    "kl_blowup": ("kl/ref_k3", 2.0, 100),
}
"""Detector to the metric that turns, where to, and over how many steps."""
SCALES = {"optim/grad_norm": 0.2, "kl/ref_k3": 0.15, "signal/reward": 0.06}


def run(rng: np.random.Generator, fault: str | None) -> list[MetricLine]:
    """A run with this fault from step 200; the reward stands still from then on."""
    shapes = healthy(rng)
    metric, after, over = FAULTS.get(fault or "", ("", 0.0, 1.0))
    if fault:
        shapes["signal/reward"][200:] = shapes["signal/reward"][200]
    curves = {
        name: curve(rng, shape, after if name == metric else None, over, SCALES.get(name, 0.05))
        for name, shape in shapes.items()
    }
    return [MetricLine(step=i, time_ms=0, values={k: float(c[i]) for k, c in curves.items()}) for i in T]


def main() -> None:
    """Print alarms by detector."""
    rng = np.random.default_rng(1)
    setting = Setting(profile=load_profile("default"), planned=STEPS)
    fine = [run(rng, None) for _ in range(RUNS)]
    for detector in DETECTORS:
        if not {*detector.needs, *detector.any_of} & set(healthy(rng)):
            continue
        rates = []
        for runs in (fine, [run(rng, detector.name) for _ in range(RUNS)] if detector.name in FAULTS else []):
            found = [finding_of(detector, setting, update(detector, setting, initial_state(), r)[0]) for r in runs]
            rates.append(sum(f.state in ("warn", "critical") for f in found) / len(found) if found else float("nan"))
        print(f"{detector.name:20} healthy {rates[0]:.2f}   failing {rates[1]:.2f}")


if __name__ == "__main__":
    main()
