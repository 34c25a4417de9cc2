"""Recomputes the numbers of a report from the run folders, with numpy and scipy alone and nothing of Paribus.

    python benchmarks/recompute.py HOME STUDY REPORT.csv

Reads the plan of the study from the store, the metric lines and evaluations of its runs from their folders, and
compares every number of the tables that it knows with ``report.csv``: values, both ends of intervals, p values before
and after the correction, and the value of every seed. Prints how many agree, and each that does not; exits with 1 if
one differs. For studies with a fixed number of paired seeds that were declared before their results, whose runs have
all finished.
"""

from __future__ import annotations

import csv
import json
import math
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import integrate, stats

PRINTED, TINY, QUADRATURE = 2e-5, 2e-6, 5e-6
"""Relative and absolute difference that rounding to six digits explains; absolute error of the report's Dunnett p."""

LATE = {
    "length": "response/length_mean",
    "length_wrong": "response/length_mean_incorrect",
    "truncated": "response/truncated_frac",
    "entropy": "policy/entropy",
    "zero_spread": "group/zero_std_frac",
}
UNITS = {"G tokens": 1e-9, "M tokens": 1e-6, "k tokens": 1e-3, "tokens": 1.0}


class Found(NamedTuple):
    """A number that was recomputed; ``None`` where this program says nothing of a part."""

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    seeds: Mapping[int, float] | None = None


class Run:
    """What one run wrote: its metrics by step, and the share of right answers of each problem by step."""

    def __init__(self, folder: Path, primary: str) -> None:
        self.lines: dict[int, dict[str, float]] = {}
        for text in (folder / "metrics.jsonl").read_text().splitlines():
            line = json.loads(text)
            self.lines[line["step"]] = {k: math.nan if v is None else v for k, v in line["values"].items()}
        self.rates: dict[int, np.ndarray[Any, Any]] = {}
        for path in (folder / "evals").glob(f"{primary.split('/')[1]}-*.json"):
            found = json.loads(path.read_text())
            self.rates[found["step"]] = np.array(found["correct"]) / found["samples"]
        self.last = max(self.lines)

    def series(self, name: str) -> list[tuple[int, float]]:
        """The finite values of a metric by step."""
        rows = ((s, v[name]) for s, v in sorted(self.lines.items()) if name in v)
        return [(s, x) for s, x in rows if isinstance(x, int | float) and math.isfinite(x)]


class Study:
    """A plan with its runs."""

    def __init__(self, home: Path, name: str) -> None:
        store = sqlite3.connect(f"file:{home / 'paribus.db'}?mode=ro", uri=True)
        (text,) = store.execute("select plan from study where name = ? order by id desc", [name]).fetchone()
        self.plan = json.loads(text)
        evaluate = self.plan["evaluate"]
        self.primary = evaluate["primary"] or f"eval/heldout/avg_at_{evaluate['samples']}"
        self.last_three = evaluate["checkpoint"] == "mean_of_last_3"
        self.base, self.seeds = self.plan["base"], self.plan["seeds"]
        self.runs: dict[str, dict[int, Run]] = {}
        for run in self.plan["runs"]:
            folders = sorted((home / "runs" / run["fingerprint"][:12]).glob("a*"), key=lambda p: int(p.name[1:]))
            self.runs.setdefault(run["arm"], {})[run["seed"]] = Run(folders[-1], self.primary)

    def used(self, run: Run) -> list[int]:
        """The steps of the evaluations that make up a score."""
        steps = [s for s, _ in run.series(self.primary) if s > 0]
        return steps[-3:] if self.last_three else steps[-1:]

    def values(self, arm: str, what: str, scale: float = 1.0) -> dict[int, float]:
        """A measure of each seed of an arm."""
        return {seed: scale * self.measure(run, what) for seed, run in self.runs[arm].items()}

    def measure(self, run: Run, what: str) -> float:
        """A measure of one run."""
        score = float(np.mean([dict(run.series(self.primary))[s] for s in self.used(run)]))
        last = {
            name: run.series(f"budget/{name}")[-1][1] for name in ("gen_tokens", "trained_tokens", "optimizer_steps")
        }
        if what in LATE:
            first = math.floor(0.75 * run.last) + 1
            return float(np.mean([x for s, x in run.series(LATE[what]) if s >= first]))
        return {
            "score": lambda: score,
            "start": lambda: run.lines[0][self.primary],
            "generated": lambda: last["gen_tokens"],
            "trained": lambda: last["trained_tokens"],
            "waste": lambda: 1 - last["trained_tokens"] / last["gen_tokens"],
            "updates": lambda: last["optimizer_steps"],
            "seconds": lambda: math.fsum(x for _, x in run.series("perf/time_step_s")),
            "gain_per_token": lambda: (score - run.lines[0][self.primary]) / (last["gen_tokens"] / 1e6),
        }[what]()

    def answers(self, arm: str, steps: Sequence[int] | None = None) -> np.ndarray[Any, Any]:
        """Shares of right answers [seeds, problems] behind the scores of an arm, or at given steps."""
        runs = [run for _, run in sorted(self.runs[arm].items())]
        return np.array([np.mean([r.rates[s] for s in steps or self.used(r)], axis=0) for r in runs])


