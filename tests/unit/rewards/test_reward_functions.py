"""Reward functions in a study: their source is found, judged without being run, and part of a run's identity."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from paribus.contract import Options, load_runner
from paribus.errors import ParibusError, StudyFileError, UnsupportedRecipe
from paribus.recipe.factors import Reward, RewardFunction
from paribus.recipe.recipe import JsonlTask, Recipe, difference
from paribus.study.expand import draft_file
from paribus.study.load import load_study
from paribus.study.sources import MOST_BYTES, Source, beside, follow
from paribus_runners.native import fingerprint
from paribus_runners.rewards.functions import fault, installed, scores
from paribus_runners.rewards.pool import Outcome
from support.confined import confined
from support.hub import write_lines

MINE = """
import sys
raise SystemExit("a plan must not run this")
try:
    from json import dumps as encode
except ImportError:
    encode = None
VALUE = 3
LIST = [1]
made = max
def brevity(prompts, completions, **columns): return [0.0]
def plain(completions, *, scale=1.0): return [0.0]
def needs(completions, solution): return [0.0]
def positions(completions, /): return [0.0]
class Reward: pass
if sys.platform:
    def branch(completions): return [0.0]
"""


def _fault(path: str, text: str = MINE, columns: tuple[str, ...] = ("answer",)) -> str:
    return fault("reward.functions.f", RewardFunction(path=path), {"mine.py": text}, dict.fromkeys(columns, ""))


@pytest.mark.parametrize("name", ["brevity", "plain", "branch", "encode", "made"])
def test_a_fitting_function_is_accepted_without_being_run(name: str) -> None:
    """Functions, those in branches, and names whose value only running would show."""
    assert _fault(f"mine.{name}") == ""


def test_columns_of_the_data_are_arguments() -> None:
    """A required argument must be a column."""
    assert _fault("mine.needs", columns=("answer", "solution")) == ""


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("nowhere.f", MINE, "there is no module `nowhere`: put nowhere.py beside the study file, or install it"),
        ("mine.brevty", MINE, "mine.py has no `brevty`. Did you mean `brevity`?"),
        ("mine.VALUE", MINE, "mine.py:8 sets `VALUE` to a value that is not callable"),
        ("mine.LIST", MINE, "mine.py:9 sets `LIST`"),
        ("mine.Reward", MINE, "mine.py:15 defines `Reward` as a class"),
        ("mine.sys", MINE, "mine.py:2 imports a module as `sys`"),
        ("mine.needs", MINE, "mine.py:13 needs `solution`, and there are only `prompts`, `completions`, `answer`"),
        ("mine.positions", MINE, "mine.py:14 takes `completions` by position only"),
        ("mine.f", "def f(:\n", "mine.py:1:7 is not valid Python: invalid syntax"),
        ("json.dumps", MINE, "json/__init__.py:"),
    ],
)
def test_what_cannot_be_a_reward_function_is_refused(path: str, text: str, message: str) -> None:
    """The message has the path in the study, the line of the source and the remedy."""
    found = _fault(path, text)
    assert found.startswith(f"`reward.functions.f.path: {path}`: ")
    assert message in found


@pytest.mark.parametrize(
    "text",
    [
        "-" * 200_000 + "1", "not " * 100_000 + "1", "f" + "()" * 100_000, "import a" + ".a" * 60_000,
        "from a" + " . \\\n a" * 60_000 + " import b", "if 1: a = 1\n" + "elif 1: a = 1\n" * 2000,
    ],
    ids=lambda text: text[:9],
)  # fmt: skip
def test_a_file_that_pythons_parser_cannot_take_is_refused_in_little_memory(text: str, tmp_path: Path) -> None:
    """Too deep for the parser, for its stack, or for a walk, or with names that it needs gigabytes for."""

    def judge() -> None:
        assert follow(["mine"], lambda name: Source("mine.py", text) if name == "mine" else None) == {"mine.py": text}
        assert re.search(r"mine\.py:1(:\d+)? is not valid Python: ", _fault("mine.f", text))

    confined(judge, tmp_path, memory=1 << 29)


def test_an_installed_module_is_found_without_importing_its_package(tmp_path: Path, monkeypatch: Any) -> None:
    """Not even the packages around it are run."""
    inner = tmp_path / "outer_package" / "inner"
    inner.mkdir(parents=True)
    for file in (tmp_path / "outer_package" / "__init__.py", inner / "__init__.py"):
        file.write_text("raise SystemExit")
    (inner / "rewards.py").write_text("def f(completions): return []")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = installed("outer_package.inner.rewards")
    assert found is not None
    assert found.path == "outer_package/inner/rewards.py"
    assert "outer_package" not in sys.modules
    assert installed("outer_package.nothing") is None


def test_files_that_a_module_imports_belong_to_it(tmp_path: Path) -> None:
    """Directly or through others, in functions, relatively; what is not beside the study does not."""
    (tmp_path / "parts" / "deep").mkdir(parents=True)
    files = {
        "mine.py": "import json\nfrom parts import one\ndef f():\n    import late",
        "late.py": "", "unused.py": "",
        "parts/__init__.py": "", "parts/one.py": "from .deep import two\nfrom . import three",
        "parts/three.py": "x = (",
        "parts/deep/__init__.py": "from ..four import f", "parts/deep/two.py": "", "parts/four.py": "",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert follow(["mine"], beside(tmp_path)) == {k: files[k] for k in sorted(files) if k != "unused.py"}


STUDY = """\
study: mine
base:
  preset: grpo
  set:
    task: chain
    reward.functions: {{{functions}}}
