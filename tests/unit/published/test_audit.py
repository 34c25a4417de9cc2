"""An audit agrees with other formulas, says what is not stated, and its files report every mistake with its place."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from scipy import stats

from paribus.cli.audit import command
from paribus.errors import StudyFileError
from paribus.published.audit import audit, conclusions
from paribus.published.page import html_page
from paribus.published.tables import Published, PublishedRow, load_published, published_names, read_table
from paribus.published.text import cells, columns, markdown
from paribus.stats.power import power
from paribus.stats.proportions import proportion_difference


def two(a: float, b: float, **more) -> Published:
    """Return a table of two rows."""
    return Published(name="t", rows=(PublishedRow(label="a", value=a), PublishedRow(label="b", value=b)), **more)


def test_agresti_caffo_by_hand():
    """Source: the definition, with scipy's normal distribution."""
    found = proportion_difference(0.9, 0.5, 10, 20)
    p, q = 10 / 12, 11 / 22
    se = math.sqrt(p * (1 - p) / 12 + q * (1 - q) / 22)
    assert (found.low, found.high) == pytest.approx(stats.norm.interval(0.95, p - q, se))
    assert found.p == pytest.approx(2 * stats.norm.sf((p - q) / se))
    assert proportion_difference(1, 1, 5, 5).p == 1
    assert proportion_difference(1, 1, 10**27, 10**27).p == 1


def test_a_stated_spread_is_welch():
    """Against scipy's test from summary statistics; the seeds needed have 80% power, one less has not."""
    rows = tuple(
        PublishedRow(label=k, value=v, seeds=n, seed_sd=sd) for k, v, n, sd in (("a", 30, 4, 1.5), ("b", 33, 5, 2.5))
    )
    (step,) = audit(Published(name="t", rows=rows), [9.0]).steps
    (test,) = step.seeds
    expected = stats.ttest_ind_from_stats(33, 2.5, 5, 30, 1.5, 4, equal_var=False).pvalue
    assert test.stated
    assert test.p == pytest.approx(expected)
    assert test.needed is not None
    assert power(3 / test.sd, test.needed, paired=False) >= 0.8 > power(3 / test.sd, test.needed - 1, paired=False)


MIXED = Published(
    name="t",
    compare="first",
    rows=(
        PublishedRow(label="a", value=30, seeds=4, seed_sd=1.5),
        PublishedRow(label="b", value=33.4, seeds=5, seed_sd=1.5),
        PublishedRow(label="c", value=40),
        PublishedRow(label="d", value=41),
    ),
)
"""A table that states a spread for one of its three steps."""


def test_a_stated_spread_has_its_own_column():
    """An assumed one stands below its own heading, also where other rows state theirs."""
    result = audit(MIXED, [2.0, 50.0])
    assert columns(result)[-3:] == ("stated sd; seeds", "sd 2; seeds", "sd 50; seeds")
    shown = [cells(result, step)[-3:] for step in result.steps]
    assert [[cell.partition(";")[0] for cell in row] for row in shown] == [["yes", "-", "-"], *[["-", "yes", "no"]] * 2]
    assert all(len(cells(result, step)) == len(columns(result)) for step in result.steps)
    assert "stated sd; seeds" not in columns(audit(two(30, 36), [2.0]))


def test_a_larger_spread_has_no_smaller_p():
    """Stated tests are in the family of each assumed spread, so the correction is for all steps in each."""
    steps = audit(MIXED, [4.0, 4.001]).steps
    for step in steps[1:]:
        small, large = (test.p for test in step.seeds)
        assert small <= large
    raw = stats.ttest_ind_from_stats(33.4, 1.5, 5, 30, 1.5, 4, equal_var=False).pvalue
    others = [2 * stats.norm.sf(v / (4.001 * math.sqrt(1 / 4 + 1))) for v in (10, 11)]
    first, second, third = sorted([raw, *others])
    adjusted = {first: 3 * first}
    adjusted[second] = max(adjusted[first], 2 * second)
    adjusted[third] = max(adjusted[second], third)
    assert [step.seeds[-1].p for step in steps] == pytest.approx([adjusted[p] for p in (raw, *others)])


def test_both_intervals_are_the_same_only_for_one_run_and_one_response():
    """With several seeds the responses are more than the problems."""
    for seeds, samples, same in ((None, 1, True), (1, 1, True), (4, 1, False), (None, 8, False)):
        result = audit(two(30, 36, problems=30, samples=samples, seeds=seeds))
        assert ("both intervals are the same" in " ".join(conclusions(result))) == same
        assert (result.steps[0].same == result.steps[0].like) == same


def test_the_spread_that_a_step_survives():
    """Just below it the step exceeds the spread, just above it does not."""
    table = two(30, 36, problems=30, samples=32)
    (step,) = audit(table).steps
    below, above = audit(table, [0.999 * step.survives, 1.001 * step.survives]).steps[0].seeds
    assert below.exceeds
    assert not above.exceeds