def rest(table: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Standard error of the mean of a table [seeds, problems] from its interaction, and the degrees of freedom."""
    n, q = table.shape
    left = table - table.mean(1, keepdims=True) - table.mean(0, keepdims=True) + table.mean()
    df = (n - 1) * (q - 1)
    return math.sqrt((left**2).sum() / df / (n * q)), df


def interval(by_seed: Mapping[int, float], table: np.ndarray[Any, Any] | None = None) -> Found:
    """Mean over seeds with the wider of two t intervals, by seeds and by answers, and the larger p."""
    x = np.array([*by_seed.values()])
    kinds = [(stats.sem(x), len(x) - 1)] + ([rest(table)] if table is not None else [])
    half = max(stats.t.ppf(0.975, df) * se for se, df in kinds)
    p = max(float(2 * stats.t.sf(abs(x.mean()) / se, df)) if se else float(x.mean() == 0) for se, df in kinds)
    return Found(float(x.mean()), float(x.mean() - half), float(x.mean() + half), p, by_seed)


def holm(p: Mapping[Any, float]) -> dict[Any, float]:
    """Holm's corrected p values."""
    found, largest = {}, 0.0
    for k, key in enumerate(sorted(p, key=lambda each: p[each])):
        largest = max(largest, min(1.0, (len(p) - k) * p[key]))
        found[key] = largest
    return found


def difference(study: Study, weights: Mapping[str, float], what: str = "score", scale: float = 1.0) -> Found:
    """A weighted sum of arms, paired by seed."""
    each = {arm: study.values(arm, what, scale) for arm in weights}
    by_seed = {s: math.fsum(w * each[arm][s] for arm, w in weights.items()) for s in study.seeds}
    table = sum(w * study.answers(arm) for arm, w in weights.items()) if what == "score" else None
    return interval(by_seed, table)  # type: ignore[arg-type]


def dunnett(t: float, arms: int, df: float) -> float:
    """Two-sided p of one of several differences from a common base, by integrating over spread and base."""
    z = np.linspace(-8, 8, 1601)
    weight = stats.norm.pdf(z)

    def inside(u: float) -> float:
        reach = abs(t) * math.sqrt(2) * math.sqrt(u / df)
        return float(np.trapezoid(weight * (stats.norm.cdf(z + reach) - stats.norm.cdf(z - reach)) ** arms, z))

    low, high = stats.chi2.ppf([1e-10, 1 - 1e-10], df)
    return 1 - float(integrate.quad(lambda u: stats.chi2.pdf(u, df) * inside(u), low, high, epsabs=1e-9, limit=200)[0])


def names(plan: Mapping[str, Any]) -> dict[str, str]:
    """The name of each arm in the tables of arms: a trick alone by its name, a row of a ladder by its place."""
    found: dict[str, str] = {}
    for row in plan["rows"]:
        if row["kind"] in ("cumulative", "add_one", "pairs", "factorial", "fractional") and len(row["tricks"]) == 1:
            found.setdefault(row["arm"], row["tricks"][0])
    for row in plan["rows"]:
        found.setdefault(row["arm"], row_label(plan, row))
    return found | {plan["base"]: next(a["label"] for a in plan["arms"] if a["key"] == plan["base"])}


def row_label(plan: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """The label of a row; in a ladder with its place."""
    if row["kind"] != "cumulative" or row["parent"] is None:
        return str(row["label"])
    place = [r["label"] for r in plan["rows"] if r["design"] == row["design"]].index(row["label"])
    return f"{row['design']} {place}: {'... ' if place > 1 else ''}{row['label']}"


Numbers = dict[tuple[str, str, str], tuple[Found, float | None]]
"""Table, row and column to a number and its p after correction."""


def numbers(study: Study, units: Mapping[tuple[str, str], str]) -> Numbers:
    """Return every number that this program recomputes."""
    label = names(study.plan)
    others = [a for a in label if a != study.base]
    to_base = {a: difference(study, {a: 1.0, study.base: -1.0}) for a in others}
    scales = {place: UNITS.get(unit, 1.0) for place, unit in units.items() if place[1] in ("generated", "trained")}
    found = _learning(study, label) | _by_design(study, to_base, scales) | _by_arm(study, label, scales)
    found |= _against_base(study, label, to_base) | _effects(study, label, others, scales)
    return found | _contributions(study, to_base)


def _mean(study: Study, arm: str, column: str, scale: float = 1.0) -> tuple[Found, None]:
    answers = study.answers(arm) if column == "score" else None
    return interval(study.values(arm, column, scale), answers)._replace(p=None), None


def _learning(study: Study, label: Mapping[str, str]) -> Numbers:
    """The base before and after training."""
    base, first = label[study.base], study.answers(study.base, [0])
    score, before = (study.values(study.base, what) for what in ("score", "start"))
    gain = interval({s: score[s] - before[s] for s in study.seeds}, study.answers(study.base) - first)
    return {
        ("learning", base, "score"): _mean(study, study.base, "score"),
        ("learning", base, "start"): (interval(before, first)._replace(p=None), None),
        ("learning", base, "gain"): (gain, None),
    }


def _by_design(study: Study, to_base: Mapping[str, Found], scales: Mapping[tuple[str, str], float]) -> Numbers:
    """The scores and the behaviour of the rows of each design."""
    corrected = holm({a: e.p for a, e in to_base.items() if e.p is not None})
    found: Numbers = {}
    for design, rows in _designs(study.plan):
        arms = {r["label"]: r["arm"] for r in rows}
        scores, behaviour = f"{design}.score", f"{design}.behaviour"
        for row in rows:
            name, arm, above = row_label(study.plan, row), row["arm"], arms.get(row["parent"])
            found[scores, name, "score"] = _mean(study, arm, "score")
            for column in (*LATE, "generated", "waste", "seconds"):
                found[behaviour, name, column] = _mean(study, arm, column, scales.get((behaviour, column), 1.0))
            if arm != study.base:
                found[scores, name, "to_base"] = to_base[arm], corrected[arm]
                found[scores, name, "p"] = Found(corrected[arm]), corrected[arm]
            if row["kind"] in ("cumulative", "leave_one_out") and above not in (None, arm):
                found[scores, name, "inside"] = difference(study, {arm: 1.0, above: -1.0}), None
    return found


def _by_arm(study: Study, label: Mapping[str, str], scales: Mapping[tuple[str, str], float]) -> Numbers:
    """Costs, the score of every run, and the score at every evaluation."""
    found: Numbers = {}
    for arm, name in label.items():
        for column in ("generated", "trained", "waste", "updates", "seconds", "gain_per_token"):
            found["cost", name, column] = _mean(study, arm, column, scales.get(("cost", column), 1.0))
        for seed, value in study.values(arm, "score").items():
            found["seeds", name, f"seed_{seed}"] = Found(value, seeds={seed: value}), None
        for step in {s for r in study.runs[arm].values() for s, _ in r.series(study.primary)}:
            values = {s: r.lines[step][study.primary] for s, r in study.runs[arm].items()}
            found["training", name, f"step_{step}"] = interval(values)._replace(p=None), None
    return found


def _designs(plan: Mapping[str, Any]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    for design in dict.fromkeys(r["design"] for r in plan["rows"]):
        yield design, [r for r in plan["rows"] if r["design"] == design]


def _against_base(study: Study, label: Mapping[str, str], to_base: Mapping[str, Found]) -> Numbers:
    """The tables of differences by seed and of other ways to look at them: Dunnett's p, correlations."""
    scores = {arm: [study.values(arm, "score")[s] for s in study.seeds] for arm in label}
    left = np.array([*scores.values()])
    left = left - left.mean(1, keepdims=True) - left.mean(0) + left.mean()
    df = (len(scores) - 1) * (len(study.seeds) - 1)
    error = math.sqrt((left**2).sum() / df * 2 / len(study.seeds))
    found: Numbers = {}
    for arm, e in to_base.items():
        name = label[arm]
        rho = float(np.corrcoef(scores[arm], scores[study.base])[0, 1])
        found["pairs", name, "difference"] = found["comparisons", name, "difference"] = e, None
        found["pairs", name, "rho"] = Found(rho), None
        for seed, value in (e.seeds or {}).items():
            found["pairs", name, f"seed_{seed}"] = Found(value), None
        answers, free = rest(study.answers(arm) - study.answers(study.base))
        p = max(dunnett(e.value / se, len(to_base), d) for se, d in ((error, df), (answers, free)))
        found["comparisons", name, "at_once"] = Found(e.value, p=p, seeds=e.seeds), p
    return found


def _effects(
    study: Study, label: Mapping[str, str], others: Sequence[str], scales: Mapping[tuple[str, str], float]
) -> Numbers:
    """What each trick alone moves, corrected over the whole table."""
    chosen = [a for a in others if len(_tricks(study.plan).get(a, ())) == 1] or list(others)
    found = {
        (a, c): difference(study, {a: 1.0, study.base: -1.0}, c, scales.get(("effects", c), 1.0))
        for a in chosen
        for c in (*LATE, "generated")
    }
    corrected = holm({key: e.p for key, e in found.items() if e.p is not None})
    return {("effects", label[a], c): (e, corrected[a, c]) for (a, c), e in found.items()}


def _tricks(plan: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    kinds = ("cumulative", "add_one", "pairs", "factorial", "fractional")
    return {r["arm"]: tuple(r["tricks"]) for r in plan["rows"] if r["kind"] in kinds}


def _contributions(study: Study, to_base: Mapping[str, Found]) -> Numbers:
    """Each trick alone, in the full recipe, and the mean of both."""
    rows = study.plan["rows"]
    alone = {r["tricks"][0]: r["arm"] for r in rows if r["kind"] == "add_one" and len(r["tricks"]) == 1}
    removed = [r for r in rows if r["kind"] == "leave_one_out"]
    if not alone or not removed:
        return {}
    full = next(r for r in removed if r["parent"] is None)
    without = {next(iter({*full["tricks"]} - {*r["tricks"]})): r["arm"] for r in removed if r["parent"] is not None}
    inside = {t: difference(study, {full["arm"]: 1.0, arm: -1.0}) for t, arm in without.items()}
    ps = holm({t: e.p for t, e in inside.items() if e.p is not None})
    over = holm({a: e.p for a, e in to_base.items() if e.p is not None})
    found: Numbers = {}
    for trick, arm in alone.items():
        found["contributions", trick, "alone"] = to_base[arm], over[arm]
        if trick in inside:
            found["contributions", trick, "in_full"] = inside[trick], ps[trick]
            weights = Counter({arm: 0.5, full["arm"]: 0.5})
            weights.update({study.base: -0.5, without[trick]: -0.5})
            found["contributions", trick, "mean"] = difference(study, weights), None
    return found


def compare(home: Path, name: str, report: Path) -> tuple[int, Counter[str], list[str]]:
    """Return how many numbers agree, the tables with numbers that are not recomputed, and each that differs."""
    with report.open(newline="", encoding="utf-8") as file:
        cells = {(r["table"], r["row"], r["column"]): r for r in csv.DictReader(file)}
    found = numbers(Study(home, name), {(t, c): r["unit"] for (t, _, c), r in cells.items()})
    agree, wrong, unknown = 0, list[str](), Counter[str]()
    for key, cell in cells.items():
        stated = [k for k in ("value", "low", "high", "p", "p_adjusted") if cell[k]]
        if key not in found:
            unknown[f"{key[0]}.{key[2]}"] += len(stated)
            continue
        number, corrected = found[key]
        mine = {"value": number.value, "low": number.low, "high": number.high, "p": number.p, "p_adjusted": corrected}
        pairs = [(k, float(cell[k]), mine[k]) for k in stated]
        seeds = dict(part.split("=") for part in cell["seeds"].split())
        pairs += [(f"seed {s}", float(v), (number.seeds or {}).get(int(s))) for s, v in seeds.items()]
        for what, printed, own in pairs:
            if own is None:
                unknown[f"{key[0]}.{key[2]} {what.split()[0]}"] += 1
            elif math.isclose(printed, own, rel_tol=PRINTED, abs_tol=QUADRATURE if key[2] == "at_once" else TINY):
                agree += 1
            else:
                wrong.append(f"{' / '.join(key)}: {what} is {printed:.6g} in the report and {own:.6g} recomputed")
    missing = [key for key in found if key not in cells]
    wrong += [f"{' / '.join(key)} is not in the report" for key in missing if not _not_shown(key)]
    return agree, unknown, wrong


def _not_shown(key: tuple[str, str, str]) -> bool:
    """Whether a report may leave a number out: tables of many steps show some, and a design may have no such column."""
    return key[0] == "training" or key[2] in ("p", "inside", "to_base", "mean", "at_once")


def main(arguments: Sequence[str]) -> int:
    """Print what agrees and what differs."""
    if len(arguments) != 3:
        print(__doc__)
        return 2
    agree, unknown, wrong = compare(Path(arguments[0]), arguments[1], Path(arguments[2]))
    print(f"{agree} numbers agree, {len(wrong)} differ; {unknown.total()} are not recomputed: {dict(unknown)}")
    print(*wrong, sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
