"""The weight of each token of given responses in the gradient, and why: the records between files, runners and tables.

All policy gradient methods are one formula, grad = -sum c[i,t] grad log pi(o[i,t]), and differ in how c is made
(DeepSeekMath, arXiv 2402.03300, section 5.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paribus.errors import BatchFileError, Problem
from paribus.recipe.analysis.facts import CAPS, has_reference, weighs_sampler
from paribus.recipe.recipe import Recipe
from paribus.yaml_file.messages import explain

_LogP = Annotated[tuple[Annotated[float, Field(ge=-100, le=0)], ...], Field(strict=False)]
_AS_OLD = Field(default_factory=lambda known: known.get("logp_old", ()))


def _each(value: float) -> Callable[[dict[str, Any]], Any]:
    return lambda known: (value,) * known.get("length", 0)


class Response(BaseModel):
    """A response as the objective sees it. Token fields have one entry a token, log-probabilities in nats.

    Attributes:
        group: the prompt that it answers; responses with equal text are a group.
        correct: the verifier's verdict; by default whether ``score`` is above 0.
        score: the task's own score.
        truncated: whether it hit the length limit.
        formatted: whether it ended by itself and holds an answer.
        tokens: texts of the tokens; empty if unknown.
        length: tokens; by default as many as ``logp_old`` or ``tokens`` has.
        logp_old: log-probability under the policy before the updates.
        logp_new: under the policy that is updated.
        logp_sampler: under the policy that sampled, as the sampler computed it.
        logp_reference: under the reference.
        entropy: entropy of the policy that sampled.
        value: the critic's value of the state in which the token was chosen.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    group: Annotated[str, Field(min_length=1)]
    correct: bool
    score: float = Field(default_factory=lambda known: 1.0 if known.get("correct") else -1.0)
    truncated: bool = False
    formatted: bool = Field(default_factory=lambda known: not known.get("truncated"))
    tokens: Annotated[tuple[str, ...], Field(strict=False)] = ()
    length: Annotated[int, Field(ge=1, le=100_000)]
    logp_old: _LogP = Field(default_factory=_each(math.log(0.5)))
    logp_new: _LogP = _AS_OLD
    logp_sampler: _LogP = _AS_OLD
    logp_reference: _LogP = _AS_OLD
    entropy: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(strict=False)] = Field(default_factory=_each(1))
    value: Annotated[tuple[float, ...], Field(strict=False)] = Field(default_factory=_each(0))

    @model_validator(mode="before")
    @classmethod
    def _from_other_fields(cls, raw: Any) -> Any:
        given = raw if isinstance(raw, dict) else {}
        sizes = [len(x) for x in (given.get("logp_old"), given.get("tokens")) if isinstance(x, list | tuple)]
        found: dict[str, Any] = {"length": sizes[0]} if sizes else {}
        if isinstance(score := given.get("score"), int | float):
            found["correct"] = score > 0
        return {**found, **given} if given else raw

    @model_validator(mode="after")
    def _one_entry_a_token(self) -> Self:
        sizes = {name: len(x) for name, x in self if name in self.model_fields_set and isinstance(x, tuple)}
        if wrong := [f"`{name}` has {size}" for name, size in sizes.items() if size != self.length]:
            raise ValueError(f"needs one entry for each of its {self.length} tokens: {', '.join(wrong)}")
        return self


def read_responses(path: Path) -> list[Response]:
    """Return the responses in a file of JSON lines; empty lines don't count.

    Raises:
        BatchFileError: the file cannot be read, or lines of it are wrong; all problems are listed with their lines.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BatchFileError(str(path), [Problem(message=f"cannot be read as UTF-8 text: {error}")]) from error
    instead = {"correct": ", and so is `score`", "length": ", and so are `logp_old` and `tokens`"}
    responses: list[Response] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines, start=1):
        try:
            responses += [Response.model_validate_json(line)] if line.strip() else []
        except ValidationError as error:
            for e in error.errors(include_url=False):
                where = ".".join(str(x + 1) if isinstance(x, int) else x for x in e["loc"])
                message = explain(e, tuple(Response.model_fields)) + instead.get(where, "") * (e["type"] == "missing")
                if e["type"] != "default_factory_not_called":  # follows from another problem of the line
                    problems.append(Problem(message=message, path=where, line=number))
    if not responses and not problems:
        problems = [Problem(message="the file is empty: write one response a line")]
    if problems:
        raise BatchFileError(str(path), problems)
    return responses


def notes(recipe: Recipe, responses: Sequence[Response]) -> list[str]:
    """Return the defaults that a recipe reads, and what responses can't show of it, one sentence each."""
    defaults = {
        "score": ("1 where correct, else -1", recipe.reward.map == "scalar"),
        "truncated": ("false", recipe.length.truncated != "as_scored"),
        "formatted": ("true where not truncated", recipe.reward.weights.format != 0),
        "logp_old": ("log 0.5", True),
        "logp_new": ("`logp_old`, so every ratio is 1", True),
        "logp_sampler": ("`logp_old`", weighs_sampler(recipe)),
        "logp_reference": ("`logp_old`", has_reference(recipe)),
        "entropy": ("1 nat", recipe.token_weight.kind == "top_entropy"),
        "value": ("0", recipe.baseline.kind == "critic_gae"),
    }
    unseen = {
        "the entropy bonus is no part of c": recipe.auxiliary.entropy,
        "the loss of the critic is no part of c": recipe.auxiliary.value,
        "the routing of all tokens is taken as unchanged": recipe.token_weight.kind == "router_shift",
        "each prompt is taken as visited for the first time": recipe.baseline.kind == "history",
        "the reward functions are not called: they count 0": recipe.reward.functions,
        "the tokens of Clip-Cov are drawn once more": recipe.clip.kind == "clip_cov",
        "both passes of the update are taken at `logp_new`": recipe.schedule.update.kind == "lopti",
    }
    absent = {name: sum(name not in x.model_fields_set for x in responses) for name in defaults}
    return [
        *(f"`{name}` is absent in {absent[name]} of {len(responses)} responses: taken as {value}"
          for name, (value, read) in defaults.items() if read and absent[name]),
        *(sentence for sentence, holds in unseen.items() if holds),
    ]  # fmt: skip


