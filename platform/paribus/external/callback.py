"""``paribus.TrainerCallback``: one line in a script that trains with TRL or the Trainer of transformers.

It has the methods that a ``Trainer`` calls and imports nothing of transformers; :meth:`TrainerCallback.__getattr__`
answers the events that it does not use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paribus.external.track import TrackedRun, track

_EVAL = "eval/heldout/avg_at_1"


class TrainerCallback:
    """Tracks a training with TRL or transformers: ``callbacks=[paribus.TrainerCallback("x", "dr_grpo", seed=1)]``.

    Args:
        study: name of the study.
        arm: name of the arm.
        seed: the seed; ``None``: that of the trainer's arguments.
        home: home folder; ``None``: ``$PARIBUS_HOME``, else ``.paribus``.
        primary: metric of the tables; ``None``: that of the study, else of its evaluation, else the reward.
        base: arm that the others are compared with; ``None``: the first that was tracked.
        stop_on: detectors that end the training when they are critical.
        trainer: whose metric names are logged.

    Raises:
        ParibusError: an argument is wrong. Trouble with disks and databases raises nothing.
    """

    def __init__(
        self,
        study: str,
        arm: str,
        seed: int | None = None,
        *,
        home: str | Path | None = None,
        primary: str | None = None,
        base: str | None = None,
        stop_on: Iterable[str] = (),
        trainer: str = "trl",
    ) -> None:
        from paribus.external.track import _checked

        stops = stop_on if isinstance(stop_on, str) else tuple(stop_on)
        _checked(study, arm, 0 if seed is None else seed, trainer, None, primary, base, stops)
        self._asked: dict[str, Any] = {"home": home, "base": base, "stop_on": stops, "trainer": trainer}
        self._study, self._arm, self._seed, self._primary = study, arm, seed, primary
        self._run: TrackedRun | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to track, in the process of rank 0 alone."""
        if not getattr(state, "is_world_process_zero", True):
            return
        seed = int(getattr(args, "seed", 0)) if self._seed is None else self._seed
        evaluates = str(getattr(getattr(args, "eval_strategy", "no"), "value", "no")) != "no"
        primary = self._primary or (_EVAL if evaluates else None)
        steps = max(0, int(getattr(state, "max_steps", 0) or 0)) or None
        self._run = track(self._study, self._arm, seed, steps=steps, primary=primary, **self._asked)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Report what the trainer logs."""
        if self._run is not None and logs and "train_runtime" not in logs:  # the summary at the end is no step
            self._run.log(int(getattr(state, "global_step", 0)), _numbers(logs))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ask the trainer to stop where a detector of ``stop_on`` is critical."""
        if self._run is not None and self._run.should_stop:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the end."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()

    def __getattr__(self, name: str) -> Any:
        """Answer the other events of a trainer, which change nothing."""
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(name)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _numbers(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is a number, or the text of one: transformers rounds some numbers to text."""
    found: dict[str, Any] = {}
    for name, value in logs.items():
        if isinstance(value, str):
            try:
                found[name] = float(value)
            except ValueError:
                continue
        else:
            found[name] = value
    return found
