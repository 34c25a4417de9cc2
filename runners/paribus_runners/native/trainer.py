"""The training loop of one run: sample, verify, weigh, update, measure."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from random import Random
from typing import Any, TypeVar

from paribus.contract import EvaluationSet, Job
from paribus.evaluate import HELDOUT
from paribus.recipe.recipe import Recipe
from paribus.run_folder.checkpoints import published
from paribus.run_folder.folder import MetricLine, RunFolder, write_json
from paribus_runners.evaluation.evaluator import Sampled, answered, evaluated, is_shown
from paribus_runners.native import checkpoint, lora, metrics, samples
from paribus_runners.native.batch import minibatches
from paribus_runners.native.checkpoint import Progress
from paribus_runners.native.checkpoint_parts import PartMissing, Parts
from paribus_runners.native.experience import weigh
from paribus_runners.native.learner import Learner
from paribus_runners.native.out_of_memory import is_limited, rehearse
from paribus_runners.native.rollout.collect import Source, collect
from paribus_runners.native.rollout.conversation import conversation
from paribus_runners.native.rollout.engine import sampler_of
from paribus_runners.native.rollout.queue import RolloutQueue
from paribus_runners.native.rollout.retired import AllRetired, Retired
from paribus_runners.native.rollout.rollouts import Rollouts
from paribus_runners.native.rollout.sampler import Requests, complete
from paribus_runners.native.stopping import StopCheck, Stopped
from paribus_runners.native.update import update_critic, updates
from paribus_runners.tasks import Grader, Problem, size_of

log = logging.getLogger(__name__)

T = TypeVar("T")

SYNC = "perf/time_sync_s"
"""Metric: what new weights take for a sampler that has a copy of them."""


class Trainer:
    """Trains one policy on one task by one recipe.

    Args:
        job: what to train.
        folder: where to write.
        learner: the initial policy with its optimizer, reference and critic; the weights change.
        asked_to_stop: returns True once the run must stop.
        grader: problems, and what grades the responses to them.
        others: the same of the evaluation sets that have problems of their own.
    """

    def __init__(
        self,
        job: Job,
        folder: RunFolder,
        learner: Learner,
        asked_to_stop: Callable[[], bool],
        grader: Grader,
        others: Mapping[str, Grader] | None = None,
    ) -> None:
        self._job, self._recipe, self._folder = job, job.recipe, folder
        self._learner, self._grader, self._others, self._world = learner, grader, others or {}, learner.world
        self._stop = StopCheck(asked_to_stop, learner.networks, learner.world.phases.progress)
        self._world.while_waiting = self._stop.check
        self._parts = Parts(folder, learner)
        self._rehearsed = not any(self._world.gather_all(is_limited(learner.policy.device)))  # all do, or none
        self._sampler = sampler_of(job.recipe, learner.policy, grader.task, job.seed, self._stop.pass_made, self._world)
        self._source = Source(
            learner.policy, learner.reference, grader.task, job.seed, self._sampler, grader, self._world
        )

    def run(self, progress: Progress | None) -> None:
        """Train to the end, from ``progress`` if a checkpoint was loaded.

        Raises:
            SystemExit: with status 75 when the run was asked to stop. It has saved the newest complete step, unless
                the weights have changed since (:mod:`paribus_runners.native.stopping`); before step 0, nothing.
        """
        with self._parts.noting_an_early_end():
            self._train(progress)

    def _train(self, progress: Progress | None) -> None:
        schedule = self._recipe.schedule
        synced = self._load()
        if progress is None:
            progress, values = self._pretrain()
            self._write(0, self._evaluated(progress, {**values, **synced}))
            self._boundary(progress)
        while not schedule.spent(progress.step, *progress.spent.sampling):
            try:
                progress, values = self._step(progress)
            except AllRetired:
                self._save(progress)
                self._end(progress, "stopped_early", f"no prompt is left: {_all_retired(self._recipe)}")
                return
            except Stopped:
                if not self._stop.changed:
                    self._boundary(progress, alone=True)
                raise
            step = progress.step
            values = self._evaluated(progress, values)
            self._write(step, values)
            if "nan" in self._job.stop_on and not _finite(values):  # the weights of the newest checkpoint stay
                self._end(
                    progress, "stopped_early", f"nan: a loss, gradient or probability is not finite at step {step}"
                )
                return
            self._boundary(progress)
        self._save(progress)
        self._end(progress, "succeeded", "")

    def _pretrain(self) -> tuple[Progress, dict[str, float]]:
        """Train the critic on the returns of the initial policy (VAPO, arXiv 2504.05118, section 4.1).

        The targets are those of lambda = 1, the plain returns. Returns its costs and the metrics of the last batch.
        """
        level, seed = self._recipe.auxiliary.value, self._job.seed
        if level is None:
            return Progress(), {}
        spent, values = Progress().spent, dict[str, float]()
        recipe = self._recipe.at(0).model_copy(
            update={"baseline": self._recipe.baseline.model_copy(update={"critic_lambda": 1.0})}
        )
        for step in range(1, level.pretrain_steps + 1):
            self._world.phases.enter("rollout")
            rollouts = self._by_samplers(partial(collect, recipe, self._source, -step)).rollouts
            spent = spent.sampled(rollouts)
            if not self._world.trains:
                continue
            self._world.phases.enter("update")
            experience = weigh(recipe, rollouts, self._learner.before(recipe, rollouts))
            losses = [
                update_critic(recipe, self._learner, experience, batch)
                for batch in minibatches(recipe, experience, Random(f"pretrain/{seed}/{step}"))
            ]
            values = metrics.of_critic(recipe, experience, losses)
        return Progress(spent=spent), values

    def _step(self, progress: Progress) -> tuple[Progress, dict[str, float]]:
        """Sample, verify, filter, weigh and update once; return progress and metrics."""
        start, step = time.perf_counter(), progress.step + 1
        self._world.phases.enter("rollout", step)
        staleness = self._recipe.schedule.staleness
        if self._world.divided:
            if len(progress.queued.steps) < staleness:  # of the first step, or at the end
                found = self._by_samplers(partial(self._sample, progress, step, step + staleness - 1))
                progress = progress.sampled(*found)
            progress, values = self._in_teams(progress, step, step + staleness)
        else:
            progress = progress.sampled(*self._sample(progress, step, step + staleness))
            progress, values = self._train_on(progress, step)
        if self._recipe.schedule.retire_at is not None and (size := size_of(self._grader.task)) is not None:
            values["sampling/retired_frac"] = len(progress.retired.prompts) / size
        return progress, {**values, "perf/time_step_s": time.perf_counter() - start}

    def _in_teams(self, progress: Progress, step: int, last: int) -> tuple[Progress, dict[str, float]]:
        """Train on a step while the other team samples up to the step ``last``; then both know what each has found."""
        world, known, values = self._world, progress.queued.steps, dict[str, float]()
        self._stop.changed = world.samples  # as soon as the others may have changed theirs: a step ends in both teams
        trained, new = progress, Progress()
        if world.trains:
            trained, values = self._train_on(progress, step)
        else:
            queued, retired = self._sample(progress, step, last)
            new = new.sampled(replace(queued, steps=queued.steps[len(known) :]), retired)
        (spent, values, _), (_, _, new) = self._from_both((trained.spent, values, new))
        queued = replace(new.queued, steps=(*known[1:], *new.queued.steps))
        world.phases.enter("sync")
        start = time.perf_counter()
        world.give([weight for weight in self._learner.policy.model.parameters() if weight.requires_grad])
        if world.samples:
            self._learner.sync(self._recipe.at(step), step)
        values |= self._load() | {SYNC: time.perf_counter() - start}
        return Progress(step, spent, trained.history, queued, new.retired), values

    def _train_on(self, progress: Progress, step: int) -> tuple[Progress, dict[str, float]]:
        """Weigh and update once on the first rollouts of the queue."""
        sampled = time.perf_counter()
        learner, recipe, queued, phases = self._learner, self._recipe.at(step), progress.queued, self._world.phases
        rollouts = queued.steps[0]
        rate = learner.set_rate(recipe, step)
        self._sampler.rest()
        if not self._rehearsed:
            sampled += self._rehearse(recipe, rollouts, step)
        phases.enter("old_pass", step)
        experience = weigh(recipe, rollouts, learner.before(recipe, rollouts), progress.history)
        self._stop.changed = True
        phases.enter("update")
        done = updates(recipe, learner, experience, self._job.seed, step)
        experience = done.experience
        learner.sync(recipe, step)
        updated = time.perf_counter()
        synced = {} if self._world.divided else self._load()
        if not self._world.divided and recipe.rollout.engine != "torch":
            synced[SYNC] = time.perf_counter() - updated
        self._keep(samples.of_step(recipe, learner.policy, experience, step))
        spent = progress.spent.after(recipe, experience, done)
        values = (
            metrics.of_experience(recipe, experience, progress.history, progress.spent.optimizer_steps)
            | metrics.of_updates(recipe, experience, done)
            | metrics.of_spent(spent)
            | synced
        )
        values |= {
            "optim/lr": rate,
            "perf/time_gen_s": rollouts.seconds_sampling,
            "perf/time_reward_s": rollouts.seconds_reward,
            "perf/time_update_s": updated - sampled,
            "perf/gen_tokens_per_s": float(rollouts.responses.length[rollouts.fresh].sum()) / rollouts.seconds_sampling,
        }
        if self._recipe.schedule.temperature_change.kind != "none":
            values["sampling/temperature"] = recipe.schedule.temperature
        left = replace(queued, steps=queued.steps[1:])
        return Progress(step, spent, experience.history, left, progress.retired), values

    def _rehearse(self, recipe: Recipe, rollouts: Rollouts, step: int) -> float:
        """Try the largest update; return the seconds that it took."""
        start, before = time.perf_counter(), self._stop.changed
        self._stop.changed = True  # who is stopped in it has no whole weights to save if they are shared
        self._world.phases.enter("update", step)
        rehearse(recipe, self._learner, rollouts)
        self._rehearsed, self._stop.changed = True, before
        return time.perf_counter() - start

    def _by_samplers(self, work: Callable[[], T]) -> T:
        """Return what the processes that sample find, in all of them; the others wait.

        Raises:
            AllRetired: they have.
        """
        if not self._world.divided:
            return work()
        found: T | None = None
        if self._world.samples:
            with suppress(AllRetired):
                found = work()
        found = self._from_both(found)[1]
        if found is None:
            raise AllRetired
        return found

    def _from_both(self, value: T) -> tuple[T, T]:
        """Return what one process of each team passed, the team that trains first; all must call."""
        world = self._world
        first, *_, last = world.gather_all((value,) if world.number in (0, world.everyone - 1) else None)
        assert first is not None
        assert last is not None
        return first[0], last[0]

    def _sample(self, progress: Progress, step: int, last: int) -> tuple[RolloutQueue, Retired]:
        """Return the queue after the sampler ran ahead of ``step`` up to ``last``; never beyond the last step.

        Returns also which prompts are left out from then on.

        Raises:
            AllRetired: no prompt is left, and nothing is queued.
        """
        schedule = self._recipe.schedule
        steps, surplus, retired = list(progress.queued.steps), progress.queued.surplus, progress.retired
        sampled = progress.spent
        for rollouts in steps:
            sampled = sampled.sampled(rollouts)
        for ahead in range(step + len(steps), last + 1):
            if schedule.spent(ahead - 1, *sampled.sampling):
                break
            try:
                rollouts, surplus, retired = collect(
                    self._recipe.at(ahead), self._source, ahead, progress.spent.optimizer_steps, surplus, retired
                )
            except AllRetired:
                if not steps:
                    raise
                break
            steps.append(rollouts)
            sampled = sampled.sampled(rollouts)
        return RolloutQueue(tuple(steps), surplus), retired

    def _load(self) -> dict[str, float]:
        """Let the sampler take over the policy's weights; return how well the two agree, if it has a copy of them."""
        self._world.phases.enter("sync")
        found = dict(self._sampler.load(lora.merged(self._learner.policy.model))) if self._world.samples else {}
        return self._from_both(found)[1] if self._world.divided else found

    def _evaluated(self, progress: Progress, values: dict[str, float]) -> dict[str, float]:
        """Evaluate the sets that are due, write their records, and add the metrics to ``values``."""
        step, schedule = progress.step, self._recipe.schedule
        ended = schedule.spent(step, *progress.spent.sampling)
        due = self._job.evaluate.due(step, step if ended else schedule.steps)
        if not due:
            return values
        self._world.phases.enter("evaluation", step)
        start, found = time.perf_counter(), dict[str, float]()
        for name, chosen in due.items():
            grader = self._others.get(name, self._grader)
            sample = partial(self._sample_set, name, chosen, grader, step)
            mine = answered(chosen, grader, sample, self._world.turns, self._world.phases.progress)
            outcome = evaluated(name, chosen, chain.from_iterable(self._world.gather_all(mine)), step)
            if self._world.writes:
                self._folder.write_evaluation(outcome.evaluation)
            self._keep(outcome.samples)
            found |= outcome.values
        seconds = time.perf_counter() - start
        times = {"perf/time_eval_s": seconds, "perf/time_step_s": values.get("perf/time_step_s", 0.0) + seconds}
        return values | found | times

    def _sample_set(
        self,
        name: str,
        chosen: EvaluationSet,
        grader: Grader,
        step: int,
        problems: Sequence[Problem],
        places: Sequence[int],
    ) -> list[Sampled]:
        policy, room = self._learner.policy, chosen.max_new_tokens or self._recipe.schedule.max_new_tokens
        place, apart = (self._job.seed, "evaluate", name, step), name != HELDOUT
        encoded, turns = policy.encode([x.prompt for x in problems]), conversation(grader.environment, policy, problems)
        requests = Requests(
            encoded, chosen.samples, room, chosen.temperature, place, chosen.top_p, apart, places, turns=turns
        )
        responses = complete(self._sampler, requests)
        tokens, ended = responses.tokens(), (~responses.truncated).tolist()
        marks = [
            samples.given(policy, whole) if is_shown(places[i // chosen.samples], i % chosen.samples) else None
            for i, whole in enumerate(tokens)
        ]
        columns = (policy.decode(tokens), responses.length.tolist(), ended, marks)
        return [Sampled(*values) for values in zip(*columns, strict=True)]

    def _keep(self, records: Iterable[dict[str, Any]]) -> None:
        if not self._world.writes:
            return
        with self._folder.samples.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    def _write(self, step: int, values: dict[str, float]) -> None:
        if self._world.writes:
            self._folder.append_metrics(MetricLine(step=step, time_ms=time.time_ns() // 1_000_000, values=values))

    def _boundary(self, progress: Progress, *, alone: bool = False) -> None:
        """Save a checkpoint where one is due, or when asked to stop; in the latter case, exit.

        Two teams stop after the same step: one that began the next would have nothing to save. ``alone``: the others
        may be gone.
        """
        stop, every = self._stop.asked(), self._job.checkpoint.every or self._job.evaluate.every
        if self._world.divided and not alone:
            stop = any(self._world.gather_all(stop))
        self._stop.changed = False
        self._world.phases.enter("checkpoint", progress.step)
        if stop or (progress.step > 0 and progress.step % every == 0):
            self._save(progress)
        if stop:
            raise Stopped

    def _save(self, progress: Progress) -> None:
        """Save a checkpoint; of a sharded optimizer each process its part."""
        if not self._world.writes:
            self._parts.put(progress.step)
            return
        try:
            checkpoint.save(self._folder, self._job, progress, self._learner, self._parts.take)
        except PartMissing as error:
            log.warning("no checkpoint of step %d: %s", progress.step, error)

    def _end(self, progress: Progress, status: str, reason: str) -> None:
        if not self._world.writes:
            return
        record = {"status": status, "reason": reason, "step": progress.step, **metrics.of_spent(progress.spent)}
        if newest := published(self._folder)[:1]:
            record["model"] = (newest[0] / checkpoint.MODEL).relative_to(self._folder.path).as_posix()
        write_json(self._folder.result, record)


def _all_retired(recipe: Recipe) -> str:
    return f"the policy has solved all of them, each at a pass rate of {recipe.schedule.retire_at:g} or more"


def _finite(values: dict[str, float]) -> bool:
    watched = ("policy/entropy", "optim/loss", "optim/grad_norm")
    return all(math.isfinite(values[name]) for name in watched if name in values)
