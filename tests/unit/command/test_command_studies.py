"""What a study may say to the command runner: mistakes are found at plan time, with their place and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from paribus.contract import Options
from paribus.errors import ParibusError, StudyFileError
from paribus.remote.bundle import pack_study, unpack_study
from paribus.study.expand import PlanDraft, draft_file
from paribus_runners.command.options import CommandOptions, problems_of
from paribus_runners.command.runner import CommandRunner

STUDY = """\
study: mine
runner: {RUNNER}
base: {preset: reinforce, set: {schedule.steps: 4, optimizer.learning_rate: 0.1}}
tricks: {faster: {optimizer.learning_rate: 0.2}}
designs: {solo: {kind: add_one}}
seeds: {n: 2}
evaluate: {every: 2, problems: 10}
"""
LEVELS = "baseline=none, scale=none, ratio=none, clip=none, aggregation=seq_sum"
GOOD = f"kind: command, argv: [python, p.py], supports: [optimizer.learning_rate, {LEVELS}]"


def planned(folder: Path, runner: str = GOOD, text: str = STUDY, **files: str) -> PlanDraft:
    """Plan a study with files beside it."""
    for name, content in {"p.py": "print(1)\n", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (folder / "s.yaml").write_text(text.replace("RUNNER", runner))
    return draft_file(folder / "s.yaml")


def test_what_is_not_claimed_is_said(tmp_path) -> None:
    """A study that claims what it changes is planned; the rest of the recipe is a warning and a footnote."""
    draft = planned(tmp_path)
    assert not draft.unsupported
    (note,) = [w for w in draft.plan.warnings if w.code == "approximate"]
    assert "`model`, `optimizer`, `reward`" in str(note)
    assert any(fact.startswith("program: ") for fact in draft.facts)


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ("", "`optimizer.learning_rate` is `0.2`, and `runner.supports` does not say that the program honours it: add"),
        ("baseline=batch_mean", "`baseline` is `none`, and `runner.supports` says that the program does `batch_mean`"),
        (
            f"optimizer=null, {LEVELS}",
            "`optimizer.learning_rate` is `0.2`, and `runner.supports` does not say that the program honours it: add",
        ),
        (f"optimizer.beta1, {LEVELS}", "add `optimizer.learning_rate` if it does, else leave it at `0.0005`"),
        (
            f"optimizer.learning_rate=0.1, {LEVELS}",
            "says that the program does `0.1`: add `optimizer.learning_rate=0.2`",
        ),
    ],
)
def test_a_trick_that_the_program_does_not_honour_is_refused(tmp_path, claims, expected) -> None:
    """Two arms that differ in what the program ignores would be one arm under two names."""
    assert expected in planned(tmp_path, f"kind: command, argv: [python, p.py], supports: [{claims}]").unsupported


@pytest.mark.parametrize(
    ("runner", "expected"),
    [
        ("kind: command", "`argv` is missing"),
        ("kind: command, argv: []", "argv"),
        ("kind: command, argv: [python, q.py]", "there is no `q.py` beside the study"),
        ("kind: command, argv: [sh, -c, 'rm x']", "no text of a study goes to a shell"),
        ("kind: command, argv: [bash, -ec, 'rm x']", "no text of a study goes to a shell"),
        ("kind: command, argv: [python, p.py, '{seed']", "a brace belongs to a value such as {seed}"),
        ("kind: command, argv: [python, p.py], files: [../x]", "must lie beside the study, or be an absolute path"),
        ("kind: command, argv: [python, p.py], files: [p.py, d]", "there is no `d` beside the study"),
        ("kind: command, argv: [python, p.py], files: []", "It is not among `files`"),
        ("kind: command, argv: [python, p.py], supports: [clip.hgih]", "Did you mean `clip.high`?"),
        ("kind: command, argv: [python, p.py], supports: [clip=]", "names no value"),
        ("kind: command, argv: [python, p.py], patience: 0", "must be > 0"),
        ("kind: command, argv: [python, p.py], mapping: p.py", "`log` is missing"),
        (
            "kind: command, argv: [python, p.py], mapping: p.py, log: /tmp/l",
            "'/tmp/l' must be a path inside the",
        ),
        ("kind: command, argv: [python, p.py], mapping: p.py, log: a/../../l", "must be a path inside the program's"),
        (
            "kind: command, argv: [python, p.py], files: [p.py, l], mapping: p.py, log: l",
            "is the log that each run",
        ),
        ("kind: command, argv: [python, '{here}/p.py']", "is found when a run starts"),
        ('kind: command, argv: [python, p.py, "a\\0b"]', "holds the character NUL"),
        (f"kind: command, argv: [python, p.py], files: [{'x' * 300}]", "there is no `xxx"),
        ("kind: command, argv: [python, p.py], environment: [a=b]", "environment"),
        ("kind: command, argv: [python, p.py], environment: [PARIBUS_DATABASE_URL]", "is a secret of its server"),
        ("kind: command, argv: [python, p.py], argvv: x", "unknown key `argvv`. Did you mean `argv`?"),
    ],
)
def test_a_mistake_in_the_options_has_a_place(tmp_path, runner, expected) -> None:
    """The message begins with file and line."""
    with pytest.raises(StudyFileError) as error:
        planned(tmp_path, runner)
    assert expected in str(error.value)
    assert str(error.value).startswith(f"{tmp_path}/s.yaml:2")


def test_values_that_a_recipe_does_not_have(tmp_path) -> None:
    """A placeholder is checked for each arm; the nearest name is offered."""
    unsupported = planned(tmp_path, GOOD.replace("p.py]", "p.py, '{clip.high}', '{sed}']")).unsupported
    assert "asks for `{clip.high}`, which this recipe does not have" in unsupported
    assert "Did you mean `seed`?" in unsupported


def test_a_program_that_is_not_there_is_a_fault_of_the_plan(tmp_path) -> None:
    """It would end every run."""
    draft = planned(tmp_path, GOOD.replace("[python,", "[no-such-program,"))
    assert draft.unread == (
        "there is no program `no-such-program`, with which `runner.argv` begins: install it where runs train, or write "
        "its absolute path",
    )


def runs(draft: PlanDraft) -> set[str]:
    """Return the fingerprints of a plan."""
    assert not draft.unread
    return {run.fingerprint for run in draft.plan.runs}


def test_an_edited_file_makes_other_runs(tmp_path) -> None:
    """The program, what it imports, and files that are named; not what merely lies beside the study."""
    text = {"p.py": "import helper\n", "helper.py": "x = 1\n", "data/d.txt": "1", "other.py": "y = 1\n"}
    runner = GOOD.replace("kind", "files: [p.py, data, FAR], kind").replace("FAR", str(tmp_path / "far"))
    (tmp_path / "far").write_bytes(b"\xff\x00")
    before = runs(planned(tmp_path, runner, **text))
    assert runs(planned(tmp_path, runner, **text)) == before
    assert runs(planned(tmp_path, runner, **{**text, "other.py": "y = 2\n"})) == before
    for name in ("p.py", "helper.py", "data/d.txt"):
        assert not runs(planned(tmp_path, runner, **{**text, name: text[name] + "#"})) & before
    planned(tmp_path, runner, **text)
    (tmp_path / "far").write_bytes(b"\xff\x01")
    assert not runs(draft_file(tmp_path / "s.yaml")) & before


def test_further_sets_are_claimed_or_refused(tmp_path) -> None:
    """A program that does not evaluate sets is not asked to."""
    text = STUDY.replace("problems: 10}", "problems: 10, sets: {hard: {problems: 5}}}")
    with pytest.raises(StudyFileError, match=r"add `evaluate\.sets` if it writes an evaluation for each"):
        planned(tmp_path, text=text)
    assert not planned(tmp_path, GOOD.replace("supports: [", "supports: [evaluate.sets, "), text).unsupported


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ("metrics: {}\n", "`step` is missing"),
        (
            "step: i\nmetrics: {a: reward/men}\n",
            "m.yaml:2:14: metrics.a.metric: `reward/men` is no metric. Did you mean",
        ),
        ("step: i\nmetrics: {a: {metric: reward/mean, source: true}}\n", "metrics.a.source"),
        ("step: i\nmetrics: {a: reward/mean, b: reward/mean}\n", "two names are mapped to `reward/mean`"),
        ("step: i\nmetrics: {a: eval/heldout/avg_at_1}\n", "is counted from `evaluation`"),
        ("step: i\nstpe: 1\n", "unknown key `stpe`. Did you mean `step`?"),
        (
            "step: i\nevaluation: {log: ../a, problem: p, correct: r, tokens: 1, truncated: 0}\n",
            "'../a' must be a path inside the program's working folder",
        ),
        ("- step\n", "a mapping file begins with `step:`"),
        ("step: [\n", "m.yaml:"),
    ],
)
def test_a_mistake_in_the_mapping_has_a_place(tmp_path, mapping, expected) -> None:
    """It stands in the message of the study, with file, line and column of the mapping."""
    with pytest.raises(StudyFileError) as error:
        planned(tmp_path, GOOD + ", mapping: m.yaml, log: log.jsonl", **{"m.yaml": mapping})
    assert expected in str(error.value)


def test_a_study_travels_with_its_program(tmp_path) -> None:
    """`paribus submit` to a server sends the files, whatever their language."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    runner = GOOD.replace("[python, p.py]", "[sh, p.sh]")
    before = runs(planned(here, runner, **{"p.sh": "exit 1\n"}))
    bundle = tmp_path / "bundle"
    bundle.write_bytes(pack_study(here / "s.yaml"))
    assert runs(draft_file(unpack_study(bundle, there), sent=True)) == before


