"""Arithmetic of the peak memory of a native run in each phase. Needs no torch.

A phase holds weights, gradients and moments, and on top of them what its largest pass needs. The terms follow the code:
:mod:`.rollout.torch` (cache and logits of the responses that are sampled at once), :mod:`.log_probabilities` (tokens of
a pass), :mod:`.head` (pieces of logits) and what autograd keeps of a block of Qwen2's or Llama's kind. All responses
are taken to reach their limit. ``benchmarks/phase_memory.py`` compares it with a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from paribus.evaluate import Evaluate
from paribus.recipe.analysis.facts import has_reference
from paribus.recipe.factors import SyncedReference
from paribus.recipe.recipe import Model, Recipe

Device = Literal["cpu", "cuda"]

ROWS: Mapping[Device, int] = {"cpu": 512, "cuda": 1024}
"""As in :mod:`.rollout.torch`, which imports torch."""
BUDGET: Mapping[Device, int] = {"cpu": 4096, "cuda": 32768}
"""As in :mod:`.log_probabilities`."""
CHUNK = 2**25
"""As in :mod:`.head`."""
SMALL = 4096
"""As in :mod:`.head`."""

DECODED = frozenset({"llama", "qwen2", "qwen3"})
"""As in :mod:`.rollout.decoder`."""

FULL = 4
"""Bytes of a float32."""
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
class Held:
    """Numbers that a run holds from its first update to its end.

    Attributes:
        weights: parameters of the model.
        trained: parameters that are trained.
        frozen: bytes of a parameter that is not.
        inside: whether those that are trained are some of ``weights``, and not adapters beside all of them.
        processes: processes of the run that train, which may share what the optimizer holds.
    """

    weights: int
    trained: int
    frozen: int = FULL
    inside: bool = False
    processes: int = 1

    @property
    def beside(self) -> bool:
        """Whether adapters are trained: the weights then have the type of the computations, and no gradient."""
        return self.trained < self.weights and not self.inside

    def bytes(self, recipe: Recipe, *, gradients: Literal["all", "critic", "none"] = "all", whole: bool = True) -> int:
        """Return the bytes on the device of weights, gradients, moments, masters, reference and critic.

        Args:
            recipe: says whether there is a reference or a critic, and what is in bfloat16, dealt out or offloaded.
            gradients: whose are there: the policy's are freed before each update, all of them after the last one.
            whole: whether all weights are there; sharded ones are not while they are updated.
        """
        found = self.moving(recipe, gradients=gradients == "all", whole=whole)
        found += self.still if whole else 0
        if self.shared(recipe):
            found += ceil(self.still / self.processes)
        if "reference" not in recipe.compute.offload and (not apart(recipe) or moves(recipe)):
            found += self._reference(recipe)
        if recipe.auxiliary.value is not None:
            found += self.moving(recipe, gradients=gradients != "none")
        return found

    def bytes_to_sample(self, recipe: Recipe) -> int:
        """Return the bytes on the device of a process that samples and does nothing else: weights and reference."""
        trained = self.trained * of_weight(recipe.model)  # it shares those that are not with its reference
        here = has_reference(recipe) and "reference" not in recipe.compute.offload
        return trained * (2 if here else 1) + self.still

    def shared(self, recipe: Recipe) -> bool:
        """Return whether processes share the weights."""
        return recipe.compute.sharding == "weights" and self.processes > 1

    def _reference(self, recipe: Recipe) -> int:
        """Return the bytes of a reference; beside weights that are shared, it shares none of them."""
        if not has_reference(recipe):
            return 0
        return self.trained * of_weight(recipe.model) + (self.still if self.shared(recipe) else 0)

    @property
    def still(self) -> int:
        """Bytes of the weights that are not trained."""
        numbers = self.weights - (self.trained if self.inside else 0)
        return numbers * self.frozen if self.trained < self.weights else 0

    def moving(self, recipe: Recipe, *, gradients: bool = True, whole: bool = True) -> int:
        """Return the bytes of the weights that are trained, of their gradients, moments and masters."""
        each = of_optimizer(recipe, self.processes) + (of_weight(recipe.model) if whole else 0)
        of_gradient = FULL / self.processes if self.shared(recipe) else FULL
        return ceil(self.trained * (each + (of_gradient if gradients else 0)))

    def reference(self, recipe: Recipe) -> int:
        """Return the bytes of a reference that is in host memory where it does not compute."""
        return self._reference(recipe) if "reference" in recipe.compute.offload else 0


def apart(recipe: Recipe) -> bool:
    """Return whether some processes sample while the others train."""
    return recipe.compute.sampling_processes > 0


def moves(recipe: Recipe) -> bool:
    """Return whether a reference follows the policy."""
    return isinstance(getattr(recipe.kl, "reference", None), SyncedReference)


def of_weight(model: Model) -> int:
    """Return the bytes of a weight that is trained."""
    return 2 if model.trained_dtype == "bfloat16" else FULL


def of_optimizer(recipe: Recipe, processes: int) -> float:
    """Return the bytes that one of some processes holds on its device for a weight that is trained, beside it.

    Two moments, and the master of a weight in bfloat16. A sharded weight has a float32 share beside it.
    """
    here, sharded = "optimizer" not in recipe.compute.offload, recipe.compute.sharding
    if sharded == "weights" and processes > 1:
        return FULL * (3 if here else 1) / processes
    every = FULL * (3 if recipe.model.trained_dtype == "bfloat16" else 2)
    return every / (processes if sharded == "optimizer" else 1) if here else 0


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Bytes at the peak of each phase."""

    rollout: int
    old_pass: int
    update: int
    evaluation: int

    @property
    def largest(self) -> tuple[str, int]:
        """The phase with the highest peak, and that peak."""
        name = max(vars(self), key=lambda each: int(vars(self)[each]))
        return name, int(vars(self)[name])


