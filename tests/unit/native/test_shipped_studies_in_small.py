"""Studies that ship for GPUs, tried on a random model of their architecture: planned, trained, evaluated, kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from paribus.home import data_root
from paribus.run_folder.checkpoints import published
from paribus.run_folder.folder import RunFolder
from paribus.study.expand import PlanDraft, draft_plan
from paribus.study.load import load_study
from paribus.yaml_file.document import plain, read_document
from paribus_runners.native import runner
from support.hub import Row, gsm8k, write_repository
from support.qwen_model import save_qwen_model

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "data.md"
SCHEDULE = {"steps": 2, "prompts_per_step": 4, "group_size": 8, "minibatches": 2, "max_new_tokens": 16}
OVERLONG = {"kind": "soft_overlong", "soft_start": 4, "hard_cap": 16}
"""The settings that the guide changes."""


def _rows(prompt: str, answer: str, start: int, count: int, shape: str = "{}") -> list[Row]:
    numbers = range(start, start + count)
    return [{prompt: f"What is {i} + {i % 7}?", answer: shape.format(i + i % 7), "extra": i} for i in numbers]


DATA: Mapping[str, Mapping[str, Mapping[str, list[Row]]]] = {
    "openai/gsm8k": {"main": {"train": gsm8k(0, 12), "test": gsm8k(500, 4)}},
    "open-r1/DAPO-Math-17k-Processed": {"en": {"train": _rows("prompt", "solution", 0, 12)}},
    "HuggingFaceH4/MATH-500": {"default": {"test": _rows("problem", "solution", 20, 4, "So \\boxed{{{}}}.")}},
    "Maxwell-Jia/AIME_2024": {"default": {"train": _rows("Problem", "Answer", 40, 4)}},
}
"""Rows in the columns that the datasets have on the hub."""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], PlanDraft]:
    """Return a function that plans a shipped study as the guide says, on copies of its datasets with a few rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    texts = [text for configs in DATA.values() for splits in configs.values() for rows in splits.values()
             for row in rows for text in map(str, row.values())]  # fmt: skip
    save_qwen_model(tmp_path / "qwen", texts)
    (script,) = re.findall(r"```python\n(# tiny_qwen.py.*?)```", GUIDE.read_text(), re.DOTALL)
    exec(compile(re.sub(r'name = ".*"', 'name = "qwen"', script), "tiny_qwen.py", "exec"), {})
    for name, configs in DATA.items():
        write_repository(tmp_path / name, configs)

    def plan(name: str) -> PlanDraft:
        study: Any = plain(read_document(data_root("ablations") / "studies" / f"{name}.yaml").root)
        _shrink(study)
        (tmp_path / "try.yaml").write_text(yaml.safe_dump(study))
        return draft_plan(load_study(tmp_path / "try.yaml"), runner)

    return plan


def _shrink(study: dict[str, Any]) -> None:
    base, evaluate = study["base"]["set"], study["evaluate"]
    base["model"] = "tiny-qwen"
    base["schedule"] |= SCHEDULE
    study["tricks"]["soft_overlong"] = {"length.rule": OVERLONG}
    del study["resources"]
    study["seeds"] = {"n": 1}
    for one in (evaluate, *evaluate.get("sets", {}).values()):
        one |= {"every": 2, "problems": 4, "samples": 2}
        one.pop("max_new_tokens", None)
    for task in (base["task"], *(one["task"] for one in evaluate.get("sets", {}).values())):
        for source in (task[part] for part in ("train", "heldout") if part in task):
            source["path"] = source.pop("name")


@pytest.mark.parametrize(
    ("name", "rung", "sets"),
    [
        ("dapo_qwen2.5_1.5b_gsm8k", "+ token_level", {"heldout"}),
        ("dapo_qwen2.5_1.5b_gsm8k", "+ dynamic_sampling", {"heldout"}),
        ("dapo_qwen2.5_7b_math", "+ token_level", {"heldout", "aime_2024", "aime_2024_long"}),
    ],
)
def test_an_arm_trains_evaluates_and_is_kept(
    small: Callable[[str], PlanDraft], job_folder: Callable[..., Path], name: str, rung: str, sets: set[str]
) -> None:
    """Two steps of real rows, template and verifier, an evaluation of each set, and a model that loads.

    No response is right, so that dynamic sampling keeps no group, and only the length of a response has a gradient.
    """
    plan = small(name).checked()
    arm = next(arm for arm in plan.arms if arm.label == rung)
    assert {"overlap", "unpinned", "few_problems"} & {note.code for note in plan.warnings} == set()
    folder = RunFolder(job_folder(arm.recipe, evaluate=plan.evaluate))
    runner.run(folder.path)
    lines = list(folder.read_metrics())
    assert [line.step for line in lines] == [0, 1, 2]
    learned = [line.values.get("optim/grad_norm", 0.0) > 0 for line in lines[1:]]
    assert any(learned) == (rung != "+ dynamic_sampling")
    assert {e.set for e in folder.read_evaluations()} == sets
    kept = published(folder)[0] / "model"
    assert AutoModelForCausalLM.from_pretrained(kept).config.model_type == "qwen2"
    assert AutoTokenizer.from_pretrained(kept).chat_template


def test_the_plan_shows_prompts_and_problems_of_all_sets(small: Callable[[str], PlanDraft]) -> None:
    """The system prompt stands in the first prompt, once; each set says how many problems it has."""
    facts = "\n".join(small("dapo_qwen2.5_7b_math").facts)
    assert facts.count("final answer within") == 1
    assert "12 training problems in open-r1/DAPO-Math-17k-Processed en train; 4 held out" in facts
    assert "`evaluate.sets.aime_2024`: 4 problems in Maxwell-Jia/AIME_2024 train" in facts
