"""The training of one run: sample, verify, weigh, update, measure; again."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

from paribus.study.job import Job
from paribus.track.folder import MetricLine, RunFolder, write_json
from paribus_runners.native import checkpoint, metrics, samples
from paribus_runners.native.batch import minibatches
from paribus_runners.native.checkpoint import Progress
from paribus_runners.native.evaluate import evaluate
from paribus_runners.native.experience import weigh
from paribus_runners.native.learner import Learner
from paribus_runners.native.rollout.backlog import Backlog
from paribus_runners.native.rollout.collect import Source, collect
from paribus_runners.native.task import Task
from paribus_runners.native.update import update_critic, updates

PREEMPTED = 75
"""Exit status of a run that was asked to stop and can be resumed."""


class Trainer:
    """Trains one policy on one task by one recipe.

    Args:
        job: what to train.
        folder: where to write.
        learner: the initial policy and what belongs to it; its weights change.
        task: problems and verifier.
        asked_to_stop: True when the run shall end at the next step boundary.
    """

    def __init__(
        self, job: Job, folder: RunFolder, learner: Learner, task: Task, asked_to_stop: Callable[[], bool]
    ) -> None:
        self._job, self._recipe, self._folder = job, job.recipe, folder
        self._learner, self._task = learner, task
        self._source = Source(learner.policy, learner.reference, task, job.seed)
        self._asked_to_stop = asked_to_stop

    def run(self, progress: Progress | None) -> None:
        """Train to the end; ``progress`` is where a checkpoint stands whose weights are loaded already.

        Raises:
            SystemExit: with status 75, after a checkpoint, when the run was asked to stop; without one in the midst of
                value pretraining.
        """
        last = self._recipe.schedule.steps
        if progress is None:
            progress, values = self._pretrain()
            self._write(0, self._evaluated(0, values))
            self._boundary(progress)
        while progress.step < last:
            progress, values = self._step(progress)
            step = progress.step
            if step == last or step % self._job.evaluate.every == 0:
                values = self._evaluated(step, values)
            self._write(step, values)
            if "nan" in self._job.stop_on and not _finite(values):
                self._end(
                    progress, "stopped_early", f"nan: a loss, gradient or probability is not finite at step {step}"
                )
                return
            self._boundary(progress, evaluated=step % self._job.evaluate.every == 0)
        self._end(progress, "succeeded", "")

    def _pretrain(self) -> tuple[Progress, dict[str, float]]:
        """Train the critic on the returns of the initial policy (VAPO, arXiv 2504.05118, section 4.1).

        The targets are those of lambda = 1, the plain returns. Returns what it cost, and metrics of the last batch.
        """
        level, seed = self._recipe.auxiliary.value, self._job.seed
        if level is None:
            return Progress(), {}
        spent, values = Progress().spent, dict[str, float]()
        recipe = self._recipe.model_copy(
            update={"baseline": self._recipe.baseline.model_copy(update={"critic_lambda": 1.0})}
        )
        for step in range(1, level.pretrain_steps + 1):
            if self._asked_to_stop():
                raise SystemExit(PREEMPTED)
            rollouts = collect(recipe, self._source, -step).rollouts
            experience = weigh(recipe, rollouts, self._learner.before(recipe, rollouts))
            losses = [
                update_critic(recipe, self._learner, experience, batch)
                for batch in minibatches(recipe, experience, Random(f"pretrain/{seed}/{step}"))
            ]
            spent = spent.sampled(rollouts)
            values = metrics.of_critic(recipe, experience, losses)
        return Progress(spent=spent), values

    def _step(self, progress: Progress) -> tuple[Progress, dict[str, float]]:
        """Sample, verify, filter, weigh and update once; return where the run stands and the metrics."""
        start = time.perf_counter()
        step, recipe, learner = progress.step + 1, self._recipe, self._learner
        backlog = self._sample(progress, step)
        rollouts, backlog = backlog.queue[0], replace(backlog, queue=backlog.queue[1:])
        rate = self._set_rate(step)
        sampled = time.perf_counter()
        experience = weigh(recipe, rollouts, learner.before(recipe, rollouts), progress.history)
        done = updates(recipe, learner, experience, self._job.seed, step)
        learner.sync(recipe, step)
        updated = time.perf_counter()
        self._keep(samples.of_step(recipe, learner.policy, experience, step))
        end = time.perf_counter()
        spent = progress.spent.after(recipe, experience, done)
        values = (
            metrics.of_experience(recipe, experience, progress.history, progress.spent.optimizer_steps)
            | metrics.of_updates(recipe, experience, done)
            | metrics.of_spent(spent)
        )
        values |= {
            "optim/lr": rate,
            "perf/time_gen_s": rollouts.seconds_sampling,
            "perf/time_reward_s": rollouts.seconds_reward,
            "perf/time_update_s": updated - sampled,
            "perf/time_step_s": end - start,
            "perf/gen_tokens_per_s": float(rollouts.responses.length[rollouts.fresh].sum()) / rollouts.seconds_sampling,
        }
        return Progress(step, spent, experience.history, backlog), values

    def _sample(self, progress: Progress, step: int) -> Backlog:
        """Return the backlog after the sampler has run as far ahead of ``step`` as it may; never beyond the last."""
        queue, surplus = list(progress.backlog.queue), progress.backlog.surplus
        end = min(step + self._recipe.schedule.staleness, self._recipe.schedule.steps)
        for ahead in range(step + len(queue), end + 1):
            rollouts, surplus = collect(self._recipe, self._source, ahead, progress.spent.optimizer_steps, surplus)
            queue.append(rollouts)
        return Backlog(tuple(queue), surplus)

    def _set_rate(self, step: int) -> float:
        settings = self._recipe.optimizer
        rise = min(1.0, step / settings.warmup_steps) if settings.warmup_steps else 1.0
        for group in self._learner.optimizer.param_groups:
            group["lr"] = settings.learning_rate * rise
        return settings.learning_rate * rise

    def _evaluated(self, step: int, values: dict[str, float]) -> dict[str, float]:
        """Evaluate, write the records, and return the metrics with those of the evaluation."""
        start = time.perf_counter()
        outcome = evaluate(self._job, self._learner.policy, self._task, step)
        self._folder.write_evaluation(outcome.evaluation)
        self._keep(outcome.samples)
        seconds = time.perf_counter() - start
        times = {"perf/time_eval_s": seconds, "perf/time_step_s": values.get("perf/time_step_s", 0.0) + seconds}
        return values | outcome.values | times

    def _keep(self, records: Iterable[dict[str, Any]]) -> None:
        with self._folder.samples.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    def _write(self, step: int, values: dict[str, float]) -> None:
        self._folder.append_metrics(MetricLine(step=step, time_ms=time.time_ns() // 1_000_000, values=values))

    def _boundary(self, progress: Progress, evaluated: bool = False) -> None:
        """Save where an evaluation was made or a stop is asked for; end in the latter case."""
        stop = self._asked_to_stop()
        if stop or evaluated:
            checkpoint.save(self._folder.checkpoint, self._job.run, progress, self._learner)
        if stop:
            raise SystemExit(PREEMPTED)

    def _end(self, progress: Progress, status: str, reason: str) -> None:
        checkpoint.save(self._folder.checkpoint, self._job.run, progress, self._learner)
        record = {"status": status, "reason": reason, "step": progress.step, **metrics.of_spent(progress.spent)}
        write_json(self._folder.result, record)


def _finite(values: dict[str, float]) -> bool:
    watched = ("policy/entropy", "optim/loss", "optim/grad_norm")
    return all(math.isfinite(values[name]) for name in watched if name in values)
