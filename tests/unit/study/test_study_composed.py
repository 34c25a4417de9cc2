"""Studies made of several files, of variables, and of values of `--set`: every value keeps its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from paribus.errors import StudyFileError
from paribus.study.load import LoadedStudy, load_study, read_study
from paribus.yaml_file.document import plain

BASE = """
base:
  preset: grpo
  set: {model: tiny, task: search, scale: {kind: group_std, eps: 1.0e-4}, clip.high: 0.25}
seeds: {n: 2}
"""
STUDY = """include: parts/base.yaml
study: composed
tricks: {wide: {clip.high: 0.28}}
designs: {solo: {kind: add_one}}
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study that includes its base."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "base.yaml").write_text(BASE)
    (tmp_path / "study.yaml").write_text(STUDY)
    return tmp_path / "study.yaml"


def fault(study: Path, *changes: str) -> str:
    """Return the message of a study that is wrong, paths without the folder of the test."""
    with pytest.raises(StudyFileError) as caught:
        load_study(study, changes)
    return str(caught.value).replace(f"{study.parent}/", "")


def loaded(study: Path, *changes: str) -> LoadedStudy:
    """Return the study with changes."""
    return load_study(study, changes)


# ---- include -------------------------------------------------------------------------------------


def test_own_values_go_before_included_ones(study: Path) -> None:
    """Mappings are merged; a mapping with a kind of its own is replaced whole."""
    assert loaded(study).spec.seeds.n == 2
    study.write_text(STUDY + "seeds: {start: 5}\nbase: {set: {scale: {kind: none}, clip.high: 0.3}}\n")
    found = loaded(study)
    assert (found.spec.seeds.n, found.spec.seeds.start) == (2, 5)
    assert (found.base.scale.kind, found.base.clip.model_dump()["high"]) == ("none", 0.3)


def test_a_mistake_in_an_included_file_has_its_place_there(study: Path) -> None:
    """Not the line of the file that includes it."""
    base = study.parent / "parts" / "base.yaml"
    base.write_text(BASE.replace("clip.high", "clip.hihg"))
    assert fault(study).startswith("parts/base.yaml:4:75: base.set.clip.hihg: ")
    base.write_text(BASE + "seeds: {n: 3}\n")
    assert "parts/base.yaml:6:1: the key `seeds` appears twice" in fault(study)


IN_TWO_FILES = [
    ("seeds: {min: 3, max: 8, until: decided, looks: [3, 9]}", "seeds: {paired: false}", "base.yaml:2:48: seeds.looks"),
    ("seeds: {min: 3, max: 8}", "seeds: {n: 3}", "study.yaml:3:12: seeds.n: "),
    ("budget: {prior: {low: 1.0, expected: 0.5, high: 3.0}}", "budget: {rows: 9}",
     "base.yaml:2:38: budget.prior.expected: "),
    ("budget: {prior: {low: 1.0, expected: 2.0, high: 3.0}}", "budget: {prior: {high: 1.5}}",
     "study.yaml:3:24: budget.prior.high: "),
    ("resources: {gpus: 3}", "resources: {nodes: 2}", "base.yaml:2:19: resources.gpus: "),
    ("designs: {t: {kind: search, trials: 4, over: {clip.high: {low: 0.1, high: 0.3}}}}",
     "designs: {t: {over: {clip.high: {low: 0.5}}}}", "base.yaml:2:75: designs.t.over.clip.high.high: "),
    ("designs: {g: {kind: grid, over: {clip.high: [0.2, 0.2]}}}", "designs: {g: {over: {clip.low: [0.1]}}}",
     "base.yaml:2:51: designs.g.over.clip.high.2: the value 0.2 appears twice"),
    ("designs: {g: {kind: grid, over: {clip.hihg: [0.2]}}}", "designs: {g: {over: {clip.low: [0.1]}}}",
     "base.yaml:2:34: designs.g.over.clip.hihg: "),
]  # fmt: skip


@pytest.mark.parametrize(("included", "own", "line"), IN_TWO_FILES)
def test_a_mistake_in_a_section_of_two_files_has_the_place_of_its_part(
    study: Path, included: str, own: str, line: str
) -> None:
    """The part that is wrong names the file, whichever of the two begins the section."""
    rest = "base: {preset: grpo, set: {kl: off}}\ntricks: {wide: {clip.high: 0.28}}\ndesigns: {solo: {kind: add_one}}\n"
    (study.parent / "rest.yaml").write_text(rest)
    (study.parent / "base.yaml").write_text(f"include: rest.yaml\n{included}\n")
    study.write_text(f"include: base.yaml\nstudy: composed\n{own}\n")
    assert fault(study).startswith(line)


