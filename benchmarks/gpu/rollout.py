"""Speed and peak memory of sampling: the native sampler, Transformers, and vLLM where it is installed.

    PYTHONPATH=benchmarks python -m gpu.rollout [--out FOLDER] [--minutes N] [--tiny]

All sample from one and the same model in bfloat16 (on a CPU in float32), which ends a text with the same small
probability at each token, so lengths are ragged and no row knows before when it will end.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from gpu import cases
from gpu.measure import (
    GIB,
    Report,
    Unavailable,
    Values,
    clean,
    copy_peak,
    is_out_of_memory,
    options_of,
    parser_of,
    peak,
    seconds,
)
from gpu.models import END, configuration, let_end, model_of, policy_of, texts
from paribus.recipe.factors import Schedule
from paribus.recipe.recipe import Model, Recipe, Rollout
from paribus_runners.native.held import Held
from paribus_runners.native.log_probabilities import score_all
from paribus_runners.native.memory import Architecture, Phases
from paribus_runners.native.policy import Policy, best_device
from paribus_runners.native.responses import Responses
from paribus_runners.native.rollout.sampler import Requests, complete
from paribus_runners.native.rollout.torch import TorchSampler
from paribus_runners.native.rollout.vllm import VllmSampler
from paribus_runners.native.world import World

ENDS = 4.0
"""Factor by which the mean length may be off before a row is wrong: the sampler has drawn from something else."""
DRIFT = 0.05
"""Largest mean difference between the log-probabilities of vLLM and of the learner, nats: more is another model."""


def dtype() -> str:
    """Return the type of the computations on this device."""
    return "bfloat16" if torch.cuda.is_available() else "float32"


def requests_of(case: cases.Rollout, vocabulary: int) -> Requests:
    """Return the prompts of a case, as a step of training samples them."""
    prompts = texts([case.prompt] * (case.rows // case.copies), vocabulary)
    return Requests(prompts, case.copies, case.room, 1.0, ("rollout", case.rows))


def predicted(case: cases.Rollout, numbers: int) -> int:
    """Return the bytes of weights, and of what a plan says that sampling takes on top."""
    architecture = Architecture.of(configuration(case.size))
    assert architecture is not None
    groups = case.rows // case.copies
    schedule = Schedule(prompts_per_step=groups, group_size=case.copies, max_new_tokens=case.room, steps=1)
    recipe = Recipe(model=Model(dtype=dtype()), schedule=schedule)
    held = Held(weights=numbers, trained=numbers)
    phases = Phases(model=architecture, held=held, recipe=recipe, prompt=case.prompt, device=best_device().type)
    return 4 * numbers + phases.sampling(groups, case.copies, case.room)


def native(case: cases.Rollout, copied: float) -> Values:
    """Return speed and memory of the native sampler.

    Args:
        case: what is sampled.
        copied: bytes a second that the device copies.
    """
    policy = policy_of(case.size, dtype())
    let_end(policy, case.mean)
    numbers = sum(p.numel() for p in policy.model.parameters())
    requests, found = requests_of(case, configuration(case.size)["vocab_size"]), list[Responses]()
    sampler = TorchSampler(policy)

    def sample() -> None:
        found[:] = [complete(sampler, requests)]

    expected = predicted(case, numbers)
    try:
        measured = peak(sample, 4 * numbers)
        taken = seconds(sample, most=1)
    except Exception as error:
        if is_out_of_memory(error):
            raise MemoryError(f"predicted at most {expected / GIB:.1f} GiB") from None
        raise
    responses = found[0]
    tokens, mean = int(responses.length.sum()), float(responses.length.float().mean())
    passes = int(responses.length.max())
    limit = tokens / (passes * numbers * (2 if torch.cuda.is_available() else 4) / copied)
    values: dict[str, Any] = {
        "tokens": tokens,
        "mean": mean,
        "longest": passes,
        "seconds": taken,
        "tokens_per_s": tokens / taken,
        "limit_per_s": limit,
        "share": tokens / taken / limit,
        "measured_gib": measured / GIB,
        "predicted_gib": expected / GIB,
    }
    usual = case.mean * (1 - math.exp(-case.room / case.mean))  # of a geometric distribution that the limit cuts
    if not usual / ENDS <= mean <= usual * ENDS:
        values["wrong"] = f"the mean length should be near {usual:.0f}"
    return values


def transformers_speed(case: cases.Rollout) -> float:
    """Return the tokens a second of Transformers' own ``generate`` on the same prompts."""
    model = model_of(case.size, implementation="sdpa")
    policy = policy_of(case.size, dtype())
    let_end(policy, case.mean)
    model.load_state_dict(policy.model.state_dict())
    model = model.to(getattr(torch, dtype()))
    del policy
    requests = requests_of(case, configuration(case.size)["vocab_size"])
    ids = torch.tensor([p for p in requests.prompts for _ in range(case.copies)], device=best_device())
    made: list[int] = []

    def generate(room: int = case.room) -> None:
        out = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            max_new_tokens=room, eos_token_id=END, pad_token_id=END,
        )[:, ids.shape[1] :]  # fmt: skip
        written = (out != END).sum(1) + (out == END).any(1).long()  # a text's own tokens, with its end mark
        made[:] = [int(written.sum())]

    torch.manual_seed(0)
    with torch.inference_mode():
        generate(2)
        taken = seconds(generate, most=1)
    return made[0] / taken


