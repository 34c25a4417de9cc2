"""GRPOTrainer with records: what it samples and what its loss sees becomes canonical metrics.

What is overridden here does not change what TRL computes, but for three things: prompts are the tokens that every
runner gives the model, sampling is seeded by the step, and the order of the prompts is that of every runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import LogitsProcessor
from trl import GRPOTrainer

from paribus_runners.native.responses import Responses
from paribus_runners.native.rollout.sampler import Finished, Requests


class Watcher(LogitsProcessor):  # type: ignore[misc]
    """Notes the log-probability of each token that is sampled, and the entropy, over the full vocabulary.

    Transformers asks it before it applies the temperature. At each token it is given the one before.

    Args:
        temperature: logits are divided by it.
    """

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._before: Tensor | None = None
        self._logp: list[Tensor] = []
        self._entropy: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Note what was sampled from the scores [N, V] before, and keep these."""
        self._take(input_ids[:, -1])
        self._before = (scores.float() / self._temperature).log_softmax(-1)
        return scores

    def _take(self, tokens: Tensor) -> None:
        if self._before is not None:
            logp = self._before
            self._logp.append(logp.gather(1, tokens[:, None]).squeeze(1))
            self._entropy.append(-(logp.exp() * logp.clamp_min(torch.finfo(logp.dtype).min)).sum(-1))
        self._before = None

    def finish(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Take the last tokens [N]; return log-probabilities and entropies, each [N, W], on the CPU."""
        self._take(tokens)
        return torch.stack(self._logp, 1).cpu(), torch.stack(self._entropy, 1).cpu()


class Recorder(Protocol):
    """What gets the records, and says what is sampled next."""

    def prompts(self, rows: Sequence[Mapping[str, Any]]) -> list[list[int]]:
        """Return the tokens of the prompts of the rows of the dataset, each as often as it is sampled."""

    def sampled(self, sample: Callable[[Requests], Iterator[Finished]]) -> None:
        """Take the rollouts of a step, which ``sample`` gives."""

    def weighed(self, output: Mapping[str, Tensor]) -> None:
        """Take advantages and old log-probabilities [N, ...], in the order in which they were sampled."""

    def seen(self, inputs: Mapping[str, Tensor], logp: Tensor, entropy: Tensor, loss: Tensor) -> None:
        """Take what a forward pass of the loss has computed [n, W]."""

    def updated(self, norm: float) -> None:
        """Take the gradient norm before clipping: an optimizer update follows."""


class RecordedTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer that gives its records to a :class:`Recorder`."""

    recorder: Recorder
    _rows: Sequence[Mapping[str, Any]]
    _passed: tuple[Tensor, Tensor] | None = None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._rows = inputs
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        output["row"] = torch.arange(len(inputs), device=self.accelerator.device)  # the trainer shuffles them
        self.recorder.weighed(output)
        return output

    def _tokenize_prompts(self, prompts: list[Any]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return self.recorder.prompts(self._rows), None, {}

    def _generate_single_turn(self, prompt_ids: list[list[int]], *others: Any, **more: Any) -> tuple[Any, None]:
        found: list[list[int]] = []

        def sample(requests: Requests) -> Iterator[Finished]:
            torch.manual_seed(requests.seed(0))
            watcher = Watcher(requests.temperature)
            with self._watched(watcher) as last:
                ids, _ = super(RecordedTrainer, self)._generate_single_turn(prompt_ids, *others, **more)
            logp, entropy = watcher.finish(last())
            found.extend(ids)
            yield Finished(range(len(requests.prompts)), self._responses(ids, logp, entropy))

        self.recorder.sampled(sample)
        return found, None

    @contextmanager
    def _watched(self, watcher: Watcher) -> Iterator[Callable[[], Tensor]]:
        """Let the model's `generate` also ask the watcher; give a function that returns the last tokens [N]."""
        model, kept = self.accelerator.unwrap_model(self.model), list[Tensor]()
        generate = model.generate

        def watched(**arguments: Any) -> Tensor:
            ids: Tensor = generate(**arguments, logits_processor=[watcher])
            kept.append(ids[:, -1])
            return ids

        model.generate = watched
        try:
            yield lambda: kept[-1]
        finally:
            del model.generate

    def _responses(self, ids: Sequence[Sequence[int]], logp: Tensor, entropy: Tensor) -> Responses:
        length = torch.tensor([len(row) for row in ids])
        inside = torch.arange(logp.shape[1]) < length[:, None]
        return Responses(
            ids=torch.tensor([token for row in ids for token in row]),
            logp=logp[inside],
            entropy=entropy[inside],
            length=length,
            truncated=torch.tensor([row[-1] not in self.eos_token_ids for row in ids]),
        )

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **more: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = super()._get_per_token_logps_and_entropies(*arguments, **more)
        if torch.is_grad_enabled():
            self._passed = found[0].detach(), found[1].detach()
        return found

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        loss: Tensor = super()._compute_loss(model, inputs)
        assert self._passed is not None
        self.recorder.seen(inputs, *self._passed, loss.detach())
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        found = super()._get_grad_norm(model, grad_norm)
        self.recorder.updated(float(found))
        return found


class Given:
    """A sampler that gives what TRL samples; see :class:`paribus_runners.native.rollout.sampler.Sampler`."""

    all_at_once = True

    def __init__(self, sample: Callable[[Requests], Iterator[Finished]]) -> None:
        self.sample = sample

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> Mapping[str, float]:
        """Do nothing: TRL samples from the weights that it trains."""
        return {}

    def rest(self) -> None:
        """Do nothing."""
