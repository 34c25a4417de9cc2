"""Frames hold the numbers of the report, with declared types, from every source, and reading writes nothing."""

from __future__ import annotations

import csv
import json
import math
import shutil
import stat
from pathlib import Path

import pandas as pd
import pytest

import paribus
from paribus.archive.export import export_study
from paribus.errors import ArchiveError, ParibusError, StoreError
from paribus.report.model import rounded
from paribus.run_folder.folder import MetricLine, RunFolder
from paribus.store.database import Database, file_url
from paribus.store.migrate import run_alembic
from paribus.store.reader import Reader
from paribus.store.store import Store
from support.databases import postgresql
from support.homes import made_up_home
from support.plans import small_plan

from .conftest import SHAPE, STUDY, contents

FRAMES = {
    "runs": lambda r: r.runs(),
    "evaluations": lambda r: r.evaluations(),
    "curves": lambda r: r.curves("policy/entropy"),
    "effects": lambda r: r.effects(),
    "cells": lambda r: r.cells(),
    "metrics": lambda r: r.metrics(),
    "tables": lambda r: r.tables(),
    "arms": lambda r: r.arms(),
}


@pytest.fixture(scope="module")
def results(home: Path) -> paribus.Results:
    """The results of the study."""
    return paribus.results(STUDY, home=home)


# ---- the numbers are those of the report ---------------------------------------------------------------


def test_cells_are_those_of_the_csv(results, report):
    """Every field of every cell of `report.csv` is in the frame, and nothing else."""
    with (report / "report.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    frame = results.cells()
    assert len(frame) == len(written) > 100
    assert list(frame.columns) == list(written[0])
    for row, line in zip(frame.to_dict("records"), written, strict=True):
        for name, text in line.items():
            value = row[name]
            missing = value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))
            shown = "" if missing else value if isinstance(value, str) else repr(value)
            assert shown == text.removeprefix("'") or shown == text, (line["table"], line["row"], line["column"], name)


def test_each_table_is_that_of_the_json(results, report):
    """Row labels, columns, units and all numbers; columns without numbers hold the text of the cell."""
    tables = json.loads((report / "report.json").read_text())["tables"]
    assert list(results.tables()["key"]) == [table["key"] for table in tables]
    for table in tables:
        frame = results.table(table["key"])
        assert list(frame["row"]) == [row["label"] for row in table["rows"]]
        assert list(frame.columns) == ["row", *(c["key"] for c in table["columns"])]
        assert frame.attrs["title"] == table["title"]
        for place, column in enumerate(table["columns"]):
            cells = [row["cells"][place] for row in table["rows"]]
            numbers = [cell["value"] for cell in cells]
            if any(number is not None for number in numbers):
                found = [None if math.isnan(x) else x for x in frame[column["key"]]]
                assert found == numbers
                assert frame.attrs["units"].get(column["key"], "") == column["unit"]
            else:
                assert list(frame[column["key"]]) == [cell["text"] for cell in cells]


def test_effects_are_those_of_the_report(results, report):
    """The score's against the table of comparisons, the others against the table of what each arm moves."""
    tables = {t["key"]: t for t in json.loads((report / "report.json").read_text())["tables"]}
    frame = results.effects()
    score = frame[frame["measure"] == "score"]
    compared = [row["cells"][0] for row in tables["comparisons"]["rows"]]
    for name in ("value", "low", "high", "n", "p", "p_adjusted"):
        assert score[name].tolist() == [cell[name] for cell in compared]
    moved = tables["effects"]
    expected = [cell for row in moved["rows"] for cell in row["cells"]]
    others = frame[frame["measure"] != "score"]
    assert others["value"].tolist() == [cell["value"] for cell in expected]
    assert others["measure"].tolist() == [c["key"] for _ in moved["rows"] for c in moved["columns"]]
    assert set(score["arm"]) == set(results.arms()["arm"]) - {"base"}


