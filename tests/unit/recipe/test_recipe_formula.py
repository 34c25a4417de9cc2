"""Formulas: every level and every parameter of a recipe shows in them, and those of the presets are the papers'."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import ValidationError

from paribus.recipe.formula import formula, render
from paribus.recipe.patch import apply
from paribus.recipe.pieces import LETTERS, PIECES
from paribus.recipe.presets import load_preset, preset_names
from paribus.recipe.recipe import FACTORS, Recipe, flatten
from paribus.recipe.shape import Choice, Leaf, Named, Shape, recipe_shape

WHITEN = {"kind": "batch_whiten", "unit": "token"}
SAMPLES: tuple[dict[str, Any], ...] = (
    {"length": {"rule": {"kind": "soft_overlong", "soft_start": 20, "hard_cap": 30}, "truncated": "mask_loss"}},
    {
        "length.truncated": "drop",
        "clip": "none",
        "ratio": "seq_product",
        "aggregation": {"kind": "const", "length": 12},
    },
    {"clip": "ppo_dual", "scale": {"kind": "batch_std_raw", "unit": "token"}, "aggregation": "token_micro"},
    {"clip": "dppo_tv"},
    {"clip": "dppo_kl", "correction": {"kind": "chain", "mask": "geo_mask", "weight": "token_mask"}},
    {"correction": {"kind": "chain", "mask": "off_policy_mask", "weight": "seq_truncate"}},
    {"correction": "chain", "clip": "ce_gppo"},
    {"clip": "aspo"},
    {"clip": "vespo", "ratio": "seq_product", "kl": "loss"},
    {"clip": "clip_cov"},
    {"clip": "kl_cov"},
    {"clip": "bapo"},
    {"clip": "two_sided", "correction": "token_mask", "token_weight": {"kind": "router_shift", "target": "token"}},
    {"correction": "seq_truncate", "token_weight": "top_entropy", "kl": {"kind": "loss_isw", "beta": 0.1}},
    {"correction": "seq_mask", "token_weight": "advantage_reweight", "kl": {"kind": "loss", "reference": "synced"}},
    {"correction": "geo_mask", "auxiliary.entropy": 0.01, "kl": {"kind": "reward", "estimator": "k3", "beta": 0.1}},
    {"kl": {"kind": "advantage", "reference": {"kind": "model", "name": "the_teacher"}}},
    {"kl": {"kind": "reward", "unit": "token", "beta": 0.1}, "baseline": "batch_mean", "scale": WHITEN},
    {"baseline": "group_length_weighted", "length.keep": "efficient"},
    {"baseline": "group_steps"},
    *(
        {"loss": {"kind": "opmd", "unit": unit}, "ratio": "none", "clip": "none", "length.keep": "shortest"}
        for unit in ("sequence", "token")
    ),
    *(
        {"baseline": {"kind": "pass_at_k", "k": 3, "control": control}, "scale": scale}
        for control, scale in (("none", "none"), ("loo_minus_one", "group_std"), ("mean", "pass_at_k_std"))
    ),
    {"reward": {"factor": 2.0, "weights": {"correct": -1.5, "format": 0.5}}, "filter": "refill_async"},
)
"""Patches that, with the presets, choose every level."""

PARTS = ("loss", "schedule.update", *FACTORS[1:])
SILENT = {"auxiliary.value.learning_rate", "length.count_masked_rows"}
"""Not part of the objective; and told of masked responses only, which has its own test."""

GOLDEN = {
    "grpo": """
        reward       R    = score
        baseline     b    = mean of R over the group
        scale        A    = (R − b) / (std of R over the group + 1e-6)
        ratio        r    = π(o_t) / π_old(o_t)
        clip         s    = min(r A, clip(r, 0.8, 1.2) A)
        kl           k    = exp(−u) − 1 + u,  u = log(π(o_t) / π_ref(o_t))
        aggregation  J    = (1/N) Σ_i (1/L) Σ_t (s − 0.04 k)
        loss         loss = −J""",
    "dapo": """
        reward       R    = 2y − 1 + P(L)
        length       P(L) = clip((16384 − L) / 4096, −1, 0)
        filter       only groups with 0 < Σ y < G; refilled in at most 10 rounds
        baseline     b    = mean of R over the group
        scale        A    = (R − b) / (std of R over the group + 1e-6)
        ratio        r    = π(o_t) / π_old(o_t)
        clip         s    = min(r A, clip(r, 0.8, 1.28) A)
        aggregation  J    = (1/T) Σ_i Σ_t s
        loss         loss = −J""",
    "dr_grpo": """
        reward       R    = y
        baseline     b    = mean of R over the group
        scale        A    = R − b
        ratio        r    = π(o_t) / π_old(o_t)
        clip         s    = min(r A, clip(r, 0.8, 1.2) A)
        aggregation  J    = (1/N) Σ_i (1/C) Σ_t s
        loss         loss = −J""",
    "gspo": """
        reward       R    = score
        baseline     b    = mean of R over the group
        scale        A    = (R − b) / (std of R over the group + 1e-6)
        ratio        r    = (Π_t π(o_t) / π_old(o_t))^(1/L)
        clip         s    = min(r A, clip(r, 0.9997, 1.0004) A)
        aggregation  J    = (1/N) Σ_i (1/L) Σ_t s
        loss         loss = −J""",
    "cispo": """
        reward       R    = score
        baseline     b    = mean of R over the group
        scale        A    = (R − b) / (std of R over the group + 1e-6)
        ratio        r    = π(o_t) / π_old(o_t)
        clip         s    = sg[min(r, 1.28)] A log π(o_t)
        aggregation  J    = (1/T) Σ_i Σ_t s
        loss         loss = −J""",
    "vapo": """
        reward       R      = y
        baseline     ρ_t    = R [t = L]
                     δ_t    = ρ_t + γ V_{t+1} − V_t,  γ = 1
                     A_t    = δ_t + γ λ A_{t+1},  λ = 1 − 1/(0.05 L), within [0, 1]
        ratio        r      = π(o_t) / π_old(o_t)
        clip         s      = min(r A_t, clip(r, 0.8, 1.28) A_t)
        aggregation  J      = (1/T) Σ_i Σ_t s
        auxiliary    NLL    = −(1/T⁺) Σ_t log π(o_t), over the responses with y = 1
        loss         loss   = −J + 0.1 NLL
        auxiliary    Ret_t  = V_t + A_t with λ = 1
                     loss_V = ½ mean of (V_t − Ret_t)²
                     50 batches of the initial policy come before, for the critic alone""",
    "gmpo": """
        reward       R    = score
        baseline     b    = mean of R over the group
        scale        A    = (R − b) / (std of R over the group + 1e-6)
        ratio        r_t  = π(o_t) / π_old(o_t)
        clip         h_t  = min(log r_t, 0.4) where A > 0, else max(log r_t, −0.4)
                     s    = exp((1/L) Σ_t h_t) A
        aggregation  J    = (1/N) Σ_i (1/L) Σ_t s
        loss         loss = −J""",
    "rloo": """
        reward       R    = score − 0.03 K
        kl           u_t  = log(π_old(o_t) / π_ref(o_t))
                     K    = Σ_t u_t
        baseline     b    = mean of R over the other responses of the group
        scale        A    = R − b
        clip         s    = A log π(o_t)
        aggregation  J    = (1/N) Σ_i Σ_t s
        loss         loss = −J""",
    "pair_dpo_extremes": """
        reward  R    = score
        filter  only groups with unequal R; the batch shrinks
        loss    o⁺   = the response with the largest R of its group
                o⁻   = the response with the smallest R of its group
                ℓ(o) = Σ_t log(π(o_t) / π_ref(o_t))
                loss = −log σ(0.1 (ℓ(o⁺) − ℓ(o⁻))), mean over the groups""",
}  # fmt: skip


def levels(shape: Shape, path: str) -> Iterator[tuple[str, str]]:
    """Yield path and name of every level below a shape: of unions, and of fields with named values."""
    if isinstance(shape, Leaf):
        annotation = shape.field.annotation
        if get_origin(annotation) is Literal and isinstance(get_args(annotation)[0], str):
            yield from ((path, value) for value in get_args(annotation))
        return
    if isinstance(shape, Named):  # functions of the study have no levels
        return
    if isinstance(shape, Choice):
        yield from ((path, kind) for kind in shape.levels)
    records = shape.levels.values() if isinstance(shape, Choice) else [shape]
    for record in records:
        for name, inner in record.fields.items():
            yield from levels(inner, f"{path}.{name}")


SAMPLING = "schedule.temperature_change"
"""Says how responses are sampled, and is no part of the objective."""
ALL = sorted({x for name in ("loss", *FACTORS) for x in levels(recipe_shape().fields[name], name) if x[0] != SAMPLING})


def made(patch: dict[str, Any], start: Recipe | None = None) -> Recipe:
    """Return the default recipe, or another, with a patch."""
    patched = apply((start or Recipe()).model_dump(), patch)
    assert not patched.faults, patched.faults
    return Recipe.model_validate(patched.values)


def told(recipe: Recipe) -> str:
    """Return all that a formula says."""
    found = formula(recipe)
    return "\n".join([*render(found.lines), *map(" ".join, found.letters.items())])


RECIPES = {**{name: load_preset(name).recipe for name in preset_names()}, **{str(p): made(p) for p in SAMPLES}}


def test_every_level_of_every_factor_has_its_piece() -> None:
    """A level that is added to a factor is added to the formula too, and none that is gone stays."""
    assert [(path, kind) for path, kind in ALL if kind not in PIECES.get(path, {})] == []
    known = {(path, kind) for path, pieces in PIECES.items() for kind in pieces}
    assert known - set(ALL) == {("auxiliary", name) for name in ("entropy", "positive_nll", "value")}


def test_the_recipes_of_these_tests_choose_every_level() -> None:
    """So that each piece is filled in at least once."""
    chosen = {(k.removesuffix(".kind"), v) for r in RECIPES.values() for k, v in flatten(r.model_dump()).items()}
    assert [found for found in ALL if found not in chosen] == []


FUNCTIONS = {"reward": {"kind": "function", "functions": {
    "a": {"path": "m.a", "weight": -0.5}, "b": "m.b", "none": {"path": "m.c", "weight": 0.0},
}}}  # fmt: skip


def test_the_studys_own_functions_are_terms_of_the_reward() -> None:
    """With their weights; one of weight 0 is not."""
    text = told(made(FUNCTIONS))
    assert "= −0.5 f_a + f_b\n" in text
    assert "f_…" in text
    assert "f_none" not in text


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_parameter_of_the_objective_shows_in_the_formula(name: str) -> None:
    """Changing a parameter of a level, wherever the recipe allows it, changes what the formula says."""
    recipe, before = RECIPES[name], told(RECIPES[name])
    acts = ("loss", "reward", "length", "filter") if recipe.loss.kind == "pair_dpo" else PARTS
    unseen = []
    for path, value in flatten(recipe.model_dump()).items():
        if path in SILENT or not path.startswith(acts):
            continue
        for other in others(path, value):
            try:
                changed = made({path: other}, recipe)
            except ValidationError:
                continue
            if told(changed) == before:
                unseen.append((path, value, other))
    assert unseen == []


def others(path: str, value: object) -> list[object]:
    """Return values unlike this one, of which at least one is mostly allowed; levels are left as they are."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [1 - value] if path.endswith("ddof") else [value + 1]
    if isinstance(value, float):
        return [value * 1.25 + 0.03125, value * 0.75 - 0.015625]
    return [kind for found, kind in ALL if found == path and kind != value]


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_formulas_are_complete(name: str) -> None:
    """No template is left, symbols are defined once, and what is used is defined by a line or among the letters."""
    found = formula(RECIPES[name])
    text = told(RECIPES[name])
    assert re.findall(r"\{(?!t\+1\}|j ≥ t\})|None|  = $", text) == []
    defined = [line.defines for line in found.lines if line.defines]
    assert len(defined) == len(set(defined))
    symbols = {
        "A",
        "A_t",
        "R",
        "R_t",
        "b",
        "r",
        "r_t",
        "s",
        "J",
        "K",
        "u_t",
        "u_j",
        "k",
        "H",
        "NLL",
        "Â",
        "Â_t",
        "N",
        "T",
    }
    lines = "\n".join(f"{line.left} {line.right}" for line in found.lines)
    used = {symbol for symbol in symbols if re.search(rf"(?<!\w){symbol}(?!\w)", lines)}
    inside = set(re.findall(r",  (\w) =", lines))
    assert used - set(defined) - set(found.letters) - inside == set()


