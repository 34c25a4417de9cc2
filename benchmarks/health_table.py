"""Alarms on healthy courses, and how often a fault is named, leads the verdict and is listed first.

    python benchmarks/health_table.py --half tune --each 10

The courses are those of `health_courses.py`. Rules are tuned on one half; the other has other seeds, and kinds and
faults that the first lacks. The page reports a third part that was fresh when it was judged.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from health_course_faults import ILL
from health_course_kinds import FRESH_ONLY, HEALTHY
from health_courses import REPORT_ONLY, Course, draw
from health_page import write
from health_plain import plain_alarms
from scipy import stats

from paribus.health.import_logs import canonical
from paribus.health.judge import judge_log
from paribus.health.log_files import by_step
from paribus.health.profile import load_profile
from paribus.health.signals import with_signals

HALVES = ("tune", "report", "fresh")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What was said about a course.

    Attributes:
        kind: the healthy kind.
        fault: the fault; empty: none.
        steps: length.
        noise: kind of noise.
        trainer: whose names.
        status: the verdict.
        alarms: detectors that warn or are critical, as listed.
        critical: those that are critical.
        named: whether a detector of the fault raised.
        headline: whether it leads the verdict.
        first: whether it is listed first.
        off: its onset minus that of the fault, in steps; ``None`` if it did not raise.
        leads: what leads the verdict.
        plain: names of the faults that fixed thresholds see.
        plain_named: whether the fault is among them.
    """

    kind: str
    fault: str
    steps: int
    noise: str
    trainer: str
    status: str
    alarms: tuple[str, ...]
    critical: tuple[str, ...]
    named: bool
    headline: bool
    first: bool
    off: int | None
    leads: str
    plain: tuple[str, ...]
    plain_named: bool


def judged(job: tuple[int, str, str, int]) -> Judged:
    """Draw and judge a course."""
    seed, kind, fault, half = job
    return judge(draw(seed, kind, fault, half=half))


def judge(course: Course) -> Judged:
    """Judge a course."""
    steps = by_step((("", r) for r in course.records), "course")
    log = canonical(steps, "course", None)
    found = judge_log(load_profile("default"), log)
    plain = plain_alarms(with_signals(log.lines))
    alarms = tuple(f.detector for f in found.raised)
    hit = next((f for f in found.raised if f.detector in course.names), None)
    return Judged(
        kind=course.kind,
        fault=course.fault,
        steps=course.steps,
        noise=course.noise,
        trainer=course.trainer,
        status=found.status,
        alarms=alarms,
        critical=tuple(f.detector for f in found.raised if f.state == "critical"),
        named=hit is not None,
        headline=found.first is not None and found.first.detector in course.names,
        first=bool(alarms) and alarms[0] in course.names,
        off=None if hit is None or hit.step_onset is None else hit.step_onset - course.onset,
        leads=found.first.detector if found.first else "",
        plain=plain,
        plain_named=bool(set(plain) & set(course.names)),
    )


def jobs(half: str, each: int, begin: int = 0) -> list[tuple[int, str, str, int]]:
    """Return the courses of a half: each healthy kind and each fault so many times, faults on kinds in turn."""
    number = HALVES.index(half)
    kinds = [k for k in HEALTHY if (number or k not in REPORT_ONLY) and (number == 2 or k not in FRESH_ONLY)]
    faults = [f for f in ILL if number or f not in REPORT_ONLY]
    hosts = ("ordinary", "plateau", "cosine schedule", "warm-up")
    healthy = [(s, k, "", number) for k in kinds for s in range(begin, begin + 2 * each)]
    return healthy + [(s, hosts[s % len(hosts)], f, number) for f in faults for s in range(begin, begin + each)]


def share(values: Iterable[bool]) -> str:
    """Return a share in percent."""
    known = list(values)
    return f"{sum(known) / len(known):.1%}" if known else "-"


def row(name: str, all_of: Sequence[Judged]) -> str:
    """Return a row of the table."""
    fine, bad = [j for j in all_of if not j.fault], [j for j in all_of if j.fault]
    cells = [
        str(len(fine)),
        share(bool(j.alarms) for j in fine),
        share(bool(j.critical) for j in fine),
        str(len(bad)),
        share(j.named for j in bad),
        share(j.headline for j in bad),
        share(j.first for j in bad),
    ]
    return f"| {name} | {' | '.join(cells)} |"


HEAD = (
    "| | healthy | any alarm | critical | with a fault | named | headline | first listed |",
    "|---|---:|---:|---:|---:|---:|---:|---:|",
)


def table(all_of: Sequence[Judged]) -> list[str]:
    """Return the rows for all courses, by length, by noise and by trainer."""
    fine, bad = [j for j in all_of if not j.fault], [j for j in all_of if j.fault]
    thresholds = (share(bool(j.plain) for j in fine), share(j.plain_named for j in bad))
    lines = [
        *HEAD,
        row("all", all_of),
        f"| 18 fixed thresholds, all | {len(fine)} | {thresholds[0]} | - | {len(bad)} | {thresholds[1]} | - | - |",
    ]
    keys: tuple[tuple[Callable[[Judged], object], str], ...] = (
        (lambda j: j.steps, "{} steps"),
        (lambda j: j.noise, "{}"),
        (lambda j: j.trainer, "{}"),
    )
    for key, text in keys:
        lines += [
            row(text.format(v), [j for j in all_of if key(j) == v]) for v in sorted({key(j) for j in all_of}, key=str)
        ]
    return lines


