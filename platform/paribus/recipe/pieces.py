"""What each level of each factor writes into the formula of a recipe: templates, no logic.

A name in braces is a parameter of the level, or a symbol that :mod:`.formula` fills in. ``o_t`` is a token, ``R`` the
reward of a response, ``A`` its advantage, ``s`` the surrogate of a token, ``J`` what is maximised. The order of
operations and the meaning of each level are those of :mod:`paribus.recipe.factors` and the papers named there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """What one level writes.

    Attributes:
        lines: its lines.
        term: what it adds to a line of another factor.
    """

    lines: tuple[str, ...] = ()
    term: str = ""


NOTHING = Piece()
_BAND = "clip(r, {floor}, {ceiling}) {A}"
_W = "W = Π_t π_old(o_t) / π_sampler(o_t)"
_w = "w = π_old(o_t) / π_sampler(o_t)"
_OFF_POLICY = "M = 0 where {A} < 0 and (1/L) Σ_t log(π_sampler(o_t) / π(o_t)) > {delta}, else 1"
_COVARIANCE = "v = ({A} − mean of {A}) (log π(o_t) − mean of log π(o_t)), over the tokens of the update"
_MASKED = "s = m sg[min(r, {cap})] {A} log π(o_t)"
_CHANCES = "p = π(o_t),  q = π_old(o_t)"
_GEOMETRIC = "(Π_t {shift}π(o_t) / π_old(o_t))^(1/L)"

PIECES: Mapping[str, Mapping[str, Piece]] = {
    "loss": {
        "policy_gradient": Piece(term="−J"),
        "opmd": Piece(term="−J"),
        "pair_dpo": Piece(
            (
                "o⁺ = the response with the largest R of its group",
                "o⁻ = the response with the smallest R of its group",
                "ℓ(o) = Σ_t log(π(o_t) / π_ref(o_t))",
                "loss = −log σ({beta} (ℓ(o⁺) − ℓ(o⁻))), mean over the groups",
            )
        ),
    },
    "loss.unit": {
        "sequence": Piece(("D = (Σ_t log(π(o_t) / π_old(o_t)))² of each response, weighed as its tokens are in J",)),
        "token": Piece(("D = Σ_t (log(π(o_t) / π_old(o_t)))² of each response, weighed as its tokens are in J",)),
    },
    "schedule.update": {
        "joint": NOTHING,
        "lopti": Piece(
            (
                "update 1: tokens with π_old(o_t) < {eta}, the others count 0",
                "update 2: from the new weights, the other tokens alone",
            )
        ),
    },
    "reward.map": {"binary01": Piece(term="y"), "pm1": Piece(term="2y − 1"), "scalar": Piece(term="score")},
    "reward.combine": {
        "sum_then_norm": Piece(("R = {reward}{shaping}",)),
        "norm_then_sum": Piece(("z(x) = (x − mean of x) / (std of x + {eps}), over the group", "Â = {normed}")),
    },
    "length.rule": {
        "none": NOTHING,
        "soft_overlong": Piece(("P(L) = clip(({soft_start} − L) / {cache}, −1, 0)",), term=" + {factored}"),
    },
    "length.truncated": {
        "as_scored": NOTHING,
        "mask_loss": Piece(("truncated responses: no part in J; their rewards still enter the baseline",)),
        "drop": Piece(("truncated responses: removed before the baseline",)),
    },
    "length.keep": {
        "all": NOTHING,
        "shortest": Piece(("only the {count} shortest responses of each group",)),
        "efficient": Piece(("only the {count} responses of each group with the largest R / L",)),
    },
    "filter": {
        "none": NOTHING,
        "drop": Piece(("only groups with {spread}; the batch shrinks",)),
        "refill": Piece(("only groups with {spread}; refilled in at most {max_generation_batches} rounds",)),
        "refill_async": Piece(
            (
                "only groups with {spread}; refilled in at most {max_generation_batches} rounds, "
                "up to {max_surplus} groups kept for the next step",
            )
        ),
    },
    "filter.metric": {"correct": Piece(term="0 < Σ y < G"), "reward_std": Piece(term="unequal R")},
    "baseline": {
        "none": NOTHING,
        "group_mean": Piece(("b = mean of {R} over the group",)),
        "group_loo": Piece(("b = mean of {R} over the other responses of the group",)),
        "group_length_weighted": Piece(("b = Σ L {R} / Σ L over the group",)),
        "batch_mean": Piece(("b = mean of {whole} over the batch",)),
        "critic_gae": Piece(
            (
                "ρ_t = R [t = L]{token_kl}",
                "δ_t = ρ_t + γ V_{{t+1}} − V_t,  γ = {gamma}",
                "{gae} = δ_t + γ λ {gae_next},  {lambda_}",
            )
        ),
        "group_steps": Piece(
            (
                "r_j = reward of the step that ends at token j, at j = L with what else is in R",
                "b = mean of r over all steps of the group",
            )
        ),
        "history": Piece(("n = visits of the prompt so far, with this one",)),
        "pass_at_k": Piece(("M = mean of max {R} over the sets of {k} responses of the group that hold this one",)),
    },
    "baseline.control": {
        "none": Piece(term="{k} M"),
        "loo_minus_one": Piece(("b = the same mean, with this response taken out of each set",), term="{k} (M − b)"),
        "mean": Piece(("b = mean of max {R} over all sets of {k} responses of the group",), term="M − b"),
    },
    "baseline.policy_lambda": {
        "fixed": Piece(term="λ = {value}"),
        "length_adaptive": Piece(term="λ = 1 − 1/({alpha} L), within [0, 1]"),
    },
    "scale": {
        "none": Piece(("{A} = {centred}",)),
        "group_std": Piece(("{A} = {numerator} / (std of {R} over the group + {eps})",)),
        "batch_std_raw": Piece(("{A} = {numerator} / (std of {R} over the {unit} of the batch + {eps})",)),
        "batch_std_centred": Piece(("{A} = {numerator} / (std of {deviation} over the {unit} of the batch + {eps})",)),
        "batch_whiten": Piece(
            ("{Â} = {centred}", "{A} = ({Â} − mean of {Â}) / (std of {Â} + {eps}), over the {unit} of the batch")
        ),
        "history_smooth": Piece(
            (
                "Â = (R − mean of R) / (std of R + {eps}), over the group",
                "Ā = the same over all responses of the n visits",
                "A = the smaller in size of (1 − 1/n) Â + Ā/n and Â/n + (1 − 1/n) Ā",
            )
        ),
        "pass_at_k_std": Piece(
            ("{A} = {numerator} / (std of max {R} over all sets of {k} responses of the group + {eps})",)
        ),
    },
    "scale.unit": {"sequence": Piece(term="responses"), "token": Piece(term="tokens")},
    "ratio": {
        "none": Piece(("r = π(o_t) / sg[π(o_t)]",)),
        "token": Piece(("r = {shift}π(o_t) / π_old(o_t)",)),
        "seq_geo": Piece((f"r = {_GEOMETRIC}",)),
        "seq_geo_token": Piece((f"r = sg[{_GEOMETRIC}] π(o_t) / sg[π(o_t)]",)),
        "seq_product": Piece(("r = Π_t {shift}π(o_t) / π_old(o_t)",)),
        "geo_clipped": Piece(("r_t = {shift}π(o_t) / π_old(o_t)",)),
    },
    "clip": {
        "none": Piece(("s = {plain}",)),
        "ppo_min": Piece((f"s = min(r {{A}}, {_BAND})",)),
        "ppo_dual": Piece((f"s = min(r {{A}}, {_BAND}), and where {{A}} < 0 not below {{c}} {{A}}",)),
        "two_sided": Piece((f"s = min(min(r, {{delta}}) {{A}}, {_BAND})",)),
        "is_cap_sg": Piece(("s = sg[{capped}] {A} log π(o_t)",)),
        "soft_gate": Piece(("s = (4/τ) σ(τ (r − 1)) {A},  τ = {tau_positive} where {A} > 0, else {tau_negative}",)),
        "dynamic": Piece(
            (
                "s = min(r {A}, clip(r, lo, hi) {A})",
                "lo = ½ + ½ √max(1 − 4·{low}/q, 0),  q = π_old(o_t)",
                "hi = min(½ + ½ √(1 + 4·{high}/q), {cap})",
            )
        ),
        "ce_gppo": Piece(
            (
                "s = β r {A},  β = {beta_low} · {floor} / sg[r] where {A} < 0 and r < {floor}, "
                "{beta_high} · {ceiling} / sg[r] where {A} > 0 and r > {ceiling}, else 1",
            )
        ),
        "aspo": Piece(
            (
                "s = sg[ω / r] r {A}, no gradient where {A} > 0 and r > {ceiling} or {A} < 0 and r < {floor}",
                "ω = min(1/r, {c_positive}) where {A} > 0, else min(r, {c_negative})",
            )
        ),
        "vespo": Piece(
            (
                "s = sg[φ] {A} log π(o_t),  φ = r^κ exp(η (1 − r))",
                "κ = {k_positive} where {A} > 0, else {k_negative}",
                "η = {lambda_positive} where {A} > 0, else {lambda_negative}",
            )
        ),
        "clip_cov": Piece(
            (
                f"s = min(r {{A}}, {_BAND}), 0 on the tokens that are drawn",
                "drawn: a share {fraction} of all, among those that are not clipped with {cov_low} < v < {cov_high}",
                _COVARIANCE,
            )
        ),
        "kl_cov": Piece(
            (
                "s = {plain}, less {beta} |log(π(o_t) / π_old(o_t))| at the {fraction} of tokens with the largest v",
                _COVARIANCE,
            )
        ),
        "bapo": Piece(
            (
                "s = min(r {A}, clip(r, lo, hi) {A})",
                "lo rises from {low_start} by {low_step} to {low_end}, then hi from {high_start} by {high_step} to "
                "{high_end}, until ρ ≥ {target}",
                "ρ = Σ⁺ / (Σ⁺ + Σ⁻),  Σ⁺ = Σ min(r, hi) {A} over {A} > 0,  Σ⁻ = −Σ max(r, lo) {A} over {A} < 0",
            )
        ),
        "dppo_tv": Piece(
            (
                _MASKED,
                "m = 0 where {A} > 0 and p − q > {high}, or {A} < 0 and q − p > {low}, else 1",
                _CHANCES,
            )
        ),
        "dppo_kl": Piece(
            (
                _MASKED,
                "m = 0 where D > {high} and {A} > 0 and p > q, or D > {low} and {A} < 0 and p < q, else 1",
                "D = q log(q/p) + (1 − q) log((1 − q)/(1 − p))",
                _CHANCES,
            )
        ),
        "log_clip": Piece(
            (
                "h_t = min(log r_t, {high}) where {A} > 0, else max(log r_t, −{low})",
                "s = exp((1/L) Σ_t h_t) {A}",
            )
        ),
    },
    "aggregation": {
        "seq_mean": Piece(("J = (1/N) Σ_i (1/L) Σ_t {x}",)),
        "token_group": Piece(("J = mean over the groups of (1/T_g) Σ_i Σ_t {x}, i in the group",)),
        "token_batch": Piece(("J = (1/T) Σ_i Σ_t {x}",)),
        "token_micro": Piece(
            ("J = mean over {microbatches} micro-batches of (1/T_m) Σ_i Σ_t {x}, i in the micro-batch",)
        ),
        "const": Piece(("J = (1/N) Σ_i (1/{length}) Σ_t {x}",)),
        "seq_sum": Piece(("J = (1/N) Σ_i Σ_t {x}",)),
        "seq_meansum": Piece(("J = Σ_i (1/L) Σ_t {x}",)),
    },
    "kl": {
        "off": NOTHING,
        "reward": Piece(("u_{j} = log(π_old(o_{j}) / π_ref(o_{j}))",)),
        "advantage": Piece(("{A} ← {A} − {beta} log(π_old(o_t) / π_ref(o_t))",)),
        "loss": Piece(("k = {estimate},  u = log(π(o_t) / π_ref(o_t))",), term=" − {beta} k"),
        "loss_isw": Piece(("k = (π(o_t) / π_old(o_t)) {estimate},  u = log(π(o_t) / π_ref(o_t))",), term=" − {beta} k"),
    },
    "kl.unit": {
        "sequence": Piece(("K = Σ_t {estimate}",), term=" − {beta} K"),
        "token": Piece(("R_t = R − {beta} Σ_{{j ≥ t}} {estimate}",), term=" − {beta} {estimate}"),
    },
    "kl.estimator": {
        "k1": Piece(term="{u}"),
        "k2": Piece(term="½ {u}²"),
        "k3": Piece(term="exp(−{u}) − 1 + {u}"),
    },
    "kl.reference": {
        "fixed": Piece(term="the policy before training"),
        "model": Piece(term="the model {name}, which stays as it is"),
        "synced": Piece(term="a policy that follows: {mix} π + {rest} π_ref, every {every} steps"),
    },
    "correction": {
        "off": NOTHING,
        "token_truncate": Piece((f"c = min(w, {{cap}}),  {_w}",), term="c "),
        "token_mask": Piece((f"c = w if {{low}} ≤ w ≤ {{high}}, else 0,  {_w}",), term="c "),
        "seq_truncate": Piece((f"c = min(W, {{cap}}),  {_W}",), term="c "),
        "seq_mask": Piece((f"c = W if {{low}} ≤ W ≤ {{high}}, else 0,  {_W}",), term="c "),
        "geo_mask": Piece((f"c = 1 if {{low}} ≤ W^(1/L) ≤ {{high}}, else 0,  {_W}",), term="c "),
        "off_policy_mask": Piece((_OFF_POLICY,), term="M "),
        "chain": NOTHING,
    },
    "correction.mask": {
        "off_policy_mask": Piece((_OFF_POLICY,), term="M "),
        "geo_mask": Piece((f"M = 1 if {{low}} ≤ W^(1/L) ≤ {{high}}, else 0,  {_W}",), term="M "),
    },
    "correction.weight": {
        "token_truncate": Piece((f"c = min(w, {{cap}}),  {_w}",), term="c "),
        "token_mask": Piece((f"c = w if {{low}} ≤ w ≤ {{high}}, else 0,  {_w}",), term="c "),
        "seq_truncate": Piece((f"c = min(W, {{cap}}),  {_W}",), term="c "),
    },
    "token_weight": {
        "uniform": NOTHING,
        "top_entropy": Piece(("{A} ← {A} at the fraction {fraction} of tokens with the highest entropy, else 0",)),
        "advantage_reweight": Piece(("{A} ← ({alpha} π_old(o_t) + {rest}) {A}",)),
        "router_shift": Piece(("γ_t = max(exp(−mean |log g_t(e) − log g_old,t(e)|), {floor}), no gradient",)),
    },
    "token_weight.target": {"ratio": Piece(term="γ_t "), "token": Piece(("{A} ← γ_t {A}",))},
    "auxiliary": {
        "entropy": Piece(("H = mean entropy of π at the tokens of the batch",), term="H"),
        "positive_nll": Piece(("NLL = −(1/T⁺) Σ_t log π(o_t), over the responses with y = 1",), term="NLL"),
        "value": Piece(
            (
                "Ret_t = V_t + {gae} with λ = {critic_lambda}",
                "loss_V = ½ mean of {error}",
            )
        ),
    },
}
"""By factor, or by the path of an inner choice; then by level."""

LETTERS: Mapping[str, tuple[str, str]] = {
    r"\by\b|2y": ("y", "1 if the response is right, else 0"),
    r"\bscore\b": ("score", "the task's own score of the response"),
    r"\bform\b": ("form", "{form}"),
    r"\bf_\w": ("f_…", "what the study's own function of this name returns for the response"),
    r"\bL\b": ("L", "tokens of the response"),
    r"\bG\b": ("G", "responses of the prompt: the group"),
    r"\bN\b": ("N", "responses in the optimizer batch{masked}"),
    r"\bT\b": ("T", "tokens in the optimizer batch"),
    r"\bT_g\b": ("T_g", "tokens of the group"),
    r"\bT_m\b": ("T_m", "tokens of the micro-batch"),
    r"\bC\b": ("C", "the generation limit, schedule.max_new_tokens"),
    r"T⁺": ("T⁺", "tokens of these responses in the optimizer batch"),
    r"\bstd\b": ("std", "{std}"),
    r"\bsg\[": ("sg[ ]", "taken as a constant: no gradient"),
    r"Σ_|Π_": ("i, t", "a response, a token of it"),
    r"π\(": ("π(o_t)", "probability of the token under the policy that is trained"),
    r"π_old": ("π_old", "the same before the updates on this batch"),
    r"π_sampler": ("π_sampler", "the same as the sampler computed it"),
    r"π_ref": ("π_ref", "{reference}"),
    r"σ\(": ("σ", "1 / (1 + exp(−x))"),
    r"V_": ("V_t", "the critic's value of token t; 0 after the last"),
    r"\[t = L\]": ("[t = L]", "1 at the last token, else 0"),
    r"g_t": ("g_t(e)", "router's probability of expert e; mean over layers and the old top experts"),
}
"""Pattern of a letter in the lines of a formula: how it is shown, and what it means."""
