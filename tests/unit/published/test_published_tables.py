"""Published tables: those that ship are whole, and a wrong name is told with the right ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from paribus.errors import ParibusError, StudyFileError
from paribus.home import data_root
from paribus.published.tables import load_published, published_names
from paribus.study.load import load_study


@pytest.mark.parametrize("name", published_names())
def test_shipped_tables(name: str) -> None:
    """Each names its paper by its arXiv number, and no two rows have the same tricks."""
    table = load_published(name)
    assert "arXiv" in table.source
    assert len({frozenset(row.tricks) for row in table.rows}) == len(table.rows) > 1


def test_dapo() -> None:
    """The ladder of DAPO's Table 1 stands beside the rows of the study that plans it."""
    table = load_published("dapo_table1")
    assert [row.value for row in table.rows] == [30, 36, 38, 41, 42, 50]
    order = load_study(data_root("ablations") / "studies" / "dapo_table1.yaml").spec.designs["ladder"].order
    assert [table.value_of(frozenset(order[:k])) for k in range(len(order) + 1)] == [30, 36, 38, 41, 42, 50]
    assert table.value_of(frozenset({"clip_higher"})) is None


def test_a_wrong_name_is_told(tmp_path: Path) -> None:
    """In a study file with its place and the nearest name; elsewhere with all names."""
    study = tmp_path / "s.yaml"
    study.write_text(
        "study: s\nbase: {preset: grpo}\ndesigns: {levels: {kind: grid, over: {clip.high: [0.3]}}}\n"
        "report: {published: [dapo_tabel1]}\n"
    )
    with pytest.raises(StudyFileError, match=r"s.yaml:4:22.*Did you mean `dapo_table1`"):
        load_study(study)
    with pytest.raises(ParibusError, match=r"Tables: dapo_table1, .*, vapo_table1"):
        load_published("no_such_table")
