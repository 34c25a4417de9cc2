"""The evaluation of a study: mistakes in it, how much it samples, and what it adds to the hashes of an arm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paribus.contract import Hashes, Options, Runner
from paribus.errors import ParibusError, did_you_mean
from paribus.evaluate import HELDOUT, RESERVED, Evaluate, EvaluationSet
from paribus.recipe.recipe import LINES, ChainTask, DatasetTask, JsonlTask, Recipe, SearchTask, Task, fingerprint_of
from paribus.yaml_file.document import Fault

LARGE_SHARE = 0.5
"""Share of a run's tokens above which a plan warns that they go into its evaluation."""

_OTHERS = ("truncated_frac", "length_mean", "length_mean_correct", "length_mean_incorrect")


def evaluation_faults(evaluate: Evaluate) -> Iterator[Fault]:
    """Yield the mistakes in an evaluation whose syntax is right."""
    for k, (name, each) in enumerate(evaluate.sets.items()):
        place = ("evaluate", "sets", name)
        same = [other for other in [*evaluate.sets][:k] if other.lower() == name.lower()]
        if name.lower() in RESERVED:
            message = f"`{name}` is a set that every run has: choose another name"
            yield Fault(place=place, message=message, at_key=True)
        elif same:
            message = f"`{name}` and `{same[0]}` differ in capitals alone, and some disks do not: choose another name"
            yield Fault(place=place, message=message, at_key=True)
        if each.task is not None:
            yield from _task_faults((*place, "task"), each.task)
    yield from _primary_faults(evaluate)


def _task_faults(place: tuple[str, ...], task: Task) -> Iterator[Fault]:
    """Yield what a task says about training, which has no effect on a set."""
    if isinstance(task, SearchTask | ChainTask):
        if task != type(task)():
            message = (
                f"a set is not trained on: write `task: {task.kind}` alone; `problems` beside it says how many problems"
            )
            yield Fault(place=place, message=message)
    elif task.train != task.heldout:
        message = "a set is not trained on: remove `train`; its problems are those of `heldout`"
        yield Fault(place=(*place, "train"), message=message, at_key=True)


def _primary_faults(evaluate: Evaluate) -> Iterator[Fault]:
    primary, name, sets = evaluate.primary, evaluate.primary_set, evaluate.all_sets
    if not primary:
        return
    if name and name not in sets and primary.startswith("eval/"):
        near = did_you_mean(primary, [metric for each in sets for metric in _metrics(each, sets[each])])
        message = f"`{primary}` is not measured: there is no set `{name}`.{near} Sets: {', '.join(sets)}"
        yield Fault(place=("evaluate", "primary"), message=message)
        return
    name = name if name in sets else HELDOUT
    allowed = _metrics(name, sets[name])
    if primary not in allowed:
        message = (
            f"`{primary}` is not measured with `samples: {sets[name].samples}`.{did_you_mean(primary, allowed)} "
            f"Allowed: {', '.join(allowed)}"
        )
        yield Fault(place=("evaluate", "primary"), message=message)


def _metrics(name: str, chosen: EvaluationSet) -> list[str]:
    return [f"eval/{name}/{metric}" for metric in (*chosen.rates, *_OTHERS)]


# ---- how much is sampled -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SetSize:
    """How much a run samples for one set.

    Attributes:
        name: the set.
        problems: problems; most problems if they are not counted.
        counted: whether there are that many. Those of a dataset in a table or on the hub are not counted.
        responses: responses in one evaluation; most of them likewise.
        evaluations: evaluations in a run, the one before training included.
        limit: most tokens of a response.
    """

    name: str
    problems: int
    counted: bool
    responses: int
    evaluations: int
    limit: int

    @property
    def tokens(self) -> int:
        """Most tokens in a run."""
        return self.responses * self.evaluations * self.limit

    def text(self, number: int) -> str:
        """Return a number of problems or responses for people: ``1,000`` or ``up to 1,000``."""
        return f"{number:,}" if self.counted else f"up to {number:,}"


def set_sizes(evaluate: Evaluate, recipe: Recipe) -> tuple[SetSize, ...]:
    """Return how much a run of this recipe samples for each set, ``heldout`` first."""
    last, found = recipe.schedule.steps, []
    for name, each in evaluate.all_sets.items():
        task = recipe.task if each.task is None else each.task
        there = lines_in(path) if (path := _lines_path(task)) else None
        problems = min(each.problems, there) if there else each.problems
        found.append(
            SetSize(
                name=name,
                problems=problems,
                counted=bool(there) or isinstance(task, SearchTask | ChainTask),
                responses=problems * each.samples,
                evaluations=1 + -(-last // each.every),
                limit=each.max_new_tokens or recipe.schedule.max_new_tokens,
            )
        )
    return tuple(found)


def _lines_path(task: Task) -> str | None:
    """Return the file with a problem on each line that a task evaluates; ``None`` if it has another source."""
    if isinstance(task, JsonlTask):
        return task.heldout
    path = task.heldout.path if isinstance(task, DatasetTask) else None
    return path if path and path.lower().endswith(LINES) else None


def evaluation_share(sizes: Sequence[SetSize], recipe: Recipe) -> float:
    """Return the share of a run's tokens that go into evaluation, if all responses are as long as they may become.

    Rounds of ``filter: refill`` after the first are not counted.
    """
    schedule = recipe.schedule
    training = schedule.steps * schedule.responses * schedule.max_new_tokens
    by_prompts = (schedule.prompts or recipe.most_prompts) * schedule.group_size * schedule.max_new_tokens
    training = min(training, schedule.tokens or training, by_prompts)
    evaluation = sum(size.tokens for size in sizes)
    return evaluation / (evaluation + training)


def lines_in(name: str) -> int | None:
    """Return the number of lines of a file that are not empty; ``None`` if it cannot be read."""
    path = Path(name).expanduser()
    if not path.is_file():  # a device may have no end
        return None
    try:
        with path.open("rb") as file:
            return sum(1 for line in file if line.strip())
    except OSError:  # the plan says so
        return None


# ---- hashes ------------------------------------------------------------------------------------------


def unreadable_sets(runner: Runner, recipes: Sequence[Recipe], options: Options, evaluate: Evaluate) -> list[Fault]:
    """Return the sets that the runner cannot evaluate for one of the recipes, each with the first reason.

    A set with the problems of the recipe has no fault of its own where these cannot be read: the plan says so of them.
    """
    found = []
    for name, each in evaluate.sets.items():
        for recipe in recipes:
            try:
                runner.set_hash(recipe, options, each)
            except ParibusError as error:
                if each.task is None and not _readable(runner, recipe, options):
                    continue
                inside = () if each.task is None else ("task",)
                found.append(Fault(place=("evaluate", "sets", name, *inside), message=str(error)))
                break
    return found


def _readable(runner: Runner, recipe: Recipe, options: Options) -> bool:
    try:
        runner.hashes(recipe, options)
    except ParibusError:
        return False
    return True


def arm_hashes(runner: Runner, recipe: Recipe, options: Options, evaluate: Evaluate) -> Hashes:
    """Return the hashes of an arm, its data with that of each evaluation set.

    Raises:
        ParibusError: a file cannot be read, or the runner cannot evaluate a set.
    """
    hashes = runner.hashes(recipe, options)
    if not evaluate.sets:
        return hashes
    sets = {name: runner.set_hash(recipe, options, each) for name, each in evaluate.sets.items()}
    return replace(hashes, data=fingerprint_of([hashes.data, sets]))
