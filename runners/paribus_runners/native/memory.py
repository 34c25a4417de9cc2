"""Arithmetic of the peak memory of a native run in each phase. Needs no torch.

A phase holds weights, gradients and moments, and on top of them what its largest pass needs. The terms follow the code:
:mod:`.rollout.torch` (cache and logits of the responses that are sampled at once), :mod:`.log_probabilities` (tokens of
a pass), :mod:`.head` (pieces of logits) and what autograd keeps of a block of Qwen2's or Llama's kind. All responses
are taken to reach their limit. ``benchmarks/phase_memory.py`` compares it with a measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from paribus.evaluate import Evaluate
from paribus.recipe.recipe import Recipe
from paribus_runners.native.held import FULL, Held, apart, of_weight
from paribus_runners.native.limits import USUAL, Device, Limits

CHUNK = 2**25
"""As in :mod:`.head`."""
SMALL = 4096
"""As in :mod:`.head`."""

DECODED = frozenset({"llama", "qwen2", "qwen3"})
"""As in :mod:`.rollout.decoder`."""

DRAW = 24
"""Bytes for each logit that a token is drawn from: log-probability and probability; in float64 that and the sums."""
INSIDE = 1.4
"""Bytes while a block that was computed again is differentiated, in those that autograd keeps of it (measured)."""
KEPT_LOGITS = 4
"""Tensors of the logits of a small vocabulary that autograd keeps."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What the arithmetic needs of a model.

    Attributes:
        layers: blocks.
        hidden: channels of the residual stream.
        inner: channels inside the gated MLP of a block.
        queries: channels of all queries together.
        keys: channels of all keys together; as many of the values.
        vocabulary: rows of the head.
        tied: whether the weight of the head is the embeddings.
        decoded: whether the sampler ``torch`` copies the weights of its layers, if it can.
    """

    layers: int
    hidden: int
    inner: int
    queries: int
    keys: int
    vocabulary: int
    tied: bool = False
    decoded: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Architecture | None:
        """Return what a config.json says; ``None`` if it lacks a number or is a mixture of experts."""
        names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
        numbers = [config.get(name) for name in names]
        if not all(isinstance(n, int) and n > 0 for n in numbers) or any("expert" in name for name in config):
            return None
        layers, hidden, inner, heads, vocabulary = (int(n) for n in numbers if n is not None)
        size = config.get("head_dim") or hidden // heads
        groups = config.get("num_key_value_heads") or heads
        return cls(
            layers=layers,
            hidden=hidden,
            inner=inner,
            queries=heads * size,
            keys=groups * size,
            vocabulary=vocabulary,
            tied=config.get("tie_word_embeddings") is True,
            decoded=config.get("model_type") in DECODED and config.get("hidden_act", "silu") == "silu",
        )


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Bytes at the peak of each phase."""

    rollout: int
    old_pass: int
    update: int
    evaluation: int