@pytest.mark.parametrize(
    ("included", "message"),
    [
        ("/etc/passwd", "is an absolute path"),
        ("missing.yaml", "there is no file missing.yaml"),
        ("study.yaml", "in a circle: study.yaml -> study.yaml"),
        ("[a.yaml]", "expects the path of one YAML file"),
        ("parts", "there is no file parts"),
    ],
)
def test_what_cannot_be_included_is_refused(study: Path, included: str, message: str) -> None:
    """With the place of the line that includes it."""
    study.write_text(STUDY.replace("parts/base.yaml", included))
    assert fault(study).startswith("study.yaml:1:10: include: ")
    assert message in fault(study)


TWICE = "study.yaml:6:1: the key `budget` appears twice"
NOT_READ = [
    ("seeds: {n: 2\n", [TWICE, "parts/base.yaml:2:1: not valid YAML: "]),
    ("", [TWICE, "parts/base.yaml:1:1: the file is empty"]),
    ("- !x seeds\n", ["study.yaml:1:10: parts/base.yaml holds no mapping", TWICE, "parts/base.yaml:1:3: tags such as"]),
    (None, ["study.yaml:1:10: include: there is no file parts/base.yaml", TWICE]),
    ("include: more.yaml\nreport: {}\nreport: {}\n",
     [TWICE, "parts/base.yaml:3:1: the key `report` appears twice", "parts/more.yaml:1:13: not valid YAML: "]),
]  # fmt: skip


@pytest.mark.parametrize(("content", "lines"), NOT_READ)
def test_a_file_that_cannot_be_included_hides_nothing_in_those_that_were_read(
    study: Path, content: str | None, lines: list[str]
) -> None:
    """What is wrong with the files that include it is listed, too, each with its place."""
    base = study.parent / "parts" / "base.yaml"
    base.write_text(content or "")
    if content is None:
        base.unlink()
    (base.parent / "more.yaml").write_text("question: it: is\n")
    study.write_text(STUDY + "budget: {rows: 9}\nbudget: {rows: 8}\n")
    found = fault(study).splitlines()
    assert [each[: len(line)] for each, line in zip(found, lines, strict=True)] == lines


def test_files_in_a_row_are_limited(study: Path) -> None:
    """A chain of seven files is refused, of five not."""
    parts = study.parent / "parts"
    for k in range(7):
        (parts / f"{k}.yaml").write_text(f"include: {k + 1}.yaml\n" if k < 6 else BASE)
    study.write_text(STUDY.replace("base.yaml", "2.yaml"))
    assert loaded(study).spec.seeds.n == 2
    study.write_text(STUDY.replace("base.yaml", "0.yaml"))
    assert "more than 5 files include each other" in fault(study)


@pytest.mark.parametrize(
    ("below", "above", "patch"),
    [
        ("clip.high: 0.28", "clip: {high: 0.24}", {"clip.high": 0.24}),
        ("clip: {high: 0.28, low: 0.1}", "clip.high: 0.24", {"clip": {"high": 0.24, "low": 0.1}}),
        ("clip: {high: 0.28}", "clip: {low: 0.1}", {"clip": {"high": 0.28, "low": 0.1}}),
        ("scale: {kind: group_std, eps: 0.5}", "scale.eps: 0.1", {"scale": {"kind": "group_std", "eps": 0.1}}),
        ("scale.eps: 0.5", "scale: {kind: group_std, eps: 0.1}", {"scale": {"kind": "group_std", "eps": 0.1}}),
        ("scale: {kind: group_std, eps: 0.5}", "scale.kind: none", {"scale": {"kind": "none"}}),
        ("scale: {eps: 0.5}", "scale: none", {"scale": "none"}),
        (
            "reward: {map: pm1}",
            "reward.weights: {correct: 2.0}",
            {"reward": {"map": "pm1", "weights": {"correct": 2.0}}},
        ),
        ("kl: off", "optimizer: {}", {"kl": "off"}),
    ],
)
def test_dotted_and_nested_paths_are_the_same_path(
    study: Path, below: str, above: str, patch: dict[str, object]
) -> None:
    """In patches of the base and of tricks, whichever file has which form."""
    part = "tricks: {wide: {%s}}\nbase: {preset: grpo, set: {model: tiny, task: search, %s}}\n"
    (study.parent / "parts" / "base.yaml").write_text(part % (below, below))
    rest = "include: parts/base.yaml\nstudy: x\ndesigns: {solo: {kind: list, arms: {a: {}}}}\nseeds: {n: 1}\n"
    study.write_text(rest + f"tricks: {{wide: {{{above}}}}}\nbase: {{set: {{{above}}}}}\n")
    found = plain(read_study(study).checked())
    assert found["tricks"]["wide"] == patch
    assert found["base"]["set"] == {"model": "tiny", "task": "search", **patch}
    (study.parent / "parts" / "base.yaml").write_text(part % ("kl: off", below))
    study.write_text(rest + f"base: {{set: {{{above}}}}}\n")
    loaded(study)


