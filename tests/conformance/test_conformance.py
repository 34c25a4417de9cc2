"""Our objective against the real functions of TRL and verl; run by `make test-conformance`, in its own environment."""

import pytest
import torch

from conformance.batches import BATCHES, ORDINARY
from conformance.row import TOLERANCE, VISIBLE
from conformance.table import ALONE, HOLES, ROWS, compared, levels, neutral
from paribus_runners.native.head import Head

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_what_the_table_says(row):
    """Levels agree with a library or deviate exactly as declared."""
    plain, reproduced = row.errors()
    if row.does is None:
        assert plain <= TOLERANCE
    else:
        assert plain > VISIBLE
        assert reproduced <= TOLERANCE


@pytest.mark.parametrize("row", HOLES, ids=lambda row: row.name)
def test_a_row_agrees_on_masks_with_holes(row):
    """What an environment wrote between turns has no part in either side's ratios, means, estimates and gradients."""
    assert (~row_batch().mask & row_batch().text).any()
    assert row.errors()[0] <= TOLERANCE


def row_batch():
    """Return the batch whose masks have holes."""
    return BATCHES["turns"]


def test_every_level_is_compared_or_excused():
    """A level or preset that is added asks for a row, and a row or excuse names a level that exists."""
    known = set(levels())
    assert known - compared() - neutral() - set(ALONE) == set()
    assert set(ALONE) <= known
    assert compared() & set(ALONE) == set()


def test_float32_logits_are_those_of_trl():
    """`model.logits_dtype: float32` is TRL's `cast_lm_head_to_fp32`: values and gradients of a head under bfloat16."""
    from trl.trainer.utils import _ChunkedLogProbFunction

    draw = torch.Generator().manual_seed(0)
    weight, x = torch.randn(50, 16, generator=draw), torch.randn(9, 16, generator=draw).bfloat16()
    targets, found = torch.arange(9), []
    for ours in (True, False):
        w, h = weight.clone().requires_grad_(), x.clone().requires_grad_()
        if ours:
            logp = Head(w, None, 1.0, torch.float32).score(h, targets, 0.7)[0]
        else:
            logp = _ChunkedLogProbFunction.apply(h.float(), w, None, targets, 0.7, 4, None, 1.0, ("log_probs",))[0]
        found.append((logp, *torch.autograd.grad((logp * torch.arange(1, 10)).sum(), (w, h))))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


def test_a_deviation_has_a_reason_and_a_reproduction():
    """One without the other would be an excuse."""
    assert all(bool(row.reason) == (row.does is not None) for row in ROWS)


def test_the_names_of_rows_are_unique():
    """Two rows of one name would hide each other in a report."""
    names = [row.name + str(bool(row.reason)) for row in ROWS]
    assert len(set(names)) == len(names)


def test_the_batches_reach_both_sides_of_every_bound():
    """An agreement says nothing about a branch that no token takes."""
    seen = dict.fromkeys(
        ("over, A > 0", "under, A > 0", "over, A < 0", "under, A < 0", "r > 3, A < 0", "inside the band of GSPO"), 0
    )
    for batch in map(BATCHES.__getitem__, ORDINARY):
        r = (batch.new - batch.old).exp()
        mean = torch.stack([batch.score[batch.group == g].mean() for g in range(batch.groups)])[batch.group]
        A = (batch.score - mean)[:, None].expand_as(r)
        here = {
            "over, A > 0": (r > 1.28) & (A > 0),
            "under, A > 0": (r < 0.8) & (A > 0),
            "over, A < 0": (r > 1.28) & (A < 0),
            "under, A < 0": (r < 0.8) & (A < 0),
            "r > 3, A < 0": (r > 3) & (A < 0),
        }
        for name, where in here.items():
            seen[name] += int((where & batch.mask).sum())
        drift = ((batch.new - batch.old) * batch.mask).sum(1)
        assert drift.abs().max() < 20  # beyond, `unbounded_ratio` is another row
        geo = (drift / batch.length).exp()
        seen["inside the band of GSPO"] += int(((geo - 1).abs() < 3e-4).sum())
    assert min(seen.values()) >= 3, seen
