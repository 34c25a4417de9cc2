"""What people say of studies and runs: the log, what holds after it, and what is refused."""

import pytest

from paribus.errors import StoreError
from paribus.store.remarks import MOST_NOTE, MOST_TAG, MOST_TAGS, NOTHING, Change, Remark, Subject, total
from support.plans import small_plan

STUDY = Subject(study="small")


def test_what_holds_is_the_sum_of_the_log(store, clock):
    """A note replaces the one before, tags add up, and the log keeps who said what and when."""
    store.add_study(small_plan())
    clock.now = 50.0
    store.remark(STUDY, Change(note="  first\r\nline  ", add=("good", "as-is")), "ada")
    clock.now = 60.0
    about = store.remark(STUDY, Change(note="second", add=("good",), remove=("as-is", "absent")), "bob")
    assert (about.note, about.author, about.at, about.tags) == ("second", "bob", 60.0, ("good",))
    assert store.about(STUDY) == about
    assert store.about_studies() == {"small": about}
    said = [(line.at, line.author, line.kind, line.text) for line in store.remarks(STUDY)]
    assert said == [
        (50.0, "ada", "note", "first\nline"), (50.0, "ada", "tag", "good"), (50.0, "ada", "tag", "as-is"),
        (60.0, "bob", "note", "second"), (60.0, "bob", "untag", "as-is"),
    ]  # fmt: skip
    assert store.remark(STUDY, Change(note=""), "bob").note == ""
    assert store.about(STUDY).author == ""


def test_the_same_change_again_adds_no_line(store):
    """So a command that is repeated after a lost connection leaves the history as it was."""
    store.add_study(small_plan())
    for _ in range(2):
        store.remark(STUDY, Change(note="n", add=("a",), archived=True), "ada")
    assert [line.kind for line in store.remarks(STUDY)] == ["note", "tag", "archive"]
    assert store.remark(STUDY, Change(archived=False), "ada").archived is False


def test_a_shared_run_has_one_note_in_all_its_studies(store):
    """Runs are named by their fingerprints, and a note on a study isn't one on its runs."""
    first = store.add_study(small_plan())
    second = store.add_study(small_plan("other"))
    run = store.runs_of(first.id)[0].fingerprint
    store.remark(STUDY, Change(note="of the study"), "ada")
    store.remark(store.subject(run[:8]), Change(note="of the run"), "ada")
    assert store.about_runs(first.id) == store.about_runs(second.id)
    assert {k: about.note for k, about in store.about_runs(second.id).items()} == {run: "of the run"}


def test_a_name_means_a_study_before_it_means_a_run(store):
    """Digits that start several fingerprints, or none, are errors that say what to do."""
    store.add_study(small_plan())
    run = store.runs_of(1)[0].fingerprint
    assert store.subject("small") == STUDY
    assert store.subject(run[:4]).run.startswith(run[:4])
    store.add_study(small_plan(run[:4]))
    assert store.subject(run[:4]) == Subject(study=run[:4])
    for named in ("smal", run[:3], "%", "_" * 64):
        with pytest.raises(StoreError, match=r"no study .*Studies: .*four digits"):
            store.subject(named)
    with pytest.raises(StoreError, match=r"no study .*Studies: .*No run has a fingerprint that starts so"):
        store.subject("00000000")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Change(note="n" * (MOST_NOTE + 1)), r"4,001 characters, and 4,000 are allowed"),
        (Change(note="a\0b"), r"'\\x00' at character 2"),
        (Change(note="\udce4"), r"at character 1, which is no text"),
        (Change(add=("t" * (MOST_TAG + 1),)), "at most 40 letters"),
        (Change(add=("two words",)), "is no tag"),
        (Change(add=("-dash",)), "is no tag"),
        (Change(remove=("\x1b[2J",)), r"'\\x1b\[2J' is no tag"),
        (Change(add=("a",), remove=("a",)), "added and removed"),
        (Change(add=tuple(f"t{n}" for n in range(MOST_TAGS + 1))), "50 tags"),
    ],
)
def test_what_is_not_kept_is_refused_whole(store, change, said):
    """Nothing of such a change reaches the log."""
    store.add_study(small_plan())
    with pytest.raises(StoreError, match=said):
        store.remark(STUDY, change, "ada")
    assert store.remarks(STUDY) == ()


def test_hostile_text_is_kept_as_it_was_typed(store):
    """Pages and terminals escape it where they show it; letters of any language are tags."""
    store.add_study(small_plan())
    text = "<script>alert(1)</script>\x1b[2J\u202e 100% 'quoted'; DROP TABLE remark"
    about = store.remark(STUDY, Change(note=text, add=("gut-größer", "v1.2:a/b")), "ada" * 100)
    assert (about.note, about.tags) == (text, ("gut-größer", "v1.2:a/b"))
    assert len(about.author) == 200


def test_only_what_is_in_the_store_gets_remarks(store):
    """A run is not archived: its studies are."""
    store.add_study(small_plan())
    run = Subject(run=store.runs_of(1)[0].fingerprint)
    with pytest.raises(StoreError, match="only a study is archived"):
        store.remark(run, Change(archived=True), "ada")
    for gone in (Subject(study="gone"), Subject(run="0" * 64)):
        with pytest.raises(StoreError, match="any more"):
            store.remark(gone, Change(note="n"), "ada")


def test_lines_of_a_newer_version_change_nothing():
    """A database may hold kinds that this version doesn't know, written before somebody went back."""
    line = Remark(study="s", run="", at=1.0, author="a", kind="starred", text="x")
    assert total([line]) == {("s", ""): NOTHING}
