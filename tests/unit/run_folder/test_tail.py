"""Following a metric file: each line once, whole or not yet."""

import re
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.errors import RunFolderError
from paribus.run_folder.folder import MetricLine, RunFolder, Tail

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
    """And stays unread, so that it is reported again."""
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


def test_the_source_of_a_value_is_kept_unless_it_is_exact(tmp_path):
    """Lines without sources stay as they were before there were any."""
    folder = RunFolder(tmp_path)
    plain = MetricLine(step=1, time_ms=5, values={"reward/mean": 0.5, "kl/ref_k3": 0.1})
    marked = MetricLine(step=2, time_ms=6, values=plain.values, sources={"kl/ref_k3": "proxy"})
    folder.append_metrics(plain)
    folder.append_metrics(marked)
    assert b"sources" not in folder.metrics.read_bytes().split(b"\n")[0]
    assert list(folder.read_metrics()) == [plain, marked]
    with folder.metrics.open("a") as file:
        file.write('{"step": 3, "time_ms": 7, "values": {"a": 1}, "sources": {"a": "exact"}}\n')
    assert list(folder.read_metrics())[2].sources == {}


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ('{"a": "guess"}', "the source of `a` is 'guess'; it must be one of exact, derived, proxy"),
        ('{"b": "proxy"}', "`sources` has `b`, but `values` does not"),
        ("[1]", "not a metric line"),
        ('{"a": ["proxy"]}', "the source of `a` is"),
    ],
)
def test_a_line_with_other_sources_is_refused(tmp_path, sources, message):
    """The message names the file, the line and what is allowed."""
    folder = RunFolder(tmp_path)
    folder.metrics.write_text(f'{{"step": 1, "time_ms": 1, "values": {{"a": 1}}, "sources": {sources}}}\n')
    with pytest.raises(RunFolderError, match=re.escape(message)) as caught:
        list(folder.read_metrics())
    assert "metrics.jsonl:1" in str(caught.value)
