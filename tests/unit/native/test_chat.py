"""Chat templates, and what a plan sees of data and model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file

from paribus.contract import Evaluate, Examination, Options
from paribus.errors import ParibusError, RunnerError
from paribus.recipe.recipe import Recipe
from paribus_runners.native import chat, runner
from paribus_runners.native.model_files import shapes_in
from paribus_runners.native.policy import Policy
from paribus_runners.tasks import Rendered, rows
from support.chat_model import CHAT, chat_tokenizer, save_chat_model
from support.hub import COMMIT, gsm8k, write_cache, write_lines

ASKED = [{"role": "user", "content": "2+2?"}]
TOLD = [{"role": "system", "content": "Think. "}, *ASKED]
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)


def test_messages_are_written_out_up_to_the_answer() -> None:
    """System prompt, question, and the beginning of the assistant's turn."""
    assert chat.render(chat_tokenizer(), TOLD) == (
        "<|im_start|>system\nThink. <|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (None, ASKED, "has no chat template: write `task.template: none`"),
        (NO_SYSTEM, TOLD, r"takes no system message \(System role not supported\): leave out `task.system`"),
        ("{{ raise_exception('no') }}", TOLD, "raises an error: no. Mend the template"),
        ("{{ messages[0].content + 1 }}", ASKED, "raises an error: "),
        ("{{ messages[7].content.x }}", ASKED, "raises an error: list object has no element 7"),
        ("{% for m in messages %}", ASKED, "raises an error: "),
        ("{{ messages.__class__.__mro__ }}", ASKED, "raises an error: "),
        ("{{ messages[0].content }}", TOLD, "leaves the prompt out: mend it"),
        ("{{ messages[-1].content }}", TOLD, "leaves the system message out: leave out `task.system`"),
    ],
)
def test_templates_that_fail_are_said_to_with_the_remedy(template: str | None, messages: Any, message: str) -> None:
    """None is there, it refuses the system role, it raises, it is no template, it leaves the sandbox, it drops text."""
    with pytest.raises(RunnerError, match=message):
        chat.render(chat_tokenizer(template), messages)


