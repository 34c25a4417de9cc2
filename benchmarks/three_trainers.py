"""One study file trained by three trainers on the CPU: the same problems, one evaluation, one table, and equivalence.

    make -C benchmarks three-trainers     # needs TRL's environment, `make trl`; writes docs/reference/three_trainers.md

The exit status is 1 if the runs did not begin alike or evaluated other problems, or if an arm differs between trainers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paribus.run_folder.folder import RunFolder
from paribus.store.reader import Reader

ROOT = Path(__file__).resolve().parents[1]
STUDY = ROOT / "ablations" / "studies" / "three_trainers_cpu.yaml"
PAGE = ROOT / "docs" / "reference" / "three_trainers.md"
TRAINERS = ("native", "trl", "command")
"""The first is what the others are compared with."""


def paribus(*arguments: str, at: Path) -> str:
    """Run a command of Paribus in a folder with one thread a run; return what it printed."""
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PARIBUS_HOME": str(at / ".paribus")}
    settings["PARIBUS_ENVIRONMENTS"] = os.environ.get("PARIBUS_ENVIRONMENTS", str(ROOT / ".environments"))
    command = [sys.executable, "-m", "paribus", *arguments]
    return subprocess.run(
        command, cwd=at, env=os.environ | settings, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def trained(at: Path, trainer: str, seeds: int) -> float:
    """Train the study with a trainer, what is there left out; return the seconds that it took."""
    chosen = [] if trainer == "command" else ["--set", f"runner={trainer}"]
    start = time.monotonic()
    paribus("run", str(STUDY), "--set", f"study=three_{trainer}", "--set", f"seeds.n={seeds}", *chosen, at=at)
    return time.monotonic() - start


def starts(at: Path, trainer: str) -> dict[int, tuple[tuple[str, ...], tuple[int, ...]]]:
    """Return, by seed, the problems of the first evaluation of the base arm and how each was answered."""
    found = {}
    with Reader.open(at / ".paribus") as reader:
        plan = reader.study(f"three_{trainer}").plan
        for run in (r for r in plan.runs if r.arm == plan.base):
            folder = next(f for f in sorted((at / ".paribus" / "runs" / run.fingerprint[:12]).iterdir(), reverse=True))
            first = RunFolder(folder).read_evaluations()[0]
            found[run.seed] = first.problems, first.correct
    return found


def table(model: dict[str, Any], place: int) -> list[str]:
    """Return a table of a report as Markdown."""
    found = model["tables"][place]
    lines = [f"| {found['first']} | {' | '.join(c['label'] for c in found['columns'])} |"]
    lines.append("|---" * (len(found["columns"]) + 1) + "|")
    for row in (r for r in found["rows"] if found["key"] != "settings" or r["label"] in SHOWN):
        cells = [c["text"] + (f" ({c['note']})" if c.get("note", "").startswith("p ") else "") for c in row["cells"]]
        lines.append(f"| {row['label']} | {' | '.join(cells)} |".replace(f"{ROOT}/", ""))
    return lines


ABOUT = """# One study, three trainers

<!-- Written by benchmarks/three_trainers.py. -->

`ablations/studies/three_trainers_cpu.yaml` is one study file: GRPO, Dr. GRPO and clip-higher on the tiny model. The
native runner, TRL's `GRPOTrainer` and a program in plain PyTorch (`plain_grpo.py` beside the study, started by
`runner: command`) train it; which one is a `--set`:

```sh
paribus run ablations/studies/three_trainers_cpu.yaml --set study=three_native --set runner=native
paribus run ablations/studies/three_trainers_cpu.yaml --set study=three_trl --set runner=trl
paribus run ablations/studies/three_trainers_cpu.yaml --set study=three_command
paribus report --compare three_native three_trl three_command
```

The study has 3 seeds, 9 runs a trainer: 18 minutes for all three on two busy cores. `make -C benchmarks
three-trainers` runs these lines with `--set seeds.n={seeds}`, {runs} runs a study. Minutes of each, two runs at a time,
on two cores that others used, too: {times}.

## The same start

All runs of a seed evaluate the same problems in the same order, with one evaluator. Before the first step the weights
are the same, and all three answer each problem alike: held-out accuracy {scores} for the seeds from 0
on. Training problems follow from seed and step alone. Responses in training differ, since each trainer has random
numbers of its own. On the same rollouts the gradient of TRL's first update is that of the native runner within 1e-4
(`make test-trl`).

## The same end

{answer}
"""

BELOW = """
*score* is the mean held-out accuracy of the last three evaluations, with the 95% interval over seeds. The margin stood
in the study before any of its runs. With the study's 3 seeds no recipe of TRL was shown to be within it (p = 0.15 in
each row): its seeds spread by 0.07, and three of them can hardly show a difference below 0.1. That spread asked for
about eight seeds, which is what this page has; the number was fixed before they were trained. *Not shown* is neither a
difference nor an agreement.

## What else differs
"""
SHOWN = ("runner", "environment")
"""Rows of what else differs that the page has; the report has all."""


def page_lines(model: dict[str, Any], seconds: Sequence[float], seeds: int, scores: Sequence[str]) -> list[str]:
    """Return the page."""
    times = ", ".join(f"{name} {each / 60:.1f}" for name, each in zip(TRAINERS, seconds, strict=True))
    about = ABOUT.format(
        seeds=seeds,
        runs=3 * seeds,
        times=times,
        scores=", ".join(scores),
        answer=model["answer"].replace(". `", ".\n`"),
    )
    end = "\n<!-- End of what benchmarks/three_trainers.py writes. -->"
    return [about, *table(model, 0), BELOW, *table(model, 1), end]


def main() -> int:
    """Train, compare, print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8, help="runs of each arm and trainer")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for the runs; what is there is not trained again")
    parser.add_argument("--seconds", type=float, nargs=3, help="of each study, where runs are not trained again")
    parser.add_argument("--page", action="store_true", help="write docs/reference/three_trainers.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        at: Path = (options.keep or Path(name)).absolute()
        seconds = [trained(at, trainer, options.seeds) for trainer in TRAINERS]
        found = [starts(at, trainer) for trainer in TRAINERS]
        names = [f"three_{trainer}" for trainer in TRAINERS]
        paribus("report", "--compare", *names, "--out", str(at / "report"), at=at)
        model = json.loads((at / "report" / "report.json").read_text())
    scores = [f"{sum(right) / len(right):.3f}" for _, right in found[0].values()]
    lines = page_lines(model, options.seconds or seconds, options.seeds, scores)
    print("\n".join(lines))
    if options.page:
        PAGE.write_text("\n".join(lines) + "\n")
    alike = all(each == found[0] for each in found)
    apart = [r["label"] for r in model["tables"][0]["rows"] if any(c.get("verdict") == "separated" for c in r["cells"])]
    print("All begin alike." if alike else "They did not begin alike.", f"Apart: {apart or 'none'}.", file=sys.stderr)
    return 0 if alike and not apart else 1


if __name__ == "__main__":
    sys.exit(main())
