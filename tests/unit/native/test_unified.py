"""DeepSeekMath's unified table: the coefficients that the training code computes are those of the paper's formulas."""

from __future__ import annotations

import json
import math
import statistics

import pytest
import torch
from click.testing import CliRunner

from paribus.cli import paribus
from paribus.recipe.presets import load_preset
from paribus.recipe.unified import SHOWN, example, gc, online_rft
from paribus_runners.native import runner

BATCH = example()


def test_online_rft_has_the_gradient_of_the_likelihood_of_right_responses() -> None:
    """By autograd: the mean over responses of 1[right] times the mean log-probability has the gradient of GC."""
    leaf = [torch.zeros(x.length, dtype=torch.float64, requires_grad=True) for x in BATCH]
    torch.stack([p.mean() * x.correct for p, x in zip(leaf, BATCH, strict=True)]).mean().backward()
    found = gc(runner.coefficients(online_rft(), BATCH))
    for p, x, coefficients in zip(leaf, BATCH, found, strict=True):
        assert coefficients == pytest.approx([float(x.correct)] * x.length)
        assert p.grad is not None
        assert [c / x.length / len(BATCH) for c in coefficients] == pytest.approx(p.grad.tolist())


def test_grpo_has_the_advantage_and_a_pull_to_the_reference() -> None:
    """GC = (R - mean) / std + beta (pi_ref / pi - 1), over the group (arXiv 2402.03300, Appendix A.1)."""
    for group in ("a", "b"):
        mine = [x for x in BATCH if x.group == group]
        rewards = [1.0 if x.correct else -1.0 for x in mine]
        mean, std = statistics.mean(rewards), statistics.stdev(rewards)
        found = [c for c, x in zip(gc(runner.coefficients(load_preset("grpo").recipe, BATCH)), BATCH, strict=True)
                 if x.group == group]  # fmt: skip
        for reward, coefficients in zip(rewards, found, strict=True):
            assert coefficients[0] == pytest.approx((reward - mean) / std + 0.04 * (0.45 / 0.5 - 1), abs=1e-5)


def test_dpo_has_the_sigmoid_of_the_margin() -> None:
    """The gradient of -log sigmoid of beta times the log ratios' difference, by autograd, on the pair of each group."""
    found = gc(runner.coefficients(load_preset("pair_dpo_extremes").recipe, BATCH))
    pairs = [(0, 2), (4, 7)]
    leaf = [torch.full((x.length,), math.log(0.5), dtype=torch.float64, requires_grad=True) for x in BATCH]
    margin = [
        sum((leaf[i] - math.log(0.45)).sum() * sign for i, sign in zip(pair, (1, -1), strict=True)) for pair in pairs
    ]
    torch.stack([torch.nn.functional.logsigmoid(0.1 * m) for m in margin]).mean().backward()
    for i, x in enumerate(BATCH):
        wanted = [0.0] * x.length if leaf[i].grad is None else leaf[i].grad.tolist()
        assert [c / x.length / len(BATCH) for c in found[i]] == pytest.approx(wanted)


def test_the_command_lists_methods_and_presets_in_one_form() -> None:
    """SFT has 1 and no wrong answers; RFT differs from online RFT in its responses alone; a sum counts the length."""
    shown = CliRunner().invoke(paribus, ["recipes", "unified", "--json"])
    rows = {row["name"]: row for row in json.loads(shown.output)["methods"]}
    assert rows["SFT"]["gc"] == [1, 1, None, None]
    assert rows["RFT"]["gc"] == rows["online RFT"]["gc"] == [1, 1, 0, 0]
    assert rows["RFT"]["responses"] != rows["online RFT"]["responses"]
    assert rows["reinforce"]["gc"] == pytest.approx([2, 8, -2, -8])
    assert len(rows["dapo"]["gc"]) == len(SHOWN)
    assert "online RFT" in CliRunner().invoke(paribus, ["recipes", "unified"]).output
