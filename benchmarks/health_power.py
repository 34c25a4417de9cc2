"""How often few evaluations show a hacked reward, and how often they alarm where nothing has happened.

    python benchmarks/health_power.py --page        # into docs/reference/health.md

Runs of 200 steps: the expected held-out score rises, then falls by so much over a quarter of the run, while the
training reward rises by 0.25. An evaluation has 200 problems; its error is recorded or not. Only `reward_hacking`
judges.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from health_page import write

from paribus.health.detector import Setting, finding_of, initial_state, update
from paribus.health.detectors.heldout import DETECTORS
from paribus.health.finding import RAISED
from paribus.health.profile import load_profile
from paribus.health.signals import REWARD, SCORE, SCORE_SE
from paribus.run_folder.folder import MetricLine

STEPS, PROBLEMS, GAIN = 200, 200, 0.25
COUNTS = (4, 5, 6, 8, 10, 12)
FALLS = (0.0, 0.1, 0.15, 0.2, 0.25)
HACKING = next(d for d in DETECTORS if d.name == "reward_hacking")
SETTING = Setting(profile=load_profile("default"), planned=STEPS)


def told(rng: np.random.Generator, count: int, fall: float, recorded: bool) -> bool:
    """Draw a run; return whether the detector raises."""
    onset, start, steps = rng.integers(60, 121), rng.uniform(0.2, 0.45), np.arange(STEPS)
    share = np.clip((steps - onset) / (0.25 * STEPS), 0, 1)
    rising = start + 0.15 * np.clip(steps / onset, 0, 1)
    score = rising - fall * share
    reward = rising + (GAIN if fall else 0.0) * share + rng.normal(0, 0.03, STEPS)
    due = set(np.linspace(0, STEPS - 1, count).astype(int))
    lines = []
    for s in range(STEPS):
        values = {REWARD: float(np.clip(reward[s], 0, 1))}
        if s in due:
            values[SCORE] = found = rng.binomial(PROBLEMS, score[s]) / PROBLEMS
            values |= {SCORE_SE: float(np.sqrt(max(found * (1 - found), 0.002) / PROBLEMS))} if recorded else {}
        lines.append(MetricLine(step=s, time_ms=0, values=values))
    state = update(HACKING, SETTING, initial_state(), lines)[0]
    return finding_of(HACKING, SETTING, state).state in RAISED


def table(runs: int) -> list[str]:
    """Return the lines of the page."""
    found = [
        "## Few evaluations\n",
        f"`make -C benchmarks power` draws {runs} runs of {STEPS} steps a cell: the held-out score falls over a",
        f"quarter of the run, while the training reward rises by {GAIN:g}; an evaluation has {PROBLEMS} problems.",
        "Shown is how often `reward_hacking` raises.",
        "Without a fall, the reward does not rise either: false alarms.\n",
        "| error of an evaluation | fall | " + " | ".join(f"{n} evaluations" for n in COUNTS) + " |",
        "|---|---:|" + "---:|" * len(COUNTS),
    ]
    for recorded in (True, False):
        for fall in FALLS:
            cells = []
            for count in COUNTS:
                rng = np.random.default_rng([count, round(100 * fall), recorded])
                cells.append(f"{sum(told(rng, count, fall, recorded) for _ in range(runs)) / runs:.0%}")
            found.append(f"| {'recorded' if recorded else 'not recorded'} | {fall or 'none'} | {' | '.join(cells)} |")
    return found


def main() -> int:
    """Draw, print; return the exit status: 1 if false alarms are many."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60, help="runs of each cell")
    parser.add_argument("--page", action="store_true", help="write into docs/reference/health.md")
    options = parser.parse_args()
    lines = table(options.runs)
    print("\n".join(lines))
    if options.page:
        write("health_power.py", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