State = Literal["in_loss", "zero_spread", "filtered", "dropped", "masked", "no_pair"]
STATES: Mapping[State, str] = {
    "in_loss": "",
    "zero_spread": "zero spread",
    "filtered": "filtered: its group has no spread",
    "dropped": "dropped: truncated, or not among those that `length.keep` keeps",
    "masked": "masked: truncated",
    "no_pair": "neither best nor worst of its group",
}
"""Why a whole response has no advantage or is not in the loss; empty where it is."""


@dataclass(frozen=True, kw_only=True)
class ResponseCoefficients:
    """The coefficients of one response, one entry a token.

    ``total`` = ``surrogate`` + ``kl`` + ``nll``, and ``surrogate`` = A x token weight x weight x correction x factor.

    Attributes:
        state: whether the response is in the loss.
        reward: R after length rule and KL.
        weight: the aggregation's weight of each token; 0 outside the loss.
        advantage: A.
        token_weight: what F11 multiplies A with.
        correction: importance weight between sampler and learner.
        ratio: the ratio that the clip rule looks at; ``None`` outside the loss.
        factor: what ratio and clip rule make of one unit of A; ``None`` where nothing is multiplied with it.
        surrogate: share of the clipped surrogate in c.
        kl: share of KL in the loss.
        nll: share of the NLL of correct responses.
        total: c = -d loss / d log pi.
    """

    state: State
    reward: float
    weight: float
    advantage: tuple[float, ...]
    token_weight: tuple[float, ...]
    correction: tuple[float, ...]
    ratio: tuple[float | None, ...]
    factor: tuple[float | None, ...]
    surrogate: tuple[float, ...]
    kl: tuple[float, ...]
    nll: tuple[float, ...]
    total: tuple[float, ...]


def shares(found: Sequence[ResponseCoefficients]) -> list[float]:
    """Return each response's sum of c over the sum of all |c|, which doesn't depend on the scale of the loss."""
    absolute = sum(abs(c) for x in found for c in x.total)
    return [sum(x.total) / absolute if absolute else 0.0 for x in found]


def reason(recipe: Recipe, found: ResponseCoefficients, t: int) -> str:
    """Return why c of token ``t`` is not A x weight, in a few words; KL and NLL count from 1% of c on."""
    weight, correction = found.token_weight[t], found.correction[t]
    factor, ratio = found.factor[t], found.ratio[t]
    words = []
    if found.state != "in_loss":
        words.append(STATES[found.state])
    elif factor == 0 and ratio is not None:
        words.append("clipped high" if ratio > 1 else "clipped low")
    else:
        if weight != 1:
            words.append(f"weighted x{weight:.3g}" if weight else "masked: low entropy")
        if correction != 1:
            words.append(f"corrected x{correction:.3g}" if correction else "masked by the correction")
        if factor is not None and ratio is not None:
            words.append(_of_ratio(recipe, factor, ratio))
        elif found.surrogate[t]:
            words.append("through its response")
    for name, part in (("NLL", found.nll[t]), ("KL", found.kl[t])):
        if part and abs(part) >= 0.01 * abs(found.total[t]):
            words.append(f"{name} {part:+.2g}")
    return ", ".join(filter(None, words))


def _of_ratio(recipe: Recipe, factor: float, ratio: float) -> str:
    """Return what ratio and clip rule did to a token that is not clipped."""
    plain = math.isclose(factor, ratio, rel_tol=1e-5)
    if recipe.loss.kind == "pair_dpo":
        return f"margin x{factor:.3g}"
    if recipe.clip.kind == "aspo" and math.isclose(factor * ratio, 1, rel_tol=1e-5) and not plain:
        return "ratio flipped"
    if recipe.clip.kind == "kl_cov" and not plain:
        return f"ratio with penalty x{factor:.3g}"
    if recipe.clip.kind in CAPS and not plain:
        return "capped" if factor < ratio else "raised to the floor"
    if recipe.clip.kind in ("soft_gate", "vespo") and not plain:
        return f"gated x{factor / ratio:.2g}"
    if math.isclose(factor, 1, rel_tol=1e-5):
        return ""
    return "ratio" if plain else f"sequence ratio x{factor:.3g}"
