"""Tokens per second end to end (sampling + training), and memory: the native runner against TRL's GRPOTrainer.

Both on one and the same CPU with one thread, in turn, on the same random Qwen2 with the same prompts, group size,
length limit, optimizer and number of updates; the first rollout batch of each is left out. The vocabulary is small and
the answer is the last digit of what the model happens to write, so that lengths are ragged and groups mixed; the
learning rate is that of large models, so that the lengths stay as they are during the measurement. Four shapes:
``small`` has 2 layers of 128 channels and up to 64 tokens; ``tails`` lets the same model write up to 512, so that the
longest of 256 responses has six times the mean; ``wide`` has 12 layers of 256 channels; ``words`` has the vocabulary of
Qwen2.5, so that logits take most of the memory. Memory is the peak of the process above what it had with its libraries.

    make -C benchmarks trl SHAPE=tails        # makes TRL's environment, then runs this; by default `small`

`gpu/trl.py` and `gpu/steps.py` run folders of their own with other settings by the functions here, on a GPU too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import string
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from paribus.contract import Evaluate, Job
from paribus.recipe.patch import apply
from paribus.recipe.recipe import Recipe

SETTING = {
    "prompts": 32, "group": 8, "new_tokens": 64, "updates": 4, "learning_rate": 1e-6, "steps": 9,
    "device": "cpu", "dtype": "float32", "again": False, "parts": 1,
}  # fmt: skip
"""``again``: blocks are computed again in the backward pass; ``parts``: TRL's passes in an update."""
SHAPES = {
    "small": ({}, {}),
    "tails": ({"new_tokens": 512, "steps": 5}, {"positions": 1024}),
    "wide": ({"prompts": 16, "steps": 5}, {"width": 256, "layers": 12, "intermediate": 768}),
    "words": ({"prompts": 8, "steps": 3}, {"words": 151_936}),
}
"""What differs of the setting, and of the model."""
TRAIN = """
import pathlib, resource, sys, torch
from paribus.contract import load_runner
runner = load_runner("native")
runner.warm()
libraries = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
runner.run(pathlib.Path(sys.argv[1]))
resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - libraries
print(torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident)
"""
"""Trains the job in a folder and prints the peak of its memory: of all tensors on a GPU, else of the process above what
it had with its libraries."""
HERE = Path(__file__).resolve().parent


def make_inputs(folder: Path, shape: str) -> None:
    """Write the model, the tokenizer, the problems and the setting."""
    from tiny_model import save, tiny_model  # torch

    setting, model = SETTING | SHAPES[shape][0], {"intermediate": 384, "positions": 256} | SHAPES[shape][1]
    save(folder / "model", *tiny_model(["0", "1", *string.ascii_lowercase, " ", "="], **model))
    draw = random.Random(0)
    lines = [
        json.dumps({"prompt": "".join(draw.choices(string.ascii_lowercase, k=11)) + "=", "answer": draw.choice("01")})
        for _ in range(setting["prompts"] * setting["steps"])
    ]
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "heldout.jsonl").write_text("\n".join(lines[:2]) + "\n")
    (folder / "setting.json").write_text(json.dumps(setting))


def job_of(folder: Path, **fields: Any) -> Job:
    """Return the setting of a folder as a job of the native runner; ``fields``: others of the job."""
    setting = json.loads((folder / "setting.json").read_text())
    patched = apply(
        Recipe().model_dump(mode="json"),
        {
            "model.name": str(folder / "model"),
            "model.dtype": setting["dtype"],
            "rollout.engine": setting.get("engine", "torch"),
            "compute.gradient_checkpointing": setting["again"],
            "task": {"kind": "jsonl", "train": str(folder / "train.jsonl"), "heldout": str(folder / "heldout.jsonl")},
            "optimizer.learning_rate": setting["learning_rate"],
            "optimizer.beta2": 0.999,
            "schedule.steps": setting["steps"],
            "schedule.prompts_per_step": setting["prompts"],
            "schedule.group_size": setting["group"],
            "schedule.minibatches": setting["updates"],
            "schedule.max_new_tokens": setting["new_tokens"],
            "reward.map": "binary01",
            "scale.eps": 1e-4,
        },
    )
    return Job(
        run="0" * 64, study="benchmark", arm="grpo", runner="native", seed=0, cache=str(folder / "cache"),
        recipe=Recipe.model_validate(patched.values), evaluate=Evaluate(every=10_000, problems=2),
        **{"token": 1, **fields},
    )  # fmt: skip


def train(out: Path, job: Job, code: str = TRAIN) -> tuple[list[dict[str, Any]], int]:
    """Train a job in a process of its own; return the lines of its metrics, and its peak of memory, bytes.

    Args:
        out: folder of the attempt, made here.
        job: what is trained.
        code: what the process runs.

    Raises:
        CalledProcessError: it failed; its messages were printed.
    """
    out.mkdir(parents=True)
    (out / "job.json").write_text(job.model_dump_json())
    command = [sys.executable, "-c", code, str(out)]
    shown = subprocess.run(command, check=True, env=one_thread(), stdout=subprocess.PIPE, text=True)
    lines = [json.loads(x) for x in (out / "metrics.jsonl").read_text().splitlines()]
    return lines, int(shown.stdout.split()[-1])


def run_native(folder: Path) -> dict[str, float]:
    """Train with the native runner in a process of its own and return tokens, seconds and the peak of its memory."""
    lines, peak = train(Path(tempfile.mkdtemp(dir=folder)) / "a1", job_of(folder))
    first, last = next(x for x in lines if x["step"] == 1), lines[-2]  # the last step's line waits for an evaluation
    tokens = last["values"]["budget/gen_tokens"] - first["values"]["budget/gen_tokens"]
    return {"tokens": tokens, "seconds": (last["time_ms"] - first["time_ms"]) / 1000, "peak": peak}


def run_trl(folder: Path, python: Path) -> dict[str, float]:
    """Train with TRL in its own environment and return tokens, seconds and the peak of its memory."""
    shown = subprocess.run(
        [str(python), str(HERE / "trl_grpo.py"), str(folder)],
        check=True,
        env=one_thread(),
        capture_output=True,
        text=True,
    )
    result: dict[str, float] = json.loads(shown.stdout.splitlines()[-1])
    return result


def one_thread() -> dict[str, str]:
    """Return the environment with one thread and no access to a hub."""
    return os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def main() -> int:
    """Run both in turn and print the ratio; exit 1 below the demanded one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trl-python", type=Path, required=True, help="python of the environment that holds TRL")
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--at-least", type=float, default=0.0, help="exit 1 if the median ratio is below this")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    ratios, peaks = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as name:
        make_inputs(Path(name), options.shape)
        for _ in range(options.repeats):
            native, trl = run_native(Path(name)), run_trl(Path(name), options.trl_python)
            speeds = native["tokens"] / native["seconds"], trl["tokens"] / trl["seconds"]
            ratios.append(speeds[0] / speeds[1])
            peaks.append(native["peak"] / trl["peak"])
            shown = f"native {speeds[0]:8.0f} tokens/s   TRL {speeds[1]:8.0f} tokens/s   ratio {ratios[-1]:.2f}"
            memory = f"peak {native['peak'] / 1e6:5.0f} MB   TRL {trl['peak'] / 1e6:5.0f} MB   ratio {peaks[-1]:.2f}"
            print(f"{shown}   {memory}", flush=True)
    median = statistics.median(ratios)
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} pairs"
    memory = f"memory {statistics.median(peaks):.2f} of TRL's"
    print(f"{options.shape}: median ratio {median:.2f} ({spread}, one CPU each); {memory}")
    return 0 if median >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