def test_formulas_of_presets_are_pairwise_distinct_but_for_aliases() -> None:
    """Two algorithms that differ in the objective read differently."""
    texts = {name: told(load_preset(name).recipe) for name in preset_names() if load_preset(name).alias_of is None}
    assert len(set(texts.values())) == len(texts)


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_formulas_of_published_algorithms(name: str) -> None:
    """They are the papers', checked by hand against each."""
    assert render(formula(load_preset(name).recipe).lines) == textwrap.dedent(GOLDEN[name].strip("\n")).splitlines()


@pytest.mark.parametrize(
    ("preset", "patch", "line"),
    [
        ("grpo", {"clip": "ppo_dual"}, "s = min(r A, clip(r, 0.8, 1.2) A), and where A < 0 not below 3 A"),
        ("grpo", {"clip": {"kind": "is_cap_sg", "floor": 0.5}}, "s = sg[clip(r, 0.5, 1.28)] A log π(o_t)"),
        ("grpo", {"clip": "dppo_tv"}, "s = m sg[min(r, 20)] A log π(o_t)"),
        ("grpo", {"clip": "dppo_tv"}, "m = 0 where A > 0 and p − q > 0.15, or A < 0 and q − p > 0.15, else 1"),
        ("grpo", {"clip": "dppo_kl"}, "D = q log(q/p) + (1 − q) log((1 − q)/(1 − p))"),
        (
            "grpo",
            {"clip": "ce_gppo"},
            "s = β r A,  β = 0.75 · 0.8 / sg[r] where A < 0 and r < 0.8, "
            "1 · 1.2 / sg[r] where A > 0 and r > 1.2, else 1",
        ),
        ("grpo", {"clip": "aspo"}, "ω = min(1/r, 3) where A > 0, else min(r, 3)"),
        ("grpo", {"clip": "vespo"}, "s = sg[φ] A log π(o_t),  φ = r^κ exp(η (1 − r))"),
        ("grpo", {"clip": "clip_cov"}, "s = min(r A, clip(r, 0.8, 1.2) A), 0 on the tokens that are drawn"),
        (
            "grpo",
            {"clip": "kl_cov"},
            "s = r A, less 1 |log(π(o_t) / π_old(o_t))| at the 0.0002 of tokens with the largest v",
        ),
        ("grpo", {"clip": "bapo"}, "s = min(r A, clip(r, lo, hi) A)"),
        ("grpo", {"baseline": "none"}, "A = R / (std of R over the group + 1e-6)"),
        ("grpo", {"ratio": "none"}, "r = π(o_t) / sg[π(o_t)]"),
        ("grpo", {"correction": "token_truncate"}, "J = (1/N) Σ_i (1/L) Σ_t (c s − 0.04 k)"),
        ("grpo", {"auxiliary.entropy": -0.5}, "loss = −J + 0.5 H"),
        ("grpo", {"reward": {"factor": 2.0, "weights": {"format": -0.5}}}, "R = 2 (score − 0.5 form)"),
        ("grpo", {"reward": {"map": "pm1", "weights": {"correct": -1.0}}}, "R = −(2y − 1)"),
        ("dapo", {"length.rule.factor": 0.5}, "R = 2y − 1 + 0.5 P(L)"),
        ("rspo", {}, "r_t = γ_t π(o_t) / π_old(o_t)"),
        ("rspo", {"ratio": "seq_geo", "clip": "ppo_min"}, "r = (Π_t γ_t π(o_t) / π_old(o_t))^(1/L)"),
        ("rspo", {"token_weight.target": "token"}, "A ← γ_t A"),
        ("rloo", {"kl.estimator": "k3"}, "K = Σ_t (exp(−u_t) − 1 + u_t)"),
        ("reinforce_pp", {}, "R_t = R − 0.01 Σ_{j ≥ t} u_j"),
        ("reinforce_pp", {}, "b = mean of R_1 over the batch"),
        ("ppo", {}, "ρ_t = R [t = L] − 0.01 u_t"),
        ("ppo", {}, "loss_V = ½ mean of max((V_t − Ret_t)², (clip(V_t, V_old,t ± 0.2) − Ret_t)²)"),
        ("gdpo_multireward", {}, "Â = z(score) + z(form)"),
        ("reinforce_pp_baseline", {}, "A = (R − b) / (std of (R − b) over the responses of the batch + 1e-6)"),
        ("reinforce_pp_baseline", {}, "k = ½ u²,  u = log(π(o_t) / π_ref(o_t))"),
        ("lite_ppo", {}, "A = (R − b) / (std of R over the responses of the batch + 1e-6)"),
        ("reinforce_rej", {}, " only groups with 0 < Σ y < G; the batch shrinks"),
        ("olmo3", {}, "c = min(w, 2),  w = π_old(o_t) / π_sampler(o_t)"),
        ("olmo3", {}, "J = (1/T) Σ_i Σ_t c s"),
        ("dapo_paper_agg", {}, "J = mean over the groups of (1/T_g) Σ_i Σ_t s, i in the group"),
        ("gspo_token", {}, "r = sg[(Π_t π(o_t) / π_old(o_t))^(1/L)] π(o_t) / sg[π(o_t)]"),
        ("rspo", {}, "γ_t = max(exp(−mean |log g_t(e) − log g_old,t(e)|), 0.8), no gradient"),
        ("ppo", {}, "A_t = (Â_t − mean of Â_t) / (std of Â_t + 1e-6), over the tokens of the batch"),
        ("dr_grpo", {"aggregation.length": 3000}, "J = (1/N) Σ_i (1/3000) Σ_t s"),
        ("dr_grpo", {"clip": "two_sided"}, "s = min(min(r, 4) A, clip(r, 0.8, 1.2) A)"),
        (
            "dr_grpo",
            {"aggregation": "token_micro"},
            "J = mean over 2 micro-batches of (1/T_m) Σ_i Σ_t s, i in the micro-batch",
        ),
        ("dr_grpo", {"ratio": "seq_product"}, "r = Π_t π(o_t) / π_old(o_t)"),
        ("dr_grpo", {"correction": "seq_mask"}, "c = W if 0.5 ≤ W ≤ 2, else 0,  W = Π_t π_old(o_t) / π_sampler(o_t)"),
        (
            "dr_grpo",
            {"correction": "geo_mask"},
            "c = 1 if 0.5 ≤ W^(1/L) ≤ 2, else 0,  W = Π_t π_old(o_t) / π_sampler(o_t)",
        ),
        (
            "deepseek_v32",
            {},
            "M = 0 where A < 0 and (1/L) Σ_t log(π_sampler(o_t) / π(o_t)) > 0.5, else 1",
        ),
        ("deepseek_v32", {}, "J = (1/N) Σ_i (1/L) Σ_t (M s − 0.001 k)"),
        ("dr_grpo", {"correction": "chain"}, "J = (1/N) Σ_i (1/C) Σ_t M c s"),
        ("dr_grpo", {"correction": "chain"}, "c = min(w, 2),  w = π_old(o_t) / π_sampler(o_t)"),
        (
            "dr_grpo",
            {"correction": {"kind": "chain", "mask": "geo_mask"}},
            "M = 1 if 0.5 ≤ W^(1/L) ≤ 2, else 0,  W = Π_t π_old(o_t) / π_sampler(o_t)",
        ),
        ("dr_grpo", {"token_weight": "advantage_reweight"}, "A ← (0.3 π_old(o_t) + 0.7) A"),
        (
            "dr_grpo",
            {"kl": {"kind": "loss_isw", "estimator": "k1", "beta": 0.1}},
            "k = (π(o_t) / π_old(o_t)) u,  u = log(π(o_t) / π_ref(o_t))",
        ),
        ("dcpo", {}, "J = Σ_i (1/L) Σ_t s"),
        ("dcpo", {}, "lo = ½ + ½ √max(1 − 4·0.16/q, 0),  q = π_old(o_t)"),
        ("dcpo", {}, "hi = min(½ + ½ √(1 + 4·0.2/q), 10)"),
        ("dcpo", {}, "A = the smaller in size of (1 − 1/n) Â + Ā/n and Â/n + (1 − 1/n) Ā"),
        ("sapo", {}, "s = (4/τ) σ(τ (r − 1)) A,  τ = 1 where A > 0, else 1.05"),
        ("lopti", {}, " update 1: tokens with π_old(o_t) < 0.5, the others count 0"),
    ],
)
def test_lines_of_other_levels(preset: str, patch: dict[str, Any], line: str) -> None:
    """What the presets with a formula of their own leave open, as the sources have it."""
    lines = formula(made(patch, load_preset(preset).recipe)).lines
    assert line in [f"{found.left} {found.right}" for found in lines]


def test_letters_depend_on_the_recipe() -> None:
    """Population or sample, a reference that follows, masked rows that count, the form of an answer."""
    assert formula(made({"scale.ddof": 0})).letters["std"] == "standard deviation (ddof 0)"
    synced = made({"kl": {"kind": "loss", "reference": {"kind": "synced", "every": 5, "mix": 0.75}}})
    assert formula(synced).letters["π_ref"] == "a policy that follows: 0.75 π + 0.25 π_ref, every 5 steps"
    masked = made({"length.truncated": "mask_loss", "length.count_masked_rows": True})
    assert formula(masked).letters["N"] == "responses in the optimizer batch, masked ones too"
    weighted = made({"reward": {"map": "binary01", "weights": {"format": 0.5}}})
    assert formula(weighted).letters["form"] == "1 if it ended by itself with an answer, else 0"


def test_every_letter_is_used_by_some_formula() -> None:
    """The table of letters holds none that no recipe writes."""
    used = {letter for recipe in (*RECIPES.values(), made(FUNCTIONS)) for letter in formula(recipe).letters}
    assert {letter for letter, _ in LETTERS.values()} == used
