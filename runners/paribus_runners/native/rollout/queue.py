"""The rollout queue: rollouts sampled ahead of their step, and the surplus groups of a filter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from paribus_runners.native.experts import Experts
from paribus_runners.native.objective.advantage import Scored
from paribus_runners.native.responses import Given, Responses
from paribus_runners.native.rollout.rollouts import PER_RESPONSE, Rollouts
from paribus_runners.native.support import Support


@dataclass(frozen=True)
class RolloutQueue:
    """What was sampled and is still to be trained on.

    Attributes:
        steps: rollouts of the next steps, in order.
        surplus: groups that the next sampling round starts with.
    """

    steps: tuple[Rollouts, ...] = ()
    surplus: Rollouts | None = None

    def __bool__(self) -> bool:
        return bool(self.steps) or self.surplus is not None

    def save(self, path: Path) -> None:
        """Write the queue to one safetensors file."""
        every = [*self.steps, *([] if self.surplus is None else [self.surplus])]
        # copies, because the format has no tensors that share memory, as lengths of responses and of scores may
        tensors = {f"{i}/{name}": x.clone().contiguous() for i, r in enumerate(every) for name, x in _tensors(r)}
        plain = {"queue": len(self.steps), "rollouts": [_plain(r) for r in every]}
        save_file(tensors, path, metadata={"plain": json.dumps(plain)})

    @classmethod
    def load(cls, path: Path) -> RolloutQueue:
        """Read what :meth:`save` wrote.

        Raises:
            SafetensorError: the file is damaged.
            ValueError: an earlier version wrote it.
            KeyError: an entry is missing.
        """
        with safe_open(path, framework="pt") as file:
            plain = json.loads(file.metadata()["plain"])
            every = []
            for i, values in enumerate(plain["rollouts"]):
                names = [k.removeprefix(f"{i}/") for k in file.keys() if k.startswith(f"{i}/")]  # noqa: SIM118 - no dict
                every.append(_rollouts({name: file.get_tensor(f"{i}/{name}") for name in names}, values))
        steps = plain["queue"]
        return cls(tuple(every[:steps]), every[steps] if len(every) > steps else None)


_PLAIN = ("prompts", "problems", "rounds", "seconds_sampling", "seconds_reward")
_OWN = ("born", "carried", "kept")
_RESPONSES = tuple(f.name for f in fields(Responses) if f.name not in ("entropy", "support", "given", "experts"))
_GIVEN = tuple(f.name for f in fields(Given))


def _tensors(rollouts: Rollouts) -> Iterator[tuple[str, Tensor]]:
    yield from ((name, getattr(rollouts, name)) for name in _OWN)
    yield from ((f"responses/{name}", getattr(rollouts.responses, name)) for name in _RESPONSES)
    yield from ((f"scored/{name}", getattr(rollouts.scored, name)) for name in ("group", *PER_RESPONSE))
    if rollouts.responses.entropy is not None:
        yield "responses/entropy", rollouts.responses.entropy
    if (support := rollouts.responses.support) is not None:
        yield from (("support/ids", support.ids), ("support/size", support.size))
    if (experts := rollouts.responses.experts) is not None:
        yield from (("experts/ids", experts.ids), ("experts/size", experts.size))
    if (given := rollouts.responses.given) is not None:
        yield from ((f"given/{name}", getattr(given, name)) for name in _GIVEN)
    for name in ("reference", "steps"):
        if (values := getattr(rollouts, name)) is not None:
            yield name, values


def _plain(rollouts: Rollouts) -> dict[str, Any]:
    return {name: getattr(rollouts, name) for name in _PLAIN} | {"groups": rollouts.scored.groups}


def _rollouts(tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> Rollouts:
    values: dict[str, Any] = {name: plain[name] for name in _PLAIN} | {name: tensors[name] for name in _OWN}
    names = ("group", *PER_RESPONSE)  # a queue from before there were reward functions lacks what they gave
    scored = {name: tensors[f"scored/{name}"] for name in names if f"scored/{name}" in tensors}
    parts = {name: tensors[f"responses/{name}"] for name in _RESPONSES}
    if parts["ids"].dim() != 1:
        raise ValueError("its queue of rollouts was written by an earlier version")
    support = Support(tensors["support/ids"], tensors["support/size"]) if "support/ids" in tensors else None
    experts = Experts(tensors["experts/ids"], tensors["experts/size"]) if "experts/ids" in tensors else None
    given = Given(**{name: tensors[f"given/{name}"] for name in _GIVEN}) if "given/ids" in tensors else None
    return Rollouts(
        **values,
        responses=Responses(
            **parts, entropy=tensors.get("responses/entropy"), support=support, given=given, experts=experts
        ),
        scored=Scored(groups=plain["groups"], **scored),
        reference=tensors.get("reference"),
        steps=tensors.get("steps"),
    )
