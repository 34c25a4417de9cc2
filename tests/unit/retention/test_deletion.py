"""`paribus delete`: rows and folders go together, whatever is killed; what others need stays."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.cli import paribus
from paribus.errors import StoreError
from paribus.retention.deletion import FILE, delete, look
from paribus.run_folder.folder import MetricLine, RunFolder, write_json
from paribus.scheduler.home_lock import lock_home
from paribus.store.reader import Reader
from paribus.store.store import Store
from support.kills import killed_at
from support.plans import small_plan

RESULT = {"status": "succeeded"}


def train(home: Path, study: str = "small", **shape: int) -> None:
    """Give every run of a study a result and a folder."""
    with Store.open(home) as store:
        record = store.add_study(small_plan(study, **shape))
        while (claim := store.claim(record.id, engine="local", worker="here")) is not None:
            store.start(claim.run_id, claim.token)
            folder = RunFolder.of(home, claim.fingerprint, claim.token)
            folder.path.mkdir(parents=True)
            folder.append_metrics(MetricLine(step=0, time_ms=1, values={"reward/mean": 0.5}))
            write_json(folder.result, RESULT)
            store.finish(claim.run_id, claim.token, RESULT)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with a study of four runs, two of which another study has, too."""
    for name in ("PARIBUS_DATABASE_URL", "PARIBUS_SERVER"):
        monkeypatch.delenv(name, raising=False)
    train(tmp_path / "home")
    train(tmp_path / "home", "other", arms=1)
    return tmp_path / "home"


def folders(home: Path) -> int:
    """Return the number of run folders."""
    return len([*(home / "runs").iterdir()])


def whole(home: Path) -> list[str]:
    """Return the names of the studies, after checking that nothing contradicts them."""
    with Reader.open(home) as reader:
        assert audit(snapshot(reader)) == ()
        return [study.name for study in reader.summaries()]


def type_(*arguments: str, status: int = 0, answer: str | None = None) -> str:
    """Type a command; return what it printed."""
    shown = CliRunner().invoke(paribus, arguments, input=answer)
    assert shown.exit_code == status, (shown.output, shown.exception)
    return shown.output + (str(shown.exception) if status == 1 else "")


def test_it_shows_what_goes_and_what_stays_and_needs_a_word(home: Path) -> None:
    """Without a terminal and without --yes nothing is deleted, and the exit status says so."""
    at = ("--home", str(home))
    said = type_("delete", "small", *at, status=1)
    assert said.startswith("goes: small, 1 plan, 2 runs, 2 with a result; 2 run folders, ")
    assert "stays: 2 runs that other studies have, too: other (2)" in said
    assert "Nothing was deleted: add --yes." in said
    shown = json.loads(type_("delete", "small", *at, "--json"))
    assert (shown["runs"], shown["kept_runs"], shown["shared"], shown["deleted"]) == (2, 2, {"other": 2}, False)
    assert (whole(home), folders(home)) == (["small", "other"], 4)
    assert "deleted small, freed " in type_("delete", "small", *at, "--yes")
    assert (whole(home), folders(home)) == (["other"], 2)
    assert "there is no study `small`" in type_("delete", "small", *at, status=1)
    assert json.loads(type_("delete", "other", *at, "--json", "--yes"))["deleted"]
    assert (whole(home), folders(home)) == ([], 0)


def test_a_study_that_runs_and_a_home_that_is_served_are_refused(home: Path) -> None:
    """The message says what to do first."""
    with Store.open(home) as store:
        store.add_study(small_plan("third", steps=9))
    said = type_("delete", "third", "--home", str(home), "--yes", status=1)
    assert "`third` has 4 runs that have not ended: `paribus cancel third` first" in said
    with lock_home(home, "paribus scheduler"):
        said = type_("delete", "small", "--home", str(home), "--yes", status=1)
    assert "`paribus scheduler` (process" in said
    assert "works in" in said
    assert folders(home) == 4


def test_attempts_that_the_store_does_not_know_stop_it(home: Path) -> None:
    """The store was restored from an older copy: what is there may be the only trace of a run."""
    with Reader.open(home) as reader:
        run = next(iter(reader.what_goes("small").runs))
        RunFolder.of(home, run, 7).path.mkdir()
        with pytest.raises(StoreError, match="attempts that the store doesn't know"):
            look(reader, "small")


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_all_of_it_or_is_finished_by_the_next_command(home: Path, tmp_path: Path) -> None:
    """Before each call of the file system: no promise is broken, and the run can be trained again at once."""
    both = set()
    for call in itertools.count():
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        copy = shutil.copytree(home, tmp_path / "copy")

        def act(copy: Path = copy) -> None:
            with Reader.open(copy) as reader:
                doomed = look(reader, "small")
            with Store.open(copy) as store:
                delete(store, doomed, "ada")

        killed = killed_at(call, act)
        left = whole(copy)
        both.add((tuple(left), (copy / FILE).exists()))
        if left == ["other"]:
            train_again = call % 3
            if train_again == 0:
                type_("gc", "--delete", "--home", str(copy))
            else:
                with Store.open(copy) as store:
                    store.add_study(small_plan())  # which needs no lock: the folders may still be there
                with lock_home(copy, "test"):
                    pass
                train(copy)
            assert not (copy / FILE).exists()
            assert folders(copy) == (2 if train_again == 0 else 4)
            assert whole(copy) == (["other"] if train_again == 0 else ["other", "small"])
        else:
            with lock_home(copy, "test"):
                pass
            assert folders(copy) == 4
            assert not (copy / FILE).exists()
        if not killed:
            break
    assert both >= {(("small", "other"), False), (("other",), True), (("other",), False)}


def test_a_deletion_that_has_only_its_file_left_is_finished_by_gc(home: Path) -> None:
    """Killed after the last folder: the file, and what an engine keeps of the runs, go as well."""
    left = home / "engine" / "local" / f"paribus-{'f' * 12}-a1.exit"
    left.parent.mkdir(parents=True)
    left.write_text("0")
    (home / FILE).write_text(json.dumps({"runs": ["f" * 64]}))
    assert "leftovers" in type_("gc", "--home", str(home))
    assert (home / FILE).exists()
    type_("gc", "--delete", "--home", str(home))
    assert not (home / FILE).exists()
    assert not left.exists()
    assert folders(home) == 4


def test_the_file_alone_deletes_nothing(home: Path) -> None:
    """Whatever it names: an attempt that the store has stays, and a damaged file is an error."""
    with Reader.open(home) as reader:
        runs = [run.fingerprint for run in reader.attempted_runs()]
    (home / FILE).write_text(json.dumps({"runs": runs}))
    with lock_home(home, "test"):
        pass
    assert folders(home) == 4
    for text in ('{"runs": ["../../etc"]}', "{", '{"runs": 3}'):
        (home / FILE).write_text(text)
        with pytest.raises(StoreError, match="is damaged"), lock_home(home, "test"):
            pass
        assert folders(home) == 4
        assert len(whole(home)) == 2


def test_what_is_trained_again_begins_anew(home: Path) -> None:
    """Its first attempt has the number 1 and its own folder; files of its old jobs are gone."""
    with Reader.open(home) as reader:
        run = next(iter(reader.what_goes("small").runs))
    left = home / "engine" / "local" / f"paribus-{run[:12]}-a1.exit"
    left.parent.mkdir(parents=True)
    left.write_text("0")
    type_("delete", "small", "--home", str(home), "--yes")
    assert not left.exists()
    train(home)
    assert (whole(home), folders(home)) == (["other", "small"], 4)
