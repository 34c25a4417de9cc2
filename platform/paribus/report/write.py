"""Writes the files of a report: one model in five formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paribus.atomic import write_whole
from paribus.errors import MissingExtra, ParibusError
from paribus.published.tables import load_published
from paribus.report.build import build_report
from paribus.report.collect import read_study
from paribus.report.model import ReportModel
from paribus.report.render.html import to_html
from paribus.report.render.latex import latex_tables, to_latex
from paribus.report.render.plotly import plotly_script
from paribus.report.render.text import (
    APPENDIX,
    to_csv,
    to_markdown,
    to_markdown_appendix,
    to_terminal,
)
from paribus.report.several_studies import compare_all
from paribus.store.reader import Reader

WIDTH = 100
"""Characters in a line of the text for a terminal, where the caller names none."""


TABLES = "tables"
"""Folder with each table in a LaTeX file of its own."""


@dataclass(frozen=True, kw_only=True)
class WrittenReport:
    """A report on disk.

    Attributes:
        paths: the files, HTML first.
        text: the main tables for a terminal.
        notes: messages for the user, for example that figures are missing.
    """

    paths: tuple[Path, ...]
    text: str
    notes: tuple[str, ...]

    def as_plain(self) -> dict[str, list[str]]:
        """Return files and notes as JSON values."""
        return {"files": [str(path) for path in self.paths], "notes": list(self.notes)}


def write_report(
    reader: Reader, study: str, out: Path, published: Sequence[str] | None = None, *, width: int = WIDTH
) -> WrittenReport:
    """Write the files of a report of the newest study of this name into ``out``.

    Args:
        reader: the store.
        study: name.
        out: folder of the files; created if it does not exist.
        published: names of published tables to show; ``None``: those of the study.
        width: characters in a line of the text for a terminal.

    Raises:
        ParibusError: there is no such study or published table, or ``out`` cannot be written.
    """
    data = read_study(reader, study)
    names = data.plan.published if published is None else published
    beside = tuple(load_published(name) for name in dict.fromkeys(names))
    return write_model(build_report(replace(data, published=beside)), out, width=width)


def write_comparison(reader: Reader, studies: Sequence[str], out: Path, *, width: int = WIDTH) -> WrittenReport:
    """Write the same files for the newest studies of these names, two or more, side by side.

    Raises:
        ParibusError: there is no such study, two are the same plan, or ``out`` cannot be written.
    """
    return write_model(compare_all([read_study(reader, name) for name in studies]), out, width=width)


def write_model(model: ReportModel, out: Path, *, width: int = WIDTH) -> WrittenReport:
    """Write the files of a report that is already built.

    Raises:
        ParibusError: ``out`` cannot be written.
    """
    notes: list[str] = []
    script = None
    try:
        script = plotly_script()
    except MissingExtra as error:
        notes.append(f"report.html has no figures: {error}")
    formats: Mapping[str, Callable[[], str]] = {
        "report.html": lambda: to_html(model, script),
        APPENDIX: lambda: to_markdown_appendix(model),
        "report.md": lambda: to_markdown(model),
        "report.csv": lambda: to_csv(model),
        "report.tex": lambda: to_latex(model),
        "report.json": model.to_json,
    }
    files = {name: render() for name, render in formats.items()}
    files |= {f"{TABLES}/{name}.tex": text for name, text in latex_tables(model).items()}
    try:
        (out / TABLES).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_whole(out / name, text)
    except OSError as error:
        reason = error.strerror or error
        message = (
            f"the report cannot be written to {out}: {reason}; name another folder: paribus report STUDY --out FOLDER"
        )
        raise ParibusError(message) from error
    text = to_terminal(model, width)
    return WrittenReport(paths=tuple(out / name for name in formats), text=text, notes=tuple(notes))
