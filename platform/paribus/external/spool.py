"""The folder between a program that trains and the process that records it: ``<home>/tracking/<id>/``.

======================  ============  =====================================================================
file                    written by    content
======================  ============  =====================================================================
``about.json``          the program   what it tracks, and its identity as a process
``records.jsonl``       the program   one record a call of ``log``: step, time, the program's own names
``end.json``            the program   how it ended: ``succeeded``, or ``failed`` with a reason
``claiming``            the recorder  empty: it is about to enter the run into the store, or has done so
``state.json``          the recorder  the run in the store, and how far the records have been read
``stop``                the recorder  why the program should stop: a finding of ``stop_on``, or `paribus cancel`
``refused``             the recorder  why nothing is recorded
``lock``                the recorder  held while it lives
======================  ============  =====================================================================

This module imports nothing slow: it runs in the program that trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = "tracking"
"""In the home folder."""


@dataclass(frozen=True, kw_only=True)
class About:
    """What a program tracks.

    Attributes:
        study: name of the study.
        arm: name of the arm.
        seed: the seed.
        trainer: whose names its metrics have; empty: the recorder finds out.
        steps: number of steps that it will make; 0: not known.
        primary: metric of the tables; empty: the recorder chooses.
        base: arm that the others are compared with; empty: the first.
        stop_on: detectors that stop it when they are critical.
        process: identity of the program, as JSON.
    """

    study: str
    arm: str
    seed: int
    trainer: str
    steps: int
    primary: str
    base: str
    stop_on: tuple[str, ...]
    process: Mapping[str, Any]


class Spool:
    """The paths of a spool folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about = path / "about.json"
        self.records = path / "records.jsonl"
        self.end = path / "end.json"
        self.claiming = path / "claiming"
        self.state = path / "state.json"
        self.stop = path / "stop"
        self.refused = path / "refused"
        self.lock = path / "lock"

    @property
    def home(self) -> Path:
        """The home folder."""
        return self.path.parents[1]
