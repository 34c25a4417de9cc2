"""The formula of a recipe, assembled from what each of its levels writes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paribus.recipe import factors as f
from paribus.recipe.pieces import LETTERS, PIECES, Piece
from paribus.recipe.recipe import Recipe

_DEFINITION = re.compile(r"(?P<left>\S+) (?P<right>[=←] .*)")
_RESULTS = frozenset({"loss", "loss_V"})


@dataclass(frozen=True)
class Line:
    """One line of a formula.

    Attributes:
        factor: the factor that writes it, as a study file calls it.
        left: the symbol that it defines or changes; empty for a sentence.
        right: what the symbol is, from ``=`` or ``←`` on; or the sentence.
    """

    factor: str
    left: str
    right: str

    @property
    def defines(self) -> str:
        """The symbol that the line defines, without arguments; empty if it defines none."""
        return self.left.split("(")[0] if self.right.startswith("=") else ""


@dataclass(frozen=True)
class Formula:
    """What a recipe trains on, as plain text.

    Attributes:
        lines: in the order in which they act.
        letters: what the letters mean that no line defines.
    """

    lines: tuple[Line, ...]
    letters: Mapping[str, str]


def formula(recipe: Recipe) -> Formula:
    """Return the formula of a recipe.

    Levels that do nothing write nothing. Where two levels define a symbol, the first holds: a critic defines the
    advantage that the scale would. What no other line uses is left out.
    """
    lines: list[Line] = []
    for factor, text in _written(recipe):
        found = _DEFINITION.fullmatch(text)
        line = Line(factor, found["left"], found["right"]) if found else Line(factor, "", text)
        if not line.defines or all(line.defines != earlier.defines for earlier in lines):
            lines.append(line)
    while unused := [line for line in lines if not _counts(line, lines)]:
        lines = [line for line in lines if line not in unused]
    text = "\n".join(f"{line.left} {line.right}" for line in lines)
    letters = [found for pattern, found in LETTERS.items() if re.search(pattern, text)]
    return Formula(tuple(lines), {letter: meaning.format_map(_meanings(recipe)) for letter, meaning in letters})


def render(lines: Iterable[Line]) -> list[str]:
    """Return lines of a formula as text, with factors and symbols in columns."""
    shown = list(lines)
    factor = max((len(line.factor) for line in shown), default=0)
    left = max((len(line.left) for line in shown), default=0)
    texts = [f"{line.left:{left}} {line.right}" if line.left else line.right for line in shown]
    return [f"{name:{factor}}  {text}" for name, text in zip(names(shown), texts, strict=True)]


def names(lines: Iterable[Line]) -> list[str]:
    """Return the factor of each line, or nothing where the line before has the same."""
    factors = [line.factor for line in lines]
    return ["" if k and factors[k - 1] == name else name for k, name in enumerate(factors)]


def _counts(line: Line, lines: Iterable[Line]) -> bool:
    if not line.defines or line.defines in _RESULTS:
        return True
    symbol = re.compile(rf"(?<!\w){re.escape(line.defines)}(?!\w)")
    return any(symbol.search(f"{other.left} {other.right}") for other in lines if other is not line)


def _written(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield factor and text of every line, in the order in which they act."""
    symbols = _symbols(recipe)
    for path in ("reward.combine", "length.rule", *_kl_paths(recipe, "reward"), "length.truncated"):
        yield from _filled(recipe, path, symbols)
    for path in ("length.keep", "filter"):
        yield from _filled(recipe, path, symbols)
    if recipe.loss.kind == "pair_dpo":
        yield from _filled(recipe, "loss", symbols)
        return
    for path in ("baseline", "baseline.control", "scale", *_kl_paths(recipe, "advantage")):
        yield from _filled(recipe, path, symbols)
    for path in ("token_weight", "token_weight.target", "ratio", "clip"):
        yield from _filled(recipe, path, symbols)
    for path in ("correction", "correction.mask", "correction.weight"):
        yield from _filled(recipe, path, symbols)
    for path in (*_kl_paths(recipe, "loss"), "aggregation"):
        yield from _filled(recipe, path, symbols)
    yield from _filled(recipe, "loss.unit", symbols)
    yield from _auxiliary(recipe, symbols)
    yield from _filled(recipe, "schedule.update", symbols)


def _kl_paths(recipe: Recipe, place: str) -> tuple[str, ...]:
    """Return what KL writes in one of the places where it can act: reward, advantage or loss."""
    if (recipe.kl.kind if recipe.kl.kind in ("reward", "advantage") else "loss") != place:
        return ()
    return ("kl", "kl.unit") if place == "reward" else ("kl",)


