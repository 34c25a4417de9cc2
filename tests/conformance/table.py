"""The whole table, and the levels for which a library has nothing to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from conformance import rows_trl, rows_verl
from conformance.batches import ORDINARY
from conformance.row import Row
from paribus.recipe.factors import Level
from paribus.recipe.factors.length import Length
from paribus.recipe.presets import load_preset, preset_names
from paribus.recipe.recipe import FACTORS, Recipe

ROWS: tuple[Row, ...] = (*rows_trl.AGREE, *rows_verl.AGREE, *rows_trl.DEVIATE, *rows_verl.DEVIATE)

COUNTS_ALL = ("soft_punish_cache", "reward.reward_kwargs.overlong_buffer_cfg.len")
"""Options by which a library punishes the length of a response with its answers; ours counts its own tokens."""
HOLES: tuple[Row, ...] = tuple(
    replace(row, batches=("turns",))
    for row in (*rows_trl.AGREE, *rows_verl.AGREE)
    if row.batches == ORDINARY
    and row.options.get("trainer") != "RLOOTrainer"  # it has no `tool_mask`
    and not {*COUNTS_ALL} & row.options.keys()
)
"""Every agreement, on masks with holes: TRL's `tool_mask`, verl's `response_mask`."""

SAMPLING = "decides what is sampled, not what the loss is"
OFFICIAL_ONLY = "only in the code of its authors"
ALONE: dict[str, str] = {
    "filter: drop": SAMPLING,
    "filter: refill": SAMPLING,
    "filter: refill_async": SAMPLING,
    "baseline: group_steps": "process supervision; both libraries sum the rewards of a response",
    "baseline: history": OFFICIAL_ONLY,
    "scale: batch_std_centred": "verl whitens instead: see `preset: reinforce_pp_baseline` above",
    "scale: history_smooth": OFFICIAL_ONLY,
    "scale: pass_at_k_std": OFFICIAL_ONLY,
    "clip: dynamic": OFFICIAL_ONLY,
    "clip: ce_gppo": OFFICIAL_ONLY,
    "clip: aspo": OFFICIAL_ONLY,
    "clip: bapo": OFFICIAL_ONLY,
    "aggregation: token_group": "DAPO's Eq. 8; libraries have `token_batch`: see `preset: dapo_paper_agg` above",
    "aggregation: seq_meansum": OFFICIAL_ONLY,
    "token_weight: advantage_reweight": OFFICIAL_ONLY,
    "token_weight: router_shift": "no code was found",
    "loss: pair_dpo": "described in a blog",
    "preset: dcpo": OFFICIAL_ONLY,
    "preset: lopti": "an order of updates, not a loss; " + OFFICIAL_ONLY,
    "preset: pair_dpo_extremes": "described in a blog",
    "preset: reinforce": "its parts are compared: `baseline: none`, `ratio: none`, `aggregation: seq_sum`",
    "preset: reinforce_rej": OFFICIAL_ONLY,
    "preset: rspo": "no code was found",
    "preset: scalerl": "its clip and its scale are compared or excused; neither library has a mean over prompts",
    "preset: sroy_cisco": "described in a blog",
    "preset: vapo": "neither TRL nor verl has length-adaptive GAE",
}
"""Levels and presets without a row, with the reason."""


def levels() -> Iterator[str]:
    """Yield every level of the factors that act on the loss, and every preset that is no alias."""
    fields = {name: Recipe.model_fields[name] for name in ("loss", *FACTORS)} | {
        "length.rule": Length.model_fields["rule"]
    }
    for name, info in fields.items():
        for kind in get_args(info.annotation):
            if isinstance(kind, type) and issubclass(kind, Level):
                yield f"{name}: {kind.model_fields['kind'].default}"
    yield from (f"preset: {p}" for p in preset_names() if load_preset(p).alias_of is None)


def neutral() -> set[str]:
    """Return the levels that do nothing and that every row of another factor has."""
    return {
        "loss: policy_gradient",
        "filter: none",
        "kl: off",
        "correction: off",
        "token_weight: uniform",
        "length.rule: none",
    }


def compared() -> set[str]:
    """Return the levels and presets that have a row, without what stands in brackets."""
    return {level.split(" (")[0] for row in ROWS for level in row.levels}