def test_what_one_file_says_twice_is_still_an_error(study: Path) -> None:
    """An included value hides no mistake of the file, and labels with dots are no paths."""
    study.write_text(STUDY.replace("{clip.high: 0.28}", "{clip.high: 0.28, clip: {high: 0.3}}"))
    assert "sets the same value as" in fault(study)
    (study.parent / "parts" / "base.yaml").write_text(BASE + "tricks: {wide: {clip.low: 0.1}}\n")
    assert "sets the same value as" in fault(study)
    arms = "designs: {some: {kind: list, arms: {%s: {tricks: [wide]}}}}\n"
    (study.parent / "parts" / "base.yaml").write_text(BASE + arms % "a.b")
    study.write_text(
        "include: parts/base.yaml\nstudy: x\ntricks: {wide: {clip.high: 0.28}}\n" + "designs: {some: {arms: {a: {}}}}\n"
    )
    assert set(plain(read_study(study).checked())["designs"]["some"]["arms"]) == {"a.b", "a"}


def test_a_mistake_above_an_included_patch_has_its_own_place(study: Path) -> None:
    """Line and column of the key in the file that holds it."""
    study.write_text(STUDY + "base: {set: {clip.hihg: 0.3}}\n")
    assert fault(study).startswith("study.yaml:5:14: base.set.clip.hihg: ")


# ---- variables -----------------------------------------------------------------------------------


