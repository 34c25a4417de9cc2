"""Series in files: however they came there, what is read is what the metric lines say."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.errors import RunFolderError
from paribus.run_folder import series_file
from paribus.run_folder.folder import MetricLine, RunFolder
from paribus.run_folder.series import ARRAYS, Columns
from paribus.run_folder.series_file import AttemptSeries, RunSeries, pack

RUN = "f" * 64
NAMES = ("reward/mean", "eval/heldout/avg_at_1")
VALUES = st.one_of(st.floats(), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e308, 0.1]))

steps = st.one_of(
    st.integers(0, 700).flatmap(lambda n: st.just(list(range(n)))),
    st.lists(st.integers(0, 2000), max_size=60).map(sorted),
    st.lists(st.integers(0, 60), max_size=60),
)


@st.composite
def courses(draw):
    """Metric lines of an attempt: dense, sparse or rewinding steps, metrics that are there or not, any numbers."""
    few = draw(st.lists(VALUES, min_size=1, max_size=7))
    every = draw(st.integers(1, 40))
    lines = []
    for i, step in enumerate(draw(steps)):
        values = {NAMES[0]: few[i % len(few)] if i % 3 else i / 7}
        values |= {NAMES[1]: few[-1 - i % len(few)]} if step % every == 0 else {}
        lines.append(MetricLine(step=step, time_ms=i, values=values))
    return lines


def write(folder, lines):
    """Append lines, in one go."""
    folder.path.mkdir(parents=True, exist_ok=True)
    scratch = RunFolder(folder.path / "scratch")
    scratch.path.mkdir(exist_ok=True)
    for line in lines:
        scratch.append_metrics(line)
    with folder.metrics.open("ab") as file:
        file.write(scratch.metrics.read_bytes() if lines else b"")
    scratch.metrics.unlink(missing_ok=True)


def plain(lines, metric):
    """Step to value by the plain rule: the later line counts."""
    return dict(sorted({x.step: x.values[metric] for x in lines if metric in x.values}.items()))


def assert_same(got, want):
    """Equal series, NaN equal to NaN, means up to rounding."""
    assert got.width == want.width
    for name in ARRAYS:
        close = 1e-12 if name == "mean" else 0.0
        np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=close, atol=1e-290 * bool(close))


def assert_buckets(got, points, width):
    """Each bucket is what its points say, computed one by one."""
    assert dict(zip(got.buckets.tolist(), got.count.tolist(), strict=True)) == {
        k: sum(s // width == k for s in points) for k in dict.fromkeys(s // width for s in points)
    }
    for i, k in enumerate(got.buckets.tolist()):
        inside = {s: v for s, v in points.items() if s // width == k}
        numbers = [v for v in inside.values() if not math.isnan(v)]
        assert got.steps[i] == max(inside)
        np.testing.assert_array_equal(got.last[i], inside[max(inside)])
        assert got.nans[i] == len(inside) - len(numbers)
        np.testing.assert_array_equal(got.min[i], min(numbers, default=math.nan))
        np.testing.assert_array_equal(got.max[i], max(numbers, default=math.nan))
        with np.errstate(invalid="ignore"):
            mean = float(np.sum([v / len(numbers) for v in numbers])) if numbers else math.nan
        np.testing.assert_allclose(
            got.mean[i], mean, rtol=1e-9, atol=1e-290 + 1e-12 * max(map(abs, numbers), default=0)
        )


@settings(max_examples=40, deadline=None)
@given(courses(), st.lists(st.integers(0, 700), max_size=3), st.integers(0, 400), st.sampled_from([0, 1, 2]))
def test_whatever_is_packed_when_the_lines_are_read(tmp_path_factory, lines, cuts, torn, ended):
    """Blocks cut anywhere, a torn or damaged end, lines not packed yet: each point and each bucket of it is there."""
    home = tmp_path_factory.mktemp("home")
    folder = RunFolder.of(home, RUN, 1)
    edges = [0, *sorted(min(c, len(lines)) for c in cuts), len(lines)]
    for begin, end in pairwise(edges):
        write(folder, lines[begin:end])
        if end < len(lines) or ended:
            pack(folder, ended=True)
    if folder.series.exists():
        data = folder.series.read_bytes()
        folder.series.write_bytes(data[: max(0, len(data) - torn)] + b"\0" * (torn // 2))
        if ended == 2:
            folder.result.write_text("{}")
    got = RunSeries(home, RUN, 1)
    assert got.span == ((min(x.step for x in lines), max(x.step for x in lines)) if lines else None)
    assert got.names == {k for x in lines for k in x.values}
    for metric in NAMES:
        points = plain(lines, metric)
        full = got.series(metric)
        assert full.steps.tolist() == list(points)
        np.testing.assert_array_equal(full.last, list(points.values()))
        for least in (1, 7, 40):
            series = got.series(metric, first=0, last=2000, least=least)
            assert len(range(0, 2001, series.width)) >= least
            assert_buckets(series, points, series.width)
            assert_same(series, full.bucketed(series.width))
        inside = got.series(metric, first=5, last=300)
        assert inside.steps.tolist() == [s for s in points if 5 <= s <= 300]


@settings(max_examples=30, deadline=None)
@given(st.lists(courses(), min_size=1, max_size=3), st.booleans(), st.integers(1, 50))
def test_an_attempt_replaces_what_was_there_from_its_first_step_on(tmp_path_factory, attempts, packed, least):
    """With or without the lines before its checkpoint; equal steps are those of the newest attempt."""
    home = tmp_path_factory.mktemp("home")
    for token, lines in enumerate(attempts, 1):
        write(RunFolder.of(home, RUN, token), lines)
        if packed:
            pack(RunFolder.of(home, RUN, token), ended=True)
    kept = []
    for lines in attempts:
        first = min((x.step for x in lines), default=math.inf)
        kept = [x for x in kept if x.step < first] + lines
    got, want = RunSeries(home, RUN, len(attempts)), Columns.of(kept)
    for metric in NAMES:
        assert_same(got.series(metric), want.series(metric))
        assert_same(
            got.series(metric, first=0, last=999, least=least), want.series(metric, first=0, last=999, least=least)
        )


@given(courses(), st.sampled_from([1, 2, 16, 256]), st.sampled_from([1, 2, 4, 16]))
def test_buckets_of_buckets_are_buckets(lines, width, times):
    """Coarse buckets are the same whether they are made from points or from finer buckets."""
    series = Columns.of(lines).series(NAMES[0])
    assert_same(series.bucketed(width).bucketed(width * times), series.bucketed(width * times))


def filled(home, steps, token=1):
    """A folder with an attempt that wrote so many steps."""
    folder = RunFolder.of(home, RUN, token)
    write(folder, [MetricLine(step=s, time_ms=s, values={NAMES[0]: math.sin(s)}) for s in steps])
    return folder


def test_lines_are_packed_as_they_come_and_a_reader_follows(tmp_path, monkeypatch):
    """Small blocks wait; large ones are made while the attempt goes on; each point is read once, before and after."""
    monkeypatch.setattr(series_file, "BLOCK", 4000)
    folder = filled(tmp_path, range(10))
    pack(folder)
    assert not folder.series.exists()
    reader = AttemptSeries(folder)
    for begin in range(10, 500, 49):
        filled(tmp_path, range(begin, begin + 49))
        pack(folder)
        reader.refresh()
        assert reader.series(NAMES[0], 1).steps.tolist() == list(range(begin + 49))
    before = folder.series.read_bytes()
    pack(folder, ended=True)
    assert folder.series.read_bytes().startswith(before)
    assert len(before) > 0


def test_a_folder_that_cannot_be_written_is_read(tmp_path, monkeypatch):
    """The lines are enough; nothing is written, without an error."""
    folder = filled(tmp_path, range(300))
    folder.result.write_text("{}")
    folder.series.mkdir()
    assert len(RunSeries(tmp_path, RUN, 1).series(NAMES[0])) == 300


def test_other_lines_are_not_taken_for_those_that_were_packed(tmp_path):
    """A metric file that is shorter than what was packed, or gone, rebuilds the series."""
    folder = filled(tmp_path, range(300))
    pack(folder, ended=True)
    folder.metrics.unlink()
    assert RunSeries(tmp_path, RUN, 1).span is None
    filled(tmp_path, range(7))
    folder.result.write_text("{}")
    assert len(RunSeries(tmp_path, RUN, 1).series(NAMES[0])) == 7


def test_damage_inside_a_block_is_noticed_and_mended(tmp_path):
    """A wrong byte in packed numbers gives the numbers of the lines, and a new file."""
    folder = filled(tmp_path, range(300))
    folder.result.write_text("{}")
    pack(folder, ended=True)
    good = folder.series.read_bytes()
    for place in range(300, len(good), 97):
        folder.series.write_bytes(good[:place] + bytes([good[place] ^ 8]) + good[place + 1 :])
        run = RunSeries(tmp_path, RUN, 1)
        for least in (1, 19, None):
            series = run.series(NAMES[0], least=least)
            assert series.last.tolist() == [math.sin(s) for s in series.steps]
    RunSeries(tmp_path, RUN, 1)
    assert folder.series.read_bytes() == good


def test_a_line_that_is_none_is_named(tmp_path):
    """A bad line is reported with file and line, packed before or not; one of an attempt that is superseded is not."""
    folder = filled(tmp_path, range(3))
    with folder.metrics.open("ab") as file:
        file.write(b"step 3: loss 0.5\n")
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl:4"):
        RunSeries(tmp_path, RUN, 1)
    filled(tmp_path, range(1, 9), token=2)
    assert RunSeries(tmp_path, RUN, 2).span == (1, 8)


def test_a_run_knows_the_sources_of_its_metrics(tmp_path):
    """Over attempts, in blocks and in lines that are in no block yet; a metric may mix sources."""

    def lines(steps, **sources):
        named = {"reward/mean": 1.0, "kl/ref_k3": 2.0, "policy/entropy": 3.0}
        return [MetricLine(step=s, time_ms=s, values=named, sources=sources) for s in steps]

    first = RunFolder.of(tmp_path, RUN, 1)
    write(first, lines(range(5), **{"kl/ref_k3": "proxy"}))
    pack(first, ended=True)
    write(first, lines(range(5, 8), **{"policy/entropy": "derived"}))
    run = RunSeries(tmp_path, RUN, 1)
    want = {"reward/mean": {"exact"}, "kl/ref_k3": {"exact", "proxy"}, "policy/entropy": {"exact", "derived"}}
    assert {name: run.sources_of(name) for name in run.names} == want
    assert {name: Columns.of(first.read_metrics()).sources_of(name) for name in want} == want
    assert run.sources_of("optim/lr") == set()
    write(RunFolder.of(tmp_path, RUN, 2), lines(range(6, 9), **{"reward/mean": "proxy"}))
    assert RunSeries(tmp_path, RUN, 2).sources_of("reward/mean") == {"exact", "proxy"}


def test_a_run_that_was_deleted_and_trained_again_is_read_anew(tmp_path):
    """It has the same folder: a reader that stays open must not go on with what was there."""
    folder = filled(tmp_path, range(20))
    reader = AttemptSeries(folder)
    folder.metrics.unlink()
    write(folder, [MetricLine(step=s, time_ms=s, values={NAMES[0]: 9.0}) for s in range(5)])
    reader.refresh()
    assert reader.span == (0, 4)
    assert set(reader.series(NAMES[0], 1).last.tolist()) == {9.0}
