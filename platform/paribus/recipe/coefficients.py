"""The weight of each token of given responses in the gradient, and why: the records between files, runners and tables.

All policy gradient methods are one formula, grad = -sum c[i,t] grad log pi(o[i,t]), and differ in how c is made
(DeepSeekMath, arXiv 2402.03300, section 5.2).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paribus.errors import BatchFileError, Problem
from paribus.recipe.recipe import Recipe
from paribus.yaml_file.messages import explain

EVEN = log(0.5)
"""Log-probability of a token if the file gives none, nats."""

DEFAULTS: Mapping[str, tuple[str, Callable[[Recipe], bool]]] = {
    "score": ("1 for a correct response, -1 for any other", lambda r: r.reward.map == "scalar"),
    "correct": ("true where the score is above 0", lambda r: True),
    "formatted": ("true where the response is not truncated", lambda r: r.reward.weights.format != 0),
    "truncated": ("false", lambda r: r.length.truncated != "as_scored"),
    "logp_old": ("log 0.5", lambda r: True),
    "logp_new": ("logp_old (on-policy: every ratio is 1 and no clip acts)", lambda r: True),
    "logp_sampler": ("logp_old (sampler and learner agree)", lambda r: r.correction.kind != "off"),
    "logp_reference": (
        "logp_old (the reference is the old policy)",
        lambda r: r.kl.kind != "off" or r.loss.kind == "pair_dpo",
    ),
    "entropy": ("1 nat", lambda r: r.token_weight.kind == "top_entropy"),
    "value": ("0", lambda r: r.baseline.kind == "critic_gae"),
}
"""For each field that a line may leave out: what it is taken as, and whether a recipe reads it."""


_LogP = Annotated[tuple[Annotated[float, Field(ge=-100, le=0)], ...], Field(strict=False)]
_PER_TOKEN = ("logp_old", "logp_new", "logp_sampler", "logp_reference", "entropy", "value")


class Response(BaseModel):
    """A response as the objective sees it. Token fields have one entry a token, log-probabilities in nats.

    Attributes:
        group: the prompt that it answers; responses with equal text are a group.
        score: the task's own score.
        correct: the verifier's verdict.
        formatted: whether it ended by itself and holds an answer.
        truncated: whether it hit the length limit.
        length: tokens.
        tokens: texts of the tokens; empty if unknown.
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
    score: float
    formatted: bool
    truncated: bool
    length: Annotated[int, Field(ge=1, le=100_000)]
    tokens: Annotated[tuple[str, ...], Field(strict=False)]
    logp_old: _LogP
    logp_new: _LogP
    logp_sampler: _LogP
    logp_reference: _LogP
    entropy: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(strict=False)]
    value: Annotated[tuple[float, ...], Field(strict=False)]

    @model_validator(mode="after")
    def _one_entry_a_token(self) -> Response:
        sizes = {name: len(getattr(self, name)) for name in ("tokens", *_PER_TOKEN) if name != "tokens" or self.tokens}
        if wrong := [f"`{name}` has {size}" for name, size in sizes.items() if size != self.length]:
            raise ValueError(f"needs one entry for each of its {self.length} tokens: {', '.join(wrong)}")
        return self


State = Literal["in_loss", "zero_spread", "filtered", "dropped", "masked", "no_pair"]
STATES: Mapping[State, str] = {
    "in_loss": "",
    "zero_spread": "zero spread",
    "filtered": "filtered: its group has no spread",
    "dropped": "dropped: truncated",
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

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self.total)

    @property
    def in_loss(self) -> bool:
        """Whether the response enters the loss."""
        return self.state in ("in_loss", "zero_spread")


def reason(recipe: Recipe, found: ResponseCoefficients, t: int) -> str:
    """Return why c of token ``t`` is not A x weight, in a few words; KL and NLL count from 1% of c on."""
    return ", ".join(_reasons(recipe, found, t))


def _reasons(recipe: Recipe, found: ResponseCoefficients, t: int) -> Iterator[str]:
    factor, ratio = found.factor[t], found.ratio[t]
    if found.state != "in_loss":
        yield STATES[found.state]
    elif found.advantage[t] == 0:
        yield "A is 0"
    elif factor == 0 and ratio is not None:
        yield "clipped high" if ratio > 1 else "clipped low"
    else:
        if found.token_weight[t] != 1:
            yield f"weighted x{found.token_weight[t]:.3g}" if found.token_weight[t] else "masked: low entropy"
        if found.correction[t] != 1:
            yield f"corrected x{found.correction[t]:.3g}" if found.correction[t] else "masked by the correction"
        if factor is not None and ratio is not None:
            yield from _of_ratio(recipe, factor, ratio)
        elif found.surrogate[t]:
            yield "through its response"
    for name, part in (("NLL", found.nll[t]), ("KL", found.kl[t])):
        if part and abs(part) >= 0.01 * abs(found.total[t]):
            yield f"{name} {part:+.2g}"


