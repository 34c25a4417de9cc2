"""The group that the samples page shows, and the group that it is compared with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.datastructures import QueryParams

from paribus.run_folder.folder import SHORT
from paribus.store.models import RunRecord
from paribus_dashboards.choices import Option, spread_out
from paribus_dashboards.data.groups import Group
from paribus_dashboards.data.home import Home
from paribus_dashboards.data.sample_index import RunSamples
from paribus_dashboards.data.study_now import StudyNow

MAX_OFFERED = 200
"""Most earlier steps, and most other arms, that the page offers for a comparison."""

_STEP = re.compile(r"[0-9]{1,15}")


def chosen_step(steps: Sequence[int], query: QueryParams) -> tuple[int, str]:
    """Return the requested step, else the newest one, and a note if it is not the requested one."""
    asked = query.get("step", "")
    if not asked:
        return steps[-1], ""
    if not _STEP.fullmatch(asked):
        return steps[-1], f"{asked[:SHORT]} is not a step; showing the newest"
    wanted = int(asked)
    if wanted < steps[0]:
        return steps[0], f"step {wanted} has none; showing the first that has"
    found = max(s for s in steps if s <= wanted)
    return found, "" if found == wanted else f"step {wanted} has none; showing the nearest before it"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What a group is compared with.

    Attributes:
        title: e.g. ``step 20``.
        group: the group of the same problem there; ``None`` if the run kept none.
    """

    title: str
    group: Group | None


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The shown part of a run: a problem set, a step and a problem.

    Attributes:
        study: the study.
        run: the run.
        samples: its samples.
        set: the problem set.
        step: the step.
        key: key of the problem; empty if none is chosen.
    """

    study: StudyNow
    run: RunRecord
    samples: RunSamples
    set: str
    step: int
    key: str

    def reference_options(self, chosen: str) -> Mapping[str, tuple[Option, ...]]:
        """Return what the group can be compared with: earlier steps of the run, and other arms with the same seed.

        Args:
            chosen: value of the current choice.
        """
        earlier = spread_out([s for s in self.samples.kept_at(self.set, self.key) if s < self.step], MAX_OFFERED)
        found = {
            "an earlier step": {f"step-{s}": f"step {s}" for s in reversed(earlier)},
            "another arm, same step and seed": {f"arm-{r.arm}": r.label for r in self._nearby(chosen)},
        }
        return {
            title: tuple(Option(value=value, text=text, chosen=value == chosen) for value, text in options.items())
            for title, options in found.items()
            if options
        }

    def _nearby(self, chosen: str) -> Sequence[RunRecord]:
        """Return the runs of the arms around this one in the plan, and those of the base and of the choice."""
        found, plan = self._same_seed(), self.study.record.plan
        if len(found) <= MAX_OFFERED:
            return found
        place = {a.key: i for i, a in enumerate(plan.all_arms)}
        first = max(0, place[self.run.arm] - MAX_OFFERED // 2)
        near = range(first, first + MAX_OFFERED)
        return [r for r in found if place[r.arm] in near or r.arm == plan.base or chosen == f"arm-{r.arm}"]

    def _same_seed(self) -> tuple[RunRecord, ...]:
        return tuple(r for r in self.study.runs if r.seed == self.run.seed and r.arm != self.run.arm and r.token)

    def reference(self, home: Home, chosen: str) -> Reference | None:
        """Return what the group is compared with; ``None`` for no choice or an unknown one."""
        kind, _, what = chosen.partition("-")
        if kind == "step" and _STEP.fullmatch(what):
            samples, step, title = self.samples, int(what), f"step {int(what)}"
        elif kind == "arm" and (other := next((r for r in self._same_seed() if r.arm == what), None)):
            samples, step = home.samples(other), self.step
            title = f"{other.label}, seed {other.seed}, step {self.step}"
        else:
            return None
        groups, _ = samples.groups(self.set, step, self.key)
        return Reference(title=title, group=next((g for g in groups if g.samples), None))

    def nearest(self) -> tuple[int, ...]:
        """Return the nearest steps before and after this one with responses to the problem."""
        steps = self.samples.kept_at(self.set, self.key) if self.key else ()
        return (*[s for s in steps if s < self.step][-1:], *[s for s in steps if s > self.step][:1])

    def group(self, groups: Sequence[Group]) -> Group | None:
        """Return the group of the problem, from ``groups`` if it is there; ``None`` if the step has no such group."""
        found = next((g for g in groups if g.key == self.key), None)
        alone = self.samples.groups(self.set, self.step, self.key)[0] if self.key and not found else ()
        return found or next(iter(alone), None)