tricks:
  short: {{reward.functions.brevity.weight: 0.5}}
designs:
  main: {{kind: add_one}}
seeds: {{n: 2}}
"""


def _study(folder: Path, source: str, functions: str = "brevity: mine.brevity") -> Path:
    (folder / "mine.py").write_text(source)
    (folder / "study.yaml").write_text(STUDY.format(functions=functions))
    return folder / "study.yaml"


def _fingerprints(study: Path) -> list[str]:
    return [run.fingerprint for run in draft_file(study).checked().runs]


def test_a_module_whose_name_no_file_can_have_is_not_there(tmp_path: Path) -> None:
    """A part of 300 letters, and 5,000 letters together."""
    for name in ("a" * 300, ".".join(["a" * 90] * 60)):
        (tmp_path / "mine.py").write_text(f"import {name}\n")
        assert list(follow(["mine", name], beside(tmp_path))) == ["mine.py"]


def test_the_source_is_part_of_the_identity_of_a_run(tmp_path: Path) -> None:
    """Comments and layout don't count; code does, also that of a helper."""
    (tmp_path / "helper.py").write_text("LIMIT = 3\n")
    text = "import helper\ndef brevity(completions): return [0.0]\n"
    study = _study(tmp_path, text)
    first = _fingerprints(study)
    _study(tmp_path, "# a remark\n" + text.replace(" return", "\n    return"))
    assert _fingerprints(study) == first
    _study(tmp_path, text.replace("0.0", "1.0"))
    assert not set(_fingerprints(study)) & set(first)
    _study(tmp_path, text)
    (tmp_path / "helper.py").write_text("LIMIT = 4\n")
    assert not set(_fingerprints(study)) & set(first)


def test_the_plan_keeps_the_source(tmp_path: Path) -> None:
    """What runs train with is what was planned, wherever and whenever they run."""
    text = "def brevity(completions): return [0.0]\n"
    plan = draft_file(_study(tmp_path, text)).checked()
    assert plan.options.sources == {"mine.py": text}
    recipe = plan.arms[0].recipe
    (tmp_path / "mine.py").unlink()
    assert load_runner("native").hashes(recipe, plan.options) == plan.arms[0].hashes
    assert Options.model_validate_json(plan.options.model_dump_json()) == plan.options


def test_recipes_without_functions_are_stored_as_before() -> None:
    """No key is added: processes of earlier versions read them, and their fingerprints stay."""
    assert "functions" not in Recipe().model_dump(mode="json")["reward"]
    assert Options().model_dump(mode="json") == {"own": {}, "passthrough": {}}
    assert fingerprint.data(Recipe()) == fingerprint.data(Recipe(), {"mine.py": "x"})


