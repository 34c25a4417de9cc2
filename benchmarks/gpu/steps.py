"""Whole steps of training by the native runner: speed, shares of the phases, memory; a kill, and a run that goes on.

    PYTHONPATH=benchmarks python -m gpu.steps [--out FOLDER] [--minutes N] [--tiny]

A run is a process that gets a job, as the scheduler starts it; what it took is read from the metrics that it writes.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from native_vs_trl import TRAIN, job_of, train
from safetensors.torch import load_file

from gpu import cases
from gpu.measure import GIB, Report, Unavailable, Values, clean, options_of, parser_of
from gpu.models import write, write_problems
from paribus.contract import Checkpoints
from paribus_runners.native.policy import best_device

EVERY = 2
"""Steps between two checkpoints; a run is killed in the middle of the step after the first of them."""
OFTEN = Checkpoints(every=EVERY)
KILLED = f"""
import os, signal
from paribus_runners.native import trainer
original = trainer.updates
def updates(recipe, learner, experience, seed, step):
    done = original(recipe, learner, experience, seed, step)
    if step == {EVERY + 1}:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
trainer.updates = updates
{TRAIN}"""
"""Trains as :data:`TRAIN` does, until the weights have changed in a step whose checkpoint would come later."""


def make_inputs(folder: Path, case: cases.Steps) -> None:
    """Write model, tokenizer, problems and setting of a case, as `native_vs_trl` wants them."""
    write(case.size, folder / "model", case.mean)
    clean()
    write_problems(folder / "train.jsonl", case.prompts * case.steps, 8 if case.size == "tiny" else 96)
    write_problems(folder / "heldout.jsonl", 2, 8)
    on_gpu = torch.cuda.is_available()
    setting = {
        "prompts": case.prompts, "group": case.copies, "new_tokens": case.room, "updates": case.updates,
        "learning_rate": 1e-6, "steps": case.steps, "device": best_device().type,
        "dtype": "bfloat16" if on_gpu else "float32", "again": case.again, "parts": case.parts,
        "engine": "vllm" if case.vllm else "torch",
    }  # fmt: skip
    (folder / "setting.json").write_text(json.dumps(setting))


def whole(case: cases.Steps, folder: Path, **fields: Any) -> Values:
    """Return speed, memory, and the share of each phase in the steps after the first, of a run in ``folder``/whole.

    Args:
        case: what is trained.
        folder: an empty folder.
        fields: of the job.

    Raises:
        Unavailable: vLLM samples, and is not installed.
    """
    if case.vllm and importlib.util.find_spec("vllm") is None:
        raise Unavailable("vLLM is not installed")
    make_inputs(folder, case)
    lines, peak = train(folder / "whole" / "a1", job_of(folder, **fields))
    steps = {line["step"]: line["values"] for line in lines}
    chosen = [steps[step] for step in range(2, case.steps + 1)]
    total = sum(x["perf/time_step_s"] - x.get("perf/time_eval_s", 0.0) for x in chosen)
    tokens = chosen[-1]["budget/gen_tokens"] - steps[1]["budget/gen_tokens"]
    shares = {name: sum(x.get(f"perf/time_{key}_s", 0.0) for x in chosen) / total for name, key in PHASES.items()}
    return {
        "tokens": tokens,
        "tokens_per_s": tokens / total,
        "seconds": total / len(chosen),
        **shares,
        "rest": 1 - sum(shares.values()),
        "measured_gib": peak / GIB,
    }


PHASES = {"rollout": "gen", "reward": "reward", "update": "update", "sync": "sync"}
"""Our words for the metrics of the times."""


def resumed(case: cases.Steps, folder: Path) -> Values:
    """Return where a killed run went on, and how far its last weights are from those of the run in ``folder``/whole.

    The distance is the norm of the difference over the norm of what training has changed.

    Raises:
        Unavailable: there is no such run.
        RuntimeError: the run that was to be killed has ended otherwise.
    """
    if not (folder / "whole" / "a1" / "result.json").is_file():
        raise Unavailable("the run to compare with has not ended")
    free = _free()
    try:
        train(folder / "killed" / "a1", job_of(folder, checkpoint=OFTEN), KILLED)
    except subprocess.CalledProcessError as error:
        if error.returncode != -signal.SIGKILL:
            raise
    else:
        raise RuntimeError("the run was not killed")
    left, start = free - _free(), time.time()
    lines, _ = train(folder / "killed" / "a2", job_of(folder, checkpoint=OFTEN, token=2))
    first, ours, theirs = (_weights(folder / x) for x in ("model", "killed/a2", "whole/a1"))
    moved = sum(float((theirs[n] - w).double().square().sum()) for n, w in first.items()) ** 0.5
    apart = sum(float((theirs[n] - w).double().square().sum()) for n, w in ours.items()) ** 0.5
    result = json.loads((folder / "killed" / "a2" / "result.json").read_text())
    again = [line["step"] for line in lines if line["time_ms"] >= start * 1000]
    values: dict[str, Any] = {
        "resumed_at": min(again) - 1,
        "ended_at": result["step"],
        "drift": apart / moved,
        "left_gib": left / GIB,
    }
    if (values["resumed_at"], values["ended_at"], result["status"]) != (EVERY, case.steps, "succeeded"):
        values["wrong"] = f"{result['status']} at step {result['step']}, from step {values['resumed_at']}"
    elif values["drift"] and not torch.cuda.is_available():
        values["wrong"] = "on a CPU a run that goes on is the same to the bit"
    return values


def _free() -> int:
    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else 0


def _weights(place: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a model folder, or those that the run in a folder ended with."""
    if (place / "result.json").is_file():
        place = place / json.loads((place / "result.json").read_text())["model"]
    return {name: w for file in sorted(place.glob("*.safetensors")) for name, w in load_file(file).items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and return 1 if a row has failed or is wrong."""
    options = options_of(parser_of("steps", main.__doc__).parse_args(arguments))
    report = Report("steps", options)
    every = cases.TINY_STEPS if options.tiny else cases.STEPS
    with tempfile.TemporaryDirectory() as name:
        report.run(every[0].name, lambda: whole(every[0], Path(name), checkpoint=OFTEN))
        report.run("killed and resumed", lambda: resumed(every[0], Path(name)))
    for case in every[1:]:
        with tempfile.TemporaryDirectory() as name:
            report.run(case.name, lambda case=case, name=name: whole(case, Path(name)))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