def test_a_log_beside_the_study_is_no_file_of_the_program(tmp_path) -> None:
    """What an earlier run by hand has left there is not held by the plan, and does not make another run."""
    mapping = "step: i\nevaluation: {log: out/a.jsonl, problem: p, correct: r, tokens: 1, truncated: 0}\n"
    runner = GOOD.replace("p.py]", "p.py, log.jsonl]") + ", mapping: m.yaml, log: log.jsonl"
    before = runs(planned(tmp_path, runner, **{"m.yaml": mapping}))
    left = {"m.yaml": mapping, "log.jsonl": "{}\n", "out/a.jsonl": "{}\n"}
    assert runs(planned(tmp_path, runner, **left)) == before
    own = {"argv": ["python", "p.py"], "files": ["p.py", "out", "log.jsonl"], "mapping": "m.yaml", "log": "log.jsonl"}
    assert set(CommandRunner().sources(Options(own=own), tmp_path)) == {"p.py", "m.yaml"}


@pytest.mark.parametrize(
    ("script", "text", "helper"),
    [
        ("pkg/train.py", "import helper\n", "pkg/helper.py"),
        ("pkg/train.py", "from . import helper\n", "pkg/helper.py"),
        ("pkg/train.py", "from lib.helper import x\n", "lib/helper.py"),
        ("my-train.py", "import helper\n", "helper.py"),
        ("my-train.py", "import pkg.helper\n", "pkg/helper.py"),
    ],
)
def test_an_import_makes_other_runs_wherever_the_script_lies(tmp_path, script, text, helper) -> None:
    """What a script imports is found from its own folder and from the study's, whatever the script is called."""
    runner = GOOD.replace("p.py", script)
    before = runs(planned(tmp_path, runner, **{script: text, helper: "x = 1\n"}))
    assert not runs(planned(tmp_path, runner, **{script: text, helper: "x = 2\n"})) & before