def by_kind(found: Sequence[Judged]) -> list[str]:
    """Return a line for each healthy kind that was alarmed, and for each fault."""
    lines = []
    for kind in HEALTHY:
        rows = [j for j in found if j.kind == kind and not j.fault]
        loud = Counter(n + ("!" if n in j.critical else "") for j in rows for n in j.alarms)
        if loud:
            lines.append(f"{kind:32} {share(bool(j.alarms) for j in rows):>6}  {dict(loud)}")
    for fault in ILL:
        rows = [j for j in found if j.fault == fault]
        shares = (share(getattr(j, name) for j in rows) for name in ("named", "headline", "first"))
        off = sorted(j.off for j in rows if j.off is not None)
        leads = Counter(j.leads for j in rows if not j.headline)
        firsts = Counter(j.alarms[0] if j.alarms else "" for j in rows if not j.first)
        missed = Counter(f"{j.trainer}/{j.steps}" for j in rows if not j.named)
        if rows:
            lines.append(
                f"{fault:32} {' '.join(f'{s:>6}' for s in shares)}, off {off[len(off) // 2] if off else None}; "
            )
            lines[-1] += f"leads {dict(leads)}; first {dict(firsts)}; missed {dict(missed)}"
    return lines


def main() -> None:
    """Print the table of a half, or write that of the report half into the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--half", choices=HALVES, default="tune")
    parser.add_argument("--each", type=int, default=10)
    parser.add_argument(
        "--begin", type=int, default=0, help="the first seed: others are fresh after a rule has changed"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--save", type=Path, help="keep what was judged, as JSON lines")
    parser.add_argument("--page", action="store_true", help="write the table into docs/reference/health.md")
    chosen = parser.parse_args()
    with ProcessPoolExecutor(chosen.jobs) as pool:
        found = list(pool.map(judged, jobs(chosen.half, chosen.each, chosen.begin), chunksize=4))
    if chosen.save:
        chosen.save.write_text("".join(json.dumps(asdict(j)) + "\n" for j in found))
    print("\n".join([*table(found), *by_kind(found)]))
    if chosen.page:
        write("health_table.py", page(found))


ABOUT = """## On independent courses

`make -C benchmarks courses` judges {healthy} healthy courses of {kinds} kinds and {bad} with one of {faults} faults, of
60 to 2,000 steps, with independent, autoregressive, heavy-tailed and seasonal noise, under the names of five trainers
(`health_courses.py`). Rules were tuned on one half of the seeds, with fewer kinds, last for decision 119. These courses
are of another part: their seeds were not drawn before, and {fresh} healthy kinds were written after the rules; two
rules were changed after a look at other seeds of this part. {alarms} alarms in {healthy} runs are compatible with a
rate of {bound:.1%}. A fault counts as
named if a detector that is meant for it warns or is critical; as headline if it leads the verdict; as first if it is
listed first. The generator is ours; on yours the figures will be worse. Wanted: an alarm in 5% of the healthy runs, a
critical one in 1%, 95% named, 85% headline, 80% first. The fixed thresholds (`health_plain.py`) are what one writes
oneself in an afternoon.

Before: on 92 healthy courses and 60 with a fault, the rules before decision 52 alarmed on 84.8% of the healthy ones
(6.5% critical), named 78.3% of the faults, led the verdict with 43.3% of them and listed 10.0% first. Before decision
90, on 152 others: 3.3% (0.0% critical), 85.0%, 83.3% and 83.3%.

Draws differ. Before decision 119 the same courses gave 1.4% (0.0% critical), 97.5%, 97.5% and 96.7%. With seeds from
4000 on (`--begin 4000 --each 2`, 104 healthy, 60 faults) it was 1.9% (0.0%), 90.0%, 88.3% and 88.3%, and is now 1.9%
(0.0%), 91.7%, 91.7% and 90.0%. With seeds from 5000 on, likewise, which were drawn after that decision: 1.0% (0.0%),
95.0%, 93.3% and 93.3%; after a look at one of its two alarms a rule was made quieter. The oscillating reward was not
tuned on before decision 119; now it is.
"""


def page(found: Sequence[Judged]) -> list[str]:
    """Return the lines of the page."""
    healthy = [j for j in found if not j.fault]
    bad = [j for j in found if j.fault]
    alarms = sum(bool(j.alarms) for j in healthy)
    about = ABOUT.format(
        healthy=len(healthy), kinds=len({j.kind for j in healthy}), bad=len(bad), faults=len({j.fault for j in bad}),
        fresh=len(FRESH_ONLY), alarms=alarms, bound=float(stats.beta.ppf(0.95, alarms + 1, len(healthy) - alarms)),
    )  # fmt: skip
    lines = [about, *table(found), "\n| fault | named | headline | first listed |", "|---|---:|---:|---:|"]
    for fault in ILL:
        rows = [j for j in bad if j.fault == fault]
        cells = (share(getattr(j, name) for j in rows) for name in ("named", "headline", "first"))
        lines.append(f"| {fault}{' (not tuned on)' if fault in REPORT_ONLY else ''} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
