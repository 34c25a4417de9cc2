"""How long a study will take on a cluster, and when its report will be able to test its effects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from paribus.errors import ParibusError
from paribus.report.analysis.effect import MIN_SEEDS, contrast
from paribus.scheduler.simulated_cluster import ClusterShape, Rates
from paribus.scheduler.simulation import Played, play
from paribus.study.costs import Cost, PastRun
from paribus.study.plan import Plan
from paribus.text import plural

FAILURE_H = 50_000.0
"""GPU-hours between two failures that end a run: 419 in 54 days on 16,384 GPUs (Llama 3, arXiv 2407.21783, Table 5)."""

CPU_HOURS = "CPU run-hours"


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """When arms can first be compared with the base.

    Attributes:
        at_s: key of each arm but the base to seconds since the submission; arms that can't be tested are left out.
        never: labels of the arms that can't be tested when all runs have ended.
    """

    at_s: Mapping[str, float]
    never: tuple[str, ...]

    @property
    def first(self) -> tuple[str, float] | None:
        """The first arm that can be tested, and when; ``None`` if none can."""
        return min(self.at_s.items(), key=lambda each: each[1]) if self.at_s else None

    @property
    def all_s(self) -> float | None:
        """When all arms can be tested; ``None`` if some can't."""
        return None if self.never or not self.at_s else max(self.at_s.values())


def verdicts(plan: Plan, played: Played, recorded: Iterable[str] = ()) -> Verdicts:
    """Return when each arm first has what its report needs to test it: :attr:`Effect.supported`.

    Args:
        plan: the study, with the runs that have a result.
        played: how the rest of it went.
        recorded: fingerprints of the runs that have a result.
    """
    known = frozenset(recorded)
    had = [(run.arm, run.seed, 0.0) for run in plan.runs if run.fingerprint in known]
    came = [(run.arm, run.seed, run.at_s) for run in played.ended if run.recorded]
    seeds: dict[str, dict[int, float]] = {arm.key: {} for arm in plan.arms}
    at_s: dict[str, float] = {}
    for arm, seed, when in [*had, *came]:
        if arm not in seeds:  # a trial of a search
            continue
        seeds[arm][seed] = 0.0  # a score of no meaning: the rule only counts
        for other in seeds if arm == plan.base else (arm,):
            if other != plan.base and other not in at_s and _testable(plan, seeds[other], seeds[plan.base]):
                at_s[other] = when
    never = tuple(arm.label for arm in plan.arms if arm.key != plan.base and arm.key not in at_s)
    return Verdicts(at_s=at_s, never=never)


