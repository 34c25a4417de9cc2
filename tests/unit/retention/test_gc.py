"""What `paribus gc` deletes is needed by no report and no resumable run, whenever it is killed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from filelock import FileLock

from paribus.archive.export import export_study
from paribus.archive.restore import restore_study
from paribus.cli import paribus
from paribus.contract import Checkpoints, Job
from paribus.engines.process import Identity
from paribus.evaluate import Evaluate
from paribus.recipe.recipe import Recipe
from paribus.report.write import write_report
from paribus.retention.unneeded import Rule, delete, unneeded
from paribus.run_folder.checkpoints import INDEX, damaged_files, publish, published
from paribus.run_folder.folder import RESTORE_LOCK, STAGE, MetricLine, RunFolder, write_json
from paribus.store.reader import Reader
from paribus.store.store import Store
from support.kills import killed_at
from support.plans import small_plan

RUNS, KEEP = 6, 10
ENDS = ("finish", "finish", "fail", "release", "live", "queued")
"""How the runs of the small study stand, in queue order."""


def make(home: Path, runs: int = RUNS, keep: int = KEEP) -> dict[str, RunFolder]:
    """Write a study whose runs have checkpoints; return the newest folder of one run for each end."""
    found: dict[str, RunFolder] = {}
    with Store.open(home) as store:
        study = store.add_study(small_plan(arms=1, seeds=runs))
        claims = store.claim_many(study.id, runs, engine="test", worker="here")
        for number, claim in enumerate(claims):
            end = ENDS[number % len(ENDS)]
            if end == "queued":
                store.release(claim.run_id, claim.token, "")
                continue
            store.start(claim.run_id, claim.token)
            folder = RunFolder.of(home, claim.fingerprint, claim.token)
            train(folder, claim.fingerprint, claim.token, keep)
            if end == "finish":
                write_json(folder.result, {"status": "succeeded"})
                store.finish(claim.run_id, claim.token, {"status": "succeeded"})
            elif end == "fail":
                store.fail(claim.run_id, claim.token, "infrastructure", "lost", "lost")
            elif end == "release":
                store.release(claim.run_id, claim.token, "stopped")
            found[end] = folder
    return found


def train(folder: RunFolder, run: str, token: int, keep: int, size: int = 9000) -> None:
    """Write the metrics and checkpoints of an attempt."""
    folder.path.mkdir(parents=True)
    job = Job(
        run=run, study="small", arm="arm 0", runner="fake", seed=0, token=token, recipe=Recipe(), evaluate=Evaluate(),
        cache="cache", checkpoint=Checkpoints(keep=keep),
    )  # fmt: skip
    folder.job.write_text(job.model_dump_json())
    gone = Identity(pid=1 << 22, start="1", boot="none", host=Identity.of(os.getpid()).host).to_json()
    write_json(folder.attempt, {"token": token, "supervisor": gone, "runner": gone})
    folder.samples.write_text('{"step": 1, "response": "x"}\n')

    def write(place: Path) -> None:
        (place / "model").mkdir()
        (place / "model" / "weights").write_bytes(os.urandom(size))

    for step in range(keep + 1):
        folder.append_metrics(MetricLine(step=step, time_ms=step, values={"reward/mean": 0.0}))
        if step:
            publish(folder, job, step, write)


def used(home: Path) -> int:
    """Return the bytes of the disk that the run folders take."""
    return sum(p.lstat().st_blocks * 512 for p in (home / "runs").rglob("*"))


def steps(folder: RunFolder) -> list[int]:
    """Return the steps of the checkpoints that count, after checking that they are whole and the only folders."""
    places = published(folder)
    assert not any(damaged_files(place) for place in places)
    assert {p.name for p in folder.checkpoints.iterdir()} == {*(p.name for p in places), INDEX}
    return [int(p.name.removeprefix("step-")) for p in places]


def collect(home: Path, rule: Rule | None = None) -> tuple[int, int]:
    """Delete what is not needed; return the bytes that were promised and those that were freed."""
    with Reader.open(home) as reader:
        found = list(unneeded(reader, None, rule or Rule()))
        return sum(i.size for each in found for i in each.items), delete(reader, found)


def test_every_run_keeps_what_it_needs_and_the_disk_gets_what_was_promised(tmp_path: Path) -> None:
    """Results keep their model, other runs the checkpoint that they go on from, live runs all."""
    folders = make(tmp_path)
    before = used(tmp_path)
    promised, freed = collect(tmp_path)
    assert promised == freed
    assert freed == pytest.approx(before - used(tmp_path), rel=0.01)
    assert {end: steps(folder) for end, folder in folders.items()} == {
        "finish": [10], "fail": [10], "release": [10], "live": [*range(10, 0, -1)],
    }  # fmt: skip
    assert collect(tmp_path) == (0, 0)
    assert all(folder.samples.exists() for folder in folders.values())
    collect(tmp_path, Rule(models=False, samples=False))
    assert {end: (steps(f), f.samples.exists()) for end, f in folders.items() if end != "live"} == {
        "finish": ([], False), "fail": ([10], True), "release": ([10], True),
    }  # fmt: skip


def test_a_damaged_checkpoint_is_never_the_only_one_left(tmp_path: Path) -> None:
    """The newest whole one is kept; if none is sure to be usable, all are."""
    folders = make(tmp_path)
    (published(folders["fail"])[0] / "model" / "weights").write_bytes(b"damaged")
    folders["release"].metrics.write_bytes(b"")
    collect(tmp_path)
    assert steps(folders["fail"]) == [9]
    assert steps(folders["release"]) == [*range(10, 0, -1)]


def test_only_the_attempt_that_the_next_one_goes_on_from_keeps_a_checkpoint(tmp_path: Path) -> None:
    """A later attempt without a checkpoint leaves that of the earlier one."""
    folders = make(tmp_path)
    with Store.open(tmp_path) as store:
        study = store.studies()[0]
        claim = next(
            c for c in store.claim_many(study.id, 9, engine="test", worker="here")
            if folders["release"].path.parent.name == c.fingerprint[:12]
        )  # fmt: skip
        store.start(claim.run_id, claim.token)
        later = RunFolder.of(tmp_path, claim.fingerprint, claim.token)
        train(later, claim.fingerprint, claim.token, 3)
        collect(tmp_path)
        assert len(steps(folders["release"])) == 10  # the run is live
        store.release(claim.run_id, claim.token, "again")
    collect(tmp_path)
    assert (steps(later), steps(folders["release"])) == ([3], [])


def test_runs_are_left_alone_that_something_may_still_write(tmp_path: Path) -> None:
    """A process that is alive, one on another host, a damaged index, an attempt that the store does not know."""
    folders = make(tmp_path)
    here = Identity.of(os.getpid()).to_json()
    write_json(folders["fail"].attempt, {"supervisor": here, "runner": here})
    write_json(folders["release"].attempt, {"supervisor": {**here, "host": "elsewhere"}})
    (folders["finish"].checkpoints / INDEX).write_text("{")
    collect(tmp_path)
    for end in ("fail", "release"):
        assert len(steps(folders[end])) == 10, end
    assert len([*folders["finish"].checkpoints.iterdir()]) == 11
    shutil.copytree(folders["live"].path, folders["fail"].path.with_name("a7"))
    folders["fail"].attempt.unlink()
    collect(tmp_path)
    assert len(steps(folders["fail"])) == 10


def test_leftovers_of_killed_writers_go(tmp_path: Path) -> None:
    """An unfinished checkpoint and a temporary file; not those of a live run."""
    folders = make(tmp_path)
    for end in ("fail", "live"):
        (folders[end].checkpoints / "step-000099").mkdir()
        (folders[end].path / ".result.json.123").write_text("{")
    collect(tmp_path)
    assert not (folders["fail"].path / ".result.json.123").exists()
    assert steps(folders["fail"]) == [10]
    assert (folders["live"].path / ".result.json.123").exists()


def test_a_kill_at_any_moment_leaves_every_run_resumable(tmp_path: Path) -> None:
    """Before each of its calls of the file system; the next call deletes the rest."""
    make(tmp_path / "whole", keep=3)
    call, killed = 0, True
    while killed:
        here = tmp_path / "here"
        shutil.copytree(tmp_path / "whole", here)
        killed = killed_at(call, lambda here=here: collect(here))
        for folder in map(RunFolder, (here / "runs").glob("*/a1")):
            assert not damaged_files(published(folder)[0])
            assert published(folder)[0].name == "step-000003"
        collect(here)
        assert collect(here) == (0, 0)
        assert len([*(here / "runs").glob("*/a1/checkpoints/step-*")]) == 4 + 3
        shutil.rmtree(here)
        call += 11
    assert call > 50


def test_a_run_that_was_claimed_meanwhile_is_not_touched(tmp_path: Path) -> None:
    """Between what was shown and what is deleted, a queued run became live."""
    folders = make(tmp_path)
    with Store.open(tmp_path) as store:
        found = list(unneeded(store, None, Rule()))
        store.claim_many(store.studies()[0].id, 9, engine="test", worker="here")
        delete(store, found)
    assert len(steps(folders["release"])) == 10
    assert steps(folders["finish"]) == [10]


def test_the_report_is_the_same_after_everything_was_deleted(tmp_path: Path) -> None:
    """To the byte, without checkpoints, models and the samples that it does not show."""
    make(tmp_path / "home")
    with Reader.open(tmp_path / "home") as reader:
        before = {p.name: p.read_bytes() for p in write_report(reader, "small", tmp_path / "r1").paths}
        assert collect(tmp_path / "home", Rule(models=False, samples=False))[1] > 0
        after = {p.name: p.read_bytes() for p in write_report(reader, "small", tmp_path / "r2").paths}
    assert after.keys() == before.keys()
    assert not [name for name, found in after.items() if found != before[name]]  # bytes are not shown: too many


def test_the_command_shows_before_it_deletes(tmp_path: Path) -> None:
    """Without --delete nothing changes; a wrong name is refused."""
    make(tmp_path)
    before = used(tmp_path)
    said = CliRunner().invoke(paribus, ["gc", "--home", str(tmp_path)])
    assert said.exit_code == 0, said.output
    assert "can be freed. Nothing was deleted: add --delete." in said.output
    assert used(tmp_path) == before
    amount = said.output.splitlines()[-1].partition(" can be")[0]
    said = CliRunner().invoke(paribus, ["gc", "small", "--delete", "--home", str(tmp_path)])
    assert said.output.splitlines()[-1] == f"freed {amount}"
    assert used(tmp_path) < before / 2
    said = CliRunner().invoke(paribus, ["gc", "--home", str(tmp_path)])
    assert said.output == "there is nothing to delete\n"
    assert "there is no study `smal`" in str(
        CliRunner().invoke(paribus, ["gc", "smal", "--home", str(tmp_path)]).exception
    )


def test_models_and_responses_that_were_deleted_here_come_back(tmp_path: Path) -> None:
    """Those that `paribus gc --models --samples` has deleted of runs with a result; what is here stays."""
    home, path = tmp_path / "home", tmp_path / "x.tar"
    folder = make(home, runs=4)["finish"]
    with Reader.open(home) as reader:
        export_study(reader, "small", path, None, checkpoints=True)
    collect(home, Rule(samples=False))  # the first seed keeps its responses, which the report shows
    assert "restored what was missing here: 1 run folder without" in said_by("restore", path, home)
    assert (folder.samples.exists(), steps(folder)) == (True, [10])  # its model was here
    collect(home, Rule(models=False, samples=False))
    assert steps(folder) == []
    assert restore_study(home, path).refilled == 2
    assert (folder.samples.exists(), steps(folder)[0]) == (True, 10)
    assert said_by("restore", path, home).endswith("nothing to do\n")


def test_what_a_killed_restore_leaves_is_listed_and_deleted(tmp_path: Path) -> None:
    """Unless one works."""
    home = tmp_path / "home"
    make(tmp_path / "other", runs=2)
    with Reader.open(tmp_path / "other") as reader:
        archive = export_study(reader, "small", tmp_path / "x.tar", None, checkpoints=True).path
    with Store.open(home):
        pass
    assert said_by("gc", home) == said_by("gc", "--delete", home) == "there is nothing to delete\n"
    call = 100
    while not (home / STAGE).exists():
        assert killed_at(call, lambda: restore_study(home, archive))
        call += 20
    with FileLock(home / RESTORE_LOCK):
        assert said_by("gc", "--delete", home) == "there is nothing to delete\n"
    assert " leftovers " in said_by("gc", home)
    assert (home / STAGE).exists()
    assert "freed " in said_by("gc", "--delete", home)
    assert not (home / STAGE).exists()


def test_what_a_killed_warm_up_leaves_is_listed_and_deleted(tmp_path: Path) -> None:
    """The finished models of the cache stay, and one that another process makes now."""
    models = tmp_path / "cache" / "models"
    for name in ("a", "a.7.partial", "b.8.partial"):
        (models / name).mkdir(parents=True)
        (models / name / "model.safetensors").write_bytes(bytes(9000))
    with Store.open(tmp_path):
        pass
    with FileLock(models / "a.lock"), FileLock(models / "b.lock"):
        assert said_by("gc", "--delete", tmp_path) == "there is nothing to delete\n"
    with FileLock(models / "b.lock"):
        assert " leftovers " in said_by("gc", tmp_path)
        assert "freed " in said_by("gc", "--delete", tmp_path)
    assert sorted(path.name for path in models.iterdir() if path.is_dir()) == ["a", "b.8.partial"]


def said_by(name: str, *arguments: object) -> str:
    """Return what a command prints that gets a home folder last."""
    *others, home = map(str, arguments)
    said = CliRunner().invoke(paribus, [name, *others, "--home", home])
    assert said.exit_code == 0, said.output
    return said.output
