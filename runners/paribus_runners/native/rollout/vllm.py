"""The sampler ``vllm``: an engine of vLLM in this process, with a copy of the weights that follows each update.

Only what vLLM 0.25 (the last for PyTorch 2.11) to 0.33 have in common is used, on a CPU and on a GPU. The engine starts
with random weights: it can sample once the first weights are loaded.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from paribus.errors import MissingExtra, RunnerError
from paribus.recipe.rollout import Rollout
from paribus_runners.native.model_files import context_of
from paribus_runners.native.policy import Policy
from paribus_runners.native.responses import Responses
from paribus_runners.native.rollout.sampler import Finished, Requests
from paribus_runners.native.world import World

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives in this process and gets the learner's own tensors
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # as many threads as the learner has, on any core
    "VLLM_NO_USAGE_STATS": "1",
}
_GIB = 2**30
CACHE_GIB = 1.0
"""Memory for keys and values on a CPU, unless the recipe says more."""
CACHE_SHARE = 0.3
"""The same as a share of a GPU's memory."""


class VllmSampler:
    """Implements :class:`.sampler.Sampler`. It gives no entropies.

    Each response has a random generator of its own, seeded by its place in the run, so what it becomes depends neither
    on the responses before it nor, up to rounding, on those beside it. With ``top_p`` below 1 its log-probabilities are
    those of the tokens that are left.

    Args:
        policy: whose architecture is loaded; its weights come by :meth:`load`.
        settings: how to sample.
        check: called before each step of the engine; may raise to end the sampling.
        world: the processes of the run: each has an engine of its own, with the whole model.

    Raises:
        MissingExtra: vLLM is not installed.
        RunnerError: vLLM cannot run the model with these settings.
    """

    def __init__(self, policy: Policy, settings: Rollout, check: Callable[[], None], world: World) -> None:
        self._on_gpu = policy.device.type == "cuda"
        self._llm = _started(policy, settings, world)
        self._engine = self._llm.llm_engine
        self._longest: int = self._llm.model_config.max_model_len
        self._made_for = context_of(policy.model.config.to_dict())
        self._ends, self._check = list(policy.ends), check
        self._calls, self._asleep = count(), False

    @property
    def all_at_once(self) -> bool:
        """True: each step of the engine makes a token of as many responses as it has room for."""
        return True

    def sample(self, requests: Requests) -> Iterator[Finished]:
        """Yield the groups that a step of the engine has ended, the earlier prompts first.

        Nothing that an earlier call computed is used again, so that a run that was resumed samples the same.

        Raises:
            RunnerError: a prompt with its response is longer than the model, or the memory for it, allows.
        """
        if not requests.prompts:
            return
        self._check_lengths(requests)
        if not self._llm.reset_prefix_cache():
            raise RunnerError("vLLM still holds keys and values of an earlier sampling")
        call = next(self._calls)
        waiting = {f"{call}/{i}" for i in range(len(requests.prompts))}
        try:
            for i, prompt in enumerate(requests.prompts):
                settings = self._settings(requests, i)
                self._engine.add_request(f"{call}/{i}", {"prompt_token_ids": list(prompt)}, settings)
            while waiting:
                self._check()
                ended = {int(x.request_id.split("/")[1]): x.outputs for x in self._engine.step() if x.finished}
                waiting -= {f"{call}/{i}" for i in ended}
                if ended:
                    order = sorted(ended)
                    yield Finished(order, _responses([x for i in order for x in ended[i]]))
        finally:
            if waiting:
                self._engine.abort_request(list(waiting))

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, float]:
        """Copy the weights into the engine, which wakes up; there is nothing to measure yet."""
        if self._asleep:
            self._llm.wake_up(["weights"])
        tensors = ((name, tensor.detach()) for name, tensor in weights)
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
        if not self._on_gpu:
            self._llm.apply_model(_pack_tied_head)
        if self._asleep:
            self._llm.wake_up(["kv_cache"])
        self._asleep = False
        return {}

    def rest(self) -> None:
        """Free the memory of weights, keys and values on a GPU until weights are loaded; a CPU keeps it."""
        if self._on_gpu and not self._asleep:
            self._llm.sleep(level=2)
            self._asleep = True

    def _settings(self, requests: Requests, prompt: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            n=requests.copies,
            temperature=requests.temperature,
            top_p=requests.top_p,
            max_tokens=requests.room,
            seed=requests.seed(prompt),
            stop_token_ids=self._ends,
            ignore_eos=True,  # the ends are the policy's, all of them
            logprobs=0,  # of the sampled token alone
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _check_lengths(self, requests: Requests) -> None:
        longest = max(map(len, requests.prompts))
        if longest + requests.room > self._longest:
            limit = f"{self._longest} tokens that the model was made for: lower"
            if self._made_for is None or self._longest < self._made_for:
                limit = (
                    f"{self._longest} tokens for which the model and the memory for keys and values have room: raise "
                    "`rollout.cache_gib`, or lower"
                )
            raise RunnerError(
                f"a prompt of {longest} tokens with a response of up to {requests.room} is longer than the "
                f"{limit} the length limit, or leave the longest prompts out"
            )


def _started(policy: Policy, settings: Rollout, world: World) -> Any:
    """Return vLLM with the policy's architecture and random weights."""
    os.environ.update(_ENVIRONMENT)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    joined = torch.distributed.is_initialized()
    if joined:  # vLLM joins the processes that have met already, and asks only which of them this is
        os.environ.update(RANK=str(world.rank), LOCAL_RANK=str(world.rank_here), WORLD_SIZE=str(world.size))
    if policy.experts_per_token is not None:
        raise RunnerError("`rollout.engine: vllm` takes dense models alone: set `rollout.engine: torch`")
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    try:
        from vllm import LLM
    except ModuleNotFoundError as error:
        own = "in an environment of its own: docs/howto/vllm.md, `make vllm`"
        raise MissingExtra("vllm", f"`rollout.engine: vllm` ({error.name}; {own})") from error
    on_gpu = policy.device.type == "cuda"
    try:
        with tempfile.TemporaryDirectory() as folder:
            policy.model.config.save_pretrained(folder)
            return LLM(
                folder,
                load_format="dummy",
                skip_tokenizer_init=True,
                generation_config="vllm",  # none of the model's own defaults for sampling
                dtype=dtype_of(policy, settings),
                seed=0,
                max_model_len=-1,  # as long as model and memory allow
                max_num_seqs=settings.sequences,
                kv_cache_memory_bytes=_cache_bytes(settings, on_gpu=on_gpu),
                enable_prefix_caching=True,
                # vLLM rewinds the generator of a request whose prompt is computed in parts; those of a CPU cannot be
                enable_chunked_prefill=None if on_gpu else False,
                enable_sleep_mode=on_gpu,
                enforce_eager=not on_gpu,
                distributed_executor_backend="external_launcher" if joined else None,
                logprobs_mode="processed_logprobs",  # at the temperature
                disable_log_stats=True,
            )
    except (ValueError, NotImplementedError, RuntimeError) as error:
        raise RunnerError(f"`rollout.engine: vllm` cannot start with this model: {error}") from error
    finally:
        torch.set_num_threads = set_threads  # vLLM leaves a function that does nothing in its place
        torch.set_num_threads(threads)


def dtype_of(policy: Policy, settings: Rollout) -> torch.dtype:
    """Return the type of the engine's weights and computations."""
    return policy.dtype if settings.dtype == "auto" else getattr(torch, settings.dtype)


def _cache_bytes(settings: Rollout, *, on_gpu: bool) -> int:
    if settings.cache_gib is not None:
        return int(settings.cache_gib * _GIB)
    return int(CACHE_SHARE * torch.cuda.mem_get_info()[1]) if on_gpu else int(CACHE_GIB * _GIB)


def _pack_tied_head(model: Any) -> None:
    """Pack the head again: on a CPU it keeps a packed copy, which a reload of the embedding it is tied to passes by."""
    head = getattr(model, "lm_head", None)
    if head is not None and model.config.tie_word_embeddings:
        head.quant_method.process_weights_after_loading(head)


def _responses(outputs: Sequence[Any]) -> Responses:
    """Return the responses of vLLM's records.

    Raises:
        RunnerError: one ended for another reason than an end mark or its length.
    """
    if odd := {str(x.finish_reason) for x in outputs} - {"stop", "length"}:
        raise RunnerError(f"vLLM ended a response for an unknown reason: {', '.join(sorted(odd))}")
    return Responses(
        ids=torch.tensor([token for x in outputs for token in x.token_ids]),
        logp=torch.tensor([value for x in outputs for value in x.logprobs.logprobs]),
        entropy=None,
        length=torch.tensor([len(x.token_ids) for x in outputs]),
        truncated=torch.tensor([x.finish_reason == "length" for x in outputs]),
    )
