"""A study that a scheduler serves."""

from __future__ import annotations

from dataclasses import dataclass

from paribus.engines.base import Need
from paribus.schedule.preparation import Preparation
from paribus.store.records import StudyRecord


@dataclass(kw_only=True)
class Served:
    """A study that is served.

    Attributes:
        need: what each of its runs holds.
        preparation: what has to come to its end before the first run; ``None`` afterwards.
        broke: its budget has too little left for one more attempt.
        full_until: when the machine is asked again that had nothing for another run.
    """

    study: StudyRecord
    need: Need
    preparation: Preparation | None
    broke: bool = False
    full_until: float = 0.0
