"""Inputs guided by coverage: atheris changes what a reader is given towards branches that it has not taken yet.

``make test-guided SECONDS=60`` gives each reader of :mod:`fuzz.test_user_files`, :mod:`fuzz.test_files_of_others` and
:mod:`unit.run_folder.test_any_bytes` so long, each in a process that is confined as there. ``KINDS="series
'log of TRL'"`` names some. The first input that fails is printed and kept, and makes the exit status 1.
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import atheris

from support.confined import MEMORY, _confine

if TYPE_CHECKING:
    from support.kinds import Kind

FAILED = Path("build/fuzz")
"""Where inputs that failed are kept."""

LONGEST = 4096
"""Bytes of an input."""

Reads = Callable[[bytes], None]


def read_of(name: str, folder: Path) -> tuple[Sequence[bytes], Reads]:
    """Return valid files of a kind, and what reads one in a folder."""
    from support.kinds import reader
    from unit.run_folder import test_any_bytes as of_runs

    known = kinds()
    if name in known:
        return known[name].valid, reader(known[name], folder)
    of_runs.make_home(folder / "home")
    read = of_runs.reader(folder / "home", folder / "run", name)
    return of_runs.real_files(folder / "home", name), lambda data: (read(data), None)[1]


def kinds() -> dict[str, Kind]:
    """Return the kinds of file that lie outside of run folders."""
    from fuzz import test_files_of_others, test_user_files

    return {**test_user_files.KINDS, **test_files_of_others.KINDS}


def fuzz(name: str, seconds: int, seed: int, folder: Path) -> None:
    """Guide inputs of one kind; ends the process."""
    with atheris.instrument_imports(include=["paribus", "paribus_runners", "paribus_dashboards", "yaml"]):
        valid, read = read_of(name, folder)
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, data in enumerate(valid):
        (corpus / str(number)).write_bytes(data[:LONGEST])
        read(data)
    _confine(folder.resolve(), MEMORY)
    options = [f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={LONGEST}", "-timeout=30", "-rss_limit_mb=0"]
    atheris.Setup([name, *options, f"-artifact_prefix={folder}/", str(corpus)], read)
    atheris.Fuzz()


def main() -> int:
    """Guide inputs of all kinds, one after the other, and print what each took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("kinds", nargs="*")
    asked = parser.parse_args()
    if asked.one:
        fuzz(asked.one[0], asked.seconds, asked.seed, Path(asked.one[1]))
    from unit.run_folder.test_any_bytes import KINDS

    known = [*kinds(), *KINDS]
    if unknown := set(asked.kinds) - set(known):
        parser.error(f"there is no kind {', '.join(sorted(unknown))}. Kinds: {', '.join(known)}")
    return max([_run(name, asked.seconds, asked.seed) for name in asked.kinds or known])


def _run(name: str, seconds: int, seed: int) -> int:
    """Guide inputs of one kind in a process of its own; return 1 if one failed."""
    with tempfile.TemporaryDirectory(prefix="paribus-fuzz-") as place:
        options = ["--seconds", str(seconds), "--seed", str(seed), "--one", name, place]
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        done = subprocess.run(
            [sys.executable, "-m", "fuzz.guided", *options], text=True, errors="replace", check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        cpu = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        runs = re.findall(r"^#(\d+)\t.*?cov: (\d+)", done.stdout, re.MULTILINE)
        count, covered = runs[-1] if runs else ("0", "0")
        print(f"{name}: {int(count):,} inputs, {covered} branches, {cpu:.0f} s of CPU, exit status {done.returncode}")
        if done.returncode == 0:
            return 0
        print(done.stdout[-4000:])
        FAILED.mkdir(parents=True, exist_ok=True)
        for file in (each for each in Path(place).glob("*-*") if each.is_file()):
            kept = FAILED / f"{name.replace(' ', '-')}-{file.name}"
            shutil.copy(file, kept)
            print(f"kept: {kept}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
