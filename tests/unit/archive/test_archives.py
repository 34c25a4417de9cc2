"""A study goes into one file and comes back the same, on both databases; nothing else ever comes out of a file.

``make test-fuzz`` reads more damaged archives.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paribus.archive import restore
from paribus.archive.export import export_study
from paribus.archive.restore import restore_study
from paribus.archive.tar_file import MANIFEST, STORE, ArchiveReader, Manifest, Member, write_archive
from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.cli import paribus
from paribus.errors import ArchiveError, ParibusError
from paribus.report.write import write_report
from paribus.run_folder.folder import RunFolder, write_json
from paribus.run_folder.json_text import parse_json
from paribus.store.database import Database
from paribus.store.reader import Reader
from paribus.store.store import Store
from paribus.store.transfer import StudyRows, checked_rows, insert_rows, read_rows
from paribus.study.plan import InterimRule
from support import homes
from support.confined import confined
from support.damage import COUNT, TEXTS, damaged, dice, other, put
from support.databases import memory_database, postgresql
from support.homes import made_up_home
from support.kills import killed_at
from support.plans import small_plan
from support.studies import Shape

SHAPE = Shape(
    steps=4, every=2, designs=("add_one",), tricks=("clip_higher",), seeds=2, problems=4,
    outcomes=(("clip_higher", 1, "failed"),),
)  # fmt: skip
STUDY = "made-up"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with a study whose runs have ended, one of them without a result."""
    folder = tmp_path_factory.mktemp("archives") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(homes, "RUNNING", 0)
        patch.setattr(homes, "WAITING", 0)
        made_up_home(folder, SHAPE)
    return folder


@pytest.fixture(scope="module")
def archive(home: Path) -> Path:
    """Its archive."""
    return export(home, home.parent / "study.tar")


def export(home: Path, target: Path) -> Path:
    """Write the study of a home folder into a file, without a report."""
    with Reader.open(home) as reader:
        return export_study(reader, STUDY, target, None, checkpoints=True).path


def report(home: Path, out: Path) -> dict[str, bytes]:
    """Return the files of the report of the study in a home folder."""
    with Reader.open(home) as reader:
        return {path.name: path.read_bytes() for path in write_report(reader, STUDY, out).paths}


def rewritten(archive: Path, target: Path, change: Callable[[dict[str, bytes]], Any]) -> Path:
    """Write an archive whose files are changed, with a manifest that fits them."""
    with tarfile.open(archive) as tar:
        files = {m.name: tar.extractfile(m).read() for m in tar if m.name != MANIFEST}  # type: ignore[union-attr]
    change(files)
    return written(files, target)


def written(files: Mapping[str, bytes], target: Path) -> Path:
    """Write these files as an archive, whatever their names are."""
    folder = target.with_suffix(".parts")
    folder.mkdir()
    sources, members = {}, []
    for number, (name, data) in enumerate(files.items()):
        sources[name] = folder / str(number)
        sources[name].write_bytes(data)
        members.append(Member(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest()))
    with target.open("wb") as file:
        write_archive(file, Manifest(study=STUDY, paribus="0", files=tuple(members)), sources)
    return target


def everything(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder, but for those of the database and its locks."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and not p.name.startswith("paribus.db") and p.suffix != ".lock"
    }


# ---- there and back ----------------------------------------------------------------------------------------------


