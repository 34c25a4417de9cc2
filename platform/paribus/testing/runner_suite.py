"""The conformance suite of runners: subclass :class:`RunnerTestCase`, name the runner, and let pytest run it.

::

    from paribus.testing.runner_suite import RunnerTestCase

    class TestMine(RunnerTestCase):
        runner = "mine"
        base = {"model": "tiny", "task": "chain", "schedule.steps": 4}
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from paribus.contract import PREEMPTED, Checkpoints, Evaluate, EvaluationSet, Job, Options, load_runner
from paribus.contract import Runner as RunnerProtocol
from paribus.errors import ParibusError
from paribus.recipe.recipe import JsonlTask, Recipe
from paribus.recipe.resolve import resolve_base
from paribus.run_folder.folder import RunFolder, read_json, write_json
from paribus.run_folder.metrics import find_metric

HEAVY = frozenset({"torch", "transformers", "vllm", "jax", "tensorflow", "trl", "verl", "ray", "deepspeed"})
RUN = "a" * 64
_TRAIN = """
import sys
from pathlib import Path
from paribus.contract import load_runner
load_runner(sys.argv[1]).run(Path(sys.argv[2]))
"""
_LIST = """
import sys
from paribus.contract import load_runner
load_runner(sys.argv[1])
print(*sys.modules)
"""
_HASH = """
import sys
from paribus.contract import Options, load_runner
from paribus.recipe.recipe import Recipe
options = Options.model_validate_json(sys.argv[3])
found = load_runner(sys.argv[1]).hashes(Recipe.model_validate_json(sys.argv[2]), options)
print(found.code, found.data, found.model)
"""

Values = dict[int, dict[str, float]]


class RunnerTestCase:
    """What every runner must do; each test says which promise it checks.

    Attributes:
        runner: the name of its entry point in the group ``paribus.runners``.
        preset: preset of the base.
        base: what the base sets on top of it, as ``base.set`` of a study does; a run should take seconds.
        other_data: patch that changes the data, so that the data hash must change; empty skips the check.
        other_model: patch that changes the initial model, so that the model hash must change; empty skips the check.
        options: what a study says to the runner beside the recipe.
        evaluate: how runs are evaluated; give it sets if the runner evaluates any.
        checkpoint: when runs save; where a step takes seconds, SIGTERM may leave it without a save: say `every=1`.
        resumes: the runner writes checkpoints on SIGTERM and resumes from them.
        deterministic: equal seeds give equal numbers, timing metrics apart.
        patience_s: seconds that a run may take.
    """

    runner: ClassVar[str]
    preset: ClassVar[str] = "grpo"
    base: ClassVar[Mapping[str, Any]] = {}
    other_data: ClassVar[Mapping[str, Any]] = {}
    other_model: ClassVar[Mapping[str, Any]] = {}
    options: ClassVar[Options] = Options()
    evaluate: ClassVar[Evaluate] = Evaluate(every=2, problems=8)
    checkpoint: ClassVar[Checkpoints] = Checkpoints()
    resumes: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True
    patience_s: ClassVar[float] = 300.0

    @pytest.fixture(scope="class")
    @classmethod
    def recipe(cls) -> Recipe:
        """The base, resolved; override it where a value is known at test time only, such as a folder."""
        return cls.patched({})

    @pytest.fixture(scope="class")
    @classmethod
    def loaded(cls) -> RunnerProtocol:
        """The runner."""
        return load_runner(cls.runner)

    @pytest.fixture(scope="class")
    @classmethod
    def cache(cls, loaded: RunnerProtocol, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The folder of shared things, prepared once."""
        folder = tmp_path_factory.mktemp("cache")
        loaded.prepare(recipe, folder)
        return folder

    @pytest.fixture(scope="class")
    @classmethod
    def finished(cls, recipe: Recipe, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
        """The folder of a run that was trained to its end."""
        folder = cls.job_in(tmp_path_factory.mktemp("finished") / "a1", recipe, cache)
        assert cls.train(folder) == 0, folder.log.read_text()
        return folder

    @classmethod
    def patched(cls, patch: Mapping[str, Any]) -> Recipe:
        """Return the base with a further patch."""
        resolved = resolve_base(cls.preset, {**cls.base, **patch})
        assert resolved.recipe is not None, resolved.faults
        return resolved.recipe

    @classmethod
    def job_in(cls, path: Path, recipe: Recipe, cache: Path, seed: int = 0) -> RunFolder:
        """Write ``job.json`` into a new attempt folder ``a<token>`` as the scheduler does."""
        path.mkdir(parents=True)
        job = Job(
            run=RUN, study="suite", arm="base", runner=cls.runner, options=cls.options, seed=seed,
            token=int(path.name[1:]), recipe=recipe, evaluate=cls.evaluate, cache=str(cache),
            checkpoint=cls.checkpoint,
        )  # fmt: skip
        folder = RunFolder(path)
        write_json(folder.job, job.model_dump(mode="json"))
        return folder

    @classmethod
    @contextmanager
    def training(cls, folder: RunFolder) -> Iterator[subprocess.Popen[bytes]]:
        """Train the job in a process of its own, which is gone afterwards."""
        with folder.log.open("wb") as log:
            command = [sys.executable, "-c", _TRAIN, cls.runner, str(folder.path)]
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=cls.environment())
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @classmethod
    def train(cls, folder: RunFolder) -> int:
        """Train the job to the end of its process and return the exit status."""
        with cls.training(folder) as process:
            return process.wait(cls.patience_s)

    @classmethod
    def environment(cls) -> dict[str, str]:
        """Return the environment of the runner's processes; override it to add variables."""
        return dict(os.environ)

    def test_loading_the_runner_imports_nothing_heavy(self) -> None:
        """Commands that list runners stay fast: heavy packages are imported by ``warm`` and ``run``."""
        assert not HEAVY & set(self._printed(_LIST))

    def test_the_base_is_supported(self, loaded: RunnerProtocol, recipe: Recipe) -> None:
        """The runner accepts its options and trains its base; anything short of ``exact`` has a reason."""
        assert loaded.name == self.runner
        assert not loaded.check_options(self.options)
        found = loaded.support(recipe, self.options)
        assert not [x for x in found if x.level == "unsupported"]
        assert all(x.feature and (x.reason or x.level == "exact") for x in found)

    def test_requirements_are_possible(self, loaded: RunnerProtocol, recipe: Recipe) -> None:
        """The fewest GPUs are no more than the most, and versions are texts."""
        found = loaded.requirements(recipe, self.options)
        assert 0 <= found.least_gpus <= (math.inf if found.most_gpus is None else found.most_gpus)
        assert all(isinstance(x, str) and x for pair in found.versions.items() for x in pair)

    def test_hashes_are_stable(self, loaded: RunnerProtocol, recipe: Recipe) -> None:
        """Two processes compute equal hashes; otherwise each plan would train every run again."""
        here = loaded.hashes(recipe, self.options)
        assert all((here.code, here.data, here.model))
        there = self._printed(_HASH, recipe.model_dump_json(), self.options.model_dump_json())
        assert there == [here.code, here.data, here.model]

    def test_hashes_change_with_data_and_model(self, loaded: RunnerProtocol) -> None:
        """Other data and other models have other hashes; otherwise different numbers would count as one run."""
        base = loaded.hashes(self.patched({}), self.options)
        if self.other_data:
            assert loaded.hashes(self.patched(self.other_data), self.options).data != base.data
        if self.other_model:
            assert loaded.hashes(self.patched(self.other_model), self.options).model != base.model

    def test_metrics_are_gapless_and_canonical(self, finished: RunFolder, recipe: Recipe) -> None:
        """``metrics.jsonl`` has each step once from 0 on; names are canonical or ``native/...``, values are numbers."""
        lines = list(finished.read_metrics())
        assert [line.step for line in lines] == list(range(recipe.schedule.steps + 1))
        assert [line.time_ms for line in lines] == sorted(line.time_ms for line in lines)
        names = {name for line in lines for name in line.values}
        assert not [name for name in names if find_metric(name) is None and not name.startswith("native/")]
        assert all(isinstance(x, float | int) for line in lines for x in line.values.values())

    def test_evaluations_are_complete(self, finished: RunFolder, recipe: Recipe) -> None:
        """Each set has counts per problem at steps 0, each of its ``every``-th and the last, as its metrics say."""
        last, sets = recipe.schedule.steps, self.evaluate.all_sets
        evaluations = finished.read_evaluations()
        assert {e.set for e in evaluations} == set(sets)
        lines = {line.step: line for line in finished.read_metrics()}
        for name, settings in sets.items():
            found = {e.step: e for e in evaluations if e.set == name}
            assert sorted(found) == sorted({0, last, *range(0, last, settings.every)})
            for step, e in found.items():
                assert e.samples == settings.samples
                assert e.problems == found[0].problems
                assert {len(x) for x in (e.correct, e.truncated, e.tokens, e.tokens_correct, e.answers)} == {
                    len(e.problems)
                }
                assert all(0 <= c <= e.samples for c in e.correct)
                assert all(sum(a.values()) == e.samples for a in e.answers)
                mean = sum(e.correct) / (e.samples * len(e.problems))
                assert math.isclose(lines[step].values[f"eval/{name}/avg_at_{e.samples}"], mean)

    def test_sets_are_hashed_or_refused(self, loaded: RunnerProtocol, recipe: Recipe) -> None:
        """Each set of ``evaluate`` has a hash; one whose file is missing is refused with a message."""
        for chosen in self.evaluate.sets.values():
            assert loaded.set_hash(recipe, self.options, chosen)
        missing = JsonlTask(train="not/there.jsonl", heldout="not/there.jsonl")
        with pytest.raises(ParibusError):
            loaded.set_hash(recipe, self.options, EvaluationSet(task=missing))

    def test_the_result_is_written_last(self, finished: RunFolder) -> None:
        """``result.json`` says how the run ended, and no file of the numbers is newer."""
        assert read_json(finished.result)["status"] == "succeeded"
        written = finished.result.stat().st_mtime_ns
        assert all(p.stat().st_mtime_ns <= written for p in (finished.metrics, *finished.evals.iterdir()))
        assert read_json(finished.environment)

    def test_equal_seeds_give_equal_numbers(
        self, finished: RunFolder, recipe: Recipe, cache: Path, tmp_path: Path
    ) -> None:
        """A second run with the same seed has the same numbers to the bit."""
        if not self.deterministic:
            pytest.skip("the runner does not promise it")
        again = self.job_in(tmp_path / "a1", recipe, cache)
        assert self.train(again) == 0, again.log.read_text()
        assert _numbers(again) == _numbers(finished)
        assert again.read_evaluations() == finished.read_evaluations()

    def test_a_run_that_is_asked_to_stop_is_resumed(
        self, finished: RunFolder, recipe: Recipe, cache: Path, tmp_path: Path
    ) -> None:
        """SIGTERM leaves a checkpoint and exit status 75; the next attempt continues and loses no step."""
        if not self.resumes:
            pytest.skip("the runner does not promise it")
        first = self.job_in(tmp_path / "a1", recipe, cache)
        with self.training(first) as process:
            end = time.monotonic() + self.patience_s
            while sum(1 for _ in first.read_metrics()) < 2 and process.poll() is None and time.monotonic() < end:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            assert process.wait(self.patience_s) == PREEMPTED, first.log.read_text() or "too short: give it more steps"
        assert first.checkpoints.exists()
        assert not first.result.exists()
        second = self.job_in(tmp_path / "a2", recipe, cache)
        before = list(first.read_metrics())
        assert self.train(second) == 0, second.log.read_text()
        after = list(second.read_metrics())
        assert after[: len(before)] == before
        assert [line.step for line in after] == list(range(recipe.schedule.steps + 1))
        assert len(second.read_evaluations()) == len(finished.read_evaluations())
        if self.deterministic:
            assert _numbers(second) == _numbers(finished)

    def _printed(self, program: str, *arguments: str) -> list[str]:
        command = [sys.executable, "-c", program, self.runner, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=self.patience_s, env=self.environment())
        assert done.returncode == 0, done.stderr
        return done.stdout.split()


def _numbers(folder: RunFolder) -> Values:
    """Return the values of each step without those that depend on the machine."""
    return {
        line.step: {k: v for k, v in line.values.items() if (m := find_metric(k)) is None or not m.timing}
        for line in folder.read_metrics()
    }