def _testable(plan: Plan, arm: Mapping[int, float], base: Mapping[int, float]) -> bool:
    if min(len(arm), len(base)) < MIN_SEEDS:
        return False
    effect = contrast([(1.0, arm), (-1.0, base)], paired=plan.paired)
    return effect is not None and effect.supported


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a study takes on a cluster.

    Attributes:
        cluster: the cluster.
        rates: how often attempts end early.
        amount: devices that a run holds.
        sources: where the hours of a run come from.
        start_s: seconds from a claim to the first report of an attempt.
        starts: recorded runs that this is the median of; 0: none was recorded, and it counts as 0.
        expected: how the study goes.
        low: the same if every run is as short as its cost says at least.
        high: the same if every run is as long as its cost says at most.
        twice: the same with a second cluster beside the first.
        verdicts: when arms can be tested.
        verdicts_twice: the same with a second cluster.
        notes: sentences on what the numbers leave out.
    """

    cluster: ClusterShape
    rates: Rates
    amount: float
    sources: tuple[str, ...]
    start_s: float
    starts: int
    expected: Played
    low: Played
    high: Played
    twice: Played
    verdicts: Verdicts
    verdicts_twice: Verdicts
    notes: tuple[str, ...]


def forecast(
    plan: Plan,
    costs: Mapping[str, Cost],
    past: Sequence[PastRun],
    cluster: ClusterShape,
    *,
    recorded: Collection[str] = (),
    rates: Rates,
) -> Forecast:
    """Play the runs of a study that have no result on a cluster, and with another one like it.

    Args:
        plan: the study.
        costs: what one run of each arm costs, by key of the arm.
        past: recorded runs, for the seconds that an attempt takes to start.
        cluster: where it runs.
        recorded: fingerprints of runs that have a result.
        rates: how often attempts end early.

    Raises:
        ParibusError: the hours of a run are not known, or are those of another kind of device.
        TooLarge: a run asks for more than a node has.
    """
    left = [run for run in plan.all_runs if run.fingerprint not in set(recorded)]
    used = {arm: costs[arm] for arm in _known(plan, costs, cluster, {run.arm for run in left})}
    amount = 1.0 if plan.resources.gpus is None or not cluster.has_gpus else plan.resources.gpus
    alike = [run.waited_s for run in past if (run.gpus > 0) == cluster.has_gpus and run.runner == plan.runner]
    start_s = median(alike) if alike else 0.0
    played: dict[tuple[tuple[float, ...], int], Played] = {}

    def made(which: str, clusters: int) -> Played:
        hours = {arm: float(getattr(cost, which)) / (amount or 1.0) for arm, cost in used.items()}
        key = tuple(hours.values()), clusters
        if key not in played:
            played[key] = play(plan, [cluster] * clusters, hours, recorded=recorded, rates=rates, start_s=start_s)
        return played[key]

    expected, twice = made("expected", 1), made("expected", 2)
    return Forecast(
        cluster=cluster,
        rates=rates,
        amount=amount if cluster.has_gpus else float(plan.resources.cpus or 1),
        sources=tuple(dict.fromkeys(source for cost in used.values() for source in cost.sources)),
        start_s=start_s,
        starts=len(alike),
        expected=expected,
        low=made("low", 1),
        high=made("high", 1),
        twice=twice,
        verdicts=verdicts(plan, expected, recorded),
        verdicts_twice=verdicts(plan, twice, recorded),
        notes=tuple(_notes(plan, past, cluster, amount)),
    )


def usual_rates(cluster: ClusterShape, failure_h: float | None, preemption_h: float | None, seed: int) -> Rates:
    """Return the rates that a user has stated; unstated, failures of GPUs are those of :data:`FAILURE_H`."""
    usual = FAILURE_H if cluster.has_gpus else inf
    return Rates(
        failure_h=usual if failure_h is None else failure_h or inf,
        preemption_h=preemption_h or inf,
        seed=seed,
    )


def _known(plan: Plan, costs: Mapping[str, Cost], cluster: ClusterShape, arms: Collection[str]) -> list[str]:
    """Return the arms that have runs left, if what these cost is known in hours of such devices."""
    unknown = [arm.label for arm in plan.all_arms if arm.key in arms and arm.key not in costs]
    if unknown:
        names = ", ".join(f"`{label}`" for label in unknown[:4]) + (", ..." if len(unknown) > 4 else "")
        raise ParibusError(
            f"how long a run of {names} takes is not known, so the study can't be played on a cluster. Record it "
            "(`paribus run STUDY --set seeds.n=1`), measure it on this machine (--probe), or state `budget: {prior: "
            "{low: 0.5, expected: 1.0, high: 2.0}}` in GPU-hours."
        )
    other = sorted({costs[arm].unit for arm in arms if (costs[arm].unit != CPU_HOURS) != cluster.has_gpus})
    if other:
        what = "GPUs" if cluster.has_gpus else "CPU cores"
        by = " and ".join(sorted({source for arm in arms for source in costs[arm].sources}))
        raise ParibusError(
            f"the cost of a run is known in {other[0]} by {by}, which say nothing of {what}: name a cluster of that "
            "kind of device."
        )
    return [arm.key for arm in plan.all_arms if arm.key in arms]


def _notes(plan: Plan, past: Sequence[PastRun], cluster: ClusterShape, amount: float) -> Iterable[str]:
    """Yield what the numbers leave out of this study."""
    if cluster.has_gpus:
        yield f"the hours of a run are used as they are: nothing is known here of how fast {cluster.kind} is"
    held = {run.gpus for run in past if run.gpus > 0}
    if cluster.has_gpus and held and amount not in held:
        *few, most = sorted(held)
        counts = " or ".join([*(f"{gpus:g}" for gpus in few), plural(most, "GPU")])
        yield f"recorded runs held {counts}, these hold {amount:g}: perfect scaling is assumed"
    yield "not counted: making what the runs share, queues of a cluster that others use, and the repair of a node"
    if plan.adaptive:
        yield "results may add runs to this study, which are not played"