def test_what_is_not_stated_is_not_guessed():
    """Without problems or samples there is no interval; a row without runs counts as one, and the text says so."""
    result = audit(two(30, 36, seeds=None))
    assert result.steps[0].reach == "not known"
    assert result.steps[0].same is None
    assert result.steps[0].runs == (1, 1)
    text = " ".join(conclusions(result))
    assert "not known" in text
    assert "not stated; a row counts as one" in text
    half = audit(two(30, 36, problems=30)).steps[0]
    assert half.same is None
    assert half.like is not None


@pytest.mark.parametrize("name", published_names())
def test_shipped_tables_are_audited(name: str):
    """Each states problems and samples with where its source says so, no runs, and renders in all forms."""
    table = load_published(name)
    result = audit(table, [2.0])
    assert table.problems
    assert table.samples
    assert table.seeds is None
    assert "Not stated" in table.stated
    assert len(result.steps) == len(table.rows) - 1
    page = html_page(result)
    assert "<script" not in page
    assert "http" not in page
    assert page.count("<tr>") == len(table.rows)
    assert markdown(result).count("\n| ") == len(table.rows)


def test_dapo_by_hand():
    """Of five steps two exceed asking AIME again: +6, then +8; none exceeds other problems."""
    steps = audit(load_published("dapo_table1")).steps
    assert [s.value for s in steps] == [6, 2, 3, 1, 8]
    assert [s.reach for s in steps] == ["these problems", *["within noise"] * 3, "these problems"]


def test_a_csv_is_the_same_table(tmp_path: Path):
    """Quotes, spaces, empty cells and a byte order mark."""
    (tmp_path / "t.csv").write_bytes(
        b'\xef\xbb\xbflabel, value ,problems,samples,against\r\n"a, ""b""",30,30,32,\r\n\r\nc, 36.5,30,,"a, ""b"""\r\n'
    )
    table = read_table(tmp_path / "t.csv")
    assert table.rows[0] == PublishedRow(label='a, "b"', value=30, problems=30, samples=32)
    assert table.rows[1] == PublishedRow(label="c", value=36.5, problems=30, against='a, "b"')


@pytest.mark.parametrize(
    ("name", "text", "places"),
    [
        ("t.csv", "label,value\na,x\nb,130\nb,5\n", ["2:3", "3:3", "4:1"]),
        ("t.csv", "label,valeu\na,1,2\n", ["1:7", "1:1", "2:1"]),
        ("t.csv", 'label,value\na"b,1\nc,2\n', ["2:1"]),
        ("t.csv", "label,value,samples,against\na,1,0,\nb,2,1.5,z\n", ["2:5", "3:5", "3:9"]),
        ("t.csv", "label,value,problems\na,1,30\nb,2,500\n", ["3:1"]),
        ("t.csv", "\n", [""]),
        ("t.yaml", "rows:\n - {label: a, value: 1, seed: 3}\n - {label: a, value: 101}\n", ["2:25", "3:12", "3:22"]),
        ("t.yaml", "samples: many\nrows: [{label: a, value: 1}]\n", ["1:10", "2:7"]),
        ("t.yaml", "[1, 2]\n", ["1:1"]),
        ("t.csv", f"label,value,problems\na,{'1' * 5000},1{'0' * 400}\nb,5,1\n", ["2:3", "2:5004"]),
        ("t.csv", "label,value,problems\na,1,1000000001\nb,5,1000000001\n", ["2:5", "3:5"]),
        ("t.yaml", f"rows:\n - {{label: a, value: {'1' * 400}}}\n - {{label: b, value: 1}}\n", ["2:22"]),
        ("t.yaml", f"problems: 1{'0' * 400}\nrows: [{{label: a, value: 1}}, {{label: b, value: 2}}]\n", ["1:11"]),
        ("t.yaml", f"seed_sd: 1{'0' * 400}\nrows: [{{label: a, value: 1}}, {{label: b, value: 2}}]\n", ["1:10"]),
    ],
)
def test_every_mistake_has_its_place(tmp_path: Path, name: str, text: str, places: list[str]):
    """All of a file at once, with line and column."""
    (tmp_path / name).write_text(text)
    with pytest.raises(StudyFileError) as error:
        read_table(tmp_path / name)
    found = [":".join(str(x) for x in (p.line, p.column) if x) for p in error.value.problems]
    assert sorted(found) == sorted(places), str(error.value)


def test_the_command(tmp_path: Path):
    """It prints at most 100 columns, writes the page, and as JSON the same steps."""
    page = tmp_path / "page.html"
    done = CliRunner().invoke(command, ["vapo_table1", "--seed-sd", "1.5", "--seed-sd", "4", "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert "not stated" in done.output
    assert all(text in " ".join(done.output.split()) for text in ("yes; 5", "no; 19"))
    assert max(map(len, done.output.splitlines())) <= 100
    assert page.read_text().startswith("<!doctype html>")
    done = CliRunner().invoke(command, ["vapo_table1", "--json"])
    assert len(json.loads(done.output)["steps"]) == 8
    assert CliRunner().invoke(command, []).exit_code == 2
    assert "dapo_table1" in CliRunner().invoke(command, ["--list"]).output