def test_a_plan_refuses_a_function_that_is_not_there(tmp_path: Path) -> None:
    """With the runner's other reasons, and the arms that it holds for."""
    draft = draft_file(_study(tmp_path, "def other(completions): return []"))
    with pytest.raises(UnsupportedRecipe, match=r"mine.py has no `brevity`.*arms: `base`, `\+ short`"):
        draft.checked()


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ("brevity: brevity", "is not `module.function`"),
        ("brevity: {path: mine.brevity, weigth: 1}", "Did you mean `weight`?"),
        ("brevity: {weight: 1}", "needs `path`"),
        ("brevity: mine.brevity, format: mine.brevity", "`format` already names a part of the reward"),
        ("brevity: mine.brevity, 1st: mine.brevity", "`1st` is not a name for a function"),
        ("brevity: {path: mine.brevity, timeout_s: 0}", "timeout_s"),
        ("brevity: [mine.brevity]", "expects a mapping"),
    ],
)
def test_mistakes_in_the_study_have_their_place(tmp_path: Path, functions: str, message: str) -> None:
    """File, line and path."""
    with pytest.raises(StudyFileError, match=r"study.yaml:6") as error:
        load_study(_study(tmp_path, "", functions))
    assert message in str(error.value)


def test_a_syntax_error_is_said_once_with_its_column(tmp_path: Path) -> None:
    """What a runner cannot read of a function and what cannot be hashed of it is the same."""
    draft = draft_file(_study(tmp_path, "def brevity(prompts, completions, **more:\n    return 1\n"))
    with pytest.raises(ParibusError) as caught:
        draft.checked()
    assert str(caught.value).count("is not valid Python") == 1
    assert "mine.py:1:12 is not valid Python: '(' was never closed" in str(caught.value)


def test_one_function_can_be_the_whole_reward(tmp_path: Path) -> None:
    """``kind: function`` takes the verdict out of the reward; weights that are written stay."""
    for patch, want in (
        ("{kind: function, path: mine.brevity, weight: 2.0}", {"brevity": 2.0}),
        ("{kind: function, functions: {a: mine.brevity, b: mine.brevity}}", {"a": 1.0, "b": 1.0}),
        ("{kind: function, path: mine.brevity, weights: {correct: 0.5}}", {"correct": 0.5, "brevity": 1.0}),
    ):
        _study(tmp_path, "def brevity(completions): return []")
        file = tmp_path / "study.yaml"
        text = STUDY.format(functions="").replace("reward.functions: {}", f"reward: {patch}")
        file.write_text(text.replace("reward.functions.brevity.weight", "reward.factor"))
        assert load_study(file).base.reward.counts == want


@pytest.mark.parametrize("path", ["../mine.py", "/mine.py", "a//b.py", "a/../../b.py", ""])
def test_a_source_stays_inside_the_run_folder(path: str) -> None:
    """A job cannot write files anywhere else."""
    with pytest.raises(ValueError, match="not the path of a file beside the study"):
        Options(sources={path: ""})


def test_a_source_that_is_too_large_or_no_text_is_refused(tmp_path: Path) -> None:
    """A plan holds sources, not data."""
    study = _study(tmp_path, "x" * (MOST_BYTES + 1))
    with pytest.raises(ParibusError, match="keep data out of the source"):
        load_study(study)
    (tmp_path / "mine.py").write_bytes(b"\xff\xfe")
    with pytest.raises(ParibusError, match=r"cannot read .*mine.py"):
        load_study(study)


def test_names_are_sorted_so_that_sums_have_one_order() -> None:
    """Equal recipes are equal, whatever the order in the study."""
    a, b = RewardFunction(path="m.a"), RewardFunction(path="m.b")
    one, other = (Reward.model_validate({"functions": x}) for x in ({"a": a, "b": b}, {"b": b, "a": a}))
    assert one == other
    assert list(one.functions) == list(other.functions) == ["a", "b"]
    assert hash(Recipe(reward=one)) == hash(Recipe(reward=other))


