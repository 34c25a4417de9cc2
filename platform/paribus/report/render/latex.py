r"""The report as LaTeX: a fragment for ``\input`` with booktabs, without vertical rules.

The preamble needs ``adjustbox``, ``booktabs`` and ``textcomp``, and the encoding T1. Cells and headings of wide tables
get several lines before the table is scaled to the width of the text; notes keep their size.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from functools import cache
from string import ascii_lowercase

from jinja2 import Environment, PackageLoader, StrictUndefined

from paribus.report.model import Cell, Column, ReportModel, Table

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "−": r"$-$",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "ρ": r"$\rho$",
    "≈": r"$\approx$",
    "×": r"$\times$",
    "†": r"\dag{}",
    "✗": r"$\times$",
    "■": r"\rule{1ex}{1ex}",
    "▲": r"$\triangle$",
    "●": r"$\bullet$",
    "○": r"$\circ$",
    "…": r"\ldots{}",
    "—": "---",
    "*": r"\textasteriskcentered{}",
    "→": r"$\rightarrow$",
    "↵": r"$\hookleftarrow$",
    "⇥": r"$\mapsto$",
    "⟨": r"$\langle$",
    "⟩": r"$\rangle$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "◂": r"$\triangleleft$",
    "“": "``",
    "”": "''",
    "·": r"$\cdot$",
}


_LETTERS = "ĂăĄąĆćČčĎďĐđĘęĚěĞğİıĹĺĽľŁłŃńŇňŐőŒœŔŕŘřŚśŞşŠšŢţŤťŰűŮůŸŹźŻżŽž‘’–"
"""Characters beyond Latin-1 that pdflatex knows with the T1 encoding; others stand as their code."""


_CHARACTERS = re.compile(f"{'|'.join(map(re.escape, _LATEX))}|[^ -~\u00a1-\u00ac\u00ae-\u00ff{_LETTERS}]")


_INTERVAL = re.compile(r" (?=\[|±)")


HEAD = 11
"""Characters of a line of a heading; a longer word stays whole."""


LONG = 28
"""Characters of a text above which its column is set in paragraphs."""


def to_latex(model: ReportModel) -> str:
    """Return all tables; the last one is the provenance."""
    return _latex("report.tex.j2", model=model, tables=model.tables, provenance=True)


def latex_tables(model: ReportModel) -> dict[str, str]:
    r"""Return each table as a text of its own for ``\\input``, by the name of its file."""
    return {
        re.sub(r"[^\w.-]", "-", t.key): _latex("report.tex.j2", model=model, tables=[t], provenance=False)
        for t in model.tables
    }


def _latex(template: str, **values: object) -> str:
    found = _latex_templates().get_template(template)
    return found.render(escape=escape_latex, cell=_latex_cell, head=_head, widths=_widths, marks=_marks, **values)


def escape_latex(text: str) -> str:
    """Return the text with LaTeX's special characters escaped and backquoted names in typewriter type."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:
        return _escape_plain("'".join(parts))
    return "".join(rf"\texttt{{{_escape_plain(p)}}}" if i % 2 else _escape_plain(p) for i, p in enumerate(parts))


def _escape_plain(text: str) -> str:
    return _CHARACTERS.sub(lambda m: _LATEX.get(m.group()) or _code(m.group()), text)


def _code(one: str) -> str:
    return rf"$\langle$U+{ord(one):04X}$\rangle$"


def _latex_cell(cell: Cell, width: str = "", split: bool = False) -> str:
    """Return a cell: a paragraph of this width, or else a line, with interval and note below it if ``split``."""
    if width:
        return rf"\parbox[t]{{{width}\linewidth}}{{\raggedright {escape_latex(cell.text)}\strut}}"
    parts = _INTERVAL.split(cell.text, maxsplit=1) if split and cell.value is not None else [cell.text]
    lines = [rf"\textbf{{{escape_latex(p)}}}" if cell.bold else escape_latex(p) for p in parts]
    lines += [rf"{{\scriptsize {escape_latex(cell.note)}}}"] if cell.note else []
    return _stacked(lines, "t")


def _head(column: Column, mark: str) -> str:
    """Return the heading of a column in lines of about :data:`HEAD` characters."""
    whole = "`" in column.label
    lines = [column.label] if whole else textwrap.wrap(column.label, HEAD, break_long_words=False) or [""]
    found = [escape_latex(line) for line in lines]
    found[-1] += rf"\textsuperscript{{{mark}}}" if mark else ""
    return _stacked(found, "b")


def _stacked(lines: Sequence[str], place: str) -> str:
    """Return lines above each other, aligned with the row at the top (``t``) or the bottom (``b``)."""
    if len(lines) == 1:
        return lines[0]
    stacked = r"\\{}".join(lines)  # a bracket after the end of a line would be its argument
    return rf"\begin{{tabular}}[{place}]{{@{{}}r@{{}}}}{stacked}\end{{tabular}}"


def _widths(table: Table) -> list[str]:
    """Return the width of each column of long texts as a share of the line; empty for other columns."""
    columns = [[row.cells[i] for row in table.rows] for i in range(len(table.columns))]
    texts = [max((len(c.text) for c in x), default=0) > LONG and all(c.value is None for c in x) for x in columns]
    width = "0.6" if len(texts) <= 2 else "0.45" if sum(texts) == 1 else "0.25"
    return [width if text else "" for text in texts]


def _marks(table: Table) -> dict[str, str]:
    """Return column key to footnote letter, for columns with a footnote."""
    noted = [c.key for c in table.columns if c.note]
    return dict(zip(noted, ascii_lowercase, strict=False))


@cache
def _latex_templates() -> Environment:
    return Environment(  # noqa: S701 - LaTeX, not HTML: every value passes through `escape_latex`
        loader=PackageLoader("paribus.report.render"),
        undefined=StrictUndefined,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
