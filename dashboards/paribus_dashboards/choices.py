"""What a reader chooses on pages of single runs: run, problem set, step, prompt, comparison; how addresses hold it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from paribus.store.records import RunRecord
from paribus.track.folder import SHORT
from paribus_dashboards.groups import Group
from paribus_dashboards.heat import spread_out
from paribus_dashboards.home import Home, NotThere
from paribus_dashboards.reading import RunReading
from paribus_dashboards.study_now import StudyNow

MOST_OFFERED = 200
"""Earlier steps that one can compare with."""

FAR = 2.0**53
"""No x axis goes further, and no step beside it is lost to rounding."""

Span: TypeAlias = tuple[float | None, float | None]
"""First and last place of an x axis that are shown; ``None``: no bound."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """Something to choose: where it leads, what it is called, and whether it is chosen."""

    href: str
    text: str
    chosen: bool = False


@dataclass(frozen=True, kw_only=True)
class Option:
    """An entry of a drop-down list."""

    value: str
    text: str
    chosen: bool = False


def at(page: str, query: QueryParams, **changes: str) -> str:
    """Return the address of a page with its query and changes to it; what becomes empty is left out."""
    rest = urlencode({k: v for k, v in (dict(query) | changes).items() if v})
    return f"{page}?{rest}" if rest else page


def chosen_span(query: QueryParams) -> Span:
    """Return the part of the x axis that is asked for.

    Raises:
        NotThere: an end is no number, or the last lies before the first.
    """
    first, last = _end(query, "first"), _end(query, "last")
    if first is not None and last is not None and last < first:
        raise NotThere(f"the part from {first:g} to {last:g} is none: its end lies before its beginning")
    return first, last


def _end(query: QueryParams, name: str) -> float | None:
    text = query.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise NotThere(f"`{name}` is a place on the x axis, a number; `{text[:SHORT]}` is none")
    return max(-FAR, min(FAR, value))


def chosen_run(home: Home, study: StudyNow, query: QueryParams) -> RunRecord | None:
    """Return the run that is asked for, else the first that was attempted; ``None`` before any was.

    Raises:
        NotThere: there is no such run.
    """
    if query.get("run"):
        return home.find_run(study, query["run"])
    return next((r for r in study.runs if r.token), None)


def run_options(study: StudyNow, run: RunRecord) -> Mapping[str, tuple[Option, ...]]:
    """Return label of the arm to its runs that were attempted, for a drop-down list."""
    found: dict[str, list[Option]] = {}
    for r in study.runs:
        if r.token or r.id == run.id:
            option = Option(value=r.fingerprint[:SHORT], text=f"{r.label}, seed {r.seed}", chosen=r.id == run.id)
            found.setdefault(r.label, []).append(option)
    return {label: tuple(options) for label, options in found.items()}


def chosen_set(reading: RunReading, query: QueryParams) -> str:
    """Return the problem set that is asked for, else the first; empty if the run keeps none."""
    sets = reading.sets
    return query["set"] if query.get("set") in sets else next(iter(sets), "")


def chosen_step(steps: Sequence[int], query: QueryParams) -> tuple[int, str]:
    """Return the step that is asked for, else the newest, and what is said where it is another one."""
    asked = query.get("step", "")
    if not asked:
        return steps[-1], ""
    if not re.fullmatch(r"[0-9]{1,15}", asked):
        return steps[-1], f"{asked[:SHORT]} is no step: this is the newest"
    wanted = int(asked)
    if wanted < steps[0]:
        return steps[0], f"step {wanted} has none: this is the first that has"
    found = max(s for s in steps if s <= wanted)
    return found, "" if found == wanted else f"step {wanted} has none: this is the nearest before it"


@dataclass(frozen=True, kw_only=True)
class Other:
    """What a group is compared with.

    Attributes:
        title: e.g. ``step 20``.
        group: the group of the same problem there; ``None`` where none was kept.
    """

    title: str
    group: Group | None


@dataclass(frozen=True, kw_only=True)
class Place:
    """What of a run is shown: a problem set, a step, and a problem."""

    study: StudyNow
    run: RunRecord
    reading: RunReading
    set: str
    step: int
    key: str

    def others(self, asked: str) -> Mapping[str, tuple[Option, ...]]:
        """Return what the group can be compared with: earlier steps of the run, and other arms with its seed.

        Args:
            asked: what is compared with now.
        """
        earlier = spread_out([s for s in self.reading.kept_at(self.set, self.key) if s < self.step], MOST_OFFERED)
        found = {
            "an earlier step": {f"step-{s}": f"step {s}" for s in reversed(earlier)},
            "another arm, same step and seed": {f"arm-{r.arm}": r.label for r in self._beside()},
        }
        return {
            title: tuple(Option(value=value, text=text, chosen=value == asked) for value, text in options.items())
            for title, options in found.items()
            if options
        }

    def _beside(self) -> tuple[RunRecord, ...]:
        return tuple(r for r in self.study.runs if r.seed == self.run.seed and r.arm != self.run.arm and r.token)

    def other(self, home: Home, asked: str) -> Other | None:
        """Return what the group is compared with; ``None`` if nothing is asked for, or it is not there."""
        kind, _, what = asked.partition("-")
        if kind == "step" and re.fullmatch(r"[0-9]{1,15}", what):
            reading, step, title = self.reading, int(what), f"step {int(what)}"
        elif kind == "arm" and (there := next((r for r in self._beside() if r.arm == what), None)):
            reading, step, title = home.reading(there), self.step, f"{there.label}, seed {there.seed}, step {self.step}"
        else:
            return None
        groups, _ = reading.groups(self.set, step, self.key)
        return Other(title=title, group=next((g for g in groups if g.samples), None))

    def nearest(self) -> tuple[int, ...]:
        """Return the nearest steps before and after with responses to the problem."""
        steps = self.reading.kept_at(self.set, self.key) if self.key else ()
        return (*[s for s in steps if s < self.step][-1:], *[s for s in steps if s > self.step][:1])

    def group(self, groups: Sequence[Group]) -> Group | None:
        """Return the group of the problem: of those that were read, else it alone; ``None`` if it has none."""
        found = next((g for g in groups if g.key == self.key), None)
        alone = self.reading.groups(self.set, self.step, self.key)[0] if self.key and not found else ()
        return found or next(iter(alone), None)
