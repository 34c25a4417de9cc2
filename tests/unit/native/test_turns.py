"""Responses of several turns: what an environment writes is read, and counts nowhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from paribus.contract import Evaluate, Options
from paribus.recipe.recipe import ChainTask, Recipe
from paribus.recipe.rollout import Rollout
from paribus.recipe.turns import FunctionTurns
from paribus.run_folder.folder import RunFolder
from paribus_runners.native import runner
from paribus_runners.native.batch import minibatches, tokens_of
from paribus_runners.native.experience import Before, weigh
from paribus_runners.native.limits import Limits
from paribus_runners.native.log_probabilities import score, score_all
from paribus_runners.native.objective.loss import loss
from paribus_runners.native.policy import Policy
from paribus_runners.native.responses import Responses, Whole
from paribus_runners.native.rollout import torch as sampler
from paribus_runners.native.rollout.sampler import Ended, Requests, complete
from paribus_runners.native.rollout.torch import TorchSampler
from paribus_runners.tasks import Chain, Grader, environment_of, task_of
from paribus_runners.tasks.tools import running_sum
from support.native_runs import TOOL, changed, lines_of

ROOM, COPIES = 16, 6


@dataclass
class Dice:
    """Answers turns with one to three drawn tokens, which the response so far decides; notes what it was asked."""

    marks: Sequence[int]
    most: int = 3
    room: int = 3
    longest: int | None = None
    silent: bool = False
    asked: list[Ended] = field(default_factory=list)

    def answers(self, ended: Sequence[Ended]) -> list[tuple[Sequence[int] | None, bool]]:
        """Return the answers."""
        self.asked += [one._replace(tokens=tuple(one.tokens)) for one in ended]
        draws = [Random(str((one.prompt, tuple(one.tokens)))) for one in ended]
        return [(None if self.silent else draw.choices(range(19), k=draw.randint(1, 3)), False) for draw in draws]


@pytest.fixture
def prompts(policy: Policy) -> list[list[int]]:
    """Prompts of unequal length."""
    full = policy.encode([p.prompt for p in Chain().training(0, 1, 0, 4)])
    return [full[0], full[1][6:], full[2], full[3][3:]]


def _marks(policy: Policy) -> list[int]:
    """Return marks that the model writes often."""
    return [policy.encode_inside(x)[0] for x in "0?5b"]


def _sample(policy: Policy, prompts: list[list[int]], turns: Dice | None, top_k: int | None = None) -> Responses:
    requests = Requests(prompts, COPIES, ROOM, 0.9, ("test",), top_k=top_k, with_support=top_k is not None, turns=turns)
    return complete(TorchSampler(policy), requests)


def test_a_response_that_is_never_answered_is_that_of_a_single_turn(policy: Policy, prompts: list[list[int]]) -> None:
    """An environment that ends every response at its end mark changes no bit of it."""
    plain, asked = _sample(policy, prompts, None), _sample(policy, prompts, Dice((), silent=True))
    assert asked.given is not None
    assert not asked.given.answers.any()
    for name in ("ids", "logp", "entropy", "length", "truncated"):
        assert torch.equal(getattr(plain, name), getattr(asked, name)), name


def test_sampler_learner_and_the_plain_model_agree_on_what_the_model_wrote(
    policy: Policy, prompts: list[list[int]], chain_model: Path
) -> None:
    """Values of written tokens are those of the unchanged model on the whole text, with answers in their places."""
    plain = AutoModelForCausalLM.from_pretrained(chain_model, attn_implementation="eager")
    responses = _sample(policy, prompts, Dice(_marks(policy)))
    found = score_all(policy, prompts, responses, 0.9, with_entropy=True)
    assert found.entropy is not None
    torch.testing.assert_close(found.logp, responses.logp, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.entropy, responses.entropy, rtol=0, atol=1e-5)
    want = []
    for i, whole in enumerate(responses.tokens()):
        prompt, written = prompts[i // COPIES], whole.written if isinstance(whole, Whole) else range(len(whole))
        with torch.no_grad():
            logits = plain(torch.tensor([prompt + list(whole)])).logits[0, len(prompt) - 1 : -1]
        logp = (logits / 0.9).log_softmax(-1)
        want += [logp[k, whole[k]] for k in written]
    torch.testing.assert_close(torch.stack(want), responses.logp, rtol=0, atol=1e-5)
    given = responses.given
    assert given is not None
    assert given.answers.sum() > len(responses)
    assert int(responses.read.sum()) == sum(map(len, responses.tokens())) > int(responses.length.sum())


@pytest.mark.parametrize("tokens", [4096, 1])
def test_turns_of_a_truncated_distribution_are_scored_over_what_was_left(
    policy: Policy, prompts: list[list[int]], tokens: int
) -> None:
    """With top-k, each written token has the set that it was chosen from, between answers and in several passes."""
    policy = replace(policy, limits=Limits(responses_at_a_time=512, tokens_a_pass=tokens))
    responses = _sample(policy, prompts, Dice(_marks(policy)), top_k=4)
    assert responses.support is not None
    assert responses.given is not None
    assert responses.given.answers.any()
    assert responses.support.size.tolist() == [4] * len(responses.ids)
    assert (responses.support.ids.view(-1, 4) == responses.ids[:, None]).any(1).all()
    found = score_all(policy, prompts, responses, 0.9, with_entropy=True)
    torch.testing.assert_close(found.logp, responses.logp, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.entropy, responses.entropy, rtol=0, atol=1e-5)


def test_the_environment_reads_the_response_so_far(policy: Policy, prompts: list[list[int]]) -> None:
    """It is asked at marks and end marks, in turn, with all that was written and given before, up to its limit."""
    dice = Dice(_marks(policy))
    responses = _sample(policy, prompts, dice)
    texts = [tuple(x) for x in responses.tokens()]
    for one in dice.asked:
        assert one.tokens[-1] in (*dice.marks, *policy.ends)
        assert any(t[: len(one.tokens)] == tuple(one.tokens) for t in texts[one.prompt * COPIES :][:COPIES])
    assert {one.turn for one in dice.asked} == {1, 2, 3}
    given = responses.given
    assert given is not None
    assert len(dice.asked) == int(given.answers.sum())
    assert given.answers.max() == dice.most


@pytest.mark.parametrize(("rows", "evict"), [(512, 2.0), (512, 0.01), (6, 0.25)])
def test_the_batch_around_a_response_does_not_matter(
    policy: Policy, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, rows: int, evict: float
) -> None:
    """Turns of other responses move no token, whenever finished ones leave and however batches are cut."""
    want = _sample(policy, prompts, Dice(_marks(policy)))
    monkeypatch.setattr(sampler, "EVICT", evict)
    policy = replace(policy, limits=Limits(responses_at_a_time=rows, tokens_a_pass=4096))
    got = _sample(policy, prompts, Dice(_marks(policy)))
    assert got.tokens() == want.tokens()
    assert torch.equal(got.truncated, want.truncated)
    torch.testing.assert_close(got.logp, want.logp, rtol=0, atol=1e-5)


def test_limits_end_a_response(policy: Policy, prompts: list[list[int]]) -> None:
    """Truncated are responses at the limit of a turn or of all turns, and those that ask once too often."""
    dice = Dice(_marks(policy), most=2, longest=4)
    responses = _sample(policy, prompts, dice)
    given = responses.given
    assert given is not None
    reasons = set()
    answered = torch.arange(len(responses)).repeat_interleave(given.size).tolist()
    counts, ends = given.answers.tolist(), [0, *responses.length.cumsum(0).tolist()]
    for i, cut in enumerate(responses.truncated.tolist()):
        ids = responses.ids[ends[i] : ends[i + 1]].tolist()
        marked, ended, full = ids[-1] in dice.marks, ids[-1] in policy.ends, len(ids) == ROOM
        assert cut == (not ended)
        began = max((at for at, row in zip(given.at.tolist(), answered, strict=True) if row == i), default=0)
        assert ended or full or (marked and counts[i] == 2) or len(ids) - began == dice.longest
        reasons.add("ended" if ended else "most" if marked else "longest")
    assert reasons == {"ended", "most", "longest"}


def test_selecting_and_joining_keep_answers_in_their_places(policy: Policy, prompts: list[list[int]]) -> None:
    """Any rows, in any order, have the texts that they had."""
    responses = _sample(policy, prompts, Dice(_marks(policy)))
    rows = torch.tensor([5, 0, 23, 7, 7])
    texts = responses.tokens()
    picked = responses.select(rows)
    assert picked.tokens() == [texts[i] for i in rows.tolist()]
    joined = Responses.concat([picked, responses])
    assert joined.tokens() == [*picked.tokens(), *texts]
    assert torch.equal(joined.read, torch.cat([picked.read, responses.read]))


AGGREGATIONS = ("seq_mean", "token_group", "token_batch", "token_micro", "const", "seq_sum", "seq_meansum")
LEVELS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "gspo": {"ratio": {"kind": "seq_geo"}, "clip": {"kind": "ppo_min", "low": 3e-4, "high": 4e-4}},
    "gmpo": {"ratio": {"kind": "geo_clipped"}, "clip": {"kind": "log_clip"}},
    "product": {"ratio": {"kind": "seq_product"}},
    "cispo": {"clip": {"kind": "is_cap_sg"}},
    "entropy tokens": {"token_weight": {"kind": "top_entropy", "fraction": 0.4}},
    "kl in loss": {"kl": {"kind": "loss", "beta": 0.1}},
    "kl by token": {"kl": {"kind": "reward", "beta": 0.1, "unit": "token"}, "baseline": {"kind": "batch_mean"},
                    "scale": {"kind": "batch_whiten", "unit": "token"}},
    "correction": {"correction": {"kind": "geo_mask", "low": 0.99, "high": 1.01}},
    "bonus": {"auxiliary": {"entropy": 0.1, "positive_nll": 0.2}},
    "opo": {"baseline": {"kind": "group_length_weighted"}},
}  # fmt: skip


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", LEVELS)
def test_given_tokens_are_conditioning_alone(name: str, aggregation: str, made: Any) -> None:
    """NaN in the log-probabilities of given tokens moves neither loss nor gradient, and these have none of their own.

    Everything stands in dense arrays with holes, as trainers with a mask keep it, and is read through the mask.
    """
    recipe = Recipe.model_validate({"kl": {"kind": "off"}, **LEVELS[name], "aggregation": {"kind": aggregation}})
    rollouts = made(recipe, [[True, False, False, True], [False, True, False, False]])
    responses, draw = rollouts.responses, Random(name)
    given = [[draw.randint(0, 2) if k else 0 for k in range(n)] for n in responses.length.tolist()]
    wide = max(sum(g) + len(g) for g in given)
    mask = torch.zeros(len(given), wide, dtype=torch.bool)
    for row, counts in enumerate(given):
        mask[row, np.cumsum(counts) + np.arange(len(counts))] = True
    assert (~mask).sum() > sum(map(max, given))
    old = responses.logp + 0.01 * (responses.entropy - 1.1) if recipe.correction.kind != "off" else None
    experience = weigh(recipe, rollouts, Before(logp=old))
    (batch,) = minibatches(recipe, experience, Random(0))
    tokens, entropy = tokens_of(recipe, experience, batch), responses.entropy
    near = responses.logp + 0.3 * (responses.entropy - 1.1)
    found = []
    for garbage in (torch.nan, -3.0):
        leaf = torch.full(mask.shape, garbage, dtype=near.dtype).masked_scatter(mask, near).requires_grad_()
        value = loss(recipe, leaf[mask], tokens, entropy).value
        (gradient,) = torch.autograd.grad(value, leaf)
        assert not gradient[~mask].any()
        found.append((value.detach(), gradient[mask]))
    plain = near.clone().requires_grad_()
    value = loss(recipe, plain, tokens, entropy).value
    want = value.detach(), torch.autograd.grad(value, plain)[0]
    assert bool(want[1].isfinite().all())
    assert want[1].any()
    for one in found:
        torch.testing.assert_close(one, want, rtol=0, atol=0)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_gradient_of_the_weights_is_that_of_written_tokens(
    policy: Policy, prompts: list[list[int]], aggregation: str, chain_model: Path
) -> None:
    """Through the packed forward pass it is that of a plain model, dense logits and a mask, in separate formulas."""
    responses = _sample(policy, prompts, Dice(_marks(policy)))
    texts, A = responses.tokens(), torch.linspace(-1, 1, len(responses))
    weights = _weights(aggregation, responses.length.double(), torch.arange(len(responses)) // COPIES).float()
    plain = AutoModelForCausalLM.from_pretrained(chain_model, attn_implementation="eager")
    total = torch.zeros(())
    for i, whole in enumerate(texts):
        prompt, mask = prompts[i // COPIES], torch.zeros(len(whole))
        mask[list(whole.written) if isinstance(whole, Whole) else slice(None)] = 1
        logits = plain(torch.tensor([prompt + list(whole)])).logits[0, len(prompt) - 1 : -1]
        logp = (logits / 0.9).log_softmax(-1).gather(1, torch.tensor(list(whole))[:, None])[:, 0]
        total = total - A[i] * weights[i] * (logp * mask).sum()
    total.backward()
    groups = [texts[i : i + COPIES] for i in range(0, len(texts), COPIES)]
    (-(A * weights)[responses.row] * score(policy, prompts, groups, 0.9).logp).sum().backward()
    for mine, other in zip(policy.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)


def _weights(aggregation: str, length: Tensor, group: Tensor) -> Tensor:
    """Return [N] the weight of a written token of each response, for equal groups."""
    L = length
    groups = torch.stack([L[group == g].sum() for g in group])
    return {
        "seq_mean": 1 / (len(L) * L),
        "token_group": 1 / (len(L) / COPIES * groups),
        "token_batch": torch.ones_like(L) / L.sum(),
        "token_micro": torch.ones_like(L) / L.sum(),
        "const": torch.ones_like(L) / (len(L) * ROOM),
        "seq_sum": torch.ones_like(L) / len(L),
        "seq_meansum": 1 / L,
    }[aggregation]


@pytest.mark.parametrize(
    ("prompt", "text", "answer"),
    [
        ("a3b5c8=", "?", "3"),
        ("a3b5c8=", "b58c86?", "6"),
        ("a3b5c8=", "b5?", "8"),
        ("a3b5c8=", "b58?8h1?", "8"),
        ("a3b5c8=", "b58c86#6", None),
    ],
)
def test_the_tool_knows_the_sum_of_what_was_written_out(prompt: str, text: str, answer: str | None) -> None:
    """It adds the digits of the prompt, not those of the response, and knows no letter that is not there."""
    assert running_sum([prompt], [text]) == [answer]


def test_a_run_with_a_tool_counts_what_the_model_wrote(recipe: Recipe, job_folder: Callable[..., Path]) -> None:
    """Lengths, costs and shares of tokens are those of the model's own; samples say who wrote what."""
    recipe = changed(recipe, turns=TOOL, task=ChainTask(), schedule={"max_new_tokens": 24})
    path = job_folder(recipe, evaluate=Evaluate(every=3, problems=10))
    runner.run(path)
    lines = list(RunFolder(path).read_metrics())[1:]
    assert all(0 < line.values["turns/given_frac"] < 0.5 for line in lines)
    assert all(line.values["turns/failed_frac"] == 0 for line in lines)
    assert all(line.values["response/length_max"] <= 24 for line in lines)
    assert all(line.values["mismatch/logp_abs_diff_max"] < 1e-4 for line in lines)
    total = sum(line.values["response/length_mean"] * 48 for line in lines)
    assert lines[-1].values["budget/gen_tokens"] == lines[-1].values["budget/trained_tokens"] == pytest.approx(total)
    records = [json.loads(line) for line in RunFolder(path).samples.read_text().splitlines()]
    marked = [record for record in records if "given" in record]
    assert {record.get("set", "heldout") for record in marked} == {"train", "heldout"}
    texts = [(record["response"], parts) for record in marked for parts in record["given"]]
    assert all(text[begin:end].isdigit() and text[begin - 1] in "?#" for text, (begin, end) in texts)


