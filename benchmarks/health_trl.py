"""Runs of TRL's GRPOTrainer with a fault and without one: what `paribus health FOLDER` says, beside rldoctor.

    make -C benchmarks trl-runs     # makes the environments of both, runs this, writes into docs/reference/health.md

A small model, made on the spot, repeats the first of two digits after some letters. The exit status is 1 if a healthy
run has a warning, or a fault is not the headline.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from health_page import write

HERE = Path(__file__).resolve().parent
STEPS = 120
"""Updates of a run, two on each batch of responses."""
FAULTS = {
    "none": (),
    "learning rate x 100": ("entropy_collapse", "entropy_explosion", "reward_crash", "grad_spike"),
    "constant reward": ("zero_variance", "dead_update"),
    "reward = length": ("length_reward", "length_balloon"),
}
"""What is built in, and the detectors of which one must be the headline."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What is said of a run.

    Attributes:
        fault: what is built in.
        seed: of the run.
        status: by `paribus health`.
        sentence: its headline.
        leads: the detector that leads the verdict; empty if none does.
        raised: whether any detector warns or is critical.
        rewards: means of the first and the last ten batches.
        doctor: detectors of rldoctor that warn or worse.
    """

    fault: str
    seed: int
    status: str
    sentence: str
    leads: str
    raised: bool
    rewards: tuple[float, float]
    doctor: Sequence[str]


def trained(folder: Path, python: Path, fault: str, seed: int) -> Path:
    """Train in TRL's environment; return the folder that TRL has written. A run that is there is not trained again."""
    at = folder / f"{fault}-{seed}"
    if not (at / "trainer_state.json").is_file():
        script = [str(python), str(HERE / "health_trl_run.py")]
        settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        command = [*script, "train", str(folder), fault, str(seed), str(STEPS)]
        subprocess.run(command, check=True, env=os.environ | settings, stdout=subprocess.DEVNULL)
    return at


def judged(at: Path, peers: Path, fault: str, seed: int) -> Judged:
    """Return what both say of a run's folder."""
    command = [sys.executable, "-m", "paribus", "health", str(at), "--json"]
    said = json.loads(subprocess.run(command, check=False, capture_output=True, text=True).stdout)["runs"][0]
    records = [r for r in json.loads((at / "trainer_state.json").read_text())["log_history"] if "reward" in r]
    script = [str(peers), str(HERE / "health_peers.py"), "judge"]
    peer = subprocess.run(script, input=json.dumps(records) + "\n", check=True, capture_output=True, text=True).stdout
    leads = re.match(r"(?:Critical|Warning): (\w+)", said["sentence"])
    rewards = [r["reward"] for r in records]
    return Judged(
        fault=fault,
        seed=seed,
        status=said["health"],
        sentence=said["sentence"],
        leads=leads[1] if leads else "",
        raised=any(f["state"] in ("critical", "warn") for f in said["findings"]),
        rewards=(sum(rewards[:10]) / 10, sum(rewards[-10:]) / 10),
        doctor=json.loads(peer)["rldoctor"],
    )


def wrong(run: Judged) -> str:
    """Return what is wrong with a verdict, or nothing."""
    if not FAULTS[run.fault]:
        return f"healthy, seed {run.seed}: {run.sentence}" if run.raised else ""
    return "" if run.leads in FAULTS[run.fault] else f"{run.fault}, seed {run.seed}: {run.sentence}"


def page_lines(runs: Sequence[Judged]) -> list[str]:
    """Return the section of the page."""
    seeds = len({r.seed for r in runs})
    lines = [
        "## On real runs of TRL\n",
        f"`make -C benchmarks trl-runs` trains a small model with TRL 1.16's GRPOTrainer, {STEPS} updates a run,",
        f"{seeds} seed{'s' if seeds > 1 else ''} a row, and reads TRL's own folder with `paribus health FOLDER`;",
        "rldoctor 0.2.0 reads the same records. On these runs rules were corrected (order of findings, onsets,",
        "length_collapse, clip_zero, causes before effects): no rate, an example.",
        "TRL records no distance between the policy before and after an update, so a learning rate that is too high",
        "shows by what it destroys.\n",
        "| built in | reward before, after | status | headline | named | rldoctor |",
        "|---|---|---|---|---:|---|",
    ]
    for fault in FAULTS:
        mine = [r for r in runs if r.fault == fault]
        headlines = Counter(r.leads or "none" for r in mine)
        doctor = Counter(name for r in mine for name in r.doctor)
        right = sum(not wrong(r) for r in mine)
        lines.append(
            f"| {fault} | {mean(r.rewards[0] for r in mine):.2f}, {mean(r.rewards[1] for r in mine):.2f} "
            f"| {_counted(Counter(r.status for r in mine))} | {_counted(headlines)} "
            f"| {f'{right} of {len(mine)}' if FAULTS[fault] else ''} | {_counted(doctor) or 'none'} |"
        )
    said = [f"- {r.fault}: *{r.sentence}*" for r in runs if r.seed == runs[0].seed]
    return [*lines, f"\nWhat `paribus health` says of seed {runs[0].seed}:\n", *said]


def _counted(found: Counter[str]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in found.most_common())


def main() -> int:
    """Train, judge, print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", type=Path, required=True, help="python of the environment that holds TRL")
    parser.add_argument("--peers", type=Path, required=True, help="python of the environment that holds rldoctor")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each kind")
    parser.add_argument("--page", action="store_true", help="write into docs/reference/health.md")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for the runs; what is there is not trained again")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as pool:
        at: Path = options.keep or Path(name)
        if not (at / "model").is_dir():
            script = [str(options.trl_python), str(HERE / "health_trl_run.py")]
            subprocess.run([*script, "prepare", str(at)], check=True)
        which = [(fault, seed) for fault in FAULTS for seed in range(options.seeds)]
        folders = pool.map(lambda x: trained(at, options.trl_python, *x), which)
        runs = []
        for (fault, seed), folder in zip(which, folders, strict=True):
            runs.append(judged(folder, options.peers, fault, seed))
            print(fault, seed, "|", runs[-1].sentence, flush=True)
    lines = page_lines(runs)
    print("\n".join(lines))
    if options.page:
        write(Path(__file__).name, lines)
    misjudged = [text for r in runs if (text := wrong(r))]
    print("\n".join(misjudged) or "Every fault is the headline, and no healthy run has a warning.", file=sys.stderr)
    return 1 if misjudged else 0


if __name__ == "__main__":
    sys.exit(main())
