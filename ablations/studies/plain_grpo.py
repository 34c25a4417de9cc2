"""GRPO and Dr. GRPO in plain PyTorch, as a program that Paribus runs: the third trainer of three_trainers_cpu.yaml.

Sampling, advantages, loss and updates are written here once more, and share no line with the native runner. Problems,
the verifier, the initial model and the evaluation are those of every runner.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paribus.contract import Evaluate, EvaluationSet
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import MetricLine, RunFolder, write_json
from paribus_runners.evaluation.evaluator import Sampled, answered, evaluated
from paribus_runners.native import attention, fingerprint
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.sampler import Requests, complete
from paribus_runners.native.rollout.torch import TorchSampler
from paribus_runners.native.tiny import make as tiny
from paribus_runners.native.tiny.spec import MODELS, WarmUp
from paribus_runners.tasks import Grader, Problem, task_of


class Program:
    """One run.

    Args:
        recipe: what to train.
        settings: values by their dotted paths.
        policy: the initial model.
        out: where metrics and evaluations go.
    """

    def __init__(self, recipe: Recipe, settings: dict[str, Any], policy: Policy, out: RunFolder) -> None:
        self._recipe, self._s, self._policy, self._out = recipe, settings, policy, out
        self._grader = Grader(task_of(recipe.task))
        o = recipe.optimizer
        self._optimizer = torch.optim.AdamW(
            policy.model.parameters(), lr=o.learning_rate, betas=(o.beta1, o.beta2), eps=o.eps, weight_decay=0.0
        )

    def run(self) -> None:
        """Train to the last step."""
        for step in range(self._s["first_step"], self._s["schedule.steps"] + 1):
            values = self._trained(step) if step else {}
            if step % self._s["evaluate.every"] == 0 or step == self._s["schedule.steps"]:
                self._evaluate(step)
            self._out.append_metrics(MetricLine(step=step, time_ms=0, values=values))
        write_json(self._out.result, {"status": "succeeded"})

    # ---- a step ------------------------------------------------------------------------------------

    def _trained(self, step: int) -> dict[str, float]:
        """Sample, reward, update; return the metrics of the step."""
        s, model = self._recipe.schedule, self._policy.model
        model.set_attn_implementation("sdpa")
        problems = self._grader.task.training(self._s["seed"], step, 0, s.prompts_per_step)
        prompts = torch.tensor(self._policy.encode([p.prompt for p in problems])).repeat_interleave(s.group_size, 0)
        torch.manual_seed(self._s["seed"] * 100_000 + step)
        tokens, mask = self._sampled(prompts)
        correct = self._correct(problems, tokens, mask)
        advantage = self._advantage(2 * correct - 1)
        with torch.no_grad():
            old, entropy = self._scored(prompts, tokens)
        found = [self._update(prompts, tokens, mask, old, advantage) for _ in range(s.epochs)]
        lengths = mask.sum(1).double()
        groups = correct.view(-1, s.group_size)
        mean = {name: sum(each[name] for each in found) / len(found) for name in found[0]}
        return mean | {
            "reward/mean": float((2 * correct - 1).mean()),
            "reward/correct_frac": float(correct.mean()),
            "group/zero_std_frac": float((groups == groups[:, :1]).all(1).double().mean()),
            "policy/entropy": float(entropy[mask].mean()),
            "response/length_mean": float(lengths.mean()),
            "response/truncated_frac": float((~self._ended(tokens, mask)).double().mean()),
            "optim/lr": self._recipe.optimizer.learning_rate,
        }

    @torch.no_grad()
    def _sampled(self, prompts: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens [N, room] and the mask of those that were generated, the end mark included."""
        room, ends = self._recipe.schedule.max_new_tokens, torch.tensor(self._policy.ends)
        rows, past, fed = len(prompts), None, prompts
        tokens, mask = torch.zeros(rows, room, dtype=torch.long), torch.zeros(rows, room, dtype=torch.bool)
        alive = torch.ones(rows, dtype=torch.bool)
        for t in range(room):
            out = self._policy.model(input_ids=fed, past_key_values=past, use_cache=True)
            past = out.past_key_values
            token = torch.multinomial(out.logits[:, -1].softmax(-1), 1).squeeze(1)
            tokens[:, t], mask[:, t], fed = token, alive, token[:, None]
            alive = alive & ~torch.isin(token, ends)
            if not alive.any():
                break
        return tokens, mask

    def _correct(self, problems: Sequence[Problem], tokens: Tensor, mask: Tensor) -> Tensor:
        """Return 1 where a response is right, else 0: [N], float64."""
        texts = self._policy.decode([row[m].tolist() for row, m in zip(tokens, mask, strict=True)])
        finished, each = self._ended(tokens, mask).tolist(), self._recipe.schedule.group_size
        verdicts = [
            self._grader.task.verify(problems[i // each], text, finished[i]).correct for i, text in enumerate(texts)
        ]
        return torch.tensor(verdicts, dtype=torch.float64)

    def _ended(self, tokens: Tensor, mask: Tensor) -> Tensor:
        last = tokens.gather(1, mask.sum(1, keepdim=True) - 1).squeeze(1)
        return torch.isin(last, torch.tensor(self._policy.ends))

    def _advantage(self, reward: Tensor) -> Tensor:
        """Return the reward beside the mean of its group; with ``scale: group_std`` over its deviation: [N]."""
        groups = reward.view(-1, self._recipe.schedule.group_size)
        apart = groups - groups.mean(1, keepdim=True)
        if self._s["scale.kind"] == "group_std":
            apart = apart / (groups.std(1, keepdim=True) + self._s["scale.eps"])
        return apart.flatten()

    def _scored(self, prompts: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy of each generated token: [N, room]."""
        logits = self._policy.model(input_ids=torch.cat([prompts, tokens], 1)).logits[:, prompts.shape[1] - 1 : -1]
        logp = logits.log_softmax(-1)
        return logp.gather(2, tokens[:, :, None]).squeeze(2), -(logp.exp() * logp).sum(2)

    def _update(
        self, prompts: Tensor, tokens: Tensor, mask: Tensor, old: Tensor, advantage: Tensor
    ) -> dict[str, float]:
        """Do one update on all responses; return its metrics."""
        low, high = 1 - self._s["clip.low"], 1 + self._s["clip.high"]
        a = advantage[:, None].expand_as(old)
        ratio = (self._scored(prompts, tokens)[0] - old).exp()
        objective = torch.minimum(ratio * a, ratio.clamp(low, high) * a) * mask
        length = mask.sum(1) if self._s["aggregation.kind"] == "seq_mean" else self._recipe.schedule.max_new_tokens
        loss = -(objective.sum(1) / length).mean()
        self._optimizer.zero_grad()
        loss.backward()
        gradients = [p.grad.norm() for p in self._policy.model.parameters() if p.grad is not None]
        self._optimizer.step()
        return {
            "optim/loss": float(loss),
            "optim/grad_norm": float(torch.stack(gradients).norm()),
            "clip/low_frac": float(((a < 0) & (ratio < low))[mask].double().mean()),
            "clip/high_frac": float(((a > 0) & (ratio > high))[mask].double().mean()),
        }

    # ---- the evaluation, as every runner does it -----------------------------------------------------

    def _evaluate(self, step: int) -> None:
        self._policy.model.set_attn_implementation(attention.NAME)
        evaluate = Evaluate.model_validate({k: v for k, v in self._given().items() if k in Evaluate.model_fields})
        for name, chosen in evaluate.due(step, self._recipe.schedule.steps).items():
            answers = answered(chosen, self._grader, partial(self._answers, name, chosen, step))
            self._out.write_evaluation(evaluated(name, chosen, answers, step).evaluation)

    def _answers(
        self, name: str, chosen: EvaluationSet, step: int, prompts: Sequence[str], places: Sequence[int]
    ) -> list[Sampled]:
        room = chosen.max_new_tokens or self._recipe.schedule.max_new_tokens
        place, encoded = (self._s["seed"], "evaluate", name, step), self._policy.encode(prompts)
        asked = Requests(encoded, chosen.samples, room, chosen.temperature, place, chosen.top_p, places=places)
        said = complete(TorchSampler(self._policy), asked)
        ended = (~said.truncated).tolist()
        texts = self._policy.decode(said.tokens())
        return [Sampled(*each) for each in zip(texts, said.length.tolist(), ended, strict=True)]

    def _given(self) -> dict[str, Any]:
        return {k.removeprefix("evaluate."): v for k, v in self._s.items() if k.startswith("evaluate.")}


def main() -> None:
    """Run the program with what Paribus gives it."""
    recipe = Recipe.model_validate_json(Path(os.environ["PARIBUS_RECIPE"]).read_bytes())
    settings = json.loads(Path(os.environ["PARIBUS_SETTINGS"]).read_bytes())
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    cache, warm_up = Path(os.environ["PARIBUS_CACHE"]), WarmUp.of(recipe.task)
    model = tiny.make(cache, fingerprint.model(recipe), MODELS[recipe.model.name], warm_up)
    policy = Policy.load(str(model), None, recipe.model.dtype)
    Program(recipe, settings, policy, RunFolder(Path(os.environ["PARIBUS_OUT"]))).run()


if __name__ == "__main__":
    main()
