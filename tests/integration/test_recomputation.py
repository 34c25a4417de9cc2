"""The numbers of a report are those that code which shares nothing with it computes from the run folders."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from paribus.report.write import write_report
from paribus.store.reader import Reader
from support.homes import fill
from support.studies import Shape, made_up_study

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import recompute  # noqa: E402 - a script of the benchmarks

SHAPE = Shape(seeds=4, tricks=("clip_higher", "soft_overlong"), problems=60)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A home folder with a study whose runs have all finished, and the folder of its report."""
    folder = tmp_path_factory.mktemp("recomputed")
    fill(folder / "home", made_up_study(SHAPE))
    with Reader.open(folder / "home") as reader:
        write_report(reader, SHAPE.study, folder / "report")
    return folder / "home", folder / "report" / "report.csv"


def test_every_number_that_is_recomputed_agrees(written: tuple[Path, Path]) -> None:
    """Scores, symptoms, costs, effects, contributions, intervals, p values, corrections and values of seeds."""
    agree, unknown, wrong = recompute.compare(written[0], SHAPE.study, written[1])
    assert wrong == []
    assert agree > 800
    assert unknown.total() < agree / 5


def test_it_imports_nothing_of_paribus() -> None:
    """A mistake that both shared would be seen by neither."""
    text = (BENCHMARKS / "recompute.py").read_text()
    assert "import paribus" not in text
    assert "from paribus" not in text


@pytest.mark.parametrize(
    ("table", "column", "field"),
    [("ladder.score", "to_base", "low"), ("effects", "length", "p_adjusted"), ("cost", "generated", "value"),
     ("contributions", "mean", "high"), ("comparisons", "at_once", "p_adjusted"), ("pairs", "rho", "value")],
)  # fmt: skip
def test_one_changed_number_is_told(
    written: tuple[Path, Path], tmp_path: Path, table: str, column: str, field: str
) -> None:
    """A value, an end of an interval or a p that is one percent off is named, and nothing else."""
    with written[1].open(newline="") as file:
        rows = list(csv.DictReader(file))
    row = next(
        r for r in rows if (r["table"], r["column"]) == (table, column) and r[field] and abs(float(r[field])) > 0.01
    )
    row[field] = f"{1.01 * float(row[field]):.6g}"
    changed = tmp_path / "report.csv"
    with changed.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(row))
        writer.writeheader()
        writer.writerows(rows)
    _, _, wrong = recompute.compare(written[0], SHAPE.study, changed)
    assert len(wrong) == 1
    assert f"{table} / {row['row']} / {column}: {field} is " in wrong[0]


def test_a_changed_run_folder_is_told(tmp_path: Path) -> None:
    """One right answer more in one evaluation, after the report, moves numbers of this arm."""
    fill(tmp_path / "home", made_up_study(SHAPE))
    with Reader.open(tmp_path / "home") as reader:
        write_report(reader, SHAPE.study, tmp_path / "report")
    metrics = next((tmp_path / "home").glob("runs/*/a*/metrics.jsonl"))
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    lines[-1]["values"]["eval/heldout/avg_at_1"] += 1 / SHAPE.problems
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, _, wrong = recompute.compare(tmp_path / "home", SHAPE.study, tmp_path / "report" / "report.csv")
    assert any(text.startswith("seeds / ") for text in wrong)
