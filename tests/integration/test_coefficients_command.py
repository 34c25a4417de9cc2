"""`paribus recipes coefficients` as a person types it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paribus.cli import paribus
from paribus.recipe.coefficients import read_responses
from paribus.recipe.presets import preset_names

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "docs/examples/coefficients/batch.jsonl")
HOWTO = "docs/howto/coefficients.md"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def coefficients(tmp_path: Path) -> Run:
    """A function that runs the command in an empty folder."""

    def run(*arguments: str, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        code = f"import sys\n{before}\nfrom paribus.cli import main\nmain()"
        command = [sys.executable, "-c", code, "recipes", "coefficients", *arguments]
        env = {**os.environ, **environment}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)

    return run


def test_the_example_shows_what_dapo_does(coefficients: Run) -> None:
    """Clipped tokens, the filtered group and the totals of the shipped file are there."""
    shown = coefficients("dapo", "--batch", EXAMPLE, "--against", "grpo")
    assert (shown.returncode, shown.stderr) == (0, "")
    for text in ("clipped high", "clipped low", "filtered", "grpo", "over the sum of all |c|"):
        assert text in shown.stdout


def test_json_holds_every_part_of_every_token(coefficients: Run) -> None:
    """The JSON object has one entry a response and one value a token, and its parts make the whole."""
    shown = coefficients("grpo", "--batch", EXAMPLE, "--set", "kl.beta=0.5", "--against", "dr_grpo", "--json")
    found = json.loads(shown.stdout)
    assert found["recipe"]["kl"]["beta"] == 0.5
    assert [len(x["total"]) for x in found["responses"]] == [5, 2, 9, 12, 3, 4, 2]
    for x in found["responses"]:
        parts = zip(x["surrogate"], x["kl"], x["nll"], strict=True)
        assert [sum(p) for p in parts] == pytest.approx(x["total"], abs=1e-9)
        assert len(x["why"]) == len(x["tokens"]) == len(x["logp_reference"])
        assert abs(x["share"]) <= 1 >= abs(x["share_against"])
    assert sum(abs(x["share"]) for x in found["responses"]) <= 1


def test_mistakes_are_listed_at_once_with_exit_status_2(coefficients: Run, tmp_path: Path) -> None:
    """Wrong changes and wrong files end with what is allowed, without a traceback."""
    for wrong, texts in (
        (("foo", "=1", "scale="), ("`foo` is not PATH=VALUE", "`=1` is not", "`scale=` is not")),
        (("clip.hihg=0.1", "clip.low=wide"), ("Did you mean `high`?", "clip.low: expects a number")),
        (("scale=none", "scale=none"), ("scale",)),
        (("kl={",), ("not valid YAML",)),
    ):
        shown = coefficients("grpo", "--batch", EXAMPLE, *(x for s in wrong for x in ("--set", s)))
        assert shown.returncode == 2
        for text in texts:
            assert text in shown.stderr
    (tmp_path / "bad.jsonl").write_text('{"group": "a"}\n{"correct": true}\n')
    shown = coefficients("grpo", "--batch", "bad.jsonl")
    assert shown.returncode == 2
    assert "bad.jsonl:1: correct: is missing, and so is `score`" in shown.stderr
    assert "bad.jsonl:2: group: is missing" in shown.stderr
    assert "Traceback" not in shown.stderr
    assert coefficients("no_such", "--batch", EXAMPLE).returncode == 2


def test_a_change_that_does_not_fit_the_recipe_is_refused(coefficients: Run) -> None:
    """Couplings between levels hold for changes, too."""
    shown = coefficients("dapo", "--batch", EXAMPLE, "--set", "schedule.max_new_tokens=12")
    assert shown.returncode == 2
    assert "length.rule.soft_start (16384) is never passed" in shown.stderr


def test_without_torch_the_extra_is_named(coefficients: Run) -> None:
    """Where torch is not installed the message has the pip line."""
    shown = coefficients("grpo", "--batch", EXAMPLE, before="sys.modules['torch'] = None")
    assert shown.returncode == 1
    assert re.search(r" install .*\[train\]'", shown.stderr)
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_prints_the_example_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], preset: str
) -> None:
    """All presets have a coefficient view, and it is no wider than the terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    paribus(["recipes", "coefficients", preset, "--batch", EXAMPLE, "--against", "grpo"], standalone_mode=False)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("share: sum of c" in line for line in lines)


def test_the_shipped_example_can_be_read() -> None:
    """The example of the documentation has two groups, one without spread, a truncated response, ragged lengths."""
    responses = read_responses(Path(EXAMPLE))
    groups = [{x.correct for x in responses if x.group == g} for g in ("a", "b")]
    assert groups == [{True, False}, {True}]
    assert sum(x.truncated for x in responses) == 1
    assert len({x.length for x in responses}) > 3


def test_the_documentation_shows_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block of the how-to that begins with a command is its output, but for what `...` stands for."""
    monkeypatch.chdir(ROOT)
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    blocks = re.findall(r"```text\n\$ paribus (.*?)\n(.*?)```", (ROOT / HOWTO).read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    for arguments, shown in blocks:
        paribus(arguments.split(), standalone_mode=False)
        printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()).rstrip()
        assert shown.startswith("...\n") or printed == shown.rstrip()
        assert printed.endswith(shown.removeprefix("...\n").rstrip())
