"""Two steps of the tiny model with TRL: what `paribus runners check trl` trains."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from paribus.contract import Evaluate, Job
from paribus.home import home
from paribus.recipe.resolve import resolve_base
from paribus.run_folder.folder import RunFolder, write_json

PATCH = {
    "model": "tiny",
    "task": "chain",
    "schedule": {"steps": 2, "prompts_per_step": 4, "group_size": 4, "max_new_tokens": 8},
    "scale.eps": 1e-4,
    "kl": "off",
}
_TRAIN = """
import sys
from pathlib import Path
from paribus.contract import load_runner
from paribus.run_folder.attempt_files import read_job
folder = Path(sys.argv[1])
job = read_job(folder / "job.json")
runner = load_runner(job.runner)
runner.prepare(job.recipe, Path(job.cache))
runner.run(folder)
"""


def trained(name: str) -> Iterator[str]:
    """Train two steps in a process of its own; yield what is wrong."""
    recipe = resolve_base("grpo", PATCH).recipe
    assert recipe is not None
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run" / "a1")
        folder.path.mkdir(parents=True)
        job = Job(
            run="0" * 64, study="check", arm="base", runner=name, seed=0, token=1, recipe=recipe,
            evaluate=Evaluate(every=2, problems=4), cache=str((home() / "cache").resolve()),
        )  # fmt: skip
        write_json(folder.job, job.model_dump(mode="json"))
        done = subprocess.run(
            [sys.executable, "-c", _TRAIN, str(folder.path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if done.returncode:
            last = (done.stdout.strip().splitlines() or ["nothing was printed"])[-1]
            yield f"training ended with exit status {done.returncode}: {last}"
        elif (steps := [line.step for line in folder.read_metrics()]) != [0, 1, 2]:
            yield f"steps {steps} were recorded, not 0, 1 and 2"
