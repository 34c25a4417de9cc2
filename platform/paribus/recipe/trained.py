"""Names of models that runs of a study train: a later stage begins with the model of an earlier one.

``study:warm/base`` is the model that arm ``base`` of the study ``warm`` has trained with the same seed as the run that
begins with it, ``study:warm/base@3`` that of seed 3, for all runs.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "study:"


@dataclass(frozen=True)
class TrainedBy:
    """The runs that train a model: of one arm of a study.

    Attributes:
        study: name of the study.
        arm: label or key of the arm.
        seed: seed of the run; ``None``: the seed of the run that begins with the model.
    """

    study: str
    arm: str
    seed: int | None

    @classmethod
    def read(cls, name: str) -> TrainedBy | None:
        """Return what a model's name says; ``None`` if it is no model of a study.

        Raises:
            ValueError: it names no study or no arm.
        """
        if not name.startswith(PREFIX):
            return None
        study, _, arm = name.removeprefix(PREFIX).partition("/")
        label, _, digits = arm.rpartition("@")
        seed = int(digits) if label and digits.isascii() and digits.isdigit() else None
        label = arm if seed is None else label
        if not study or not label:
            raise ValueError(
                f"`{name}` needs a study and an arm: write e.g. `study:warm/base` for the models of arm `base` of the "
                "study `warm`, seed by seed, or `study:warm/base@3` for that of seed 3"
            )
        return cls(study, label, seed)


def name_faults(name: str, revision: str | None) -> str:
    """Return what is wrong with a model's name as that of a model of a study; empty if nothing is."""
    try:
        found = TrainedBy.read(name)
    except ValueError as error:
        return str(error)
    if found is not None and revision is not None:
        return f"`revision` is a commit on the hub, and `{name}` is a model that a run of a study trains: remove it"
    return ""