MINE = """
def broken(completions, turns, answer):
    if turns[0] == 2:
        raise ValueError("no second answer")
    return ["1" if "0" in completions[0] else "12345" if "5" in completions[0] else None]
"""


def test_an_answer_that_fails_ends_the_response_and_is_counted(
    recipe: Recipe, job_folder: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """A raised error and an answer with too many tokens; the log says so."""
    turns = replace_level(TOOL, path="mine.broken")
    path = job_folder(changed(recipe, turns=turns, schedule={"steps": 1}), options=Options(sources={"mine.py": MINE}))
    runner.run(path)
    assert 0 < lines_of(path)[-1]["turns/failed_frac"] < 1
    assert "an answer has 5 tokens, more than `turns.answer_tokens: 2`" in caplog.text
    assert "ValueError: no second answer" in caplog.text


def replace_level(level: FunctionTurns, **changes: Any) -> FunctionTurns:
    """Return the level with other values."""
    return FunctionTurns.model_validate({**dict(level), **changes})


@pytest.mark.parametrize(
    ("changes", "sources", "words"),
    [
        ({"turns": {"path": "mine.lost"}}, {"mine.py": MINE}, "`turns.path: mine.lost`: mine.py has no `lost`"),
        ({"turns": {"path": "mine.f"}}, {"mine.py": "def f(images): return []"}, "needs `images`"),
        ({"turns": {"marks": ("!",)}}, {}, "'!' is no token of `model.name`"),
        ({"turns": {"marks": ("?1",)}}, {}, "'?1' is 2 tokens of `model.name`"),
        ({"rollout": Rollout(engine="vllm")}, {}, "`turns` reads answers inside of it: set `rollout.engine: torch`"),
    ],
)
def test_what_cannot_work_is_refused_before_a_run(changes: Any, sources: dict[str, str], words: str) -> None:
    """The plan says what is wrong with the function, the marks and the sampler."""
    turns = replace_level(TOOL, **changes.pop("turns", {}))
    recipe = Recipe(turns=turns, task=ChainTask(), **changes)
    found = [x.reason for x in runner.support(recipe, Options(sources=sources)) if x.level == "unsupported"]
    assert any(words in reason for reason in found), found


def test_graders_share_the_environment(policy: Policy) -> None:
    """It answers problems of all sets, and ends with whoever made it."""
    with environment_of(TOOL, None) as environment, Grader(task_of(ChainTask()), environment=environment) as grader:
        assert grader.environment is environment
        assert grader.confined == environment.confined != ""
    assert environment_of(Recipe().turns, None) is None


def test_the_proof_of_a_wrong_place_is_seen(policy: Policy, prompts: list[list[int]]) -> None:
    """Answers one token further on give other log-probabilities: the tests above would notice."""
    responses = _sample(policy, prompts, Dice(_marks(policy)))
    given = responses.given
    assert given is not None
    moved = replace(responses, given=replace(given, at=(given.at - 1).clamp_min(0)))
    apart = (score_all(policy, prompts, moved, 0.9).logp - responses.logp).abs()
    assert apart.max() > 1e-3
