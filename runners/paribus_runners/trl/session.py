"""One run with TRL: builds its trainer from the recipe, evaluates, and writes lines, samples and checkpoints."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOConfig

from paribus.contract import EvaluationSet, Job
from paribus.evaluate import HELDOUT
from paribus.run_folder.folder import MetricLine, RunFolder, read_json, write_json
from paribus_runners.capabilities import matrix_for
from paribus_runners.environments import public
from paribus_runners.evaluation.evaluator import Sampled, answered, evaluated
from paribus_runners.native import attention, metrics, samples
from paribus_runners.native.experience import Experience, weigh
from paribus_runners.native.metrics import Spent
from paribus_runners.native.objective import ratio
from paribus_runners.native.objective.advantage import shaped_reward
from paribus_runners.native.objective.loss import Tokens
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.collect import Source, collect
from paribus_runners.native.rollout.rollouts import Rollouts
from paribus_runners.native.rollout.sampler import Finished, Requests, complete
from paribus_runners.native.rollout.torch import TorchSampler
from paribus_runners.native.stopping import StopCheck, Stopped, Termination
from paribus_runners.native.update import Part, Update, Updates, observe
from paribus_runners.tasks import Grader, Problem
from paribus_runners.trl.options import TrlOptions, options_of
from paribus_runners.trl.recorded import Given, RecordedTrainer

SPENT = "spent.json"
"""The costs so far, in a checkpoint."""
RAW = "native/trl/"
"""Where the numbers that TRL logs go, as it names them."""
UNTOLD = frozenset({"step_time", "epoch"})
"""What it logs that no equal run has again: `perf/` has times, and a run that continues counts its own epochs."""


WATCHED = ("policy/entropy", "optim/loss", "optim/grad_norm")
"""What ends a run that stops on `nan`, as with the native runner."""


class Session:
    """Trains one policy with TRL; implements :class:`paribus_runners.trl.recorded.Recorder`.

    Args:
        job: what to train.
        folder: the outbox.
        policy: the initial policy.
        asked: set once the run must stop.
        grader: problems, and what grades the responses to them.
        others: the same of the evaluation sets that have problems of their own.
    """

    def __init__(
        self,
        job: Job,
        folder: RunFolder,
        policy: Policy,
        asked: Termination,
        grader: Grader,
        others: Mapping[str, Grader],
    ) -> None:
        self._job, self._recipe, self._folder, self._policy = job, job.recipe, folder, policy
        self._asked, self._grader, self._others = asked, grader, others
        self._updates_each = job.recipe.schedule.updates_per_rollout
        self._stop = StopCheck(asked.is_set, [policy.model.base_model])
        self._step, self._spent = 0, Spent()
        self._ended = ""

    # ---- the run -----------------------------------------------------------------------------------

    def run(self, checkpoint: Path | None, done: int) -> None:
        """Train to the end, from the checkpoint of step ``done`` if there is one.

        Raises:
            SystemExit: with status 75 when the run was asked to stop.
        """
        self._step = done
        if checkpoint is not None:
            self._spent = Spent(**read_json(checkpoint / SPENT))
        self._trainer = self._make(done)
        self._asked.begun = True
        try:
            if checkpoint is None:
                self._write(0, self._evaluated(0, {}))
            if done < self._recipe.schedule.steps:
                self._start = time.perf_counter()
                self._trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except Stopped:
            if not self._stop.changed and self._step > done:
                self._save()
            raise
        if self._ended:
            write_json(self._folder.result, {"status": "stopped_early", "reason": self._ended})
            return
        if self._step < self._recipe.schedule.steps:
            raise Stopped  # its checkpoint is written
        write_json(self._folder.result, {"status": "succeeded"})

    def _make(self, done: int) -> RecordedTrainer:
        """Return TRL's trainer for the steps after ``done``."""
        recipe, job = self._recipe, self._job
        capabilities = matrix_for("trl", public(version("trl"))).capabilities
        options = options_of(capabilities, recipe, job.options.passthrough, TrlOptions.model_validate(job.options.own))
        schedule = recipe.schedule
        rows = [
            {"prompt": "", "step": step, "place": place}
            for step in range(done + 1, schedule.steps + 1)
            for place in range(schedule.prompts_per_step)
        ] or [{"prompt": "", "step": 0, "place": 0}]
        self._policy.model.set_attn_implementation("sdpa")
        trainer = RecordedTrainer(
            model=self._policy.model,
            processing_class=self._policy.tokenizer,
            reward_funcs=self.reward,
            train_dataset=Dataset.from_list(rows),
            callbacks=[_Callback(self)],
            args=GRPOConfig(
                output_dir=str(self._folder.path.parent / "trainer"),
                seed=job.seed,
                data_seed=job.seed,
                use_cpu=not torch.cuda.is_available(),
                **options,
            ),
        )
        trainer.recorder = self
        return trainer

    # ---- what TRL asks, and what it gives ---------------------------------------------------------

    def prompts(self, rows: Sequence[Mapping[str, Any]]) -> list[list[int]]:
        """Return the tokens of the prompts of a step, each ``group_size`` times."""
        step, schedule = self._step + 1, self._recipe.schedule
        if {row["step"] for row in rows} != {step}:
            raise AssertionError(f"TRL asks for the prompts of another step than {step}")
        problems = self._grader.task.training(self._job.seed, step, 0, schedule.prompts_per_step)
        encoded = self._policy.encode([problem.prompt for problem in problems])
        return [encoded[row["place"]] for row in rows]

    def sampled(self, sample: Callable[[Requests], Iterator[Finished]]) -> None:
        """Sample, verify and keep the rollouts of the next step."""
        source = Source(self._policy, None, self._grader.task, self._job.seed, Given(sample), self._grader)
        recipe = self._recipe.model_copy(update={"kl": type(self._recipe).model_fields["kl"].default})
        self._rollouts: Rollouts = collect(recipe, source, self._step + 1, self._spent.optimizer_steps).rollouts

    def reward(self, **_: Any) -> list[float]:
        """Return the reward of each response, as every runner computes it."""
        found: list[float] = shaped_reward(self._recipe, self._rollouts.scored).tolist()
        return found

    def weighed(self, output: Mapping[str, Tensor]) -> None:
        """Keep the experience of the step with TRL's own advantages."""
        rollouts, mask = self._rollouts, self._rollouts.responses.mask
        if "ref_per_token_logps" in output:
            rollouts = replace(rollouts, reference=output["ref_per_token_logps"].cpu()[mask])
        experience = weigh(self._recipe, rollouts)
        advantage = output["advantages"].cpu().double()[rollouts.responses.row]
        self._experience: Experience = replace(experience, advantage=advantage)
        self._parts: list[tuple[Part, Part]] = []
        self._done: list[tuple[Update, Update]] = []
        self._logs: list[dict[str, float]] = []
        self._stop.changed = True

    def seen(self, inputs: Mapping[str, Tensor], logp: Tensor, entropy: Tensor, loss: Tensor) -> None:
        """Keep statistics of a forward pass: against the old policy, and against what was sampled."""
        mask = inputs["completion_mask"].bool()
        if not mask.any():
            return
        length, rows = mask.sum(1), inputs["row"]
        inside = (length > 0).nonzero().squeeze(1)
        row = torch.arange(len(inside), device=mask.device).repeat_interleave(length[inside])
        new, old = logp[mask], inputs.get("old_per_token_logps")
        before = new if old is None else old[mask]
        responses = self._experience.rollouts.responses
        sampler = torch.cat([responses.logp[responses.places(rows[i : i + 1].cpu())] for i in inside]).to(new.device)
        ones = torch.ones_like(new)
        tokens = Tokens(
            row=row, rows=len(inside), old=before, advantage=inputs["advantages"][inside][row], weight=ones,
            correction=ones, entropy_weight=ones, nll_weight=ones,
        )  # fmt: skip
        r = ratio.ratio(self._recipe.ratio, new - before, row, len(inside))
        apart = observe(self._recipe, new, replace(tokens, old=sampler), r, None, loss)
        self._parts.append((observe(self._recipe, new, tokens, r, None, loss, entropy[mask]), apart))

    def updated(self, norm: float) -> None:
        """Close an update."""
        plain, apart = (tuple(parts) for parts in zip(*self._parts, strict=True)) if self._parts else ((), ())
        self._done.append((Update(plain, norm), Update(apart, norm)))
        self._parts = []

    def logged(self, logs: Mapping[str, Any]) -> bool:
        """Take what TRL logs after an update; return whether the step has ended, and with it a checkpoint is due."""
        self._logs.append({k: float(v) for k, v in logs.items() if isinstance(v, int | float)})
        if len(self._done) < self._updates_each:
            return False
        step = self._step + 1
        values = self._evaluated(step, self._values())
        self._keep(samples.of_step(self._recipe, self._policy, self._experience, step))
        self._write(step, values)
        self._step, self._stop.changed, self._start = step, False, time.perf_counter()
        watched = [values[name] for name in WATCHED if name in values]
        if "nan" in self._job.stop_on and not all(map(math.isfinite, watched)):
            self._ended = f"nan: a loss, gradient or probability is not finite at step {step}"
            return False
        every = self._job.checkpoint.every or self._job.evaluate.every
        return self.stopping or step % every == 0 or step == self._recipe.schedule.steps

    @property
    def stopping(self) -> bool:
        """Whether training ends here."""
        return bool(self._ended) or self._asked.is_set()

    def _values(self) -> dict[str, float]:
        """Return the metrics of the step that ends."""
        recipe, experience, before = self._recipe, self._experience, self._spent.optimizer_steps
        done = Updates(tuple(plain for plain, _ in self._done), (), experience)
        apart = Updates(tuple(other for _, other in self._done), (), experience)
        self._spent = self._spent.after(recipe, experience, done)
        mismatch = {k: v for k, v in metrics.of_updates(recipe, experience, apart).items() if k.startswith("mismatch/")}
        values = metrics.of_experience(recipe, experience, {}, before) | metrics.of_updates(recipe, experience, done)
        values |= mismatch | metrics.of_spent(self._spent)
        rollouts, now = experience.rollouts, time.perf_counter()
        raw = {name for logs in self._logs for name in logs if name not in UNTOLD and not name.startswith("profiling/")}
        for name in sorted(raw):
            found = [logs[name] for logs in self._logs if name in logs]
            values[RAW + name] = sum(found) / len(found)
        whole = now - self._start
        return values | {
            "optim/lr": self._logs[-1].get("learning_rate", math.nan),
            "perf/time_gen_s": rollouts.seconds_sampling,
            "perf/time_reward_s": rollouts.seconds_reward,
            "perf/time_update_s": max(0.0, whole - rollouts.seconds_sampling - rollouts.seconds_reward),
            "perf/time_step_s": whole,
            "perf/gen_tokens_per_s": float(rollouts.responses.length.sum()) / rollouts.seconds_sampling,
        }

    # ---- what is written ---------------------------------------------------------------------------

    def publish(self, written: Path) -> None:
        """Hand over a checkpoint that TRL has written."""
        write_json(written / SPENT, asdict(self._spent))
        written.rename(self._folder.path / "checkpoints" / f"step-{self._step:06d}")

    def _save(self) -> None:
        """Save the newest complete step: no weights have changed since."""
        trainer = self._trainer
        trainer._save_checkpoint(trainer.model, None)
        self.publish(Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}")

    def _evaluated(self, step: int, values: dict[str, float]) -> dict[str, float]:
        """Evaluate the sets that are due as every runner does, write their records, and add the metrics."""
        due = self._job.evaluate.due(step, self._recipe.schedule.steps)
        if not due:
            return values
        start, found, model = time.perf_counter(), dict[str, float](), self._policy.model
        training, kind = model.training, model.config._attn_implementation
        model.eval()
        model.set_attn_implementation(attention.NAME)
        try:
            for name, chosen in due.items():
                grader = self._others.get(name, self._grader)
                answers = answered(chosen, grader, partial(self._sample_set, name, chosen, step))
                outcome = evaluated(name, chosen, answers, step)
                self._folder.write_evaluation(outcome.evaluation)
                self._keep(outcome.samples)
                found |= outcome.values
        finally:
            model.set_attn_implementation(kind)
            model.train(training)
        seconds = time.perf_counter() - start
        times = {"perf/time_eval_s": seconds, "perf/time_step_s": values.get("perf/time_step_s", 0.0) + seconds}
        return values | found | times

    def _sample_set(
        self, name: str, chosen: EvaluationSet, step: int, problems: Sequence[Problem], places: Sequence[int]
    ) -> list[Sampled]:
        policy, room = self._policy, chosen.max_new_tokens or self._recipe.schedule.max_new_tokens
        place, apart = (self._job.seed, "evaluate", name, step), name != HELDOUT
        prompts = policy.encode([problem.prompt for problem in problems])
        requests = Requests(prompts, chosen.samples, room, chosen.temperature, place, chosen.top_p, apart, places)
        responses = complete(TorchSampler(policy), requests)
        ended = (~responses.truncated).tolist()
        texts = policy.decode(responses.tokens())
        return [Sampled(*values) for values in zip(texts, responses.length.tolist(), ended, strict=True)]

    def _keep(self, records: Sequence[Mapping[str, Any]]) -> None:
        with self._folder.samples.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        self._folder.append_metrics(MetricLine(step=step, time_ms=time.time_ns() // 1_000_000, values=values))


class _Callback(TrainerCallback):  # type: ignore[misc]
    """Passes what TRL logs and saves to the session, and when to save and to stop to TRL."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Write the line of a step that has ended."""
        if logs is None or "loss" not in logs:
            return  # the summary at the end
        control.should_save = self._session.logged(logs)
        control.should_training_stop = control.should_training_stop or self._session.stopping

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Hand over what was saved."""
        self._session.publish(Path(args.output_dir) / f"checkpoint-{state.global_step}")
