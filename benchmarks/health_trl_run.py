"""Trains with TRL's GRPOTrainer on a folder that health_trl.py made; runs in TRL's environment.

TRL_PYTHON benchmarks/health_trl_run.py prepare FOLDER             # the model, after some supervised steps
TRL_PYTHON benchmarks/health_trl_run.py train FOLDER FAULT SEED STEPS    # one run, into FOLDER/FAULT-SEED
"""

from __future__ import annotations

import random
import string
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from datasets import Dataset
from tiny_model import save, tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

Reward = Callable[..., list[float]]
LONGEST = 40
"""Most tokens of a response."""
RIGHT = 0.5
"""Share of right answers among the supervised examples, beside those that chance makes right."""
RATE = 3e-4
"""Of a healthy run."""


def words(draw: random.Random) -> str:
    """Return what stands before an answer: some letters, about eight, as a chain of thought."""
    text = ""
    while len(text) < LONGEST - 4 and draw.random() < 0.88:
        text += draw.choice(string.ascii_lowercase)
    return text


def problem(draw: random.Random) -> tuple[str, str]:
    """Return two digits, of which the first is the answer."""
    a, b = draw.randrange(10), draw.randrange(10)
    return f"{a}+{b}:", str(a)


def prepare(folder: Path) -> None:
    """Write a model that answers some problems rightly, and its tokenizer."""
    symbols = [*string.digits, *string.ascii_lowercase, "+", ":", "="]
    model, tokenizer = tiny_model(symbols, intermediate=256, positions=128)
    supervise(model, tokenizer, random.Random(0))
    save(folder / "model", model, tokenizer)


def supervise(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, draw: random.Random) -> None:
    """Teach the form of a response, and some of the answers."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(1000):
        texts = []
        for _ in range(64):
            prompt, answer = problem(draw)
            shown = answer if draw.random() < RIGHT else draw.choice(string.digits)
            texts.append(f"{prompt}{words(draw)}={shown}")
        rows = [[*tokenizer(t)["input_ids"], tokenizer.eos_token_id] for t in texts]
        width = max(map(len, rows))
        ids = torch.tensor([[*r, *[0] * (width - len(r))] for r in rows])
        labels = torch.tensor([[*r, *[-100] * (width - len(r))] for r in rows])
        optimizer.zero_grad()
        model(input_ids=ids, attention_mask=(labels >= 0).long(), labels=labels).loss.backward()
        optimizer.step()


def correct(completions: list[str], answer: list[str], **_: object) -> list[float]:
    """Return 1 where a response ends in `=` and the answer."""
    return [float(c.endswith(f"={a}")) for c, a in zip(completions, answer, strict=True)]


def constant(completions: list[str], **_: object) -> list[float]:
    """Return the same for every response."""
    return [1.0] * len(completions)


def length(completions: list[str], **_: object) -> list[float]:
    """Return the share of the longest response that each has."""
    return [len(c) / LONGEST for c in completions]


FAULTS: dict[str, tuple[Reward, float]] = {
    "none": (correct, RATE),
    "learning rate x 100": (correct, 100 * RATE),
    "constant reward": (constant, RATE),
    "reward = length": (length, RATE),
}
"""What a run is trained on, and its learning rate."""


def train(folder: Path, fault: str, seed: int, steps: int) -> None:
    """Train, and leave TRL's trainer_state.json in a folder of this run."""
    reward, rate = FAULTS[fault]
    draw = random.Random(1000 + seed)
    problems = [dict(zip(("prompt", "answer"), problem(draw), strict=True)) for _ in range(2000)]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        reward_funcs=reward,
        train_dataset=Dataset.from_list(problems),
        args=GRPOConfig(
            output_dir=str(folder / f"{fault}-{seed}"),
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            logging_steps=1,
            save_strategy="no",
            seed=seed,
            learning_rate=rate,
            lr_scheduler_type="constant",
            num_generations=8,
            max_completion_length=LONGEST,
            per_device_train_batch_size=128,
            num_iterations=2,
            gradient_checkpointing=False,
            bf16=False,
            max_steps=steps,
        ),
    )
    trainer.train()
    trainer.save_state()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "prepare":
        prepare(Path(sys.argv[2]))
    else:
        train(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