def vllm_apart(case: cases.Rollout) -> Values:
    """Return what :func:`vllm_values` does, from a process of its own: an engine never gives all of its memory back.

    Raises:
        Unavailable: vLLM is not installed.
        RuntimeError: the process has failed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise Unavailable("vLLM is not installed")
    command = [sys.executable, "-m", "gpu.rollout", "--vllm", json.dumps(asdict(case))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    values: Values = json.loads(done.stdout.splitlines()[-1])
    return values


def vllm_values(case: cases.Rollout) -> Values:
    """Return tokens a second of vLLM, seconds to load weights, and how far it is from the learner, nats."""
    policy: Policy = policy_of(case.size, dtype())
    let_end(policy, case.mean)
    sampler = VllmSampler(policy, Rollout(engine="vllm", sequences=case.rows), lambda: None, World())
    weights = [(name, p) for name, p in policy.model.named_parameters()]
    load = seconds(lambda: sampler.load(weights), most=3)
    requests, found = requests_of(case, configuration(case.size)["vocab_size"]), list[Responses]()
    complete(sampler, requests)

    def sample() -> None:
        found[:] = [complete(sampler, requests)]

    taken = seconds(sample, most=1)
    learner = score_all(policy, requests.prompts, found[0], 1.0).logp
    drift = float((found[0].logp - learner).abs().mean())
    wrong = {} if drift <= DRIFT else {"wrong": f"vLLM is {drift:.3f} nats from the learner"}
    return {"vllm": int(found[0].length.sum()) / taken, "vllm_load_s": load, "vllm_nats": drift, **wrong}


def with_peers(case: cases.Rollout, copied: float) -> Values:
    """Return the native sampler's values, and those of the peers that can be had; a peer's failure is a value, too."""
    values = dict(native(case, copied))
    clean()
    peers: dict[str, Callable[[], Values]] = {}
    if case.peer:
        peers["transformers"] = lambda: {"transformers": transformers_speed(case)}
        peers["vllm"] = lambda: vllm_apart(case)
    for name, work in peers.items():
        try:
            values |= work()
        except Exception as error:  # the native sampler's numbers stay
            values[f"{name}_why"] = f"{type(error).__name__}: {str(error)[:200]}"
            print(f"rollout: {case.name}: {name}: {values[f'{name}_why']}", flush=True)
        clean()
    return values


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and return 1 if a row has failed or is wrong."""
    parser = parser_of("rollout", main.__doc__)
    parser.add_argument("--vllm", type=lambda text: cases.Rollout(**json.loads(text)), help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    if parsed.vllm:
        print(json.dumps(vllm_values(parsed.vllm)))
        return 0
    options = options_of(parsed)
    report, copied = Report("rollout", options), copy_peak()
    clean()
    for case in cases.TINY_ROLLOUTS if options.tiny else cases.ROLLOUTS:
        report.run(case.name, lambda case=case: with_peers(case, copied))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
