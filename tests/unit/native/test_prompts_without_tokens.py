"""A prompt of which a tokenizer reads no character has nothing that a model could continue: it is refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from paribus.contract import Evaluate, Options
from paribus.errors import RunnerError
from paribus.recipe.recipe import Recipe
from paribus_runners.native import runner
from paribus_runners.native.policy import Policy
from support.chat_model import save_random
from support.hub import write_lines

FAULT = "the prompt 'привет' becomes no token"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer has no token for an unknown character, and puts none before a text."""
    raw = Tokenizer(models.BPE({"<e>": 0, **{symbol: i for i, symbol in enumerate("0123456789+=? ", 1)}}, []))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    words = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<e>", pad_token="<e>")
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    return save_random(tmp_path_factory.mktemp("models") / "digits", LlamaForCausalLM, words, **sizes)


def test_a_run_refuses_it(model: Path) -> None:
    """The others of a batch are no excuse: their tokens would be taken for its own."""
    policy = Policy.load(str(model), None, "float32")
    assert policy.encode(["1+1=?", "привет 2"])[1] == [14, 3]
    with pytest.raises(RunnerError, match=FAULT):
        policy.encode(["1+1=?", "привет"])


@pytest.mark.parametrize("kind", ["jsonl", "dataset"])
def test_a_plan_refuses_it(model: Path, tmp_path: Path, kind: str) -> None:
    """With its place, before anything is trained."""
    rows: list[dict[str, Any]] = [{"prompt": f"{i}+1=?", "answer": str(i + 1)} for i in range(5)]
    write_lines(tmp_path / "test.jsonl", rows)
    write_lines(tmp_path / "train.jsonl", [*rows[:2], {"prompt": "привет", "answer": "2"}])
    files = {key: str(tmp_path / f"{file}.jsonl") for key, file in (("train", "train"), ("heldout", "test"))}
    more = {"template": "none"} if kind == "dataset" else {}
    sources = {key: {"path": path} for key, path in files.items()} if kind == "dataset" else files
    recipe = Recipe.model_validate({"model": {"name": str(model)}, "task": {"kind": kind, **sources, **more}})
    (fault,) = runner.examine(recipe, Evaluate(problems=5), Options()).faults
    assert FAULT in fault
    assert fault.startswith("`task.train`: ")
    assert re.search(r"(problem 3 of .*|train\.jsonl:3): the prompt", fault)