def _filled(recipe: Recipe, path: str, symbols: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    piece, parameters = _piece(recipe, path)
    for template in piece.lines:
        yield path.split(".")[0], template.format_map({**symbols, **parameters})


def _auxiliary(recipe: Recipe, symbols: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the losses beside J, then the loss."""
    level = recipe.auxiliary
    pieces, loss = PIECES["auxiliary"], PIECES["loss"]["policy_gradient"].term
    if isinstance(recipe.loss, f.MirrorDescent):
        loss += _signed(recipe.loss.tau / 2, "D")
    for name, coefficient, sign in (("positive_nll", level.positive_nll, 1), ("entropy", level.entropy, -1)):
        if coefficient:
            yield from (("auxiliary", line) for line in pieces[name].lines)
            loss += _signed(sign * coefficient, pieces[name].term)
    yield "loss", f"loss = {loss}"
    if level.value is not None:
        for line in pieces["value"].lines:
            yield "auxiliary", line.format_map({**symbols, **_parameters(level.value)})
        if level.value.pretrain_steps:
            batches = level.value.pretrain_steps
            yield "auxiliary", f"{batches} batches of the initial policy come before, for the critic alone"


def _symbols(recipe: Recipe) -> dict[str, str]:
    """Return the symbols whose form depends on more than one factor."""
    critic = recipe.baseline.kind == "critic_gae"
    by_token = getattr(recipe.kl, "unit", "sequence") == "token"
    steps = recipe.baseline.kind == "group_steps"
    t = "_t" if critic or by_token or steps or recipe.kl.kind == "advantage" else ""
    reward = "r_j" if steps else "R_t" if by_token and not critic else "R"
    advantage, raw = f"A{t}", f"Â{t}"
    gae = advantage if recipe.scale.kind == "none" else raw
    centred = reward if recipe.baseline.kind == "none" else f"{reward} − b"
    centred = "Σ_{j ≥ t} (r_j − b)" if steps else _term(recipe, "baseline.control") or centred
    mean = "b" if recipe.baseline.kind == "group_mean" else "mean of its group"
    return {
        "R": reward,
        "whole": reward.replace("_t", "_1"),
        "A": advantage,
        "Â": raw,
        "gae": gae,
        "gae_next": gae.replace("_t", "_{t+1}"),
        "centred": centred,
        "numerator": f"({centred})" if " " in centred and not steps else centred,
        "deviation": f"({reward} − {mean})",
        "plain": f"{advantage} log π(o_t)" if recipe.ratio.kind == "none" else f"r {advantage}",
        "shift": _term(recipe, "token_weight.target"),
        "eps": _number(getattr(recipe.scale, "eps", 0.0)),
        "k": _number(getattr(recipe.baseline, "k", 0)),
        "unit": _term(recipe, "scale.unit"),
        "spread": _term(recipe, "filter.metric"),
        "lambda_": _term(recipe, "baseline.policy_lambda"),
        **_of_reward(recipe),
        **_of_kl(recipe, by_token=by_token and not critic),
        **_of_critic(recipe),
    }


def _of_reward(recipe: Recipe) -> dict[str, str]:
    level, weights = recipe.reward, recipe.reward.weights
    parts = [(weights.correct, _term(recipe, "reward.map")), (weights.format, "form")]
    parts += [(function.weight, f"f_{name}") for name, function in level.functions.items()]
    kl = _term(recipe, "kl.unit") if getattr(recipe.kl, "unit", "") == "sequence" else ""
    return {
        "reward": _times(level.factor, _sum(parts)),
        "normed": _sum([(weight, f"z({_times(level.factor, text)})") for weight, text in parts]),
        "shaping": _term(recipe, "length.rule") + kl,
    }


def _of_kl(recipe: Recipe, *, by_token: bool) -> dict[str, str]:
    """Return the estimate, and what J averages: the surrogate with its correction and the KL of the loss."""
    in_reward = recipe.kl.kind == "reward"
    j = "j" if by_token else "t"
    estimate = _term(recipe, "kl.estimator", u=f"u_{j}" if in_reward else "u")
    corrections = ("correction", "correction.mask", "correction.weight")
    surrogate = "".join(_term(recipe, path) for path in corrections) + "s"
    loss = "" if in_reward else _term(recipe, "kl")
    return {
        "j": j,
        "estimate": f"({estimate})" if " " in estimate and recipe.kl.kind != "loss" else estimate,
        "x": f"({surrogate}{loss})" if loss else surrogate,
    }


def _of_critic(recipe: Recipe) -> dict[str, str]:
    level, value = recipe.baseline, recipe.auxiliary.value
    if not isinstance(level, f.CriticGae) or value is None:
        return {}
    error = "(V_t − Ret_t)²"
    if value.clip is not None:
        error = f"max({error}, (clip(V_t, V_old,t ± {_number(value.clip)}) − Ret_t)²)"
    by_token = getattr(recipe.kl, "unit", "") == "token"
    estimate = _of_kl(recipe, by_token=False)["estimate"]
    return {
        "token_kl": _term(recipe, "kl.unit", estimate=estimate) if by_token else "",
        "critic_lambda": _number(level.critic_lambda),
        "error": error,
    }


def _term(recipe: Recipe, path: str, **symbols: str) -> str:
    piece, parameters = _piece(recipe, path)
    return piece.term.format_map({**symbols, **parameters})


def _piece(recipe: Recipe, path: str) -> tuple[Piece, dict[str, str]]:
    """Return what the level at a path writes, with its parameters as text; nothing where there is no such path."""
    owner: Any = recipe
    value: Any = recipe
    for name in path.split("."):
        owner, value = value, getattr(value, name, None)
    if value is None:
        return Piece(), {}
    if isinstance(value, f.Level):
        return PIECES[path][value.kind], _parameters(value)  # type: ignore[attr-defined]  # only levels with a kind
    return PIECES[path][value], _parameters(owner)


def _parameters(level: f.Level) -> dict[str, str]:
    """Return the numbers of a level as text, with those that its formula derives from them."""
    found = {name: _number(value) for name, value in level if isinstance(value, int | float)}
    if isinstance(level, f.PpoMin | f.PpoDual | f.TwoSided | f.GradientPreserving | f.FlippedRatio | f.ClipCov):
        return found | {"floor": _number(1 - level.low), "ceiling": _number(1 + level.high)}
    if isinstance(level, f.CappedWeight):
        bounded = f"clip(r, {found['floor']}, {found['cap']})" if level.floor else f"min(r, {found['cap']})"
        return found | {"capped": bounded}
    if isinstance(level, f.SoftOverlong):
        return found | {"cache": _number(level.hard_cap - level.soft_start), "factored": _times(level.factor, "P(L)")}
    if isinstance(level, f.AdvantageReweight):
        return found | {"rest": _number(1 - level.alpha)}
    if isinstance(level, f.SyncedReference):
        return found | {"rest": _number(1 - level.mix)}
    if isinstance(level, f.ModelReference):
        return {"name": level.name}
    if isinstance(level, f.ConstantLength):
        return {"length": "C" if level.length is None else found["length"]}
    return found


def _meanings(recipe: Recipe) -> dict[str, str]:
    """Return the meanings of letters that depend on the recipe."""
    ddof = getattr(recipe.scale, "ddof", 1)
    masked = recipe.length.truncated == "mask_loss" and recipe.length.count_masked_rows
    return {
        "form": f"1 if it ended by itself with an answer, else {'0' if recipe.reward.map == 'binary01' else '−1'}",
        "masked": ", masked ones too" if masked else "",
        "std": f"standard deviation (ddof {ddof})",
        "reference": _term(recipe, "kl.reference") or PIECES["kl.reference"]["fixed"].term,
    }


def _sum(parts: Iterable[tuple[float, str]]) -> str:
    """Return ``y + 0.5 form``."""
    text = "".join(_signed(weight, symbol) for weight, symbol in parts if weight)
    return re.sub(r"^ − ", "−", text.removeprefix(" + ")) or "0"


def _signed(coefficient: float, symbol: str) -> str:
    if coefficient == -1:
        return f" − {_bracketed(symbol)}"
    return f" {'−' if coefficient < 0 else '+'} {_times(abs(coefficient), symbol)}"


def _times(coefficient: float, symbol: str) -> str:
    return symbol if coefficient == 1 else f"{_number(coefficient)} {_bracketed(symbol)}"


def _bracketed(symbol: str) -> str:
    return f"({symbol})" if re.search(r" [+−] ", symbol) else symbol


def _number(value: float) -> str:
    """Return ``0.28``, ``−1`` or ``1e-6``."""
    digits = re.sub(r"e([+-])0*", r"e\1", f"{abs(value):.10g}").replace("e+", "e")
    return f"−{digits}" if value < 0 else digits