@pytest.mark.parametrize("edited", ["train.py", ".settings", "linked/x.txt"])
def test_an_edit_far_from_the_study_makes_other_runs(tmp_path, edited) -> None:
    """A script that `argv` names by its path, and each file of a folder that `files` names, hidden or linked."""
    far, real = tmp_path / "far", tmp_path / "real"
    for folder in (far, real, far / ".git"):
        folder.mkdir(exist_ok=True)
    (far / "linked").symlink_to(real)
    (real / "back").symlink_to(far)
    for name in ("train.py", ".settings", "linked/x.txt", ".git/HEAD"):
        (far / name).write_text("1")
    script = GOOD.replace("p.py", str(far / "train.py"))
    folder = script.replace("kind", f"files: ['{far}'], kind")
    before = [runs(planned(tmp_path, text)) for text in (script, folder)]
    (far / ".git/HEAD").write_text("2")
    assert [runs(planned(tmp_path, text)) for text in (script, folder)] == before
    (far / edited).write_text("2")
    assert not runs(planned(tmp_path, folder)) & before[1]
    if edited == "train.py":
        assert not runs(planned(tmp_path, script)) & before[0]


@pytest.mark.parametrize("word", ["x=1;" * 80, "ä" * 200, "a/" * 3000 + "b", "a " * 9000])
def test_a_long_argument_is_a_text(tmp_path, word) -> None:
    """It is longer than the name of a file can be, so that no file is looked for."""
    assert not planned(tmp_path, GOOD.replace("p.py]", f"p.py, '{word}']")).unsupported


