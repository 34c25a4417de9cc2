"""Runs tests against a copy of the packages with one mistake in it, in a process that has the libraries already."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("platform", "runners", "db_migrations", "ablations", "pyproject.toml")
SEEN_BY = Path(__file__).with_name("seen_by.json")
"""The test that saw each mistake last. It goes first; if it passes, all others follow."""


@dataclass(frozen=True)
class Trial:
    """What to run.

    Attributes:
        name: the mistake, in words; empty for the code as it is.
        changed: the new text of each changed file, by its path from the root.
        tests: files and tests, from the root.
        without: parts of names of tests that are left out.
    """

    name: str
    changed: Mapping[str, str]
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()


@dataclass(eq=False)
class Seen:
    """What a run of pytest showed, as its plugin."""

    first: str = ""
    failed: str = ""
    broken: str = ""
    passed: int = 0

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            self.broken = report.longreprtext.strip().splitlines()[-1]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Begin with the test that saw this mistake last."""
        items.sort(key=lambda item: item.nodeid != self.first)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the first failure."""
        self.passed += report.passed and report.when == "call"
        if report.failed and not self.failed:
            self.failed = report.nodeid


@dataclass(frozen=True)
class Verdict:
    """What became of a trial."""

    trial: Trial
    seen: Seen = field(default_factory=Seen)
    seconds: float = 0.0

    @property
    def fine(self) -> bool:
        """A test failed, or without a mistake none."""
        return not self.seen.broken and bool(self.seen.failed) == bool(self.trial.name)

    def __str__(self) -> str:
        """Return one line of the table."""
        seen = self.seen
        fate = f"broken: {seen.broken}" if seen.broken else seen.failed.split("/")[-1] or f"{seen.passed} passed"
        name = self.trial.name or "the code as it is"
        return f"{'  ' if self.fine else '!!'} {name:<95} {self.seconds:5.1f} s  {fate}"


def tried(trial: Trial) -> Verdict:
    """Run the tests of a trial until one fails; needs a process of its own."""
    begun = time.perf_counter()
    seen = Seen(_seen_by().get(trial.name, ""))
    with tempfile.TemporaryDirectory(prefix="paribus-mutant-") as folder:
        tree = Path(folder)
        _plant(trial, tree)
        assert "paribus" not in sys.modules, "the packages must come from the copy"
        # one counterexample is enough, it need not be the smallest; a slow test is no mistake
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", max_examples=25, phases=phases, database=None, deadline=None)
        settings.load_profile("mutants")
        sys.path[:0] = [str(tree / "platform"), str(tree / "runners")]
        os.chdir(tree)
        options = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "--timeout=300"]
        options += [f"--rootdir={ROOT}", f"--config-file={ROOT}/pyproject.toml"]
        if trial.without:
            options += ["-k", " and ".join(f"not {part}" for part in trial.without)]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            status = pytest.main([*options, *(str(ROOT / test) for test in trial.tests)], plugins=[seen])
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            seen.broken = seen.broken or f"pytest ended with {status!r}"
        source = sys.modules["paribus"].__path__[0]
        assert source.startswith(str(tree)), f"tested {source} and not the copy"
        os.chdir(ROOT)
    return Verdict(trial, seen, time.perf_counter() - begun)


def _plant(trial: Trial, tree: Path) -> None:
    """Copy the packages, with compiled files since compiling takes seconds, and change the copy."""
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    for path, text in trial.changed.items():
        changed = tree / path
        for stale in changed.parent.glob(f"__pycache__/{changed.stem}.*"):
            stale.unlink()
        changed.write_text(text)


def _seen_by() -> Mapping[str, str]:
    known: Mapping[str, str] = json.loads(SEEN_BY.read_text())
    return known


def arguments(description: str | None) -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="only check that the table fits the code")
    parser.add_argument("--keep", action="store_true", help="write down which test sees each mistake")
    parser.add_argument("--jobs", type=int, default=2, help="mistakes at a time")
    parser.add_argument("--only", default="", help="text that the name of a mistake must contain")
    parser.add_argument("--parts", type=int, default=1, help="try one mistake in so many, others with each commit")
    return parser.parse_args()


def _of_this_commit(trials: Sequence[Trial], parts: int) -> list[Trial]:
    """Return one trial in ``parts``, as the hash of the commit says, and all that no test is known to see."""
    if parts == 1:
        return list(trials)
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout[:8], 16)
    known = _seen_by()
    return [t for t in trials if t.name not in known or (zlib.crc32(t.name.encode()) + commit) % parts == 0]


def _without_mistakes(trials: Sequence[Trial], parts: int) -> Trial:
    """Return the code as it is, with all tests of the trials; if a part is tried, with those known to see it."""
    known = _seen_by() if parts > 1 else {}
    tests = {test for t in trials for test in ([known[t.name]] if t.name in known else t.tests)}
    return Trial("", {}, tuple(sorted(tests)), trials[0].without)


def table(trials: Sequence[Trial], preloaded: Sequence[str], asked: argparse.Namespace) -> int:
    """Print a line a trial, after the code as it is; return 0 if that passes, and each mistake is seen.

    Args:
        trials: the mistakes.
        preloaded: modules that all processes share: it takes longer to import them than the tests take.
        asked: what the command line asks for.
    """
    begun = time.perf_counter()
    os.environ["OMP_NUM_THREADS"] = "1"
    trials = _of_this_commit(trials, asked.parts)
    if not trials:
        print("no mistake to try: this part has none, or none has such a name")
        return 0
    every = [_without_mistakes(trials, asked.parts), *trials]
    good = {verdict.trial.name: verdict for verdict in _verdicts(every, preloaded, asked.jobs) if verdict.fine}
    if "" not in good:
        print("the tests fail without any mistake: mend that first")
        return 1
    if asked.keep:
        seen = {name: verdict.seen.failed for name, verdict in good.items() if name}
        SEEN_BY.write_text(json.dumps(dict(sorted({**_seen_by(), **seen}.items())), indent=1) + "\n")
    print(f"{len(good) - 1} of {len(trials)} mistakes seen in {time.perf_counter() - begun:.0f} s")
    return int(len(good) <= len(trials))


def _verdicts(trials: Sequence[Trial], preloaded: Sequence[str], jobs: int) -> Iterator[Verdict]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preloaded))
    with context.Pool(jobs, maxtasksperchild=1) as pool:
        for verdict in pool.imap(tried, trials, chunksize=1):
            print(verdict, flush=True)
            yield verdict
