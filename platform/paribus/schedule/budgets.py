"""Keeps studies to their budgets: no new attempts where too little is left, and an end with grace where all is used."""

from __future__ import annotations

import time
from collections.abc import Callable

from paribus.schedule.flights import Flights
from paribus.schedule.served import Served
from paribus.store.budget import OVERRUN_S, shown_use
from paribus.store.reader import Reader
from paribus.store.records import BudgetRecord, unit_of

CHECK_S = 1.0
"""Seconds between two looks at what the attempts in flight have used of their budgets."""


class Budgets:
    """Looks after the budgets of one scheduler's studies.

    Args:
        reader: the store.
        flights: the attempts in flight.
        say: takes one line for people.
    """

    def __init__(self, reader: Reader, flights: Flights, say: Callable[[str], None]) -> None:
        self._store = reader
        self._flights = flights
        self._say = say
        self._next_check = 0.0

    def _of(self, served: Served) -> BudgetRecord:
        return self._store.budget(served.study.name, unit_of(served.need.gpus))

    def still_broke(self, served: Served) -> bool:
        """Tell whether a budget that had too little left for another attempt still has."""
        served.broke = served.broke and self.is_broke(served)
        return served.broke

    def is_broke(self, served: Served) -> bool:
        """Tell whether a budget has too little left for one more attempt; what is in flight may need less."""
        budget = self._of(served)
        if not budget.allows_another and not served.broke:
            self._say(
                f"{served.study.name}: the budget has too little left ({shown_use(budget)}; another run may need "
                f"{budget.estimate / 3600:.3g}): no new attempts for now"
            )
        return not budget.allows_another

    def keep(self) -> None:
        """End the attempts in flight with grace, when they have used their budget up; their checkpoints stay."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_S
        for name, unit in self._flights.budgets:
            fresh = self._flights.fresh(name, unit)
            budget = self._store.budget(name, unit) if fresh else None
            if budget is None or not budget.used_up:
                continue
            most = self._flights.slots(name, unit) * OVERRUN_S / 3600
            self._say(
                f"{name}: the budget is used up ({shown_use(budget)}): the runs write a checkpoint and end; "
                f"{most:.3g} more at most"
            )
            for attempt in fresh:
                self._flights.cap(attempt)