@dataclass(frozen=True, kw_only=True)
class Phases:
    """The arithmetic for one model and recipe.

    Attributes:
        model: the model.
        held: what is held in all phases.
        recipe: the recipe.
        prompt: tokens of the longest prompt.
        device: where it trains.
        limits: how much is computed at once; ``None``: the usual ones of the device.
    """

    model: Architecture
    held: Held
    recipe: Recipe
    prompt: int
    device: Device
    limits: Limits | None = None

    @property
    def at_once(self) -> Limits:
        """How much is computed at once."""
        return self.limits or USUAL[self.device]

    def fitting(self, evaluate: Evaluate, room: int) -> Phases:
        """Return the arithmetic at the largest limits with which each phase fits into ``room`` bytes.

        They are the usual ones, each halved until the phases that it bounds fit. A phase that does not fit at the least
        limit takes no more than it does there.
        """
        usual = self.at_once

        def at(responses: int, tokens: int) -> Phases:
            return replace(self, limits=Limits(responses_at_a_time=responses, tokens_a_pass=tokens))

        rows = usual.responses_at_a_time
        tokens = _fitting(usual.tokens_a_pass, self._least, room, lambda n: at(rows, n)._bounded_by_tokens())
        if self.recipe.rollout.engine == "torch":
            rows = _fitting(rows, 1, room, lambda n: at(n, tokens)._bounded_by_responses(evaluate))
        return at(rows, tokens)

    def largest(self, evaluate: Evaluate) -> tuple[str, int]:
        """Return the phase with the highest peak, and that peak."""
        peaks = self.by_name(evaluate)
        name = max(peaks, key=peaks.__getitem__)
        return name, peaks[name]

    def by_name(self, evaluate: Evaluate) -> dict[str, int]:
        """Return the peak of each phase, without those in which vLLM samples."""
        peaks = vars(self.peaks(evaluate))
        theirs = () if self.recipe.rollout.engine == "torch" else ("rollout", "evaluation")
        return {name.replace("_", " "): size for name, size in peaks.items() if name not in theirs}

    def about(self) -> str:
        """Return the limits in words."""
        tokens = f"{self.at_once.tokens_a_pass:,} tokens a pass"
        return (
            f"{self.at_once.responses_at_a_time:,} responses at a time, {tokens}"
            if self.recipe.rollout.engine == "torch"
            else tokens
        )

    @property
    def width(self) -> int:
        """Bytes of a number in matrix products and in the cache."""
        return 2 if self.recipe.model.dtype == "bfloat16" else FULL

    def peaks(self, evaluate: Evaluate) -> Peaks:
        """Return the peak of each phase; a run samples its responses and its evaluations with the sampler ``torch``.

        If some processes sample while the others train, those have rollout and evaluation, and these the other phases.
        """
        old_pass, update, reference = self._bounded_by_tokens()
        rollout, evaluation = self._bounded_by_responses(evaluate)
        return Peaks(rollout=max(rollout, reference), old_pass=old_pass, update=update, evaluation=evaluation)

    def _bounded_by_tokens(self) -> tuple[int, int, int]:
        """Return the peaks of old pass and update, and of a pass of a reference that comes from host memory."""
        groups, whole, reference = self.recipe.schedule.prompts_per_step, self._whole, self.held.reference(self.recipe)
        level = self.recipe.filter
        scored = groups * getattr(level, "max_generation_batches", 1) + getattr(level, "max_surplus", 0)
        charging = self.scoring(self._tokens_scored(groups, self._samplers)) if reference else 0
        return (
            whole + self.scoring(self._tokens_scored(scored, self.held.processes)),
            self.updating(self._tokens_updated()),
            self._sampler + reference + charging if reference else 0,
        )

    def _bounded_by_responses(self, evaluate: Evaluate) -> tuple[int, int]:
        """Return the peaks of sampling in a rollout and in evaluations."""
        schedule, sets = self.recipe.schedule, evaluate.all_sets.values()
        groups, copies, room = schedule.prompts_per_step, schedule.group_size, schedule.max_new_tokens
        evaluated = (self.sampling(each.problems, each.samples, each.max_new_tokens or room) for each in sets)
        return self._sampler + self.sampling(groups, copies, room), self._sampler + max(evaluated)

    @property
    def _whole(self) -> int:
        """Bytes that a process that trains holds between its phases."""
        return self.held.bytes(self.recipe, gradients="none")

    @property
    def _sampler(self) -> int:
        """The same of a process that samples."""
        return self.held.bytes_to_sample(self.recipe) if apart(self.recipe) else self._whole

    def sampling(self, prompts: int, copies: int, room: int) -> int:
        """Return the bytes of the cache, of its making or a draw, and of weights that are copied for the time."""
        together = ceil(min(prompts, max(1, self.at_once.responses_at_a_time // copies)) / self._samplers)
        m, rows = self.model, together * copies
        token = m.layers * 2 * m.keys * self.width
        cache = rows * (self.prompt + room) * token
        if self.device == "cpu":  # one more tensor, to move the others to where sequences have more room
            cache += cache // (2 * m.layers)
        draw = min(rows, self._rows()) * m.vocabulary * DRAW
        return cache + max(together * self.prompt * token, draw) + self._copied() + self._autocast()

    def _copied(self) -> int:
        """Return the bytes of the layers' weights that the sampler puts side by side: on a CPU, in float32."""
        m = self.model
        if not m.decoded or not self._in_panels or self.held.beside or self.held.shared(self.recipe):
            return 0
        return m.layers * m.hidden * (2 * m.queries + 2 * m.keys + 3 * m.inner) * FULL

    def scoring(self, tokens: int) -> int:
        """Return the bytes of a pass over so many tokens that keeps nothing."""
        m = self.model
        block = tokens * (2 * m.hidden + max(3 * m.inner, 2 * m.queries + 2 * m.keys)) * self.width
        return tokens * m.hidden * FULL + max(block, self._pieces(tokens, kept=2)) + self._autocast()

    def updating(self, tokens: int) -> int:
        """Return the bytes of an update: what autograd keeps of its first pass while the head is differentiated.

        If the batch needs several passes, the gradients of those before are there, too: to these a large head adds in
        place, and embeddings make theirs beside them. Of sharded weights there is a share, and what is gathered.
        """
        m, again, several = self.model, self.recipe.compute.gradient_checkpointing, tokens >= self._most()
        sharded = self.held.shared(self.recipe)
        block, stream = self._kept(tokens), tokens * self.model.hidden * FULL
        kept = m.layers * (stream if again else block)
        words = 0 if self.held.beside else m.vocabulary * m.hidden
        head = 0 if several and m.vocabulary > SMALL and not sharded else words * FULL
        rest = head + (words * self.width if self.width < FULL else 0) + 2 * stream  # gradients, products of the head
        pieces = self._pieces(tokens, kept=KEPT_LOGITS)
        both = self.recipe.auxiliary.entropy != 0 or self._kernels  # else the backward pass holds half of the pieces
        pieces = pieces + rest if both else max(pieces, pieces // 2 + rest)
        before = self.held.bytes(self.recipe, gradients="all" if several else "critic", whole=not sharded)
        inside = int(INSIDE * block) if again else block
        last = self.held.bytes(self.recipe, whole=not sharded)
        if not sharded:
            last += max(inside + stream, words * FULL if several or m.tied else 0)
            return max(before + kept + max(pieces, inside if again else 0), last) + self._autocast()
        outside, of_block = self._gathered()
        backward = head + 2 * of_block + self._summed(of_block) + (inside if again else 0)
        before += outside + kept + max(pieces, backward)
        return max(before, last + outside + self._summed(outside)) + self._autocast()

    def _gathered(self) -> tuple[int, int]:
        """Return the bytes of sharded weights that are gathered for a whole pass, and of those of a block."""
        m, width = self.model, of_weight(self.recipe.model)
        outside = m.vocabulary * m.hidden * (1 if m.tied else 2)
        return outside * width, (self.held.weights - outside) // m.layers * width

    def _summed(self, gathered: int) -> int:
        """Return the bytes of the gradients of gathered weights, and of a float32 copy of as many that is summed."""
        return gathered + gathered // of_weight(self.recipe.model) * FULL

    # ---- the terms ---------------------------------------------------------------------------------

    def _kept(self, tokens: int) -> int:
        """Return the bytes that autograd keeps of one block.

        Twice a norm's input, unless the functions of :mod:`.elementwise` work, its quotient and what the products take;
        queries, keys, values and output of the attention; what the output layer takes, if attention works on padded
        sequences; four tensors of the MLP.
        """
        m, w = self.model, self.width
        copies = 4 + 4 / 2.5  # casts of what three and two products take
        whole = FULL * (2 if self._in_panels else 3)
        norms = 2 * m.hidden * (whole if w == FULL else int(2 * FULL + w * copies / 2))
        rest = 4 * m.inner * w + (m.hidden * w if self._padded else 0)
        by_sequence = tokens * self.recipe.schedule.group_size * self._longest // self._group
        queries = by_sequence if self._padded else tokens
        keys = tokens if self._in_panels else by_sequence
        return tokens * (norms + rest) + (2 * m.queries * queries + 2 * m.keys * keys) * w

    @property
    def _padded(self) -> bool:
        """Whether attention works on padded sequences: not in panels, nor by a kernel that takes any length."""
        return self.width == FULL if self.device == "cuda" else self.width < FULL

    @property
    def _in_panels(self) -> bool:
        return self.device == "cpu" and self.width == FULL

    @property
    def _longest(self) -> int:
        """Tokens that are read of a prompt and one response: all but the last."""
        return self.prompt + self.recipe.schedule.max_new_tokens - 1

    @property
    def _group(self) -> int:
        """Tokens that are read of a prompt and all responses to it."""
        return self._read(self.recipe.schedule.group_size)

    def _read(self, responses: int) -> int:
        """Return the tokens that are read of a prompt and so many responses to it."""
        return self.prompt + responses * (self._longest - self.prompt)

    def _pieces(self, tokens: int, *, kept: int) -> int:
        """Return the bytes of the logits of response tokens at one time."""
        schedule = self.recipe.schedule
        responses = schedule.group_size * schedule.max_new_tokens
        rows = tokens * responses // self._group
        if self.model.vocabulary <= SMALL and rows <= self._rows():
            return kept * rows * self.model.vocabulary * FULL
        if self._kernels:
            product = 2 if self.recipe.model.head_dtype == "bfloat16" else FULL
            return min(rows, self._rows()) * self.model.vocabulary * product
        low = 0 if self.width == FULL else self.width
        return min(rows, self._rows()) * self.model.vocabulary * (2 * FULL + low)

    @property
    def _kernels(self) -> bool:
        """Whether kernels in Triton have the logits in one room, forward and backward, in the type of the products."""
        return self.recipe.compute.head == "triton" and self.model.vocabulary > SMALL

    def _rows(self) -> int:
        return max(1, CHUNK // self.model.vocabulary)

    def _tokens_scored(self, groups: int, processes: int) -> int:
        """Return the most tokens of a pass over the responses to so many prompts, which are dealt out by prompts."""
        uneven = self._group if processes > 1 else 0
        return min(groups * self._group, ceil(groups / processes) * self._group + uneven, self._most())

    def _tokens_updated(self) -> int:
        """Return the most tokens of a pass of an update, whose responses, or pairs of them, are dealt out."""
        schedule, processes = self.recipe.schedule, self.held.processes
        chosen = 2 if self.recipe.loss.kind == "pair_dpo" else schedule.group_size  # the best and the worst
        whole = ceil(schedule.prompts_per_step / schedule.minibatches) * self._read(chosen)
        share = ceil(whole / processes) + (self._least + self.prompt if processes > 1 else 0)
        return min(whole, share, self._most())

    def _most(self) -> int:
        return max(self.at_once.tokens_a_pass, self._least)

    @property
    def _least(self) -> int:
        """Tokens of the longest sequence, or of the two of a pair: a pass has at least these."""
        return self._longest * (2 if self.recipe.loss.kind == "pair_dpo" else 1)

    @property
    def _samplers(self) -> int:
        """Processes that share the sampling."""
        return self.recipe.compute.sampling_processes or self.held.processes

    def _autocast(self) -> int:
        """Return the bytes of the copies of weights in bfloat16 that a pass keeps until its end."""
        cast = self.width < of_weight(self.recipe.model) and not self.held.beside
        return self.held.weights * self.width if cast else 0


def _fitting(usual: int, least: int, room: int, peaks: Callable[[int], tuple[int, ...]]) -> int:
    """Return the largest limit at which each peak is in ``room``, or no higher than at the least limit.

    Args:
        usual: the largest of all; others are halves of it.
        least: no lower limit changes anything.
        room: bytes.
        peaks: returns the peaks at a limit.
    """
    limits = [usual]
    while limits[-1] > least:
        limits.append(max(limits[-1] // 2, least))
    bounds = [max(room, lowest) for lowest in peaks(limits[-1])]
    return next(n for n in limits if all(peak <= bound for peak, bound in zip(peaks(n), bounds, strict=True)))
