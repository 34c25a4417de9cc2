"""`paribus plan`, `recipes` and `schema` as a person types them, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paribus.home import data_root

Run = Callable[..., subprocess.CompletedProcess[str]]
HEAD = "study: s\nbase: {preset: grpo, set: {kl: off}}\n"
ADD = "designs: {d: {kind: add_one}}\n"


@pytest.fixture
def paribus(tmp_path: Path) -> Run:
    """A function that runs the command line in a folder without a store."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PARIBUS_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "paribus", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)

    return run


BAD: dict[str, tuple[str | bytes, str]] = {
    "unknown key": (HEAD + "designs: {d: {kind: list, arms: {a: {}}}}\nquestoin: x\n",
                    "f.yaml:4:1: questoin: unknown key `questoin`. Did you mean `question`? Allowed: `study`, "
                    "`question`, `runner`, `base`, `path`, `tricks`, `needs`, `conflicts`, `designs`, `seeds`, "
                    "`evaluate`, `checkpoint`, `timeouts`, `margin`, `health`, `mirror`, `budget`, `report`, "
                    "`resources`, `allow`."),
    "wrong type": (HEAD + "tricks: {a: {clip.high: wide}}\n" + ADD,
                   "f.yaml:3:25: tricks.a.clip.high: expects a number, and `wide` is not"),
    "undefined trick": (HEAD + "tricks: {a: {clip.high: 0.3}}\ndesigns: {d: {kind: cumulative, order: [a, bb]}}\n",
                        "f.yaml:4:44: designs.d.order.2: there is no trick `bb`. Tricks of this study: a."),
    "no such parameter": (HEAD + "tricks: {a: {clip.c: 3.0}}\n" + ADD,
                          "f.yaml:3:14: tricks.a.clip.c: the level `ppo_min` of `clip` has no parameter `c` "
                          "(its parameters are `low`, `high`). Levels that have it: `ppo_dual`."),
    "duplicate key": (HEAD + "tricks: {a: {clip.high: 0.3}, a: {clip.high: 0.4}}\n" + ADD,
                      "f.yaml:3:31: the key `a` appears twice, first on line 3: keep one"),
    "a word for a number": (HEAD + "tricks: {a: {optimizer.learning_rate: fast}}\n" + ADD,
                            "f.yaml:3:39: tricks.a.optimizer.learning_rate: expects a number, and `fast` is not"),
    "no": (HEAD + "tricks: {a: {length.count_masked_rows: no}}\n" + ADD,
           "f.yaml:3:40: tricks.a.length.count_masked_rows: expects true or false, and `no` is not: write false"),
    "cycle": ("study: s\nbase: &b {preset: grpo, set: *b}\n",
              "f.yaml:2:30: `*b` stands inside `&b`: the value would contain itself"),
    "empty": ("", "f.yaml:1:1: the file is empty"),
    "binary": (bytes(range(128, 256)) * 50, "f.yaml:1:1: this is not UTF-8 text: save the file as UTF-8"),
    "zeros": (bytes(5000), "f.yaml:1:1: the character U+0000 is not allowed in YAML: is this a text file?"),
    "nesting": ("a: " + "[" * 999_000, "f.yaml:1:28: nested more than 24 levels deep"),
    "nested mappings": ("{a: " * 249_000, "f.yaml:1:98: nested more than 24 levels deep"),
    "object": ("study: !!python/object/apply:os.system [ls]\nbase: {preset: grpo}\n"
               "designs: {d: {kind: list, arms: {a: {}}}}\n",
               "f.yaml:1:8: tags such as `!!python/object/apply:os.system` are not used here: leave it out"),
    "not a mapping": ("- a\n", "f.yaml:1:1: a study is a mapping that begins with `study: <name>`: see "
                      "docs/studies.md"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_files_end_with_place_and_remedy_and_never_with_a_traceback(
    paribus: Run, tmp_path: Path, name: str
) -> None:
    """Exit status 2, nothing on standard output, and the exact place of the problem."""
    content, line = BAD[name]
    (tmp_path / "f.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    done = paribus("plan", "f.yaml")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.removeprefix("error P100:").strip() == line


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "folder: this is a folder: name the YAML file in it"),
        ("missing.yaml", "missing.yaml: cannot be read: No such file or directory"),
        ("link.yaml", "link.yaml: cannot be read: No such file or directory. Did you mean `large.yaml`?"),
        ("file/below.yaml", "file/below.yaml: cannot be read: Not a directory"),
        ("pipe", "pipe: this is not a regular file"),
        ("large.yaml", "large.yaml: the file has 1.5 MB; at most 1 MB is read"),
        ("x" * 300, "x: cannot be read: File name too long"),
    ],
)
def test_paths_that_cannot_be_read(paribus: Run, tmp_path: Path, name: str, message: str) -> None:
    """A folder, nothing, a dangling link, a path under a file, a pipe, and a huge file end in one line."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "link.yaml").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large.yaml").write_bytes(b"#" * 1_500_000)
    done = paribus("plan", name)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().endswith(message)


def test_all_problems_come_in_the_order_of_their_lines(paribus: Run, tmp_path: Path) -> None:
    """One run of the command is enough to see everything that is wrong."""
    (tmp_path / "f.yaml").write_text(
        HEAD + "tricks: {a: {clip.c: 3.0}, b: {aggregation: tokn}}\n" + ADD + "seeds: {n: 0}\nrunnr: x\n"
    )
    done = paribus("plan", "f.yaml")
    places = [line.split(": ")[0] for line in done.stderr.splitlines()[1:]]
    assert places == ["f.yaml:3:14", "f.yaml:3:45", "f.yaml:5:12", "f.yaml:6:1"]


def test_an_unknown_runner_is_an_error_of_the_file_and_lists_the_installed_ones(paribus: Run, tmp_path: Path) -> None:
    """The runner is found by its name among entry points."""
    (tmp_path / "f.yaml").write_text(HEAD + "designs: {d: {kind: list, arms: {a: {}}}}\nrunner: nativ\n")
    done = paribus("plan", "f.yaml")
    assert ":9: runner: there is no runner `nativ`. Did you mean `native`?" in done.stderr
    assert done.returncode == 2


def test_the_plan_of_the_quickstart(paribus: Run) -> None:
    """Designs, arms, runs, evaluation and notes fit into 100 columns and hold no escape codes."""
    done = paribus("plan", str(data_root("ablations") / "studies" / "quickstart.yaml"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for text in (
        "ladder (cumulative)", "knockout (leave_one_out)", "clip.high: 0.2 -> 0.28", "changes against the row above",
        "changes against `full`", "runs: 51 listed, 39 distinct, 0 already recorded (reused)",
        "1,000 held-out problems", "[confounded] optimizer.max_grad_norm", "[seeds] ", "13 distinct arms",
    ):  # fmt: skip
        assert text in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout


def test_the_plan_as_json(paribus: Run) -> None:
    """Programs read the same plan, with the fingerprint of each run."""
    done = paribus("plan", "--json", str(data_root("ablations") / "studies" / "smoke.yaml"))
    plan = json.loads(done.stdout)
    assert [row["label"] for row in plan["rows"]] == ["base", "+ soft_overlong"]
    assert [len(run["fingerprint"]) for run in plan["runs"]] == [64] * 4
    assert not any(run["recorded"] for run in plan["runs"])
    assert plan["rows"][1]["changes"]["length.rule.kind"] == ["none", "soft_overlong"]


def test_a_plan_is_shown_before_its_data_are_there(paribus: Run) -> None:
    """The published ladder names files that the user supplies: the plan is printed, then what is missing."""
    done = paribus("plan", str(data_root("ablations") / "studies" / "dapo_table1.yaml"))
    assert done.returncode == 2
    assert "+ dynamic_sampling" in done.stdout
    assert "data/dapo-math-17k.jsonl" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_plan_that_the_runner_cannot_train_is_shown_with_what_is_missing(paribus: Run, tmp_path: Path) -> None:
    """Router shift needs a mixture of experts, which the native runner has not."""
    (tmp_path / "f.yaml").write_text(HEAD + "designs: {d: {kind: list, arms: {routed: {preset: rspo}}}}\n")
    done = paribus("plan", "f.yaml")
    assert done.returncode == 2
    assert "d (list)" in done.stdout
    assert done.stderr.startswith("error P110:\nthe runner `native` cannot train this study:\n")
    assert "`routed`" in done.stderr


def test_recipes_are_listed_shown_and_compared(paribus: Run) -> None:
    """The presets with sources; one with its factors, formula and deviations; the difference of two."""
    listed = paribus("recipes")
    assert all(name in listed.stdout for name in ("sroy_cisco", "arXiv 2503.20783", "long wrong answers"))
    shown = paribus("recipes", "show", "dapo").stdout
    expected = ("arXiv 2503.14476, Eq. 7", "soft_start=16384", "high=0.28", "clip(r, 0.8, 1.28) A", "sampling rounds")
    assert all(text in shown for text in (*expected, "clip/high_prob_mean", "Eq. 8 has the", "against grpo"))
    assert "Nearest preset: dapo_paper_agg, which differs in aggregation.kind." in shown
    compared = paribus("recipes", "diff", "grpo", "dr_grpo").stdout
    assert all(text in compared for text in ("scale.kind", "= R − b", "(s − 0.04 k)", "may clip one of the two"))
    assert "`ratio` cannot act" in paribus("recipes", "diff", "gspo_token", "gspo").stdout
    assert "the same recipe" in paribus("recipes", "diff", "dapo", "clip_dapo").stdout


@pytest.mark.parametrize("name", ["cisco", "GDPO", "REINFORCE++", "reinforce++ LOO", "tis_grpo"])
def test_contested_names_are_explained_without_a_traceback(paribus: Run, name: str) -> None:
    """A name that means several things or none ends with status 2 and what to write."""
    refused = paribus("recipes", "show", name)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error P101: `{name}` is not a preset: ")


def test_the_schema_is_json(paribus: Run) -> None:
    """Editors take the output as it is."""
    schema = json.loads(paribus("schema").stdout)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert "clip.high" in schema["$defs"]["Patch"]["properties"]


def test_planning_loads_nothing_heavy(tmp_path: Path) -> None:
    """A plan needs neither torch nor a database nor scientific libraries."""
    study = data_root("ablations") / "studies" / "quickstart.yaml"
    code = (
        "import sys\nfrom paribus.cli import paribus\n"
        f"paribus(['plan', {str(study)!r}], standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'sqlalchemy', 'alembic', 'mlflow', 'scipy', 'numpy', 'plotly'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_run_that_never_fits_is_refused_and_nothing_is_submitted(paribus: Run, tmp_path: Path, command: str) -> None:
    """What is asked for and what there is, one line, exit status 2; with less the plan says what each run holds."""
    (tmp_path / "f.yaml").write_text(HEAD + "tricks: {a: {clip.high: 0.3}}\n" + ADD + "resources: {cpus: 999}\n")
    ended = paribus(command, "f.yaml")
    assert ended.returncode == 2
    assert "error P120: each run, in every arm, asks for 999 CPU cores; this machine has " in ended.stderr
    assert "Traceback" not in ended.stderr
    if command == "run":
        assert not list((tmp_path / "home").glob("runs/*"))
        assert "there is no study" in paribus("status", "s").stderr
    else:
        more = "resources: {cpus: 1}\ncheckpoint: {every: 20, keep: 2}\n"
        (tmp_path / "f.yaml").write_text(HEAD + "tricks: {a: {clip.high: 0.3}}\n" + ADD + more)
        shown = paribus("plan", "f.yaml").stdout
        assert "resources: 1 CPU core a run" in shown
        assert "checkpoints: every 20 steps; the newest 2 are kept" in shown


TEAM = "schedule.staleness: 1, compute.sampling_processes: 1, model: tiny, task: chain"


@pytest.mark.parametrize("command", ["plan", "run"])
def test_the_inline_engine_refuses_runs_of_several_gpus(paribus: Run, tmp_path: Path, command: str) -> None:
    """It gives a run one process. Both count, what a study declares and what a recipe cannot do without."""
    for values, resources in (("kl: off", "resources: {gpus: 2}\n"), (f"kl: off, {TEAM}", "")):
        (tmp_path / "f.yaml").write_text(
            f"study: s\nbase: {{preset: grpo, set: {{{values}}}}}\ntricks: {{a: {{clip.high: 0.3}}}}\n{ADD}{resources}"
        )
        ended = paribus(command, "f.yaml", "--engine", "inline")
        assert ended.returncode == 2
        assert "asks for 2 GPUs; the engine `inline` gives a run one process" in ended.stderr
        assert "Choose another engine, such as `local`; or set `resources.gpus: 1`" in ended.stderr
    assert not (tmp_path / "home" / "runs").exists()


def test_a_reward_function_that_the_base_lacks_names_its_arms(paribus: Run, tmp_path: Path) -> None:
    """The plan prints functions below the base, so that one of another arm would look like the base's."""
    (tmp_path / "mine.py").write_text(
        "def short(texts, **_):\n    return [0.0 for _ in texts]\n"
        "def long(texts, **_):\n    return [1.0 for _ in texts]\n"
    )
    (tmp_path / "f.yaml").write_text(
        "study: s\nbase: {preset: grpo, set: {kl: off, reward: {kind: function, path: mine.short}}}\n"
        "tricks: {a: {reward.functions.long: mine.long}}\n" + ADD
    )
    shown = " ".join(paribus("plan", "f.yaml").stdout.split())
    assert "function short: mine.short of mine.py; weight 1, 0 on failure, at most 10 s a call function long" in shown
    assert "a call; not in the base, but in `+ a`" in shown
    functions = json.loads(paribus("plan", "f.yaml", "--json").stdout)["reward_functions"]
    assert [(each["name"], each["arms"]) for each in functions] == [("short", ["base", "+ a"]), ("long", ["+ a"])]


@pytest.mark.parametrize(("value", "state"), [(None, "is not set"), ("", "is empty"), ("https://example.org/x", "")])
def test_a_plan_says_that_findings_go_to_no_webhook(
    paribus: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None, state: str
) -> None:
    """Before any compute is spent, and in JSON; the address itself is never shown."""
    monkeypatch.delenv("ALERT_URL", raising=False)
    if value is not None:
        monkeypatch.setenv("ALERT_URL", value)
    (tmp_path / "f.yaml").write_text(
        HEAD + "tricks: {a: {clip.high: 0.3}}\n" + ADD + "health: {webhook: '${ALERT_URL}'}\n"
    )
    trouble = f"the environment variable ALERT_URL {state}, so findings go to no webhook" if state else ""
    shown = " ".join(paribus("plan", "f.yaml").stdout.split())
    assert (trouble in shown, "go to no webhook" in shown) == (True, bool(state))
    found = json.loads(paribus("plan", "f.yaml", "--json").stdout)
    assert found["webhook"] == {"variable": "ALERT_URL", "trouble": trouble}
