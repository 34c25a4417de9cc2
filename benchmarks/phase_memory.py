"""Predicted against measured peak memory of each phase of a native run, on CPU cores in float32.

A random Qwen2 samples, is scored and is updated by the code that trains, in a process of its own for each row. Measured
is the peak of the process's resident memory in a phase (Linux: VmHWM) above what it had with the libraries loaded and
every kernel used once; the allocator gives everything above 64 KiB back, so nothing freed counts. The responses all run
to their limit, so the cache is never copied for those that are left. Where two processes share the weights, one of them
is measured; that of the update begins when its weights have been sharded. Where there is a bound, a run computes at
once what the arithmetic finds to fit, and no phase may take more.

    python benchmarks/phase_memory.py [--tiny]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[1]
RETURNS = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
"""The GNU allocator then maps large blocks one by one, and unmaps them when they are freed."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and a batch of a process.

    Attributes:
        layers, hidden, inner, vocabulary: blocks, channels, those of the MLP, and rows of the head.
        prompts, copies, room: prompts, responses to each, and tokens of these.
        bound: bytes that no phase may take more of; ``None``: no bound.
    """

    name: str
    layers: int
    hidden: int
    inner: int
    vocabulary: int
    prompts: int
    copies: int
    room: int
    checkpointing: bool = False
    processes: int = 1
    bound: int | None = None


TINY = (
    Case(name="large vocabulary", layers=3, hidden=192, inner=512, vocabulary=6000, prompts=8, copies=8, room=24),
    Case(
        name="blocks again", layers=6, hidden=192, inner=768, vocabulary=300, prompts=8, copies=8, room=24,
        checkpointing=True,
    ),
    Case(
        name="two share weights", layers=6, hidden=256, inner=1024, vocabulary=6000, prompts=8, copies=4, room=24,
        checkpointing=True, processes=2,
    ),
    Case(
        name="two share large blocks", layers=4, hidden=512, inner=6144, vocabulary=300, prompts=8, copies=4, room=24,
        checkpointing=True, processes=2,
    ),
    Case(
        name="at most 60 MB", layers=3, hidden=192, inner=512, vocabulary=6000, prompts=64, copies=8, room=24,
        bound=60_000_000,
    ),
)  # fmt: skip
FULL = (
    *TINY,
    Case(name="small vocabulary", layers=6, hidden=256, inner=704, vocabulary=500, prompts=8, copies=8, room=48),
    Case(name="vocabulary of Qwen", layers=2, hidden=256, inner=704, vocabulary=151_936, prompts=8, copies=4, room=48),
    Case(name="several passes", layers=1, hidden=256, inner=704, vocabulary=151_936, prompts=24, copies=4, room=48),
)
PROMPT = 16


def measure(case: Case) -> dict[str, Any]:
    """Return predicted and measured bytes of each phase; called in a process of its own."""
    from support.ranks import in_ranks

    with tempfile.TemporaryDirectory() as folder:
        _save(case, folder)
        if case.processes == 1:
            return _measured(case, folder)
        ranks = Path(folder) / "ranks"
        found: dict[str, Any] = in_ranks(case.processes, ranks, lambda here: _measured(case, folder, here))[0]
    return found


def _save(case: Case, folder: str) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from support.chat_model import chat_tokenizer

    words = chat_tokenizer()
    config = Qwen2Config(
        vocab_size=case.vocabulary,
        hidden_size=case.hidden,
        intermediate_size=case.inner,
        num_hidden_layers=case.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    words.save_pretrained(folder)


def _measured(case: Case, folder: str, world: Any = None) -> dict[str, Any]:
    from paribus.evaluate import Evaluate
    from paribus.recipe.compute import Compute
    from paribus.recipe.factors import Schedule
    from paribus.recipe.recipe import Recipe
    from paribus_runners.native import gradient_checkpointing
    from paribus_runners.native.held import Held
    from paribus_runners.native.learner import Learner
    from paribus_runners.native.log_probabilities import by_prompt, score, score_all
    from paribus_runners.native.memory import Architecture, Phases
    from paribus_runners.native.policy import Policy
    from paribus_runners.native.rollout.sampler import Requests, complete
    from paribus_runners.native.rollout.torch import TorchSampler
    from paribus_runners.native.sharded_weights import own_part

    schedule = Schedule(
        prompts_per_step=case.prompts * case.processes,
        group_size=case.copies,
        minibatches=1,
        max_new_tokens=case.room,
        steps=1,
    )
    sharding: Literal["none", "weights"] = "none" if world is None else "weights"
    compute = Compute(gradient_checkpointing=case.checkpointing, sharding=sharding)
    recipe = Recipe(schedule=schedule, compute=compute)
    policy = Policy.load(folder, None, "float32")
    if case.checkpointing:
        gradient_checkpointing.switch_on(policy.model)
    numbers = sum(p.numel() for p in policy.trained)
    architecture = Architecture.of(policy.model.config.to_dict())
    assert architecture is not None
    held = Held(weights=numbers, trained=numbers, processes=case.processes)
    phases = Phases(model=architecture, held=held, recipe=recipe, prompt=PROMPT, device="cpu")
    evaluate = Evaluate(problems=case.prompts * case.processes, samples=case.copies)
    if case.bound is not None:
        phases = phases.fitting(evaluate, case.bound)
        policy = replace(policy, limits=phases.limits)
    learner = Learner.of(recipe, policy, world)
    policy, optimizer = learner.policy, learner.optimizer
    prompts = [[5] * PROMPT for _ in range(case.prompts)]

    def rollout(room: int = case.room) -> Any:
        return complete(TorchSampler(policy), Requests(prompts, case.copies, room, 1.0, ("memory",)))

    def update(responses: Any) -> None:
        optimizer.zero()
        for some, groups in by_prompt(prompts, responses, policy.at_once.tokens_a_pass):
            score(policy, some, groups, 1.0, accumulate=True).logp.sum().backward()
        optimizer.step(1.0)

    small = rollout(2)
    with learner.sharded():
        update(small)  # moments are there, and every kernel has been used
    responses = rollout()
    peaks = phases.peaks(evaluate)
    optimizer.zero()
    shares = 0 if world is None else sum(own_part(p).numel() for p in optimizer.weights)
    moments = sum(x.numel() * x.element_size() for x in optimizer.state().values())
    there = (numbers + shares) * 4 + moments
    found = {
        "rollout": (peaks.rollout, there + above(rollout)),
        "old_pass": (peaks.old_pass, there + above(lambda: score_all(policy, prompts, responses, 1.0))),
        "evaluation": (peaks.evaluation, there + above(rollout)),
    }
    with learner.sharded():
        beside = there if world is None else there - numbers * 4
        found["update"] = (peaks.update, beside + above(lambda: update(responses)))
    return {
        "name": case.name,
        "bound": case.bound,
        "about": phases.about(),
        "held": [held.bytes(recipe, gradients="none"), there],
        **found,
    }


def above(work: Callable[[], object]) -> int:
    """Return how many bytes the peak of the resident memory rises above what there was before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free in the heap would be used again, and not count
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    before = _kib("VmRSS")
    work()
    return (_kib("VmHWM") - before) * 1024


def _kib(name: str) -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name))
    return int(line.split()[1])


def main() -> None:
    """Print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="small models alone")
    cases = TINY if parser.parse_args().tiny else FULL
    environment = {**os.environ, **RETURNS, "PYTHONPATH": str(ROOT / "tests")}
    rows = []
    print("| model | phase | predicted, MB | measured, MB | error |\n|---|---|---|---|---|")
    for number, _ in enumerate(cases):
        command = [sys.executable, __file__, "--case", str(number)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        row = json.loads(done.stdout.splitlines()[-1])
        rows.append(row)
        for phase in ("rollout", "old_pass", "update", "evaluation"):
            predicted, measured = row[phase]
            error = predicted / measured - 1
            print(
                f"| {row['name']} | {phase} | {predicted / 1e6:.1f} | {measured / 1e6:.1f} | {error:+.1%} |", flush=True
            )
    print(json.dumps(rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        print(json.dumps(measure(FULL[int(sys.argv[2])])))
    else:
        main()