def _of_ratio(recipe: Recipe, factor: float, ratio: float) -> Iterator[str]:
    """Yield what ratio and clip rule did to a token that is not clipped."""
    plain = math.isclose(factor, ratio, rel_tol=1e-5)
    if recipe.loss.kind == "pair_dpo":
        yield f"margin x{factor:.3g}"
    elif recipe.clip.kind == "is_cap_sg" and not plain:
        yield "capped" if factor < ratio else "raised to the floor"
    elif recipe.clip.kind == "soft_gate" and not plain:
        yield f"gated x{factor / ratio:.2g}"
    elif not math.isclose(factor, 1, rel_tol=1e-5):
        yield "ratio" if plain else f"sequence ratio x{factor:.3g}"


def caveats(recipe: Recipe) -> list[str]:
    """Return what a batch of responses can't show of a recipe, one sentence each."""
    shift, schedule = recipe.token_weight.kind == "router_shift", recipe.schedule
    found = {
        "the entropy bonus acts on whole distributions and is no part of c": recipe.auxiliary.entropy != 0,
        "the loss of the critic is no part of c": recipe.auxiliary.value is not None,
        "the routing of all tokens is taken as unchanged (gamma = 1)": shift,
        "each prompt is taken as visited for the first time": recipe.baseline.kind == "history",
        "filtered groups are not sampled again": recipe.filter.kind in ("refill", "refill_async"),
        f"all responses are one optimizer batch; the recipe makes {schedule.minibatches}": schedule.minibatches > 1,
        "low-probability tokens are updated first, the others from the new weights: both from `logp_new` here":
            schedule.update.kind == "lopti",
    }  # fmt: skip
    return [sentence for sentence, holds in found.items() if holds]


def shares(found: Sequence[ResponseCoefficients]) -> list[float]:
    """Return each response's sum of c over the sum of all |c|, which doesn't depend on the scale of the loss."""
    absolute = sum(abs(c) for x in found for c in x.total)
    return [sum(x.total) / absolute if absolute else 0.0 for x in found]


@dataclass(frozen=True)
class ResponseBatch:
    """The responses of a file, and in how many of them each field was left out."""

    responses: tuple[Response, ...]
    defaulted: Mapping[str, int]

    def assumptions(self, recipe: Recipe) -> list[str]:
        """Return the defaults that the recipe reads, one sentence each."""
        total = len(self.responses)
        return [
            f"`{name}` is absent{'' if n == total else f' in {n} of {total} responses'}: taken as {DEFAULTS[name][0]}"
            for name, n in self.defaulted.items()
            if n and DEFAULTS[name][1](recipe)
        ]


def read_responses(path: Path) -> ResponseBatch:
    """Return the responses in a file of JSON lines; empty lines don't count.

    Raises:
        BatchFileError: the file cannot be read, or lines of it are wrong; all problems are listed with their lines.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BatchFileError(str(path), [Problem(message=f"cannot be read as UTF-8 text: {error}")]) from error
    responses: list[Response] = []
    problems: list[Problem] = []
    left_out: Counter[str] = Counter()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
            defaults = {name: value for name, value in _defaults(raw).items() if name not in raw}
            responses.append(Response.model_validate({**raw, **defaults}))
            left_out.update(defaults.keys())
        except ValidationError as error:
            problems += _problems(error, number)
        except (ValueError, RecursionError, AttributeError) as error:
            problems.append(Problem(message=f"not a JSON object: {error}", line=number))
    if not responses and not problems:
        problems = [Problem(message="the file is empty: write one response a line")]
    if problems:
        raise BatchFileError(str(path), problems)
    return ResponseBatch(tuple(responses), {name: left_out[name] for name in DEFAULTS})


def _problems(error: ValidationError, line: int) -> Iterator[Problem]:
    """Yield what is wrong with a line; a missing field that has a default needs no mention."""
    for e in error.errors(include_url=False):
        where = ".".join(str(x + 1) if isinstance(x, int) else x for x in e["loc"])
        if e["type"] == "missing" and where in _NEEDED:
            yield Problem(message=_NEEDED[where], line=line)
        elif e["type"] != "missing" or where == "group":
            yield Problem(message=explain(e, tuple(Response.model_fields)), path=where, line=line)


_NEEDED = {
    "correct": "needs `correct` (true or false) or `score` (a number)",
    "length": "needs `logp_old`, `tokens` or `length`: how many tokens has the response?",
}


def _defaults(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of :data:`DEFAULTS` that follow from a line; none that would follow from a wrong value."""
    score, correct, old = raw.get("score"), raw.get("correct"), raw.get("logp_old")
    found: dict[str, Any] = {"truncated": False, "formatted": raw.get("truncated") is not True, "tokens": ()}
    if isinstance(correct, bool):
        found["score"] = 1.0 if correct else -1.0
    if isinstance(score, int | float):
        found["correct"] = score > 0
    lists = (x for x in (old, raw.get("tokens")) if isinstance(x, list))
    length = raw["length"] if "length" in raw else next(map(len, lists), None)
    if isinstance(length, int) and length <= 100_000:
        even = (EVEN,) * length
        found |= {"length": length, "logp_old": even, "entropy": (1.0,) * length, "value": (0.0,) * length}
        right = (
            isinstance(old, list)
            and len(old) == length
            and all(isinstance(x, int | float) and -100 <= x <= 0 for x in old)
        )
        found |= dict.fromkeys(("logp_new", "logp_sampler", "logp_reference"), old if right else even)
    return found
