"""What new weights take of a step where the sampler has a copy of them, on CPU cores.

A random Qwen2 of 4 layers of 256 channels trains with 256 responses a step, of 150 tokens in the mean. Where vLLM is
installed (`.vllm-venv`) it samples: it loads the weights, and draws short responses that prove it. Elsewhere one of two
processes samples the next step while the other trains on this one, and gets the weights after it.

    PYTHONPATH=benchmarks python benchmarks/weight_sync.py [--quick]
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from gpu import cases
from gpu.steps import make_inputs
from native_vs_trl import job_of, train

from paribus.contract import Job, Options
from paribus.recipe.patch import apply
from paribus.recipe.recipe import Recipe

APART = {"compute.sampling_processes": 1, "schedule.staleness": 1}
"""Of two processes one samples."""


def job_in(folder: Path, *, apart: bool) -> Job:
    """Return the job of a folder; ``apart``: in two processes, of which one samples."""
    job = job_of(folder, options=Options(own={"processes": 2} if apart else {}))
    if not apart:
        return job
    patched = apply(job.recipe.model_dump(mode="json"), APART).values
    return job.model_copy(update={"recipe": Recipe.model_validate(patched)})


def measured(case: cases.Steps) -> dict[str, float]:
    """Return the mean seconds of sampling, updates, sync and whole steps, without the first."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_inputs(folder, case)
        lines, _ = train(folder / "run" / "a1", job_in(folder, apart=not case.vllm))
    steps: list[dict[str, Any]] = [line["values"] for line in lines if line["step"] > 1]
    names = {"sampling": "gen", "update": "update", "sync": "sync", "step": "step"}
    found = {key: sum(x[f"perf/time_{name}_s"] for x in steps) / len(steps) for key, name in names.items()}
    found["step"] -= sum(x.get("perf/time_eval_s", 0.0) for x in steps) / len(steps)
    return found


def main() -> None:
    """Print a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller model and shorter responses")
    quick = parser.parse_args().quick
    size, prompts, room, mean = ("tiny", 4, 24, 8) if quick else ("small", 32, 512, 150)
    vllm = importlib.util.find_spec("vllm") is not None
    case = cases.Steps(size=size, prompts=prompts, room=room, mean=mean, steps=4, vllm=vllm)
    print("| sampler | sampling, s | updates, s | sync, s | step, s | sync of a step |\n|---|---|---|---|---|---|")
    found = measured(case)
    seconds = " | ".join(f"{found[key]:.2f}" for key in ("sampling", "update", "sync", "step"))
    name = "vLLM" if vllm else "one of two processes"
    print(f"| {name} | {seconds} | {found['sync'] / found['step']:.2%} |")


if __name__ == "__main__":
    main()
