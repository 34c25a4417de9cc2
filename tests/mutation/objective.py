"""Puts one plausible mistake after the other into the objective; each time some test must fail.

A test that passes with every mistake guards nothing. Run by `make test-mutants`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from formulas import MUTANTS, TESTS, Mutant, TableError
from hypothesis import Phase, settings

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("platform", "runners", "ablations", "pyproject.toml")
PRELOADED = ["torch", "transformers.modeling_utils", "transformers.models.qwen2_moe.modeling_qwen2_moe",
             "transformers.models.llama.modeling_llama", "tokenizers", "safetensors.torch", "pydantic", "yaml",
             "hypothesis", "pytest"]  # fmt: skip
"""What all workers share: it takes longer to import than the tests take."""


@dataclass(eq=False)
class Seen:
    """What a run of pytest showed, as its plugin."""

    failed: str = ""
    broken: str = ""
    passed: int = 0

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            self.broken = report.longreprtext.strip().splitlines()[-1]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the first failure."""
        self.passed += report.passed and report.when == "call"
        if report.failed and not self.failed:
            self.failed = report.nodeid.split("/")[-1]


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant; of none, for the code as it is."""

    mutant: Mutant | None
    seen: Seen = field(default_factory=Seen)
    seconds: float = 0.0

    @property
    def fine(self) -> bool:
        """A test failed, or without a mutant none."""
        return not self.seen.broken and bool(self.seen.failed) == (self.mutant is not None)

    def __str__(self) -> str:
        """Return one line of the table."""
        what = f"{self.mutant.file}: {self.mutant.mimics}" if self.mutant else "the code as it is"
        fate = f"broken: {self.seen.broken}" if self.seen.broken else self.seen.failed or f"{self.seen.passed} passed"
        return f"{'  ' if self.fine else '!!'} {what:<95} {self.seconds:4.1f} s  {fate}"


def tried(mutant: Mutant | None) -> Verdict:
    """Run the tests of a file against a copy of the packages with a mutant in it; needs a process of its own."""
    start, seen = time.perf_counter(), Seen()
    names = TESTS[mutant.file] if mutant else sorted({n for names in TESTS.values() for n in names})
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, tree / name)
        if mutant:
            for stale in (tree / mutant.path).parent.glob(f"__pycache__/{mutant.path.stem}.*"):
                stale.unlink()
            (tree / mutant.path).write_text(mutant.applied(ROOT))
        assert "paribus" not in sys.modules, "the packages must come from the copy"
        # one counterexample is enough, it need not be the smallest; a slow test is no mistake
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", max_examples=25, phases=phases, database=None, deadline=None)
        settings.load_profile("mutants")
        sys.path[:0] = [str(tree / "platform"), str(tree / "runners")]
        os.chdir(tree)
        options = [
            "-x",
            "-q",
            "--assert=plain",
            "-p",
            "no:cacheprovider",
            f"--rootdir={ROOT}",
            f"--config-file={ROOT}/pyproject.toml",
        ]
        files = [str(ROOT / f"tests/unit/native/test_{name}") for name in names]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            status = pytest.main([*options, "--timeout=60", *files], plugins=[seen])
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            seen.broken = seen.broken or f"pytest ended with {status!r}"
        source = sys.modules["paribus_runners"].__path__[0]
        assert source.startswith(str(tree)), f"tested {source} and not the copy"
        os.chdir(ROOT)
    return Verdict(mutant, seen, time.perf_counter() - start)


def main() -> int:
    """Return 0 if the tests pass, and fail with every mutant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--check", action="store_true", help="only check that the table fits the code")
    parser.add_argument("--only", default="", help="text that the file or the mistake must contain")
    asked = parser.parse_args()
    chosen = [m for m in MUTANTS if asked.only in m.file or asked.only in m.mimics]
    try:
        for mutant in chosen:
            mutant.applied(ROOT)
    except TableError as error:
        print(error)
        return 1
    if asked.check:
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    bad = 0
    with context.Pool(asked.jobs, maxtasksperchild=1) as pool:
        for verdict in pool.imap(tried, [None, *chosen], chunksize=1):
            print(verdict, flush=True)
            bad += not verdict.fine
            if verdict.mutant is None and not verdict.fine:
                return 1
    print(f"{len(chosen) - bad} of {len(chosen)} mutants killed ({(len(chosen) - bad) / len(chosen):.0%})")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