def test_a_study_goes_from_sqlite_to_postgresql_and_back(
    home: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports and archives are equal to the byte at each station, and all invariants hold."""
    before = report(home, tmp_path / "r1")
    with postgresql(empty=True) as url, monkeypatch.context() as patch:
        patch.setenv("PARIBUS_DATABASE_URL", url.render_as_string(hide_password=False))
        done = restore_study(tmp_path / "server", archive)
        assert (done.known, done.paused, len(done.rows.results)) == (False, False, 3)
        assert not (tmp_path / "server" / "paribus.db").exists()
        assert report(tmp_path / "server", tmp_path / "r2") == before
        second = export(tmp_path / "server", tmp_path / "second.tar")
        with Reader.open(tmp_path / "server") as reader:
            assert audit(snapshot(reader)) == ()
    assert second.read_bytes() == archive.read_bytes()
    restore_study(tmp_path / "back", second)
    assert report(tmp_path / "back", tmp_path / "r3") == before
    with Reader.open(tmp_path / "back") as reader, Reader.open(home) as first:
        assert audit(snapshot(reader)) == ()
        assert reader.budget(STUDY, "cpu") == first.budget(STUDY, "cpu")


def test_live_runs_are_queued_and_wait_until_somebody_trusts_the_file(tmp_path: Path) -> None:
    """The archive of a study that runs is one of ended attempts; a restored study claims nothing by itself."""
    made_up_home(tmp_path / "home", SHAPE)
    with Reader.open(tmp_path / "home") as reader:
        notes = export_study(reader, STUDY, tmp_path / "x.tar", None, checkpoints=True).notes
    assert notes[0].startswith("live runs, which are in the archive as queued")
    assert restore_study(tmp_path / "other", tmp_path / "x.tar").paused
    with Store.open(tmp_path / "other") as store:
        assert audit(snapshot(store)) == ()
        (study,) = store.studies()
        assert study.paused == restore.PAUSED
        assert store.claim(study.id, engine="test", worker="here") is None
        store.retry(STUDY, author="me", reason="I trust it")
        assert store.claim(study.id, engine="test", worker="here") is not None


def test_the_same_again_changes_nothing_and_other_content_is_never_overwritten(archive: Path, tmp_path: Path) -> None:
    """Equal content is known; a file that differs, an own file and another result refuse the whole archive."""
    home = tmp_path / "home"
    restore_study(home, archive)
    before = everything(home)
    again = restore_study(home, archive)
    assert (again.known, again.folders) == (True, 0)
    assert everything(home) == before
    metrics = next(iter((home / "runs").glob("*/a1/metrics.jsonl")))
    metrics.write_bytes(metrics.read_bytes() + b" ")
    with pytest.raises(ArchiveError, match=rf"(?s)not restored.*{metrics} differs from the archive"):
        restore_study(home, archive)
    shutil.rmtree(metrics.parent)
    assert restore_study(home, archive).folders == 1  # a folder that was lost comes back
    assert everything(home) == before
    (metrics.parent / "mine").write_text("mine")
    with pytest.raises(ArchiveError, match="mine is here, and not in the archive"):
        restore_study(home, archive)


def test_a_run_that_went_on_here_is_not_set_back(archive: Path, home: Path, tmp_path: Path) -> None:
    """The failed run was retried since: the archive has another state of it."""
    here = tmp_path / "here"
    shutil.copytree(home, here)
    with Store.open(here) as store:
        store.retry(STUDY, author="me", reason="again")
    with pytest.raises(ArchiveError, match="is quarantined at attempt 2 in the archive and queued at attempt 2 here"):
        restore_study(here, archive)


def test_run_folders_may_be_on_another_disk(archive: Path, home: Path, tmp_path: Path) -> None:
    """No file system can rename from one disk to another."""
    here = tmp_path / "here"
    here.mkdir()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as disk:
        if Path(disk).stat().st_dev == here.stat().st_dev:
            pytest.skip("there is one disk")
        (here / "runs").symlink_to(disk)
        assert restore_study(here, archive).folders == 5
        assert {p.name for p in Path(disk).iterdir()} == {p.name for p in (home / "runs").iterdir()}


@pytest.mark.parametrize("seeds", [(0, 1), (0, 1, 2)], ids=["before its last look", "after its last look"])
def test_a_study_that_may_grow_waits_like_one_with_queued_runs(tmp_path: Path, seeds: tuple[int, ...]) -> None:
    """Its runs have ended; the next look would train with what is in the file."""
    plan = small_plan(arms=2, seeds=3)
    looks = InterimRule(at=(2, 3), spending="obrien_fleming", width=None)
    count = 2 * len(seeds)
    plan = replace(plan, interim=looks, seeds=seeds, runs=plan.runs[:count], later=plan.runs[count:])
    with Store.open(tmp_path / "home") as store:
        study = store.add_study(plan)
        for claim in store.claim_many(study.id, count, engine="test", worker="here"):
            store.start(claim.run_id, claim.token)
            RunFolder.of(store.home, claim.fingerprint, 1).path.mkdir(parents=True)
            write_json(RunFolder.of(store.home, claim.fingerprint, 1).result, {"status": "succeeded"})
            store.finish(claim.run_id, claim.token, {"status": "succeeded"})
        export_study(store, plan.study, tmp_path / "x.tar", None, checkpoints=True)
    done = restore_study(tmp_path / "other", tmp_path / "x.tar")
    assert (done.rows.unfinished, done.paused) == (0, len(seeds) < 3)
    with Store.open(tmp_path / "other") as store:
        assert [s.paused for s in store.studies()] == ([restore.PAUSED] if done.paused else [""])


# ---- damage -------------------------------------------------------------------------------------------------------


def test_one_flipped_bit_names_the_file_and_restores_nothing(archive: Path, tmp_path: Path) -> None:
    """In the content of each file, in its header and in what fills its last block."""
    whole = bytearray(archive.read_bytes())
    with tarfile.open(archive) as tar:
        places = [(m.name, at) for m in tar for at in (m.offset + 1, m.offset_data + m.size // 2) if m.size]
    copy = tmp_path / "flipped.tar"
    for number, (name, at) in enumerate(places):
        whole[at] ^= 1 << number % 8
        copy.write_bytes(whole)
        whole[at] ^= 1 << number % 8
        with pytest.raises(ArchiveError) as caught:
            restore_study(tmp_path / "home", copy) if number % 9 == 0 else read_all(copy)
        assert name in str(caught.value), (at, str(caught.value))
        assert not (tmp_path / "home" / "runs").exists()
    with Reader.open(tmp_path / "home") as reader:
        assert reader.studies() == ()


def read_all(path: Path) -> dict[str, bytes]:
    """Return all files of an archive."""
    with ArchiveReader(path) as reader:
        return {member.name: b"".join(pieces) for member, pieces in reader.members()}


def test_any_bytes_are_an_archive_or_one_error(archive: Path, tmp_path: Path) -> None:
    """What the reader returns are files that have their hashes; nothing else is raised, or written."""
    confined(lambda: _read_damaged_archives(archive, tmp_path), tmp_path)


def _read_damaged_archives(archive: Path, tmp_path: Path) -> None:
    real, whole, path, refused = archive.read_bytes(), read_all(archive), tmp_path / "x.tar", 0
    first = int(tarfile.TarInfo.frombuf(real[:512], "utf-8", "strict").size) + 1024
    for number in range(-len(TEXTS), COUNT):
        chance = dice("archive", number)
        data = TEXTS[number] if number < 0 else damaged([real], chance)
        if number >= 0 and number % 2:  # a manifest that is damaged, and all files behind it
            data = (
                real[:512] + damaged([real[512:first]], chance)[: first - 512].ljust(first - 512, b"\0") + real[first:]
            )
        put(path, data)
        found, message = None, str(path)
        try:
            found = read_all(path)
        except ArchiveError as error:
            refused, message = refused + 1, str(error)
        assert found in (None, whole)
        assert str(path) in message
        assert message.isprintable(), message
        assert len(message) < 600 + 2 * len(str(path))
    assert refused > COUNT / 2


class Undone(Exception):
    """Leaves the store as it was."""


def insert_and_undo(database: Database, rows: StudyRows) -> None:
    """Insert rows, compare them with what the store has then, and leave it empty."""
    with database.write() as connection:
        insert_rows(connection, rows, "")
        read = read_rows(connection, rows.name)
        assert read is not None
        assert not rows.differences(read)
        raise Undone


def test_a_whole_number_that_no_float_holds_is_refused(archive: Path) -> None:
    """JSON has whole numbers of any length."""
    rows = json.loads(_file(archive, STORE))
    rows["studies"][0]["weight"] = 10**400
    with pytest.raises(ValueError, match="which the store does not take"):
        checked_rows(rows)


@pytest.mark.parametrize("positions", [(1, 0), (0, 0)])
def test_runs_in_another_order_than_their_positions_are_refused(archive: Path, positions: tuple[int, int]) -> None:
    """The store gives them back by position, so they would not be those of the archive."""
    rows = json.loads(_file(archive, STORE))
    for link, position in zip(rows["studies"][0]["links"], positions, strict=False):
        link["position"] = position
    with pytest.raises(ValueError, match="does not have its runs in the order of their positions"):
        checked_rows(rows)


def test_rows_of_any_kind_are_a_study_or_one_error(archive: Path) -> None:
    """Values of other types and kinds, at any depth, under hashes that fit: the store takes what is left."""
    rows, messages = json.loads(_file(archive, STORE)), list[str]()
    database = memory_database()
    for number in range(COUNT):
        changed = parse_json(json.dumps(other(rows, dice("rows", number))).encode(), "rows")
        try:
            found = checked_rows(changed)
        except ValueError as error:
            messages.append(str(error))
            continue
        with pytest.raises(Undone):
            insert_and_undo(database, found)
    database.close()
    assert len(messages) > COUNT / 4
    assert max(map(len, messages)) < 600


def _file(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as tar:
        return tar.extractfile(name).read()  # type: ignore[union-attr]


def hostile() -> Iterator[tuple[str, Callable[[tarfile.TarFile], None]]]:
    """Yield what a tar file can do to a reader that believes it."""

    def entry(kind: bytes, name: str, target: str = "", size: int = 0) -> Callable[[tarfile.TarFile], None]:
        def add(tar: tarfile.TarFile) -> None:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, target, size
            tar.addfile(info, io.BytesIO(b"x" * size) if size else None)

        return add

    yield "a symbolic link", entry(tarfile.SYMTYPE, "runs/0123456789ab/a1/x", "/etc/passwd")
    yield "a hard link", entry(tarfile.LNKTYPE, "runs/0123456789ab/a1/x", STORE)
    yield "a device", entry(tarfile.CHRTYPE, "runs/0123456789ab/a1/x")
    yield "a pipe", entry(tarfile.FIFOTYPE, "runs/0123456789ab/a1/x")
    yield "a folder", entry(tarfile.DIRTYPE, "runs/0123456789ab/a1/x")
    yield "an absolute path", entry(tarfile.REGTYPE, "/tmp/evil", size=1)
    yield "a parent path", entry(tarfile.REGTYPE, "runs/../../evil", size=1)
    yield "a file twice", entry(tarfile.REGTYPE, STORE, size=1)


@pytest.mark.parametrize(("what", "add"), list(hostile()), ids=[what for what, _ in hostile()])
def test_an_entry_that_the_manifest_does_not_have_is_refused(
    archive: Path, tmp_path: Path, what: str, add: Callable[[tarfile.TarFile], None]
) -> None:
    """Before the first file, after the last one, and in the place of one of the same length."""
    real = archive.read_bytes()
    with tarfile.open(archive) as tar:
        second = tar.getmembers()[1]
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        add(tar)
    extra = raw.getvalue()[:1024].rstrip(b"\0")
    extra += bytes(-len(extra) % 512)
    end = real.rstrip(b"\0")
    end += bytes(-len(end) % 512)
    for data in (extra + real, end + extra + bytes(10240), real[: second.offset] + extra + real[second.offset :]):
        (tmp_path / "x.tar").write_bytes(data)
        with pytest.raises(ArchiveError):
            restore_study(tmp_path / "home", tmp_path / "x.tar")
    replaced = bytearray(real)
    replaced[second.offset : second.offset + 512] = extra[:512]
    (tmp_path / "x.tar").write_bytes(replaced)
    with pytest.raises(ArchiveError, match=rf"must stand the header of '{STORE}', but there is"):
        restore_study(tmp_path / "home", tmp_path / "x.tar")
    assert not (tmp_path / "home" / "runs").exists()
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "name",
    [
        "/etc/x", "../x", "runs/../x", "runs/0123456789ab/a1/../../../x", "runs/0123456789ab/a1", "runs/0123456789ab/x",
        "runs/0123456789AB/a1/x", "runs/0123456789ab/a0/x", "runs/0123456789ab//a1/x", "report", "mlflow.db",
        "./store.json",
        "runs/0123456789ab/a1/x\0y", "manifest.json", "runs/0123456789ab/a1/./x", "report/" + "x" * 1000, "",
    ],
)  # fmt: skip
def test_a_manifest_with_such_a_name_is_refused(archive: Path, tmp_path: Path, name: str) -> None:
    """Also where sizes, hashes and headers all fit."""
    files = {STORE: _file(archive, STORE), name: b"x"}
    try:
        path = written(files, tmp_path / "x.tar")
    except ValueError:
        return  # no tar file can have it
    with pytest.raises(ArchiveError):
        restore_study(tmp_path / "home", path)
    assert not (tmp_path / "home" / "runs").exists()


def test_a_file_below_a_file_a_strange_folder_and_a_missing_one_are_refused(archive: Path, tmp_path: Path) -> None:
    """What is restored is the study and nothing more."""
    with tarfile.open(archive) as tar:
        names = [m.name for m in tar if m.name.endswith("metrics.jsonl")]
    for number, change in enumerate(
        (
            lambda files: files.update({f"{names[0]}/below": b""}),
            lambda files: files.update({"runs/0123456789ab/a1/x": b""}),
            lambda files: files.update({names[0].replace("/a1/", "/a2/"): b""}),
            lambda files: [files.pop(n) for n in list(files) if n.startswith(names[0].rpartition("/")[0])],
            lambda files: files.pop(STORE),
        )
    ):
        with pytest.raises(ArchiveError):
            restore_study(tmp_path / "home", rewritten(archive, tmp_path / f"{number}.tar", change))
    assert not (tmp_path / "home" / "runs").exists()


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "x\x1b[31m", "..", "", "x" * 65, "x\n"])
def test_a_study_whose_name_is_a_path_is_refused(archive: Path, tmp_path: Path, name: str) -> None:
    """Reports and MLflow's artifacts have folders of that name: in the rows of the store, and in each job."""

    def rows(files: dict[str, bytes]) -> None:
        raw = json.loads(files[STORE])
        for study in raw["studies"]:
            study["name"], study["plan"] = name, json.dumps({**json.loads(study["plan"]), "study": name})
        files[STORE] = json.dumps(raw).encode()

    def jobs(files: dict[str, bytes]) -> None:
        path = next(n for n in files if n.endswith("/job.json"))
        files[path] = json.dumps({**json.loads(files[path]), "study": name}).encode()

    for number, (change, where) in enumerate(((rows, "`?study"), (jobs, "job.json is not a job: `study`"))):
        path = rewritten(archive, tmp_path / f"{number}.tar", change)
        with pytest.raises(ArchiveError, match=where) as caught:
            restore_study(tmp_path / "home", path)
        assert str(tmp_path) not in str(caught.value)
    assert not (tmp_path / "home" / "runs").exists()


def test_an_archive_that_was_cut_lengthened_or_compressed_is_refused_at_once(archive: Path, tmp_path: Path) -> None:
    """Nothing is unpacked: its size does not fit its manifest."""
    real, copy = archive.read_bytes(), tmp_path / "x.tar"
    for data, message in ((real[:-1], "cut"), (real + b"\0", "lengthened"), (b"\x1f\x8b" + real, "unpacked first")):
        copy.write_bytes(data)
        with pytest.raises(ArchiveError, match=message):
            ArchiveReader(copy)


# ---- kills --------------------------------------------------------------------------------------------------------


def test_a_kill_at_any_moment_leaves_nothing_visible_and_the_next_call_restores_all(
    archive: Path, home: Path, tmp_path: Path
) -> None:
    """Before every thirteenth of its calls of the file system, from the first to the last."""
    call, killed = 0, True
    with Store.open(tmp_path / "empty"):
        pass  # so that what is killed is the restore and not the making of a database
    while killed:
        here = tmp_path / str(call)
        shutil.copytree(tmp_path / "empty", here)
        killed = killed_at(call, lambda here=here: restore_study(here, archive))
        with Reader.open(here) as reader:
            studies = reader.studies()
            if studies:
                assert audit(snapshot(reader)) == ()
        assert restore_study(here, archive).known == bool(studies)
        with Reader.open(here) as reader:
            assert audit(snapshot(reader)) == ()
        assert {k: v for k, v in everything(here).items() if k.startswith("runs/")} == {
            k: v for k, v in everything(home).items() if k.startswith("runs/") and not k.endswith("series.bin")
        }
        shutil.rmtree(here)
        call += 13
    assert call > 100


def test_an_export_that_fails_leaves_no_file(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that changes meanwhile is named; a target that exists is not overwritten."""
    here = tmp_path / "home"
    shutil.copytree(home, here)
    path = next(iter((here / "runs").glob("*/a1/result.json"))).with_name("metrics.jsonl")
    seen = write_archive

    def late(*arguments: Any) -> None:
        path.write_bytes(b"{}")
        seen(*arguments)

    monkeypatch.setattr("paribus.archive.export.write_archive", late)
    with pytest.raises(ArchiveError, match=f"{path} was changed while it was copied"):
        export(here, tmp_path / "x.tar")
    assert [p.name for p in tmp_path.iterdir()] == ["home"]
    (tmp_path / "x.tar").write_text("mine")
    with pytest.raises(ArchiveError, match="exists already"):
        export(here, tmp_path / "x.tar")
    shutil.rmtree(path.parent)
    with pytest.raises(ArchiveError, match="the folder of a result is not here"):
        export(here, tmp_path / "y.tar")


def test_an_export_into_no_folder_is_refused_in_words(home: Path, tmp_path: Path) -> None:
    """Neither the number of an error nor the name of a folder that Paribus makes for itself."""
    with pytest.raises(ArchiveError, match=f"^there is no folder {tmp_path}/nodir: create it, or name another file"):
        export(home, tmp_path / "nodir" / "x.tar")


def test_what_a_killed_export_leaves_goes_with_the_next_one(home: Path, tmp_path: Path) -> None:
    """Killed before every thirteenth of its calls of the file system; the next one has another name."""
    call, killed, left = 0, True, 0
    whole = export(home, tmp_path / "whole.tar").read_bytes()
    while killed:
        killed = killed_at(call, lambda: export(home, tmp_path / "first.tar"))
        left += len(list(tmp_path.glob(".*")))
        first = tmp_path / "first.tar"
        assert (first.exists() and first.read_bytes() == whole) or (killed and not first.exists())
        first.unlink(missing_ok=True)
        assert export(home, tmp_path / "second.tar").read_bytes() == whole
        assert sorted(p.name for p in tmp_path.iterdir()) == ["second.tar", "whole.tar"]
        (tmp_path / "second.tar").unlink()
        call += 13
    assert left > 3


def test_an_export_that_works_is_not_disturbed_by_another(home: Path, tmp_path: Path) -> None:
    """Not even by one that begins and ends meanwhile in the same folder."""

    def meanwhile(out: Path) -> list[str]:
        (here,) = tmp_path.glob(".paribus-export-*")
        assert out.parent == here
        export(home, tmp_path / "second.tar")
        assert here.is_dir()
        return ["a note"]

    with Reader.open(home) as reader:
        done = export_study(reader, STUDY, tmp_path / "first.tar", meanwhile, checkpoints=True)
    assert done.notes == ("a note",)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first.tar", "second.tar"]


DYING = """
import resource, runpy, signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 26, 1 << 26))
runpy.run_module("paribus", run_name="__main__", alter_sys=True)
"""
"""`paribus` in a process that the kernel kills while it writes a file of more than 64 MiB."""


@pytest.mark.slow
def test_the_command_is_killed_while_it_copies(home: Path, tmp_path: Path) -> None:
    """The process of `paribus export`, with a report; what it was writing is gone after the same command again."""
    here = tmp_path / "home"
    shutil.copytree(home, here)
    samples = next(iter((here / "runs").glob("*/a1/result.json"))).with_name("samples.jsonl")
    with samples.open("ab") as file:
        file.truncate(1 << 27)  # a hole, which is read as zeros
    place = tmp_path / "to"
    place.mkdir()
    command = [sys.executable, "-m", "paribus", "export", STUDY, "--home", str(here), "--to", "x.tar"]
    killed = subprocess.run([sys.executable, "-c", DYING, *command[3:]], cwd=place, stdout=subprocess.DEVNULL)
    assert killed.returncode == -signal.SIGXFSZ
    assert [p.stat().st_size for p in place.glob(".*/archive")] == [1 << 26]
    samples.write_bytes(b"")
    subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)
    assert [p.name for p in place.iterdir()] == ["x.tar"]


# ---- commands -----------------------------------------------------------------------------------------------------


def test_the_commands_say_what_they_did(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From one folder into another, with a report that anybody can open, and an error without a traceback."""
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(paribus, ["export", STUDY, "--home", str(home)])
    assert said.exit_code == 0, said.output
    assert said.output.startswith(f"wrote {STUDY}.tar: 4 runs, 3 with a result, ")
    subprocess.run(["tar", "-xf", f"{STUDY}.tar", "--one-top-level=opened"], check=True)
    assert Path("opened/report/report.md").is_file()
    assert not list(Path("opened").rglob("series.bin"))
    said = CliRunner().invoke(paribus, ["restore", f"{STUDY}.tar", "--home", "over there"])
    assert said.output.splitlines() == [
        f"restored `{STUDY}`: 4 runs, 3 with a result, 0 queued; 5 run folders",
        f"next: paribus report {STUDY} --home 'over there'",
    ]
    said = CliRunner().invoke(paribus, shlex.split(said.output.splitlines()[1].removeprefix("next: paribus ")))
    assert said.exit_code == 0, said.output
    said = CliRunner().invoke(paribus, ["restore", f"{STUDY}.tar", "--home", "over there"])
    assert said.output == f"`{STUDY}` is in this store already, with equal content: nothing to do\n"
    said = CliRunner().invoke(paribus, ["export", "made_up", "--home", str(home)])
    assert isinstance(said.exception, ParibusError)
    assert "Did you mean `made-up`?" in str(said.exception)
    assert {path.name for path in Path("opened").iterdir()} == {MANIFEST, STORE, "report", "runs"}
