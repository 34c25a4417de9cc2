"""Prints what a study takes on a cluster that is named, and when it can be judged."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isinf
from typing import Any

from rich.console import Console

from paribus.cli.console import table
from paribus.report.forecast import Forecast, Verdicts, forecast, usual_rates
from paribus.scheduler.simulated_cluster import ClusterShape
from paribus.scheduler.simulation import Played, lost_runs
from paribus.study.costs import Cost, PastRun
from paribus.study.plan import Plan
from paribus.text import plural


class OnPaper:
    """The cluster of ``--cluster``, and how a study goes on it.

    Args:
        text: what the user wrote.

    Raises:
        ParibusError: it is no cluster.
    """

    def __init__(self, text: str) -> None:
        self._cluster = ClusterShape.read(text)
        self._found: Forecast | None = None

    def play(
        self,
        plan: Plan,
        costs: Mapping[str, Cost],
        past: Sequence[PastRun],
        recorded: Collection[str],
        stated: tuple[float | None, float | None, int],
    ) -> None:
        """Play the runs of a study that have no result; see :func:`~paribus.report.forecast.forecast`.

        Args:
            plan: the study.
            costs: what one run of each arm costs.
            past: recorded runs.
            recorded: fingerprints of runs that have a result.
            stated: device hours between failures, hours between preemptions, and the seed of the draws.
        """
        rates = usual_rates(self._cluster, *stated)
        self._found = forecast(plan, costs, past, self._cluster, recorded=recorded, rates=rates)

    def print(self, plan: Plan, out: Console) -> None:
        """Print how it goes."""
        if self._found is not None:
            print_forecast(plan, self._found, out)

    def as_plain(self, plan: Plan) -> dict[str, Any] | None:
        """Return how it goes as JSON values."""
        return None if self._found is None else forecast_as_plain(plan, self._found)


def print_forecast(plan: Plan, found: Forecast, out: Console) -> None:
    """Print how the study goes on one cluster, and on two like it."""
    played, twice = found.expected, found.twice
    out.print(f"\non a cluster of {found.cluster}, simulated", style="bold")
    out.print(f"  {_hours_words(found)}; {_rates_words(found)}")
    listed = table("", "one cluster", "two clusters")
    spread = f" ({_time(found.low.seconds)} to {_time(found.high.seconds)})"
    listed.add_row("wall time", _time(played.seconds) + (spread if _varies(found) else ""), _time(twice.seconds))
    listed.add_row("devices held", f"{played.utilisation:.0%}", f"{twice.utilisation:.0%}")
    listed.add_row("device hours", f"{played.held_h:.4g}", f"{twice.held_h:.4g}")
    listed.add_row("of them trained twice", f"{played.lost_h:.3g}", f"{twice.lost_h:.3g}")
    listed.add_row("attempts", f"{played.attempts:,}", f"{twice.attempts:,}")
    listed.add_row("ended by failures", f"{played.failures:,}", f"{twice.failures:,}")
    listed.add_row("preempted", f"{played.preemptions:,}", f"{twice.preemptions:,}")
    one, two = found.verdicts, found.verdicts_twice
    listed.add_row("first verdict", _first(plan, one), _first(plan, two))
    listed.add_row("all verdicts", _all(one), _all(two))
    out.print(listed)
    for line in _remarks(plan, found):
        out.print(line)


def forecast_as_plain(plan: Plan, found: Forecast) -> dict[str, Any]:
    """Return the same as JSON values; times in seconds since the submission."""
    rates = found.rates
    return {
        "nodes": found.cluster.nodes,
        "devices": found.cluster.devices,
        "kind": found.cluster.kind,
        "devices_a_run": found.amount,
        "sources": list(found.sources),
        "start_s": found.start_s,
        "starts_recorded": found.starts,
        "failure_device_hours": None if isinf(rates.failure_h) else rates.failure_h,
        "preemption_hours": None if isinf(rates.preemption_h) else rates.preemption_h,
        "seed": rates.seed,
        "one": _as_plain(plan, found.expected, found.verdicts),
        "two": _as_plain(plan, found.twice, found.verdicts_twice),
        "wall_s_low": found.low.seconds,
        "wall_s_high": found.high.seconds,
        "notes": list(found.notes),
    }


def _as_plain(plan: Plan, played: Played, verdicts: Verdicts) -> dict[str, Any]:
    return {
        "wall_s": played.seconds,
        "utilisation": played.utilisation,
        "device_hours": played.held_h,
        "device_hours_trained_twice": played.lost_h,
        "attempts": played.attempts,
        "failures": played.failures,
        "preemptions": played.preemptions,
        "ending": str(played.ending),
        "runs_open": played.open,
        "runs_lost": {plan.arm(arm).label: count for arm, count in lost_runs(played).items()},
        "verdict_s": dict(verdicts.at_s),
        "first_verdict_s": verdicts.first[1] if verdicts.first else None,
        "all_verdicts_s": verdicts.all_s,
        "never_tested": list(verdicts.never),
    }


def _hours_words(found: Forecast) -> str:
    sources = " and ".join(found.sources) or "no run is left"
    start = (
        f"{found.start_s:.2g} s, the median of {plural(found.starts, 'recorded run')}"
        if found.starts
        else "0 s, as none is recorded"
    )
    holds = plural(found.amount, "GPU" if found.cluster.has_gpus else "core")
    return f"a run holds {holds}; its hours by {sources}; an attempt starts in {start}"


def _rates_words(found: Forecast) -> str:
    rates = found.rates
    failures = "no failures" if isinf(rates.failure_h) else f"a failure every {rates.failure_h:,.0f} device hours"
    preempted = (
        "no preemptions" if isinf(rates.preemption_h) else f"a preemption every {rates.preemption_h:g} h of an attempt"
    )
    return f"{failures}, {preempted}, drawn with seed {rates.seed}"


def _varies(found: Forecast) -> bool:
    return found.low.seconds != found.high.seconds


def _time(seconds: float) -> str:
    """Return e.g. ``3 d 4.5 h``, ``4.5 h``, ``12.3 min`` or ``45 s``."""
    if seconds >= 48 * 3600:
        days, rest = divmod(seconds, 86400)
        return f"{days:.0f} d {rest / 3600:.1f} h"
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _first(plan: Plan, verdicts: Verdicts) -> str:
    return f"{_time(verdicts.first[1])} ({plan.arm(verdicts.first[0]).label})" if verdicts.first else "none"


def _all(verdicts: Verdicts) -> str:
    return "none" if verdicts.all_s is None else _time(verdicts.all_s)


def _remarks(plan: Plan, found: Forecast) -> list[str]:
    """Return sentences below the table."""
    lines = []
    if found.verdicts.first:
        lines.append(
            "verdict: when the report has the seeds to test an arm against the base; before the last run it says "
            "`So far`, not corrected for looking early"
        )
    if found.verdicts.never:
        lines.append(f"too few seeds with a result to test: {', '.join(found.verdicts.never)}")
    if found.expected.open:
        lines.append(
            f"{plural(found.expected.open, 'run is', 'runs are')} left without a result: the study ends by "
            f"{found.expected.ending}"
        )
    lost = lost_runs(found.expected)
    if lost:
        names = ", ".join(f"{plan.arm(arm).label} ({count})" for arm, count in lost.items())
        lines.append(f"runs that used up their tries: {names}")
    return [*lines, *found.notes]
