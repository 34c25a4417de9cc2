"""TRL's GRPOTrainer on a folder of native_vs_trl.py or gpu/trl.py; prints one JSON line. Runs in TRL's environment."""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

folder = Path(sys.argv[1])
setting = json.loads((folder / "setting.json").read_text())
torch.set_num_threads(1)
cpu = setting["device"] == "cpu"
libraries = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
problems = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
tokenizer = AutoTokenizer.from_pretrained(folder / "model")
model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
generated = 0
marks: list[tuple[float, int]] = []


def last_number(completions, completion_ids, answer, **_):
    """Return 1 where the last number of a completion is the answer."""
    global generated
    generated += sum(len(ids) for ids in completion_ids)
    found = [re.findall(r"\d+", c) for c in completions]
    return [float(bool(f) and f[-1] == a) for f, a in zip(found, answer, strict=True)]


class Marks(TrainerCallback):
    """Notes time and tokens each time a rollout batch has been used up."""

    def on_step_end(self, args, state, control, **_):
        """Note the end of the last update on a rollout batch."""
        if state.global_step % setting["updates"] == 0:
            marks.append((time.perf_counter(), generated))


responses = setting["prompts"] * setting["group"]
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=last_number,
    train_dataset=Dataset.from_list(problems),
    callbacks=[Marks()],
    args=GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=cpu,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        seed=0,
        beta=0.0,
        loss_type="grpo",
        scale_rewards="group",
        epsilon=0.2,
        temperature=1.0,
        learning_rate=setting["learning_rate"],
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        num_generations=setting["group"],
        max_completion_length=setting["new_tokens"],
        per_device_train_batch_size=responses // setting["updates"] // setting["parts"],
        steps_per_generation=setting["updates"] * setting["parts"],
        gradient_accumulation_steps=setting["parts"],
        gradient_checkpointing=setting["again"],
        bf16=setting["dtype"] == "bfloat16",
        max_steps=setting["steps"] * setting["updates"],
    ),
)
trainer.train()
(start, before), (end, after) = marks[0], marks[-1]
resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - libraries
peak = resident if cpu else torch.cuda.max_memory_allocated()
found = {"tokens": after - before, "seconds": end - start, "rollouts": len(marks) - 1, "total": generated, "peak": peak}
print(json.dumps(found))