@pytest.fixture(scope="module")
def begins(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """A model whose tokenizer puts a mark before every text, and whose template writes the same mark."""
    folder = tmp_path_factory.mktemp("models") / "begins"
    return Policy.load(str(save_chat_model(folder, "{{ bos_token }}" + CHAT, begins=True)), None, "float32")


def test_the_mark_of_the_beginning_comes_once(begins: Policy) -> None:
    """Plain text gets it from the tokenizer, a chat from its template; the template's marks are single tokens."""
    written = begins.render(ASKED)
    plain, told = begins.encode(["2+2?", Rendered(written)])
    first, start, end = begins.tokenizer.convert_tokens_to_ids(["<s>", "<|im_start|>", "<|im_end|>"])
    assert (plain.count(first), told.count(first)) == (1, 1)
    assert (told.count(start), told.count(end)) == (2, 1)
    assert begins.tokenizer.decode(told) == written
    assert begins.encode([written])[0].count(first) == 2  # what the type of the text prevents


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recipe]:
    """Make a recipe on a model folder and two files of problems."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    rows._downloaded.cache_clear()
    write_lines(tmp_path / "train.jsonl", gsm8k(0, 20))
    write_lines(tmp_path / "test.jsonl", gsm8k(500, 5))

    def make(name: str | None = None, **task: Any) -> Recipe:
        sources = {
            key: {"path": str(tmp_path / f"{file}.jsonl")} for key, file in (("train", "train"), ("heldout", "test"))
        }
        values = {"kind": "dataset", **sources, "format": "gsm8k", **task}
        return Recipe.model_validate(
            {"model": {"name": name or str(save_chat_model(tmp_path / "model"))}, "task": values}
        )

    return make


def seen(recipe: Recipe, problems: int = 5) -> Examination:
    """Return what a plan sees."""
    return runner.examine(recipe, Evaluate(problems=problems), Options())


def test_a_plan_shows_counts_lengths_and_the_first_prompt(made: Callable[..., Recipe], tmp_path: Path) -> None:
    """All from the files and the tokenizer; nothing is wrong."""
    found = seen(made(system="Think."))
    assert (found.warnings, found.faults) == ((), ())
    counts, lengths, first, memory, phases, fits = found.facts
    assert counts == f"data: 20 training problems in {tmp_path}/train.jsonl; 5 held out in {tmp_path}/test.jsonl"
    shortest = len("system\nThink.\nuser\nAnn has 0 pens and buys 0. How many?\nassistant\n") + 5 + 0
    assert lengths.startswith(f"prompts: {shortest} to {shortest + 2} tokens, ")
    assert first == (
        "first prompt: <|im_start|>system\\nThink.<|im_end|>\\n<|im_start|>user\\nAnn has 0 pens and buys 0. How many?"
        "<|im_end|>\\n<|im_start|>assistant\\n -> answer 0"
    )
    trained = Policy.load(str(tmp_path / "model"), None, "float32").model.parameters()
    numbers = sum(p.numel() for p in trained)
    assert memory == (
        f"memory: {numbers:,} parameters; weights, gradients and moments take {16 * numbers / 1e6:.1f} MB in each "
        "process of a run, before activations and samples"
    )
    assert re.search(
        r"on a GPU rollout [\d.]+ MB, old pass [\d.]+ MB, update [\d.]+ MB, evaluation [\d.]+ MB; on CPU", phases
    )
    assert fits == "one process with 24 GB of GPU memory or more: 1,024 responses at a time, 32,768 tokens a pass"


@pytest.mark.parametrize("damage", [b"", b"\xff" * 16, b"\x02\0\0\0\0\0\0\0[]", b'\x08\0\0\0\0\0\0\0{"a": 1}'])
def test_weights_whose_header_is_damaged_have_no_size(tmp_path: Path, damage: bytes) -> None:
    """A plan says nothing of their memory, and goes on: loading them names the damage."""
    (tmp_path / "model.safetensors").write_bytes(damage)
    assert shapes_in(tmp_path) == {}


def test_a_plan_warns_of_overlap_of_few_problems_and_of_datasets_that_can_change(
    made: Callable[..., Recipe], tmp_path: Path
) -> None:
    """Each with its code, an example and the remedy."""
    story = "Ann picked {} apples on Monday and gave a third of them to her two brothers before she went home again"
    write_lines(tmp_path / "train.jsonl", [*gsm8k(0, 5), {"question": story.format(3), "answer": "#### 2"}])
    write_cache(
        tmp_path / "hub", "me/mine",
        {"default": {"test": [*gsm8k(3, 2), {"question": story.format(9), "answer": "#### 6"}, *gsm8k(500, 1)]}},
    )  # fmt: skip
    found = seen(made(heldout={"name": "me/mine", "split": "test"}), problems=100)
    warnings = dict(found.warnings)
    assert warnings.keys() == {"overlap", "few_problems", "unpinned"}
    assert warnings["overlap"].startswith(
        "3 of 4 held-out problems stand in the training data too: 2 whole (e.g. me/min"
    )
    assert "me/mine test row 3 and " in warnings["overlap"]
    assert f"write `revision: {COMMIT}`" in warnings["unpinned"]
    assert "`task.heldout` has 4" in warnings["few_problems"]
    assert found.faults == ()
    pinned = seen(made(heldout={"name": "me/mine", "split": "test", "revision": COMMIT}), problems=4)
    assert [code for code, _ in pinned.warnings] == ["overlap"]


def with_set(recipe: Recipe, rows: Path, problems: int = 5, **task: Any) -> Examination:
    """Return what a plan sees with the evaluation set ``hard``."""
    chosen = {"task": {"kind": "dataset", "heldout": str(rows), **task}, "problems": problems}
    evaluate = Evaluate.model_validate({"problems": 5, "sets": {"hard": chosen}})
    return runner.examine(recipe, evaluate, Options())


def test_a_plan_looks_into_whole_files_of_json_lines(tmp_path: Path) -> None:
    """A damaged line in the middle, prompts that are too long, problems that are on both sides."""
    lines = [{"prompt": f"{n} + {n} =", "answer": str(2 * n)} for n in range(8)]
    heldout = write_lines(tmp_path / "heldout.jsonl", lines[5:])
    train = write_lines(tmp_path / "train.jsonl", lines)
    task = {"kind": "jsonl", "train": str(train), "heldout": str(heldout), "verifier": "last_number"}
    recipe = Recipe.model_validate(
        {
            "model": {"name": str(save_chat_model(tmp_path / "model"))},
            "task": task,
            "schedule": {"max_new_tokens": 100_000},
        }
    )
    found = runner.examine(recipe, Evaluate(problems=3), Options())
    assert {"overlap", "context"} <= {code for code, _ in found.warnings}
    assert found.faults == ()
    text = train.read_text().splitlines()
    train.write_text("\n".join([text[0], "[1", text[2], "[1]", *text[4:]]))
    found = runner.examine(recipe, Evaluate(problems=3), Options())
    assert [fault.split(": ")[1] for fault in found.faults] == [f"{train}:2", f"{train}:4"]
    train.write_text("\n".join(["[1]", *text[1:]]))  # which `support` has said
    assert runner.examine(recipe, Evaluate(problems=3), Options()).faults == ()


@pytest.mark.parametrize(
    ("rows", "task", "message"),
    [
        ([{"text": "a", "answer": "1"}], {}, ":1: there is no column `prompt`"),
        ([], {}, " holds no problems: write one row for each, or name another source"),
        (None, {}, ":1: not JSON"),
        ([{"prompt": "a", "answer": "1"}], {"system": "Think."}, "takes no system message"),
    ],
)
@pytest.mark.parametrize("kind", ["dataset", "jsonl", "chain"])
def test_a_plan_sees_what_is_wrong_with_an_evaluation_set(
    made: Callable[..., Recipe], tmp_path: Path, kind: str, rows: Any, task: dict[str, Any], message: str
) -> None:
    """As with the task of the run, whatever that is; the message names the set, and no training problems."""
    folder = save_chat_model(tmp_path / "model", NO_SYSTEM)
    lines, held = (str(write_lines(tmp_path / f"{x}.jsonl", [{"prompt": x, "answer": "1"}])) for x in ("j", "k"))
    own = {"kind": kind} if kind == "chain" else {"kind": "jsonl", "train": lines, "heldout": held}
    recipe = made(str(folder))
    if kind != "dataset":
        recipe = Recipe.model_validate({"model": recipe.model, "task": own})
    hard = tmp_path / "hard.jsonl"
    if rows is None:
        hard.write_text("{")
    else:
        write_lines(hard, rows)
    (fault,) = with_set(recipe, hard, **task).faults
    assert fault.startswith("`evaluate.sets.hard`: `task.heldout`: ")
    assert message in fault
    assert "task.train" not in fault
    write_lines(hard, [{"prompt": f"{i}", "answer": "1"} for i in range(5)])
    found = with_set(recipe, hard)
    assert (found.warnings, found.faults) == ((), ())
    assert f"`evaluate.sets.hard`: 5 problems in {hard}" in found.facts


def test_a_plan_sees_that_the_template_for_an_evaluation_set_is_missing(
    made: Callable[..., Recipe], tmp_path: Path
) -> None:
    """The run's own task needs none."""
    recipe = made(str(save_chat_model(tmp_path / "model", None)), template="none")
    rows = write_lines(tmp_path / "hard.jsonl", [{"prompt": "a", "answer": "1"}])
    (fault,) = with_set(recipe, rows).faults
    assert fault.startswith(f"`evaluate.sets.hard`: `task.heldout`: {rows}:1: the model's tokenizer has no chat templ")
    assert with_set(recipe, rows, template="none").faults == ()


