"""`paribus note`, `tag`, `archive` and the lists that show them; they travel with a study."""

import getpass
import json
import re

import pytest
from click.testing import CliRunner

import paribus
from paribus.cli import paribus as program
from paribus.store.store import Store
from support.plans import small_plan


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder with two studies that share their runs."""
    for name in ("PARIBUS_DATABASE_URL", "PARIBUS_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARIBUS_HOME", str(tmp_path / "home"))
    with Store.open(tmp_path / "home") as store:
        store.add_study(small_plan())
        store.add_study(small_plan("other", arms=1))
    return tmp_path / "home"


def say(*arguments, status=0):
    """Type a command; return what it printed."""
    shown = CliRunner().invoke(program, arguments)
    assert shown.exit_code == status, (arguments, shown.output, shown.exception)
    return shown.output + (str(shown.exception) if status == 1 else "")


def run_of(home, number=0):
    """Return the fingerprint of a run."""
    with Store.open(home) as store:
        return store.runs_of(1)[number].fingerprint


def test_a_note_is_written_shown_replaced_and_removed(home):
    """Each form says what holds then; the history has every change with its author and its minute."""
    me = re.escape(getpass.getuser())
    assert re.fullmatch(rf"small\n  tags: none\n  note of {me}, \d{{4}}-\S+ \d\d:\d\d UTC: try longer\n", say(
        "note", "small", "try longer"))  # fmt: skip
    assert "try twice" in say("note", "small", "try twice")
    said = say("note", "small", "--history")
    assert re.search(rf"UTC {me}: note: try longer\n.*UTC {me}: note: try twice\n", said)
    assert say("note", "small", "--remove") == "small\n  tags: none\n  note: none\n"
    assert "the TEXT is empty" in say("note", "small", " ", status=2)
    assert "not both" in say("note", "small", "x", "--remove", status=2)
    found = json.loads(say("note", "small", "--json"))
    assert (found["study"], found["note"], [line["kind"] for line in found["log"]]) == ("small", "", ["note"] * 3)


def test_tags_begin_with_a_sign_and_options_stay_options(home):
    """`-bad` is not `-b -a -d`, and a run is named by its first digits."""
    run = run_of(home)
    said = say("tag", run[:8], "+good", "-hot", "+v1.2", "--home", str(home))
    assert said.splitlines()[:2] == [
        f"run {run[:12]}: arm 0, seed 0 of small; arm 0, seed 0 of other",
        "  tags: good, v1.2",
    ]
    assert "  tags: v1.2" in say("tag", run[:8], "-good")
    assert json.loads(say("tag", run[:8], "--json", "+again"))["tags"] == ["again", "v1.2"]
    assert "write +good or -good" in say("tag", "small", "good", status=2)
    assert "add a tag" in say("tag", "-h").replace("adds", "add").lower()
    assert "is no tag" in say("tag", "small", "+two words", status=1)
    assert "there is no study `smal`" in say("tag", "smal", "+x", status=1)
    assert "A run is named by four digits" in say("tag", "smal", "+x", status=1)
    assert "No run has a fingerprint that starts so, either" in say("tag", "0badbad0", "+x", status=1)
    assert "`+` names no tag: write +TAG or -TAG" in say("tag", "small", "+", status=2)


def test_lists_show_tags_and_find_by_them(home):
    """Of studies, and of the runs of one; without a tag anywhere the tables are as before."""
    assert "tags" not in say("status")
    say("tag", "small", "+good", "+checked")
    say("tag", run_of(home, 1)[:8], "+odd")
    say("note", run_of(home, 1)[:8], "spikes at step 3")
    said = say("status", "--tag", "good", "--tag", "checked")
    assert "checked, good" in said
    assert "other" not in said
    assert [e["study"] for e in json.loads(say("status", "--tag", "good", "--json"))["studies"]] == ["small"]
    runs = json.loads(say("status", "small", "--tag", "odd", "--json"))["runs"]
    assert [(run["fingerprint"], run["note"]) for run in runs] == [(run_of(home, 1), "spikes at step 3")]
    said = " ".join(say("status", "small").split())
    assert "tags note" in said
    assert "tags: checked, good" in said
    assert "'' is no tag: at most" in say("status", "--tag", "", status=1)
    assert "'two words' is no tag: at most" in say("status", "small", "--tag", "two words", status=1)


def test_an_archived_study_is_not_listed_once_it_has_ended(home):
    """All of it stays; while it has something to run it is listed."""
    assert "archived. All of it is kept" in say("archive", "other")
    assert "other" in say("status")
    say("cancel", "other")
    assert "other" not in say("status").replace("1 archived", "")
    assert "1 archived: paribus status --archived" in say("status")
    assert [e["study"] for e in json.loads(say("status", "--archived", "--json"))["studies"]] == ["other"]
    assert "archived; to list it again: paribus archive other --undo" in say("status", "other")
    assert say("archive", "other", "--undo") == "other: listed again\n"
    assert "1 archived" not in say("status")
    assert "only a study is archived" in say("archive", run_of(home)[:8], status=1)


def test_a_terminal_gets_no_control_characters(home):
    """They are shown as escapes; in JSON they are JSON's."""
    text = "a\x1b[2J\x9bm\u202eb\nsecond line"
    shown = [say("note", "small", text), say("status", "small"), say("note", "small", "--history")]
    assert all(r"a\x1b[2J\x9bm\u202eb" in each and "\x1b" not in each for each in shown)
    assert json.loads(say("note", "small", "--json"))["note"] == text


def test_remarks_travel_and_stand_in_frames(home, tmp_path):
    """An archive brings those of the study and its runs; what was said here of a shared run stays."""
    run = run_of(home)
    say("note", "small", "the first one")
    say("tag", run[:8], "+odd", "+big")
    say("export", "small", "--to", "small.tar")
    say("restore", "small.tar", "--home", "new")
    there = json.loads(say("note", "small", "--home", "new", "--json"))
    here = json.loads(say("note", "small", "--json"))
    assert there == here
    frame = paribus.results("small", home=tmp_path / "new").runs().set_index("run")
    assert (frame.loc[run, "tags"], frame.loc[run, "note"]) == ("big odd", "")
    listed = paribus.studies(home=tmp_path / "new").set_index("study")
    assert (listed.loc["small", "note"], listed.loc["small", "archived"]) == ("the first one", False)
    say("export", "other", "--to", "other.tar")
    say("restore", "other.tar", "--home", "third")
    say("tag", run[:8], "-odd", "-big", "--home", "third")
    say("note", run[:8], "said there", "--home", "third")
    say("restore", "small.tar", "--home", "third")
    third = json.loads(say("tag", run[:8], "--home", "third", "--json"))
    assert (third["note"], third["tags"]) == ("said there", [])