def test_runs_have_the_scores_of_the_report(results, report):
    """One row a run; the score of each seed, and the reason of a lost one, as in the tables."""
    tables = {t["key"]: t for t in json.loads((report / "report.json").read_text())["tables"]}
    runs = results.runs()
    assert len(runs) == len(results._data.plan.runs) == runs["run"].nunique()
    assert runs["outcome"].value_counts().to_dict() == {
        "finished": len(runs) - 4, "pending": 3, "failed": 1, "stopped_early": 0, "cancelled": 0,
    }  # fmt: skip
    for number, row in enumerate(tables["seeds"]["rows"]):
        arm = results.arms()["arm"][number]
        mine = runs[runs["arm"] == arm].set_index("seed")["score"]
        for cell in row["cells"]:
            for seed, value in cell["seeds"]:
                assert rounded(mine[seed]) == value
    (lost,) = runs[runs["outcome"] == "failed"].to_dict("records")
    assert (lost["arm"], lost["seed"], lost["reason"]) == ("+ token_level", 2, "out of memory")
    assert math.isnan(lost["score"])


def test_curves_and_evaluations_are_the_lines_and_counts_of_the_runs(results, home):
    """Each value is one of a metric line; accuracy is the count that the same line states as a metric."""
    curve = results.curves("policy/entropy")
    for run, rows in curve.groupby("run"):
        lines = list(RunFolder.of(home, run, 1).read_metrics())
        wanted = {line.step: line.values["policy/entropy"] for line in lines if "policy/entropy" in line.values}
        assert dict(zip(rows["step"], rows["value"], strict=True)) == wanted
    assert set(curve["source"]) == {"exact"}
    logged = results.curves("eval/heldout/avg_at_2").set_index(["run", "step"])["value"]
    counted = results.evaluations().set_index(["run", "step"])["accuracy"]
    assert len(counted) == len(logged) > 30
    assert counted.to_dict() == pytest.approx(logged.to_dict())


def test_a_value_keeps_the_source_of_its_line(tmp_path):
    """Where one run has values of several sources, each step has its own."""
    with Store.open(tmp_path) as store:
        study = store.add_study(small_plan(arms=1, seeds=1))
        claim = store.claim(study.id, engine="inline", worker="test")
        store.start(claim.run_id, claim.token)
    folder = RunFolder.of(tmp_path, claim.fingerprint, claim.token)
    folder.path.mkdir(parents=True)
    for step, source in ((1, "proxy"), (2, "exact"), (3, "derived")):
        named = {} if source == "exact" else {"policy/entropy": source}
        folder.append_metrics(MetricLine(step=step, time_ms=step, values={"policy/entropy": 1.0 / step}, sources=named))
    curve = paribus.results("small", home=tmp_path).curves("policy/entropy")
    assert curve["source"].tolist() == ["proxy", "exact", "derived"]
    assert curve["value"].tolist() == [1.0, 0.5, 1.0 / 3]


# ---- types ----------------------------------------------------------------------------------------------


def test_columns_have_types_and_units(results):
    """Categories in the order of the plan, whole numbers that may be missing, floats, times in UTC."""
    runs = results.runs()
    kinds = {name: str(dtype) for name, dtype in runs.dtypes.items()}
    assert kinds["arm"] == kinds["state"] == kinds["outcome"] == kinds["health"] == "category"
    assert kinds["seed"] == kinds["step"] == kinds["attempts"] == "Int64"
    assert kinds["score"] == kinds["seconds"] == "float64"
    assert kinds["started_at"] == kinds["ended_at"] == "datetime64[us, UTC]"
    assert list(runs["arm"].cat.categories) == list(results.arms()["arm"])
    assert runs.attrs["units"]["score"] == "fraction"
    assert results.curves("policy/entropy").attrs["units"]["value"] == "nats/token"
    ended = runs[runs["outcome"] == "finished"]
    assert ((ended["ended_at"] - ended["started_at"]).dt.total_seconds() == ended["seconds"]).all()