@pytest.mark.parametrize("own", ["dataset", "jsonl"])
@pytest.mark.parametrize("kind", ["dataset", "jsonl"])
def test_a_plan_warns_of_a_set_that_was_trained_on_or_has_few_problems(
    made: Callable[..., Recipe], tmp_path: Path, own: str, kind: str
) -> None:
    """Files of both tasks are compared; that `jsonl` has few problems is said where its lines are counted."""
    rows = [{"prompt": f"How many are {i}?", "answer": "1"} for i in range(9)]
    train, held = write_lines(tmp_path / "t.jsonl", rows[:5]), write_lines(tmp_path / "h.jsonl", rows[6:])
    recipe = made(format=None, train={"path": str(train)}, heldout={"path": str(held)})
    if own == "jsonl":
        task = {"kind": "jsonl", "train": str(train), "heldout": str(held)}
        recipe = Recipe.model_validate({"model": recipe.model, "task": task})
    warnings = dict(with_set(recipe, write_lines(tmp_path / "hard.jsonl", rows[3:7]), problems=4, kind=kind).warnings)
    assert warnings["overlap"].startswith(
        "`evaluate.sets.hard`: 2 of 4 problems of this set stand in the training data too: 2 whole (e.g. "
    )
    few = with_set(recipe, tmp_path / "hard.jsonl", problems=400, kind=kind).warnings
    begin = "`evaluate.sets.hard.problems: 400`, but `evaluate.sets.hard.task.heldout` has 4"
    assert any(message.startswith(begin) for _, message in few) == (kind == "dataset")
    clean = with_set(recipe, write_lines(tmp_path / "hard.jsonl", rows[6:]), kind=kind)
    assert "overlap" not in dict(clean.warnings)