def test_columns_of_json_lines_are_known_to_the_check(tmp_path: Path) -> None:
    """The first problem shows them."""
    (tmp_path / "data.jsonl").write_text('{"prompt": "p", "answer": 1, "level": 3}\n')
    (tmp_path / "mine.py").write_text("def f(completions, level): return []\ndef g(completions, other): return []")
    data = str(tmp_path / "data.jsonl")
    task = JsonlTask(train=data, heldout=data)
    options = Options(sources={"mine.py": (tmp_path / "mine.py").read_text()})

    def reasons(path: str) -> list[str]:
        reward = Reward.model_validate({"functions": {"f": {"path": path}}})
        recipe = Recipe.model_validate({"task": task, "reward": reward, "model": {"name": "elsewhere"}})
        return [s.reason for s in load_runner("native").support(recipe, options)]

    assert reasons("mine.f") == []
    assert "`prompts`, `completions`, `answer`, `level`" in reasons("mine.g")[0]


@pytest.mark.parametrize("kind", ["jsonl", "dataset"])
def test_a_row_without_a_column_that_a_function_needs_is_named(tmp_path: Path, kind: str) -> None:
    """At plan time, and not at the step that draws it; a default value is enough."""
    rows = [{"prompt": "p", "answer": 1}, {"prompt": "q", "answer": 2, "level": 3}, {"prompt": "r", "answer": 2}]
    data = str(write_lines(tmp_path / "data.jsonl", rows))
    mine = "def f(completions, level): return []\ndef g(completions, level=0): return []"

    def reasons(path: str) -> list[str]:
        reward = Reward.model_validate({"functions": {"f": {"path": path}}})
        source = data if kind == "jsonl" else {"path": data}
        task = {"kind": kind, "train": source, "heldout": source}
        recipe = Recipe.model_validate({"task": task, "reward": reward, "model": {"name": "elsewhere"}})
        return [s.reason for s in load_runner("native").support(recipe, Options(sources={"mine.py": mine}))]

    assert f"needs `level`, which {data}:1 lacks" in reasons("mine.f")[0]
    assert reasons("mine.g") == []
    write_lines(tmp_path / "data.jsonl", [rows[1], rows[1], rows[2]])
    assert f"needs `level`, which {data}:3 lacks" in reasons("mine.f")[0]
    write_lines(tmp_path / "data.jsonl", [rows[1]])
    assert reasons("mine.f") == []


def test_only_what_a_new_function_states_is_a_change() -> None:
    """The row of a plan would be hidden behind four defaults; between two recipes with it, each value counts."""
    without = Recipe()
    functions = {"brevity": {"path": "mine.brevity", "weight": 0.5}}
    one = Recipe.model_validate({"reward": {"functions": functions}})
    assert difference(without, one) == {
        "reward.functions.brevity.path": (None, "mine.brevity"), "reward.functions.brevity.weight": (None, 0.5),
    }  # fmt: skip
    assert {k: v[::-1] for k, v in difference(one, without).items()} == difference(without, one)
    functions["brevity"]["timeout_s"] = 3.0
    other = Recipe.model_validate({"reward": {"functions": functions}})
    assert difference(one, other) == {"reward.functions.brevity.timeout_s": (10.0, 3.0)}


@pytest.mark.parametrize(
    "reward",
    [{"weights": {"correct": 1e300}}, {"weights": {"format": -2e6}}, {"factor": 1e7},
     {"functions": {"f": {"path": "m.f", "weight": 1e39}}}, {"functions": {"f": {"path": "m.f", "on_failure": -1e39}}}],
)  # fmt: skip
def test_weights_whose_sums_could_overflow_are_no_recipe(reward: dict[str, Any]) -> None:
    """A sum that is infinite has no advantage: the run would end in its first step."""
    with pytest.raises(ValidationError):
        Reward.model_validate(reward)


def test_a_score_that_overflows_with_its_weight_counts_as_a_failure() -> None:
    """As infinity does."""
    assert scores(Outcome(value=[1.0, 1e31]), 2)[1:] == ("not_finite", "returned 1e+31 for 1 of 2 responses")
    assert scores(Outcome(value=[10**400]), 1)[1:] == ("not_finite", "returned a whole number of 401 digits for 1 of 1 "
                                                       "responses")  # fmt: skip
    assert scores(Outcome(value=[1e30, -1e30]), 2)[0] == [1e30, -1e30]
