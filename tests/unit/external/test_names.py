"""Arms and seeds of logs: patterns over paths, tables, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from paribus.errors import ImportFailed
from paribus.external.names import by_pattern, by_table


def found(pattern: str, *paths: str) -> list[tuple[str, int]]:
    """Return arm and seed of each path."""
    return [(log.arm, log.seed) for log in by_pattern([(p, p) for p in paths], pattern)]


@pytest.mark.parametrize(
    ("pattern", "path", "arm", "seed"),
    [
        ("{arm}-s{seed}", "runs/grpo-s1", "grpo", 1),
        ("{arm}-s{seed}", "runs/dr-grpo-s10/trainer_state.json", "dr-grpo", 10),
        ("{arm}-s{seed}", "a-s1/b-s2.jsonl.gz", "b", 2),
        ("{arm}/seed_{seed}", "/x/clip_higher/seed_03/", "clip_higher", 3),
        ("*_{seed}_{arm}", "2026-11-26_4_dapo", "dapo", 4),
        ("{arm}.{seed}", "a.b.7", "a.b", 7),
        ("run({arm})[{seed}]", "run(x)[5]", "x", 5),
    ],
)
def test_a_pattern_finds_arm_and_seed(pattern: str, path: str, arm: str, seed: int) -> None:
    """The last place that fits counts, whole parts of the path, and every other character stands for itself."""
    assert found(pattern, path) == [(arm, seed)]


def test_paths_that_do_not_fit_are_all_named() -> None:
    """One message lists them, with the pattern and what to do."""
    with pytest.raises(ImportFailed, match=r"(?s)runs/a\n  runs/b.*--table"):
        found("{arm}-s{seed}", "runs/a", "runs/x-s1", "runs/b", "runs/x-s2")


@pytest.mark.parametrize("pattern", ["{arm}", "s{seed}", "{arm}{arm}{seed}", "", "{seed}-{seed}-{arm}"])
def test_a_pattern_needs_both_once(pattern: str) -> None:
    """Without an arm or a seed nothing is guessed."""
    with pytest.raises(ImportFailed, match="once"):
        found(pattern, "x-s1")


def test_two_logs_of_one_run_are_refused() -> None:
    """Both paths are named, so that one can be left out."""
    with pytest.raises(ImportFailed, match=r"a/x-s1 and b/x-s1: arm `x`, seed 1"):
        found("{arm}-s{seed}", "a/x-s1", "b/x-s1")


@pytest.mark.parametrize("path", ["x-s99999999999", "a|b-s1", "a`b-s1", f"{'x' * 65}-s1", " x-s1"])
def test_arms_and_seeds_that_no_table_can_hold_are_refused(path: str) -> None:
    """The message says what is allowed."""
    with pytest.raises(ImportFailed, match=r"from 0 to 2147483647|no name of an arm"):
        found("{arm}-s{seed}", path)


def test_a_table_names_logs_beside_itself(tmp_path: Path) -> None:
    """Columns may stand in any order; empty lines are skipped; MLflow runs are no paths."""
    (tmp_path / "runs.csv").write_text("seed, arm,path\n1,grpo,one.jsonl\n\n2,grpo,mlflow:abc\n")
    logs = by_table(tmp_path / "runs.csv")
    assert [(x.target, x.arm, x.seed) for x in logs] == [
        (str(tmp_path / "one.jsonl"), "grpo", 1),
        ("mlflow:abc", "grpo", 2),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "its first line must be `path,arm,seed`"),
        ("path,arm\nx,y\n", "its first line must be `path,arm,seed`"),
        ("path,arm,seed\n", "names no log"),
        ("path,arm,seed\nx,y\n", ":2: has 2 cells"),
        ("path,arm,seed\nx,y,-1\n", ":2: the seed is `-1`"),
        ("path,arm,seed\nx,y,1.5\n", ":2: the seed is `1.5`"),
        ("path,arm,seed\nx,,1\n", ":2: `` is no name of an arm"),
        ("path,arm,seed\nx,y,1\nz,y,1\n", "several logs are of one run"),
    ],
)
def test_mistakes_in_a_table_have_a_line(tmp_path: Path, text: str, message: str) -> None:
    """Nothing is skipped silently."""
    (tmp_path / "runs.csv").write_text(text)
    with pytest.raises(ImportFailed, match=message.replace("(", r"\(")):
        by_table(tmp_path / "runs.csv")


def test_a_table_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    """A binary file or a missing one gives a message, not a traceback."""
    (tmp_path / "runs.csv").write_bytes(b"\xff\xfe\x00")
    for name in ("runs.csv", "none.csv"):
        with pytest.raises(ImportFailed, match="cannot be read"):
            by_table(tmp_path / name)
