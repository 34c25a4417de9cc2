"""Evaluation sets in training: their records and metrics, their random numbers, and what they leave alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from random import Random

import pytest
import torch

from paribus.contract import Evaluate, EvaluationSet, Job
from paribus.recipe.recipe import JsonlTask, Recipe
from paribus.run_folder.folder import Evaluation, RunFolder
from paribus_runners.evaluation.evaluator import Sampled, answered, evaluated, metrics
from paribus_runners.native import runner, trainer
from paribus_runners.native.learner import Learner
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout import torch as torch_sampler
from paribus_runners.rewards.verifiers import Verdict
from paribus_runners.tasks import Chain, Grader, Problem, task_of

JobFolder = Callable[..., Path]
BASE = Evaluate(every=2, problems=10, samples=2)
HARD = EvaluationSet(problems=4, samples=5, temperature=0.6, top_p=0.8, max_new_tokens=20, every=3)
SETS = Evaluate(every=2, problems=10, samples=2, sets={"hard": HARD, "same": EvaluationSet(samples=3)})


class Guesses(Chain):
    """A task whose responses say themselves what they answer and whether that is right."""

    def verify(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """Split the text into answer and verdict."""
        answer, _, right = text.partition("/")
        return Verdict.of(bool(right), answer)


def _records(k: int, problems: int, seed: int) -> tuple[Evaluation, list[list[Sampled]]]:
    """Return an evaluation of made-up responses and these responses by problem."""
    chance, made = Random(seed), []
    for _ in range(problems):
        answers = [chance.choice(["", "a", "b/right", "c", "d/right"]) for _ in range(k)]
        made.append([Sampled(text, chance.randint(1, 9), chance.random() < 0.7) for text in answers])

    def sample(prompts: Sequence[Problem], places: Sequence[int]) -> list[Sampled]:
        assert len(prompts) == len(places) == problems
        return [response for group in made for response in group]

    chosen = EvaluationSet(problems=problems, samples=k)
    return evaluated("extra", chosen, answered(chosen, Grader(Guesses()), sample), 7).evaluation, made


def _majority(group: Sequence[str]) -> float:
    """Return the chance that a vote is right, by listing the winners; responses without an answer do not vote."""
    votes = Counter(text for text in group if text)
    winners = [a for a, n in votes.items() if n == max(votes.values())]
    return sum("/right" in a for a in winners) / len(winners) if winners else 0.0


@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_rates_equal_a_count_over_all_subsets(k: int) -> None:
    """pass@n is the share of the subsets of n responses with a right one; avg@k and maj@k come from the texts."""
    evaluation, made = _records(k, 12, seed=k)
    found = metrics(evaluation)
    texts = [[response.text for response in group] for group in made]
    assert found[f"eval/extra/avg_at_{k}"] == pytest.approx(sum("/right" in t for g in texts for t in g) / (12 * k))
    assert found[f"eval/extra/maj_at_{k}"] == pytest.approx(sum(map(_majority, texts)) / 12)
    for n in range(1, k + 1):
        name = f"eval/extra/pass_at_{n}"
        if name in found:
            subsets = [[*combinations(g, n)] for g in texts]
            solved = sum(sum(any("/right" in t for t in s) for s in each) / len(each) for each in subsets) / 12
            assert found[name] == pytest.approx(solved)
    assert {name for name in found if "pass_at" in name} == {
        f"eval/extra/{rate}" for rate in EvaluationSet(samples=k).rates if "pass" in rate
    }
    responses = [response for group in made for response in group]
    assert found["eval/extra/truncated_frac"] == sum(not r.finished for r in responses) / len(responses)
    assert found["eval/extra/length_mean"] == pytest.approx(sum(r.tokens for r in responses) / len(responses))


def test_sets_have_records_metrics_and_samples_and_move_nothing_else(recipe: Recipe, job_folder: JobFolder) -> None:
    """Each at its own steps with its own k and limit; all other numbers of the run are the same to the bit."""
    plain, path = job_folder(recipe, name="plain", evaluate=BASE), job_folder(recipe, name="sets", evaluate=SETS)
    runner.run(plain)
    runner.run(path)
    records = RunFolder(path).read_evaluations()
    assert [(e.set, e.step, e.samples, len(e.problems)) for e in records] == [
        *(("hard", step, 5, 4) for step in (0, 3)),
        *(("heldout", step, 2, 10) for step in (0, 2, 3)),
        *(("same", step, 3, 10) for step in (0, 2, 3)),
    ]
    hard = [e for e in records if e.set == "hard"]
    assert max(t for e in hard for t in e.tokens) > 5 * 12 or not any(sum(e.truncated) for e in hard)
    lines = list(RunFolder(path).read_metrics())
    for e in records:
        assert {k: lines[e.step].values[k] for k in metrics(e)} == metrics(e)
    assert "eval/hard/avg_at_5" not in lines[2].values
    for mine, theirs in zip(lines, RunFolder(plain).read_metrics(), strict=True):
        kept = {k: v for k, v in mine.values.items() if not k.startswith(("eval/hard", "eval/same", "perf/"))}
        assert kept == {k: v for k, v in theirs.values.items() if not k.startswith("perf/")}
    heldout = [e for e in records if e.set == "heldout"]
    assert heldout == [*RunFolder(plain).read_evaluations()]
    texts = [json.loads(line) for line in RunFolder(path).samples.read_text().splitlines()]
    others = {"hard", "same"}
    assert {s["set"] for s in texts if "set" in s} >= others
    assert [s for s in texts if s.get("set") not in others] == [
        json.loads(line) for line in RunFolder(plain).samples.read_text().splitlines()
    ]


def test_a_run_with_sets_that_was_stopped_goes_on(
    recipe: Recipe, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt takes over the records of all sets, and ends with those of a run that was not stopped."""
    whole, first = job_folder(recipe, name="whole", evaluate=SETS), job_folder(recipe, name="cut", evaluate=SETS)
    runner.run(whole)
    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "_boundary", _stopping(trainer.Trainer._boundary, after=2))
        with pytest.raises(SystemExit):
            runner.run(first)
    assert {e.step for e in RunFolder(first).read_evaluations()} == {0, 2}
    second = job_folder(recipe, name="cut", token=2, evaluate=SETS)
    runner.run(second)
    assert RunFolder(second).read_evaluations() == RunFolder(whole).read_evaluations()
    assert RunFolder(second).samples.read_bytes() == RunFolder(whole).samples.read_bytes()


