"""The reward model of the page on reward functions, with a small random one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, LlamaForSequenceClassification

from paribus.recipe.factors import RewardFunction
from paribus_runners.rewards.functions import fault, scores
from paribus_runners.rewards.pool import Pool, Worker
from support.chat_model import chat_tokenizer, save_random

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "rewards.md"
TEXTS = ["4", "I think that it is 5.", "4, since 2 + 2 = 4"]


@pytest.mark.slow
def test_the_function_of_the_page_gives_the_scores_of_its_model(tmp_path: Path) -> None:
    """The plan accepts it, and each response has the score that the model gives it alone, without padding."""
    (text,) = re.findall(r"```python\n(# my_judge.py.*?)```", PAGE.read_text(), re.DOTALL)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "num_labels": 1}
    folder = save_random(tmp_path / "model", LlamaForSequenceClassification, chat_tokenizer(), **sizes)
    text = text.replace("/data/reward_model", str(folder))
    (tmp_path / "my_judge.py").write_text(text)
    level = RewardFunction(path="my_judge.judge", timeout_s=120.0, memory_gib=32.0)
    assert fault("reward.functions.judge", level, {"my_judge.py": text}, {}) == ""
    worker = Worker(path=level.path, folder=str(tmp_path), timeout_s=level.timeout_s, memory_gib=level.memory_gib)
    with Pool(worker, 1) as pool:
        pool.wait_until_loaded()
        outcome = pool.submit({"prompts": ["2 + 2 = "] * 3, "completions": TEXTS}).result(timeout=300)
    found, failure, reason = scores(outcome, len(TEXTS))
    assert failure is None, reason
    words, model = chat_tokenizer(), AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        alone = [float(model(torch.tensor([words(f"2 + 2 = {text}").input_ids])).logits) for text in TEXTS]
    assert found == pytest.approx(alone, abs=1e-6)
    assert len(set(found)) == 3
