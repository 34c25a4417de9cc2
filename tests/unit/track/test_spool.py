"""Following a metric file: each line once, whole or not yet."""

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.errors import RunFolderError
from paribus.track.folder import MetricLine, RunFolder
from paribus.track.spool import Tail

LINE = MetricLine(step=1, time_ms=5, values={"reward/mean": 0.5})


def lines_of(count):
    """Return the bytes of a file with so many lines."""
    text = [f'{{"step": {i}, "time_ms": 5, "values": {{"reward/mean": {i}.5}}}}\n' for i in range(count)]
    return "".join(text).encode()


@given(st.lists(st.integers(0, 400), max_size=8))
def test_however_the_file_grows_each_line_comes_once(tmp_path_factory, cuts):
    """A line that is cut anywhere comes when it is whole."""
    data = lines_of(5)
    path = tmp_path_factory.mktemp("spool") / "metrics.jsonl"
    tail, steps = Tail(path), []
    assert tail.read() == []
    for end in [*sorted(min(c, len(data)) for c in cuts), len(data)]:
        path.write_bytes(data[:end])
        steps += [line.step for line in tail.read()]
    assert steps == list(range(5))


def test_a_new_tail_goes_on_at_an_offset(tmp_path):
    """The offset is all that has to be remembered."""
    folder = RunFolder(tmp_path)
    folder.append_metrics(MetricLine(step=1, time_ms=0, values={}))
    first = Tail(folder.metrics)
    first.read()
    folder.append_metrics(MetricLine(step=2, time_ms=0, values={}))
    assert [line.step for line in Tail(folder.metrics, first.offset).read()] == [2]
    assert [line.step for line in Tail(folder.metrics).read(first.offset)] == [1]


def test_a_line_that_is_none_is_told(tmp_path):
    """And stays unread, so that it is told again."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"loss 3\n")
    tail = Tail(path)
    for _ in range(2):
        with pytest.raises(RunFolderError, match="not a metric line"):
            tail.read()
    assert tail.offset == 0


def test_a_line_that_does_not_fit_is_taken_back_whole(tmp_path):
    """What is left of it would make the next line, written when there is room again, unreadable."""
    folder = RunFolder(tmp_path)
    folder.append_metrics(LINE)
    size, limits = folder.metrics.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="No space left"):
            folder.append_metrics(LINE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert folder.metrics.stat().st_size == size
    folder.append_metrics(LINE)
    assert list(folder.read_metrics()) == [LINE, LINE]
