"""`paribus gc` over 1,000 runs x 10 checkpoints, beside a plain walk over the same files and a plain deletion of them.

The home folder is made by the project's own writers: some runs publish their checkpoints one by one, and the others are
copies of these under their own names. Of five runs, three have a result, one has failed and one is queued again.

    python benchmarks/gc.py
    python benchmarks/gc.py --quick
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from paribus.contract import Checkpoints, Evaluate, Job
from paribus.engines.process import Identity
from paribus.recipe.recipe import Recipe
from paribus.retention.unneeded import Rule, Unneeded, delete, unneeded
from paribus.run_folder.checkpoints import damaged_files, publish, published
from paribus.run_folder.folder import MetricLine, RunFolder, write_json
from paribus.store.reader import Reader
from paribus.store.store import Store
from support.plans import small_plan

KEEP, SIZES = 10, (("model/weights", 20_000), ("optimizer", 40_000), ("state", 500))
"""Checkpoints of a run, and the files of each with their bytes."""

WRITTEN = 5
"""Runs that are written file by file."""


def make(home: Path, runs: int) -> None:
    """Write a store and the folders of all its runs."""
    made: list[RunFolder] = []
    with Store.open(home) as store:
        study = store.add_study(small_plan("gc", arms=1, seeds=runs, steps=KEEP))
        for number, claim in enumerate(store.claim_many(study.id, runs, engine="none", worker="benchmark")):
            store.start(claim.run_id, claim.token)
            folder = RunFolder.of(home, claim.fingerprint, claim.token)
            if len(made) < WRITTEN:
                write(folder, claim.fingerprint)
                made.append(folder)
            else:
                copy(made[number % WRITTEN], folder, claim.fingerprint)
            if number % 5 < 3:
                write_json(folder.result, {"status": "succeeded"})
                store.finish(claim.run_id, claim.token, {"status": "succeeded"})
            elif number % 5 == 3:
                store.fail(claim.run_id, claim.token, "program", "it broke", "it broke")
            else:
                store.release(claim.run_id, claim.token, "stopped")


def write(folder: RunFolder, run: str) -> None:
    """Write the metrics and checkpoints of an attempt, as a runner does."""
    folder.path.mkdir(parents=True)
    job = Job(
        run=run, study="gc", arm="arm 0", runner="none", seed=0, token=1, recipe=Recipe(), evaluate=Evaluate(),
        cache="cache", checkpoint=Checkpoints(keep=KEEP),
    )  # fmt: skip
    folder.job.write_text(job.model_dump_json())
    gone = Identity(pid=1 << 22, start="1", boot="none", host=Identity.of(os.getpid()).host).to_json()
    write_json(folder.attempt, {"token": 1, "supervisor": gone, "runner": gone})

    def files(place: Path) -> None:
        for name, size in SIZES:
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_bytes(os.urandom(size))

    for step in range(KEEP + 1):
        folder.append_metrics(MetricLine(step=step, time_ms=step, values={"reward/mean": 0.5}))
        if step:
            publish(folder, job, step, files)


def copy(made: RunFolder, folder: RunFolder, run: str) -> None:
    """Copy an attempt for another run."""
    shutil.copytree(made.path, folder.path, ignore=shutil.ignore_patterns(made.result.name))
    other = Job.model_validate_json(made.job.read_text()).run
    for path in (folder.job, *folder.checkpoints.glob("*/paribus.json")):
        path.write_text(path.read_text().replace(other, run))


# ---- what is measured ----------------------------------------------------------------------------


def seconds(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def walk(folder: Path) -> tuple[int, int]:
    """Return the number and the bytes on the disk of everything in a folder."""
    count = size = 0
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            count += 1
            size += Path(place, name).lstat().st_blocks * 512
    return count, size


def find(home: Path) -> list[Unneeded]:
    """Return what `paribus gc` would list."""
    with Reader.open(home) as reader:
        return list(unneeded(reader, None, Rule()))


def wrong(home: Path) -> list[str]:
    """Return the runs whose only checkpoint is not whole, or not the newest."""
    attempts = [RunFolder(path) for path in sorted((home / "runs").glob("*/a1"))]
    return [
        str(folder.path)
        for folder in attempts
        if [p.name for p in published(folder)] != [f"step-{KEEP:06d}"] or any(map(damaged_files, published(folder)))
    ]


def spread(values: Sequence[float]) -> str:
    """Return the median, with the smallest and the largest value."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main() -> int:
    """Make the home folder, measure, and hold it against the bounds that were asked for."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="100 runs")
    options.add_argument("--turns", type=int, default=3, help="how often listing and walking are measured, in turns")
    options.add_argument("--list-below", type=float, default=math.inf, help="listing, in walks over the same files")
    options.add_argument("--delete-below", type=float, default=math.inf, help="deleting, in plain deletions of a copy")
    options.add_argument("--seconds-below", type=float, default=math.inf, help="listing and deleting together")
    asked = options.parse_args()
    runs = 100 if asked.quick else 1000
    with tempfile.TemporaryDirectory(prefix="paribus-gc-") as place:
        home = Path(place) / "home"
        print(f"making {runs} runs x {KEEP} checkpoints took {seconds(lambda: make(home, runs)):.0f} s", flush=True)
        count, before = walk(home / "runs")
        walks, lists = [], []
        for _ in range(asked.turns):
            walks.append(seconds(lambda: walk(home / "runs")))
            lists.append(seconds(lambda: find(home)))
        ratios = [a / b for a, b in zip(lists, walks, strict=True)]
        print(f"{count} files and folders, {before / 1e6:.0f} MB of disk; a walk over them: {spread(walks)} s")
        print(f"listing: {spread(lists)} s, {spread(ratios)} walks")
        found = find(home)
        promised = sum(item.size for each in found for item in each.items)
        other = Path(place) / "copies"
        for number, item in enumerate(item for each in found for item in each.items):
            shutil.copytree(item.path, other / str(number))
        os.sync()
        plain = seconds(lambda: (shutil.rmtree(other), os.sync()))
        freed: list[int] = []
        with Reader.open(home) as reader:
            deleting = seconds(lambda: (freed.append(delete(reader, found)), os.sync()))
        gone = before - walk(home / "runs")[1]
        off = abs(gone / promised - 1)
        items = sum(len(each.items) for each in found)
        print(f"deleting {items} checkpoints of {len(found)} attempts: {deleting:.1f} s, {deleting / plain:.2f} of "
              f"a plain deletion of copies of them ({plain:.1f} s)")  # fmt: skip
        print(f"promised {promised} bytes, freed {freed[0]}, gone from the disk {gone}: {100 * off:.2f}% off")
        damaged = wrong(home)
        print(f"runs whose newest checkpoint is not there and whole: {len(damaged)}; next list: {len(find(home))}")
        held = (
            statistics.median(ratios) <= asked.list_below,
            deleting / plain <= asked.delete_below,
            statistics.median(lists) + deleting <= asked.seconds_below,
            off <= 0.01 and freed[0] == promised and not damaged and not find(home),
        )
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