def test_a_plan_sees_a_template_that_raises(made: Callable[..., Recipe], tmp_path: Path) -> None:
    """Also one that raises at a single problem, whose place the message names."""
    folder = save_chat_model(tmp_path / "model", NO_SYSTEM)
    (fault,) = {x.partition(": the model's")[2] for x in seen(made(str(folder), system="Think.")).faults}
    assert "takes no system message" in fault
    picky = "{% if '17' in messages[0].content %}{{ raise_exception('not 17') }}{% endif %}{{ messages[0].content }}"
    (fault,) = seen(made(str(save_chat_model(tmp_path / "model", picky)))).faults
    assert fault.startswith(
        f"`task.train`: {tmp_path}/train.jsonl:18: the model's chat template raises an error: not 17"
    )
    (fault, _) = seen(made(str(save_chat_model(tmp_path / "other", None)))).faults
    assert "has no chat template: write `task.template: none`" in fault
    assert seen(made(str(tmp_path / "other"), template="none")).faults == ()


@pytest.mark.parametrize("kind", ["dataset", "jsonl"])
def test_a_plan_sees_a_model_without_a_token_that_ends_a_response(
    made: Callable[..., Recipe], tmp_path: Path, kind: str
) -> None:
    """As the run would; a generation configuration with one is enough."""
    folder = save_chat_model(tmp_path / "model", end=False)
    recipe = made(str(folder))
    if kind == "jsonl":
        lines = str(write_lines(tmp_path / "j.jsonl", [{"prompt": "a", "answer": "b"}]))
        task = {"kind": "jsonl", "train": lines, "heldout": lines}
        recipe = Recipe.model_validate({"model": recipe.model, "task": task})
    (fault,) = seen(recipe).faults
    assert fault == chat.no_end(str(folder))
    with pytest.raises(
        RunnerError, match=r"names no end-of-sequence token: responses could not end. Set `eos_token_id`"
    ):
        Policy.load(str(folder), None, "float32")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 3}))
    assert seen(recipe).faults == ()
    assert Policy.load(str(folder), None, "float32").ends == (3,)