def _stopping(boundary: Callable[..., None], *, after: int) -> Callable[..., None]:
    def stop(self: trainer.Trainer, progress: trainer.Progress) -> None:
        self._stop.asked = lambda: progress.step == after
        boundary(self, progress)

    return stop


def test_random_numbers_depend_on_seed_set_step_and_response_alone(
    recipe: Recipe, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arms with other limits share them; sets, steps, problems and responses do not."""
    seen: list[torch.Tensor] = []
    learner = Learner.of(recipe, Policy.load(recipe.model.name, None, "float32"))

    def numbers(limit: int, name: str, step: int, seed: int = 0) -> torch.Tensor:
        def sample(policy: object, prompts: object, k: int, drawn: torch.Tensor, *rest: object) -> torch.Tensor:
            seen.append(drawn)
            raise InterruptedError

        monkeypatch.setattr(torch_sampler, "_sample", sample)
        chosen = EvaluationSet(samples=3, max_new_tokens=limit)
        folder = job_folder(recipe, name=f"{limit}{name}{step}{seed}", seed=seed)
        job = Job.model_validate_json((folder / "job.json").read_bytes())
        task = task_of(recipe.task)
        grader = Grader(task)
        made = trainer.Trainer(job, RunFolder(folder), learner, lambda: False, grader)
        with pytest.raises(InterruptedError):
            made._sample_set(name, chosen, grader, step, task.training(0, 1, 0, 2), [0, 1])
        return seen.pop()

    short, long = numbers(5, "x", 2), numbers(30, "x", 2)
    assert torch.equal(short, long[:, :5])
    assert len({tuple(row) for row in short.tolist()}) == 6
    for other in (numbers(5, "y", 2), numbers(5, "x", 4), numbers(5, "x", 2, seed=1)):
        assert not (other == short).any()


def test_a_set_from_a_file_is_verified_by_its_own_rule(recipe: Recipe, job_folder: JobFolder, tmp_path: Path) -> None:
    """A run of one task is evaluated on the problems of another."""
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"a{i}b2=", "answer": "#7"}) + "\n" for i in range(6)))
    task = JsonlTask(train=str(file), heldout=str(file), verifier="exact")
    chosen = Evaluate(every=3, problems=4, sets={"sums": EvaluationSet(task=task, samples=8, problems=50)})
    path = job_folder(recipe, evaluate=chosen)
    runner.run(path)
    (first, _) = [e for e in RunFolder(path).read_evaluations() if e.set == "sums"]
    assert len(first.problems) == 6
    assert sum(first.correct) == sum(counts.get("#7", 0) for counts in first.answers)
    assert sum(first.correct) > 0