def test_a_study_without_results_has_the_same_columns(results, tmp_path):
    """Frames without rows have the types of frames with rows."""
    with Store.open(tmp_path) as store:
        store.add_study(small_plan())
    empty = paribus.results("small", home=tmp_path)
    for name, take in FRAMES.items():
        full, bare = take(results), take(empty)
        assert set(bare.columns) <= set(full.columns) | set(empty.arms().columns), name
        if name not in ("arms", "cells", "tables"):
            assert list(bare.columns) == list(full.columns), name
            assert {k: str(v) for k, v in bare.dtypes.items()} == {k: str(v) for k, v in full.dtypes.items()}, name
            assert bare.attrs["units"].keys() == full.attrs["units"].keys() or name == "curves", name
    assert len(empty.curves("policy/entropy")) == len(empty.evaluations()) == len(empty.effects()) == 0
    assert len(empty.runs()) == 4
    assert "incomplete" in empty._repr_html_()
    with pytest.raises(ParibusError, match="none of its runs has recorded a metric yet"):
        empty.plot()


def test_one_row_for_each_study(home):
    """The studies of a home folder, with the counts of their runs."""
    (row,) = paribus.studies(home=home).to_dict("records")
    assert (row["study"], row["state"], row["runs"], row["failed"]) == (STUDY, "running", 20, 1)
    assert str(paribus.studies(home=home).dtypes["submitted_at"]) == "datetime64[us, UTC]"


# ---- every source, and nothing written --------------------------------------------------------------------


def everything(found: paribus.Results) -> dict[str, pd.DataFrame]:
    """Return all frames; figures and page are made as well."""
    found.plot("accuracy")
    found.plot("effects")
    found._repr_html_()
    return {name: take(found) for name, take in FRAMES.items()}


def assert_same(left: dict[str, pd.DataFrame], right: dict[str, pd.DataFrame]) -> None:
    """Check that all frames are equal, with their types."""
    for name, frame in left.items():
        pd.testing.assert_frame_equal(frame, right[name], obj=name)


def test_reading_writes_nothing(home):
    """Every file of the home folder has the hash that it had, and none is new: no series, no log of the database."""
    before = contents(home)
    everything(paribus.results(STUDY, home=home))
    paribus.studies(home=home)
    assert contents(home) == before
    assert not list(home.rglob("series.bin"))


def test_a_folder_that_cannot_be_written_is_read(results, home, tmp_path):
    """As that of a colleague, or on a disk mounted read-only."""
    copy = tmp_path / "home"
    shutil.copytree(home, copy)
    for path in (copy, *copy.rglob("*")):
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    try:
        assert_same(everything(paribus.results(STUDY, home=copy)), everything(results))
    finally:
        for path in (copy, *(p for p in copy.rglob("*") if p.is_dir())):
            path.chmod(stat.S_IRWXU)


def test_a_damaged_series_file_is_left_alone(results, home, tmp_path):
    """What it lacks is read from the metric lines; the file is another program's to rebuild."""
    copy = tmp_path / "home"
    shutil.copytree(home, copy)
    for folder in copy.glob("runs/*/a1"):
        (folder / "series.bin").write_bytes(b"PSB1 damaged")
    before = contents(copy)
    pd.testing.assert_frame_equal(
        paribus.results(STUDY, home=copy).curves("policy/entropy"), results.curves("policy/entropy")
    )
    assert contents(copy) == before


def test_a_log_that_a_kill_has_left_is_read_and_kept(home, tmp_path):
    """Rows that stand only in the write-ahead log count."""
    copy = tmp_path / "home"
    shutil.copytree(home, copy)
    with Store.open(copy) as store:
        store.add_study(small_plan())
        killed = tmp_path / "killed"
        shutil.copytree(copy, killed)
    assert (killed / "paribus.db-wal").stat().st_size > 0
    before = contents(killed)
    assert list(paribus.studies(home=killed)["study"]) == [STUDY, "small"]
    assert contents(killed) == before


