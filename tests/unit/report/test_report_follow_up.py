"""The study that results ask for: what is in it, with how many seeds, and that its file makes these arms."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from paribus.cli.next import write
from paribus.errors import ParibusError
from paribus.report.analysis.analysis import Analysis
from paribus.report.follow_up import FollowUp, follow_up
from paribus.report.sentences import words
from paribus.study.expand import make_plan
from paribus.study.load import load_study
from paribus.study.plan import Plan
from paribus.testing.fake_runner import FakeRunner
from paribus.yaml_file.document import plain, read_document
from support.studies import made_up_results

STUDY = """\
study: first
base: {preset: grpo, set: {kl: off, schedule: {steps: 4, minibatches: 8}}}
tricks:
  a: {clip.high: 0.28}
  b: {aggregation: token_batch}
  c: {scale: none}
designs:
  solo: {kind: add_one}
  knockout: {kind: leave_one_out}
  levels: {kind: grid, over: {clip.high: [0.25], scale: [none]}}
seeds: {n: SEEDS}
evaluate: {every: 1, problems: 200}
budget: {prior: {low: 1.0, expected: 1.0, high: 2.0}}
"""

Size = Callable[[frozenset[str]], float]


def results(folder: Path, size: Size, *, seeds: int = 4, noise: float = 0.01) -> tuple[Analysis, Path]:
    """A study with scores of this size by tricks, and noise of seeds; its analysis and its file."""
    path = folder / "first.yaml"
    path.write_text(STUDY.replace("SEEDS", str(seeds)))
    plan = make_plan(load_study(path), FakeRunner())
    on = {row.arm: frozenset(row.tricks) for row in reversed(plan.rows)}

    def score(arm: str, seed: int) -> float:
        return 0.4 + size(on[arm]) + random.Random(f"{arm}/{seed}").gauss(0, noise)

    return Analysis(made_up_results(plan, score)), path


def asked(analysis: Analysis, path: Path, most: int = 10) -> FollowUp:
    """What is needed next."""
    return follow_up(analysis, load_study(path).spec, most)


def written(found: FollowUp, path: Path) -> Plan:
    """The plan of the file that is written."""
    out = path.parent / "next.yaml"
    write(out, {**plain(read_document(path).root), **found.changes}, found.reasons)
    return make_plan(load_study(out), FakeRunner())


def test_what_is_settled_needs_nothing(tmp_path: Path) -> None:
    """Large differences on five seeds or more are not run again."""
    analysis, path = results(tmp_path, lambda on: 0.1 * len(on), seeds=8, noise=0.003)
    found = asked(analysis, path)
    left = [r for r in (*found.reasons, *found.left_out) if "clip.high" not in r and "scale" not in r]
    assert not left


def test_what_stood_out_with_few_seeds_is_confirmed_on_fresh_ones(tmp_path: Path) -> None:
    """The arms that the file makes are those that are asked for, and no seed was seen before."""
    analysis, path = results(tmp_path, lambda on: 0.2 * ("a" in on), noise=0.004)
    found = asked(analysis, path)
    (reason,) = (r for r in found.reasons if r.startswith("`a`"))
    assert "stood out with few seeds" in reason
    plan = written(found, path)
    arms = {a.label: a.key for a in analysis.plan.arms}
    assert {arms["base"], arms["+ a"]} <= {row.arm for row in plan.rows}
    assert {a.key for a in plan.arms} <= {a.key for a in analysis.plan.arms}
    assert min(plan.seeds) == 4
    assert len(plan.seeds) >= 5
    assert not {r.fingerprint for r in plan.runs} & {r.fingerprint for r in analysis.plan.runs}


def test_open_questions_get_the_seeds_that_they_take(tmp_path: Path) -> None:
    """An undecided arm gets its seeds; one that takes more than are allowed is named and left out."""
    analysis, path = results(tmp_path, lambda on: 0.03 * ("b" in on), noise=0.02)
    few, many = asked(analysis, path, most=3), asked(analysis, path, most=100)
    assert any("stays open" in r and "more than the 3 allowed" in r for r in few.left_out)
    undecided = [r for r in many.reasons if "is undecided" in r]
    assert undecided
    counts = [int(r.partition("takes about ")[2].split()[0]) for r in undecided]
    assert many.changes["seeds"]["n"] >= max(counts) > 3
    assert len(few.reasons) < len(many.reasons)


def test_the_report_promises_the_seeds_that_next_asks_for(tmp_path: Path) -> None:
    """For every undecided arm both say the same number, whatever difference was seen."""
    analysis, path = results(tmp_path, lambda on: 0.01 * len(on), noise=0.02)
    said = dict(re.findall(r"`(\w)` alone: undecided.* takes (about \d+) seeds", "\n".join(words(analysis))))
    reasons = "\n".join(asked(analysis, path, most=100).reasons)
    asked_for = dict(re.findall(r"`(\w)` is undecided.* takes (about \d+) seeds", reasons))
    assert said
    assert said == {name: count for name, count in asked_for.items() if name in said}


def test_sums_that_do_not_fit_ask_for_all_combinations(tmp_path: Path) -> None:
    """Where three tricks only work together the next study crosses them."""
    analysis, path = results(tmp_path, lambda on: 0.3 * (on >= {"a", "b", "c"}), noise=0.003)
    found = asked(analysis, path)
    assert found.changes["designs"]["interactions"] == {"kind": "factorial", "tricks": ["a", "b", "c"]}
    assert any("miss the total by" in r for r in found.reasons)
    assert sum(row.design == "interactions" for row in written(found, path).rows) == 8


def test_without_tests_more_seeds_come_first(tmp_path: Path) -> None:
    """From single runs nothing follows but that more seeds are needed."""
    analysis, path = results(tmp_path, lambda on: 0.1 * len(on), seeds=1)
    found = asked(analysis, path)
    assert all("too few seeds to be tested" in r for r in found.reasons)
    assert found.changes["seeds"] == {"n": 5, "paired": True, "start": 1}
    plan = written(found, path)
    assert {a.key for a in plan.arms} == {a.key for a in analysis.plan.arms}


def test_refusals(tmp_path: Path) -> None:
    """Unfinished runs, a file that has changed, and a file that is there already are told with a remedy."""
    analysis, path = results(tmp_path, lambda on: 0.0, seeds=3)
    runs = (replace(analysis.data.runs[0], outcome="pending"), *analysis.data.runs[1:])
    with pytest.raises(ParibusError, match=r"1 of 27 runs .*have not ended"):
        asked(Analysis(replace(analysis.data, runs=runs)), path)
    path.write_text(path.read_text().replace("solo:", "alone:"))
    with pytest.raises(ParibusError, match="no row `base` in `solo`"):
        asked(analysis, path)
    with pytest.raises(ParibusError, match="not overwritten"):
        write(path, {}, ())
