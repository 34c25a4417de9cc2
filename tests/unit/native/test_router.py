"""Router shift: what the routers decided where a token was predicted, and how far that has moved."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paribus.errors import RunnerError
from paribus.recipe import factors as f
from paribus_runners.native import attention
from paribus_runners.native.log_probabilities import score
from paribus_runners.native.objective.router import Routing, shift
from paribus_runners.native.policy import Policy
from paribus_runners.native.tiny import make
from paribus_runners.native.tiny.spec import TINY_MOE

PROMPTS = [[1, 2, 3], [4, 5], [6, 1, 2, 2]]
GROUPS = [[[7, 8], [9]], [[3, 3, 3], [1]], [[2, 5], [5, 5, 5, 9]]]


@pytest.fixture(scope="module")
def experts() -> Policy:
    """The tiny mixture of four experts, two a token, as it is built: not trained."""
    return make.build(TINY_MOE, "chain")


def _router(policy: Policy, which: list[int]) -> Tensor:
    router = score(policy, [PROMPTS[i] for i in which], [GROUPS[i] for i in which], 1.0, with_router=True).router
    assert router is not None
    return router


def test_the_routers_decisions_are_those_that_made_the_token_probable(experts: Policy) -> None:
    """For each response token: the log-softmax of the model's router logits at the token before it."""
    got, want = _router(experts, [0, 1, 2]), []
    for prompt, group in zip(PROMPTS, GROUPS, strict=True):
        for response in group:
            sequence = prompt + response
            layout = attention.pack([len(sequence)], [()], experts.device)
            out = experts.model(torch.tensor([sequence]), layout=layout, output_router_logits=True)
            want.append(torch.stack(out.router_logits, 1)[len(prompt) - 1 : -1].log_softmax(-1))
    assert got.shape == (13, 2, 4)
    torch.testing.assert_close(got, torch.cat(want), rtol=0, atol=1e-5)


def test_the_batch_around_a_response_does_not_change_its_routing(experts: Policy) -> None:
    """The same responses in other batches, and in another order, have the same router log-probabilities."""
    alone = [_router(experts, [i]) for i in range(3)]
    torch.testing.assert_close(_router(experts, [0, 1, 2]), torch.cat(alone), rtol=0, atol=1e-5)
    torch.testing.assert_close(_router(experts, [2, 0]), torch.cat([alone[2], alone[0]]), rtol=0, atol=1e-5)


def test_reading_the_routers_changes_nothing_else(experts: Policy) -> None:
    """Log-probabilities and their gradient are equal to the bit with and without; the routers' record has none."""
    gradients = []
    for with_router in (False, True):
        scores = score(experts, PROMPTS, GROUPS, 1.0, with_router=with_router)
        assert scores.router is None or not scores.router.requires_grad
        gradients.append(torch.autograd.grad(scores.logp.sum(), list(experts.model.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert all(bool(x.any()) for x in gradients[0])


def test_a_dense_model_has_no_routing(policy: Policy, experts: Policy) -> None:
    """A dense model says that it has no experts, and what to do; a mixture says how many a token goes to."""
    assert policy.experts_per_token is None
    assert experts.experts_per_token == 2
    with pytest.raises(RunnerError, match="tiny_moe"):
        score(policy, [[1]], [[[2]]], 1.0, with_router=True)


def _routers(*probabilities: tuple[float, ...]) -> Tensor:
    return torch.tensor([probabilities]).log()


OLD = _routers((0.5, 0.3, 0.2), (0.1, 0.2, 0.7))


def test_shift_by_hand() -> None:
    """Two layers, the two best experts of each before the updates; the third does not count."""
    now = _routers((0.4, 0.2, 0.4), (0.3, 0.1, 0.6))
    moved = sum(torch.tensor([0.5 / 0.4, 0.3 / 0.2, 0.7 / 0.6, 0.2 / 0.1]).log())
    old = Routing.of(OLD, 2)
    assert old.experts.tolist() == [[[0, 1], [2, 1]]]
    gamma = shift(f.RouterShift(floor=0.0), old, now)
    torch.testing.assert_close(gamma, torch.exp(-moved / 4)[None])
    assert shift(f.RouterShift(floor=0.8), old, now).item() == pytest.approx(0.8)
    assert shift(f.RouterShift(floor=0.6), old, now).item() == pytest.approx(gamma.item())


def test_unmoved_routers_weigh_exactly_one(experts: Policy) -> None:
    """With the same routing gamma is 1 to the bit."""
    router = _router(experts, [0, 1])
    assert shift(f.RouterShift(), Routing.of(router, 2), router).tolist() == [1.0] * len(router)


def test_shift_has_no_gradient() -> None:
    """Neither the old routing nor the new gets a gradient through gamma."""
    now = OLD.clone().requires_grad_()
    assert not shift(f.RouterShift(floor=0.0), Routing.of(now, 1), now * 2).requires_grad


@given(st.integers(0, 2**31), st.sampled_from([0.0, 0.3, 0.8, 1.0]))
def test_shift_is_a_weight_and_grows_with_the_move(seed: int, floor: float) -> None:
    """Gamma lies in [floor, 1], and a move of twice the size in log-probability never weighs more."""
    random = torch.Generator().manual_seed(seed)
    old, way = (torch.randn(5, 3, 6, generator=random) for _ in range(2))
    level, routing = f.RouterShift(floor=floor), Routing.of(old, 2)
    near, far = shift(level, routing, old + way), shift(level, routing, old + 2 * way)
    assert bool(((floor - 1e-6 <= far) & (far <= near) & (near <= 1)).all())


def test_routing_is_selected_by_token() -> None:
    """Part of the tokens have their part of the routing, by mask or by place."""
    routing = Routing.of(torch.randn(4, 2, 3).log_softmax(-1), 2)
    part = routing.select(torch.tensor([False, True, False, True])).to(torch.device("cpu"))
    for field in dataclasses.fields(Routing):
        assert torch.equal(getattr(part, field.name), getattr(routing, field.name)[[1, 3]])