def test_variables_have_the_type_of_their_value(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without quotes, and in double quotes if nothing else stands there; single quotes keep a text as it is."""
    monkeypatch.setenv("SEEDS", "4")
    lines = """seeds: {n: "${SEEDS}"}\nquestion: "With ${SEEDS} seeds or ${MORE:-none}?"\nmargin: ${MARGIN:-0.5}\n"""
    study.write_text(STUDY + lines)
    spec = loaded(study).spec
    assert (spec.seeds.n, spec.margin, spec.question) == (4, 0.5, "With 4 seeds or none?")
    study.write_text(STUDY + "question: 'costs ${SEEDS}'\n")
    assert loaded(study).spec.question == "costs ${SEEDS}"


def test_an_unset_variable_is_an_error_with_its_place(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is text that looks like a variable; the nearest name is suggested."""
    monkeypatch.setenv("MY_SEEDS", "4")
    study.write_text(STUDY + "margin: ${MY_SEED}\n")
    message = fault(study)
    assert message.startswith("study.yaml:5:9: the environment has no variable `MY_SEED`. Did you mean `MY_SEEDS`?")
    study.write_text(STUDY + "question: ${1+1}\n")
    assert "study.yaml:5:11: `${1+1}` is no variable" in fault(study)


@pytest.mark.parametrize("text", ["${MY_SEEDS:-${OTHER}}", "'${MY_SEEDS}' or ${OTHER:-${MY_SEEDS:-4}}", "${${OTHER}}"])
def test_a_variable_in_a_default_is_an_error(study: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """It would end at the first brace, and the second one would stay in the value."""
    monkeypatch.setenv("MY_SEEDS", "4")
    study.write_text(f'{STUDY}question: "{text}"\n')
    assert "holds another variable: a default is plain text" in fault(study)


@pytest.mark.parametrize(("name", "value"), [("HF_TOKEN", "abcdefgh"), ("WHERE", "postgres://me:pass-1234@host/db")])
def test_secrets_are_refused(study: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """By name or by form: the values of a study are recorded."""
    monkeypatch.setenv(name, value)
    study.write_text(STUDY + f"question: ${{{name}}}\n")
    assert f"`{name}` holds a secret" in fault(study)
    assert value not in fault(study)


@pytest.mark.parametrize("address", [None, "https://hooks.example.org/services/T0/B0"])
def test_the_variable_of_a_webhook_stays_a_name(
    study: Path, monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    """Its value is a secret, read where a finding is sent; whether it is set here has no meaning."""
    monkeypatch.delenv("ALERT_URL", raising=False)
    if address is not None:
        monkeypatch.setenv("ALERT_URL", address)
    for quoted in ("'${ALERT_URL}'", '"${ALERT_URL}"'):
        study.write_text(STUDY + f"health: {{webhook: {quoted}, command: [say]}}\n")
        assert loaded(study).spec.health.webhook == "${ALERT_URL}"
    study.write_text(STUDY + "health: {webhook: ${ALERT_URL}}\n")
    assert 'put a variable in double quotes: "${ALERT_URL}"' in fault(study)
    study.write_text(STUDY + "health:\n  webhook: ${ALERT_URL}\n  command: [say, '${ALERT_URL}']\n")
    assert loaded(study).spec.health.webhook == "${ALERT_URL}"
    study.write_text(STUDY + "health:\n  command: [say, x]\n  profile: ${ALERT_URL}\n")
    assert "study.yaml:7:12: " in fault(study)


def test_a_variable_between_braces_says_that_yaml_needs_quotes(study: Path) -> None:
    """YAML's own message names a brace only."""
    study.write_text(STUDY + "seeds: {n: ${SEEDS:-3}}\n")
    assert "study.yaml:5:13: not valid YAML: " in fault(study)
    assert 'put a variable in double quotes: "${SEEDS:-3}"' in fault(study)


def test_a_file_that_was_sent_reads_nothing_of_this_machine(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable is replaced, and `include` is an unknown key."""
    monkeypatch.setenv("WHO", "me")
    study.write_text(STUDY.partition("\n")[2] + BASE + "question: of ${WHO}\n")
    assert load_study(study, sent=True).spec.question == "of ${WHO}"
    study.write_text(STUDY + BASE)
    with pytest.raises(StudyFileError, match="include"):
        load_study(study, sent=True)


# ---- --set ---------------------------------------------------------------------------------------


def test_a_change_replaces_the_value_however_it_is_written(study: Path) -> None:
    """Dotted or nested in the file; text such as 1e-4 is a number; a path may begin at the recipe or at the study."""
    found = loaded(study, "clip.high=0.3", "seeds.n=5", "optimizer.learning_rate=1e-4", "tricks.wide.clip.high=0.4")
    assert found.base.clip.model_dump()["high"] == 0.3
    assert (found.spec.seeds.n, found.base.optimizer.learning_rate) == (5, 1e-4)
    assert found.spec.tricks["wide"] == {"clip.high": 0.4}
    assert loaded(study, "scale=none").base.scale.kind == "none"
    assert loaded(study, "scale.eps=0.5").base.scale.model_dump()["eps"] == 0.5
    assert loaded(study, "model.name=tiny_wide").base.model.name == "tiny_wide"
    assert loaded(study, "study=other").spec.study == "other"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "clip.hihg=1",
            "--set clip.hihg=1: base.set.clip.hihg: no level of `clip` has a parameter `hihg`. Did you mean",
        ),
        ("clp.high=1", "--set clp.high=1: clp.high: there is no `clp`. Did you mean `clip.high`?"),
        ("seed.n=1", "there is no `seed`. Did you mean `seeds`?"),
        ("epsilon_high=0.28", "--set epsilon_high=0.28: epsilon_high: `epsilon_high` is TRL's name; here: `clip.high`"),
        ("lr=1e-6", "--set lr=1e-6: lr: `lr` is verl's name; here: `optimizer.learning_rate`"),
        ("actor_rollout_ref.rollout.n=8", "is verl's name; here: `schedule.group_size`"),
        ("tricks.wide.beta=0.1", "`beta` is TRL's name"),
        ("seeds.values.x=1", "`seeds.values` is a list: set it as a whole, as in seeds.values=[...]"),
        ("clip.high", "`clip.high` is not PATH=VALUE, such as clip.high=0.28"),
        ("clip.high=", "there is no value after `=`"),
        ("kl=[", "--set kl=[: not valid YAML"),
        ("seeds.n=x", "--set seeds.n=x: seeds.n: expects a whole number"),
    ],
)
def test_a_wrong_change_names_the_option(study: Path, change: str, message: str) -> None:
    """As its place, with the nearest path, or the path of another trainer's name."""
    if change.startswith("seeds.values"):
        study.write_text(STUDY + "seeds: {values: [1, 2]}\n")
    assert message in fault(study, change)


@pytest.mark.parametrize(
    "runner", ["", "runner: native\n", "runner: {kind: native}\n", "runner: {processes: 3, kind: native}\n"]
)
def test_an_option_of_the_runner_is_set_beside_its_name(study: Path, runner: str) -> None:
    """Whether the study names its runner in short, in full or not at all."""
    study.write_text(STUDY + runner)
    found = loaded(study, "runner.processes=2")
    assert (found.spec.runner.kind, dict(found.spec.runner.own)) == ("native", {"processes": 2})
    assert loaded(study, "runner.kind=native").spec.runner.kind == "native"


def test_a_level_without_parameters_is_not_brought_back(study: Path) -> None:
    """A parameter of a level that the file has switched off is an error, not a silent return to the preset's level."""
    study.write_text(STUDY + "base: {set: {scale: none}}\n")
    assert "the level `none` of `scale` has no parameter `eps`" in fault(study, "scale.eps=1")