@dataclass(frozen=True, kw_only=True)
class Phases:
    """The arithmetic for one model and recipe.

    Attributes:
        model: the model.
        held: what is held in all phases.
        recipe: the recipe.
        prompt: tokens of the longest prompt.
        device: where it trains.
    """

    model: Architecture
    held: Held
    recipe: Recipe
    prompt: int
    device: Device

    @property
    def width(self) -> int:
        """Bytes of a number in matrix products and in the cache."""
        return 2 if self.recipe.model.dtype == "bfloat16" else FULL

    def peaks(self, evaluate: Evaluate) -> Peaks:
        """Return the peak of each phase; a run samples its responses and its evaluations with the sampler ``torch``.

        If some processes sample while the others train, those have rollout and evaluation, and these the other phases.
        """
        schedule, whole = self.recipe.schedule, self.held.bytes(self.recipe, gradients="none")
        sampler = self.held.bytes_to_sample(self.recipe) if apart(self.recipe) else whole
        sets = evaluate.all_sets.values()
        evaluations = [
            self.sampling(each.problems, each.samples, each.max_new_tokens or schedule.max_new_tokens) for each in sets
        ]
        groups, copies, room = schedule.prompts_per_step, schedule.group_size, schedule.max_new_tokens
        reference = self.held.reference(self.recipe)
        charging = reference + self.scoring(self._tokens(groups)) if reference else 0
        return Peaks(
            rollout=sampler + max(self.sampling(groups, copies, room), charging),
            old_pass=whole + self.scoring(self._tokens(groups)),
            update=self.updating(self._tokens(ceil(groups / schedule.minibatches))),
            evaluation=sampler + max(evaluations),
        )

    def sampling(self, prompts: int, copies: int, room: int) -> int:
        """Return the bytes of the cache, of its making or a draw, and of weights that are copied for the time."""
        together = min(prompts, max(1, ROWS[self.device] // copies))
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
        return self.prompt + self.recipe.schedule.group_size * (self._longest - self.prompt)

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

    def _tokens(self, groups: int) -> int:
        """Return the tokens of the largest pass over so many groups."""
        return min(groups * self._group, max(self._most(), self._longest))

    def _most(self) -> int:
        return BUDGET[self.device]

    def _autocast(self) -> int:
        """Return the bytes of the copies of weights in bfloat16 that a pass keeps until its end."""
        cast = self.width < of_weight(self.recipe.model) and not self.held.beside
        return self.held.weights * self.width if cast else 0