def test_a_model_that_is_not_here_is_not_downloaded_for_a_plan(
    made: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan says what it doesn't show, it and a run which folder may be meant, and what a tokenizer lacks."""
    found = seen(made("some/model"))
    assert found.facts[-1] == "first prompt: not shown, because the model some/model is not in the hub's cache here"
    assert found.faults == ()
    monkeypatch.chdir(tmp_path)
    for folder in ("models/mine", "empty"):
        Path(folder).mkdir(parents=True)
    for name, more in (
        ("models/mein", ", and there is no folder models/mein. Did you mean `models/mine`?"),
        ("empty/model", ", and there is no folder empty/model."),
        ("modles", ", and there is no folder modles. Did you mean `models`?"),
        ("gpt2", ""),
    ):
        assert seen(made(name)).facts[-1].endswith(f"the model {name} is not in the hub's cache here{more}")
    for name, more in (
        ("my modle", ", and there is no folder my modle. Did you mean `my model`?"),
        ("what?", ", and there is no folder what?."),
    ):
        Path("my model").mkdir(exist_ok=True)
        assert seen(made(name)).faults == (f"`model.name: {name}` is no name that the hub can have{more}",)
    assert seen(made("/elsewhere/my model")).faults == ()  # another machine may have it
    with pytest.raises(RunnerError, match=r"^`model\.name: models/mein` cannot be loaded from the hub, and there is "):
        Policy.load("models/mein", None, "float32")
    recipe = made()
    (tmp_path / "model" / "tokenizer.json").write_text("{")
    assert "its tokenizer cannot be loaded" in seen(recipe).faults[0]


def test_a_misspelt_file_is_said_once(
    made: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reads the rows and what hashes them give one message, with the nearest name."""
    monkeypatch.chdir(tmp_path)
    recipe = made(train={"path": "trian.jsonl"})
    with pytest.raises(ParibusError) as caught:
        runner.hashes(recipe, Options())
    assert seen(recipe).faults == (str(caught.value),)
    assert str(caught.value).endswith("where relative paths begin. Did you mean `train.jsonl`?")


def test_the_hash_of_a_model_covers_its_template(made: Callable[..., Recipe], tmp_path: Path) -> None:
    """Another chat template makes other prompts, and so other runs."""
    recipe = made()
    before = runner.hashes(recipe, Options())
    save_chat_model(tmp_path / "model", CHAT.replace("user", "person") + " ")
    after = runner.hashes(recipe, Options())
    assert (before.model != after.model, before.data == after.data) == (True, True)


def test_the_tiny_models_read_no_datasets(made: Callable[..., Recipe]) -> None:
    """The runner says so, and looks no further."""
    recipe = made("tiny")
    (found,) = runner.support(recipe, Options())
    assert "name another model for `dataset`" in found.reason
    assert seen(recipe) == Examination()


def test_a_plan_warns_of_answers_that_the_verifier_cannot_find(made: Callable[..., Recipe], tmp_path: Path) -> None:
    """No response could be right; which verifier finds an answer is asked of the verifier itself."""
    rows = [{"prompt": f"Where is {i}?", "answer": a} for i, a in enumerate(["Paris", "1,000", "-3.50", "{", "12 km"])]
    lines = str(write_lines(tmp_path / "places.jsonl", rows))
    found = {}
    for verifier in ("last_number", "boxed", "exact"):
        source = {"path": lines}
        recipe = made(format=None, train=source, heldout=source, verifier=verifier)
        found[verifier] = [m for code, m in seen(recipe, problems=5).warnings if code == "unanswerable"]
        task = {"kind": "jsonl", "train": lines, "heldout": lines, "verifier": verifier}
        plain = Recipe.model_validate({"model": recipe.model, "task": task})
        assert [m for code, m in seen(plain).warnings if code == "unanswerable"][:1] != [] or verifier == "exact"
    assert found["exact"] == []
    assert [len(found[v]) for v in ("last_number", "boxed")] == [2, 2]
    assert f"cannot find 3 of 5 answers, e.g. `Paris` ({lines}:1)" in found["last_number"][0]
    assert f"cannot find 1 of 5 answers, e.g. `{{` ({lines}:4)" in found["boxed"][0]
    hard = with_set(made(), Path(lines), verifier="last_number").warnings
    assert any(m.startswith("`evaluate.sets.hard`: `task.heldout`: `verifier: last_number`") for _, m in hard)


def test_a_plan_warns_of_a_turn_that_ends_no_response(made: Callable[..., Recipe], tmp_path: Path) -> None:
    """Base models with the template of a chat: the token that the template puts behind an answer ends nothing."""
    recipe = made()
    assert "end_of_turn" not in dict(seen(recipe).warnings)
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    message = dict(seen(recipe).warnings)["end_of_turn"]
    assert "ends a turn with `<|im_end|>`, but a response ends with `<pad>`" in message
    assert '`"eos_token_id": [0, 3]`' in message
    assert seen(made(template="none")).warnings == ()
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 3]}))
    assert seen(recipe).warnings == ()


def test_a_plan_warns_of_prompts_that_leave_no_room(made: Callable[..., Recipe], tmp_path: Path) -> None:
    """By the positions that the model was made for; a set has a limit of its own."""
    base, place = made(), tmp_path / "model" / "config.json"
    config = json.loads(place.read_text()) | {"max_position_embeddings": 100}
    place.write_text(json.dumps(config))
    long, short = (Recipe.model_validate({**dict(base), "schedule": {"max_new_tokens": n}}) for n in (60, 9))
    message = dict(seen(long).warnings)["context"]
    assert message.startswith("25 of 25 prompts (the longest has ")
    assert "`schedule.max_new_tokens: 60` are longer than the 100 tokens that the model was made for" in message
    assert "context" not in dict(seen(short).warnings)
    refused = seen(Recipe.model_validate({**dict(long), "rollout": {"engine": "vllm"}}))  # vLLM takes no such prompt
    assert refused.faults == (message,)
    assert "context" not in dict(refused.warnings)
    rows = write_lines(tmp_path / "hard.jsonl", [{"prompt": f"{i}", "answer": "1"} for i in range(5)])
    task = {"kind": "dataset", "heldout": str(rows)}
    evaluate = Evaluate.model_validate({"problems": 5, "sets": {"hard": {"task": task, "max_new_tokens": 99}}})
    warnings = dict(runner.examine(short, evaluate, Options()).warnings)
    assert "`evaluate.sets.hard.max_new_tokens: 99`" in warnings["context"]
    place.write_text(json.dumps(config | {"rope_scaling": {"type": "yarn", "factor": 4.0}}))
    assert "context" not in dict(seen(long).warnings)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("text", ["{", "[]", "\udcff"])
def test_damaged_settings_of_a_model_are_named(
    made: Callable[..., Recipe], tmp_path: Path, name: str, text: str
) -> None:
    """They were shown as a damaged tokenizer."""
    recipe = made()
    (tmp_path / "model" / name).write_bytes(text.encode(errors="surrogateescape"))
    (fault,) = seen(recipe).faults
    assert fault.startswith(f"`model.name: {tmp_path / 'model'}`: {name} ")


def test_weights_come_from_safetensors_alone(tmp_path: Path) -> None:
    """Other files of weights are pickles, whatever is in them."""
    folder = save_chat_model(tmp_path / "model", CHAT)
    weights = folder / "model.safetensors"
    torch.save(load_file(weights), folder / "pytorch_model.bin")
    Policy.load(str(folder), None, "float32")
    weights.unlink()
    with pytest.raises(RunnerError, match=r"cannot be loaded: .*safetensors"):
        Policy.load(str(folder), None, "float32")
