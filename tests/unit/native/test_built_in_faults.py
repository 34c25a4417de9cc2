"""The faults that the benchmark of `paribus health` builds into the runner: each is really there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paribus.health.remedies import patched
from paribus.recipe.recipe import Recipe
from paribus_runners.native import runner
from support.native_runs import lines_of

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
FAULTS = {
    "reward = length, as the score": "reward/mean",
    "reward = length, as correctness": "reward/correct_frac",
    "wrong group ids": "optim/grad_norm",
    "sampler at temperature 1.5": "mismatch/logp_abs_diff_mean",
    "identical completions": "group/zero_std_frac",
}
"""Those that no recipe says, each with a metric that it changes at once."""


@pytest.fixture
def _with_benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    sys.modules.pop("health_faults", None)


@pytest.mark.slow
@pytest.mark.usefixtures("_with_benchmarks")
def test_each_fault_acts_from_its_step_on(recipe: Recipe, job_folder: Callable[..., Path]) -> None:
    """Before it, all metrics are those of a run without a fault; in its first step another one at least."""
    from health_faults import FAULTS as BUILT

    built = {fault.name: fault for fault in BUILT if fault.begins > 1}
    assert built.keys() == FAULTS.keys()
    plain: dict[str, list[dict[str, float]]] = {}
    for number, (name, metric) in enumerate(FAULTS.items()):
        fault = built[name]
        small = patched(recipe, fault.patch)
        assert small is not None
        if str(fault.patch) not in plain:
            plain[str(fault.patch)] = _lines(job_folder(small, name=f"plain{number}"))
        with fault.build(2):
            found = _lines(job_folder(small, name=f"faulty{number}"))
        before = plain[str(fault.patch)]
        assert found[:2] == before[:2], name
        assert found[2][metric] != before[2][metric], name


def _lines(folder: Path) -> list[dict[str, float]]:
    runner.run(folder)
    return lines_of(folder)