def test_an_archive_gives_the_same(home, tmp_path):
    """Frames of `paribus export` are those of the home folder; live runs are in it as queued."""
    shutil.copytree(home, tmp_path / "home")
    with Store.open(tmp_path / "home") as store:
        store.cancel(STUDY)
        for attempt in store.live_attempts():
            store.cancelled(attempt.run_id, attempt.token)
        export_study(store, STUDY, tmp_path / "one.paribus", None, checkpoints=False)
    before = contents(tmp_path)
    found = paribus.results(archive=tmp_path / "one.paribus")
    assert found.name == STUDY
    there = everything(paribus.results(STUDY, home=tmp_path / "home"))
    here = everything(found)
    assert_same({k: v for k, v in here.items() if k != "cells"}, there)
    assert here["cells"]["value"].equals(there["cells"]["value"])
    assert contents(tmp_path) == before
    with pytest.raises(ParibusError, match="holds the study `made-up`, not `other`"):
        paribus.results("other", archive=tmp_path / "one.paribus")
    with pytest.raises(ParibusError, match="leave out `home`"):
        paribus.results(archive=tmp_path / "one.paribus", home=home)


def test_an_archive_leaves_its_folder_only_as_long_as_its_results(home, tmp_path, monkeypatch):
    """The temporary folder goes with the object, and at once if the archive is damaged."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    shutil.copytree(home, tmp_path / "home")
    with Reader.open(tmp_path / "home") as reader:
        export_study(reader, STUDY, tmp_path / "one.paribus", None, checkpoints=False)
    found = paribus.results(archive=tmp_path / "one.paribus")
    assert len(list((tmp_path / "scratch").iterdir())) == 1
    del found
    assert list((tmp_path / "scratch").iterdir()) == []
    data = bytearray((tmp_path / "one.paribus").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad.paribus").write_bytes(data)
    with pytest.raises(ArchiveError, match="damaged"):
        paribus.results(archive=tmp_path / "bad.paribus")
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_server_gives_the_same(results, tmp_path, monkeypatch):
    """A PostgreSQL address and the folder of the runs; the session cannot write."""
    with postgresql() as url:
        address = url.set(drivername="postgresql").render_as_string(hide_password=False)
        with monkeypatch.context() as patch:
            patch.setenv("PARIBUS_DATABASE_URL", address)
            made_up_home(tmp_path / "home", SHAPE)
        before = contents(tmp_path)
        found = paribus.results(STUDY, home=tmp_path / "home", database=address)
        for name, frame in everything(found).items():
            timed = [c for c in ("started_at", "ended_at", "seconds") if c in frame]
            other = FRAMES[name](results)
            if name not in ("cells", "tables"):
                pd.testing.assert_frame_equal(frame.drop(columns=timed), other.drop(columns=timed), obj=name)
        assert list(paribus.studies(home=tmp_path / "home", database=address)["study"]) == [STUDY]
        assert contents(tmp_path) == before


def test_an_older_store_says_what_to_do(tmp_path):
    """The message names the file and the command, and the file stays as it is."""
    database = Database(file_url(tmp_path))
    run_alembic(database, "upgrade", "0005")
    database.close()
    before = contents(tmp_path)
    with pytest.raises(StoreError) as caught:
        paribus.results("x", home=tmp_path)
    assert f"the database {tmp_path / 'paribus.db'} has revision 0005" in str(caught.value)
    assert f"`paribus db upgrade --home {tmp_path}` upgrades it." in str(caught.value)
    assert contents(tmp_path) == before


# ---- wrong arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda h: paribus.results("", home=h), ParibusError, r"name of the study is empty.*paribus\.studies\(\)"),
        (lambda h: paribus.results(3, home=h), TypeError, r"not by 3 \(int\)"),
        (lambda h: paribus.results(home=h), TypeError, "not by None"),
        (lambda h: paribus.results("mad-up", home=h), ParibusError, "Did you mean `made-up`.*Studies: made-up"),
        (lambda h: paribus.results("x", home=h / "none"), ParibusError, "there is no store in .*run a study first"),
        (lambda h: paribus.results("x", home=3), TypeError, r"`home` is a path, not 3 \(int\)"),
        (lambda h: paribus.results("x", home=""), ParibusError, "`home` is empty"),
        (lambda h: paribus.results("x", database="mysql://a/b"), ParibusError, "`database` must look like postgresql"),
        (lambda h: paribus.results("x", database=3), TypeError, "is not the address of a PostgreSQL"),
        (lambda h: paribus.results(archive=h / "none"), ParibusError, "there is no archive"),
        (lambda h: paribus.results("x.yaml", home=h), ParibusError, r"^x\.yaml: cannot be read"),
        (
            lambda h: paribus.results(STUDY, home=h).table("laddr"),
            ParibusError,
            "Did you mean `ladder`.*Tables: changes",
        ),
        (lambda h: paribus.results(STUDY, home=h).table(3), TypeError, r"3 \(int\) is not the key of a table"),
        (
            lambda h: paribus.results(STUDY, home=h).curves("policy/entrop"),
            ParibusError,
            "Did you mean `policy/entropy`",
        ),
        (lambda h: paribus.results(STUDY, home=h).curves(None), TypeError, "None is not the name of a metric"),
        (lambda h: paribus.results(STUDY, home=h).plot("acuracy"), ParibusError, "Did you mean `accuracy`"),
        (lambda h: paribus.results(STUDY, home=h).plot(3), TypeError, r"3 \(int\) is not the name of a figure"),
    ],
)
def test_a_wrong_argument_is_answered_in_a_sentence(home, call, kind, says):
    """A type by a TypeError, a value by a ParibusError that names what there is."""
    with pytest.raises(kind, match=says):
        call(home)


def test_the_folder_of_a_report_names_its_study(home, report):
    """A report holds no runs: the message says what to type."""
    with pytest.raises(ParibusError, match=r"folder of a report.*paribus\.results\('out', home=\.\.\.\)"):
        paribus.results(str(report), home=home)


def test_a_metric_that_no_run_has_recorded_gives_no_rows(results):
    """A canonical name is right even where nothing was recorded under it."""
    assert len(results.curves("kl/old_k3")) == 0


# ---- page and figures --------------------------------------------------------------------------------------


def test_the_page_is_the_first_screen_and_escaped(results, report):
    """Question, answer and the table beside it, as in the report; no text of the study becomes markup."""
    page = results._repr_html_()
    answer = json.loads((report / "report.json").read_text())["answer"]
    assert answer.split("`")[0] in page
    assert "<table>" in page
    assert str(results).startswith("Ablation `made-up`")
    data = results._data
    bad = "<script>alert('x')</script>"
    from dataclasses import replace

    arms = tuple(replace(arm, label=bad) if i else arm for i, arm in enumerate(data.plan.arms))
    evil = paribus.Results(replace(data, plan=replace(data.plan, question=bad, arms=arms)), (), "here")
    assert "<script" not in evil._repr_html_()
    assert "&lt;script&gt;" in evil._repr_html_()
    assert "<script" not in (evil.plot().layout.title.text + "".join(t.name or "" for t in evil.plot("effects").data))


def test_figures_are_those_of_the_report(results):
    """The same data as in the page; a metric that the report does not draw has a line for each arm."""
    from paribus.report.render.html import plots

    drawn = plots(results._model)
    for name, key in (("accuracy", "curves.ladder.score"), ("effects", "answer.score"), ("curves.singles.score",) * 2):
        figure = results.plot(name)
        assert len(figure.data) == len(drawn[key]["data"])
        for mine, there in zip(figure.data, drawn[key]["data"], strict=True):
            assert list(mine.x) == there["x"]
            assert list(mine.y) == there["y"]
        assert figure.layout.xaxis.title.text == drawn[key]["layout"]["xaxis"]["title"]["text"]
    other = results.plot("optim/grad_norm")
    assert {t.name for t in other.data} >= {"base", "clip_higher"}
    assert other.layout.yaxis.title.text == "gradient norm (L2)"