@pytest.mark.parametrize(
    "argv",
    [
        "sh -c x", "bash -ce x", "bash -cl x", "bash -e -c x", "bash -eo pipefail -c x", "zsh +o nomatch -c x",
        "env sh -c x", "/usr/bin/env A=1 bash -c x", "timeout 9 sh -c x", "busybox sh -c x", "rbash -c x",
        "bash --rcfile f -c x", "bash --norc -c x", "fish --command=x",
    ],
)  # fmt: skip
def test_no_text_for_a_shell(argv) -> None:
    """The text of a shell is refused wherever the shell stands among its options and those of what starts it."""
    own = CommandOptions.model_validate({"argv": argv.split()})
    assert any("no text of a study goes to a shell" in each.message for each in problems_of(own, Options(own={})))


@pytest.mark.parametrize(
    "argv", ["sh f -c", "bash f --cfg -1c", "bash -e f -c x", "bash -- -c", "python f -c x", "timeout 9 f -c", "sh"]
)
def test_a_file_for_a_shell_has_any_arguments(argv) -> None:
    """What follows the file is for the file."""
    own = CommandOptions.model_validate({"argv": argv.split()})
    assert not list(problems_of(own, Options(own={})))


def test_a_program_that_is_no_text_is_named_by_its_path(tmp_path) -> None:
    """A plan holds texts; the message says how a binary is run and counted all the same."""
    (tmp_path / "prog").write_bytes(b"\x7fELF\xff\xfe")
    with pytest.raises(ParibusError, match=r"is no text .* name it by its absolute path, in"):
        planned(tmp_path, GOOD.replace("[python, p.py]", "[./prog]"))
    (tmp_path / "prog").chmod(0o755)
    named = GOOD.replace("[python, p.py]", f"['{tmp_path}/prog']") + f", files: ['{tmp_path}/prog']"
    before = runs(planned(tmp_path, named))
    (tmp_path / "prog").write_bytes(b"\x7fELF\xff\xff")
    assert not runs(planned(tmp_path, named)) & before


@pytest.mark.parametrize(
    "own", [{"argv": ["python", "conf.py"]}, {"argv": ["python", "p.py"]}, {"argv": ["x"], "files": ["d"]}]
)
def test_a_link_out_of_the_folder_is_not_followed(tmp_path, own) -> None:
    """What lies elsewhere on the machine does not get into a plan; links within the folder do."""
    study, secret = tmp_path / "study", tmp_path / "secret.py"
    (study / "d").mkdir(parents=True)
    secret.write_text("TOKEN = 'made up'\n")
    (study / "conf.py").symlink_to(secret)
    (study / "d/conf.py").symlink_to(secret)
    (study / "p.py").write_text("import conf\n")
    with pytest.raises(ParibusError, match="is a link that leaves the folder of the study: copy the file"):
        CommandRunner().sources(Options(own=own), study)
    for link in (study / "conf.py", study / "d/conf.py"):
        link.unlink()
        link.symlink_to(study / "real.py")
    (study / "real.py").write_text("x = 1\n")
    assert "x = 1\n" in CommandRunner().sources(Options(own=own), study).values()
