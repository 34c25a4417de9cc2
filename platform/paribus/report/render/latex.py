r"""The report's tables as LaTeX: booktabs, no vertical rules, notes by threeparttable.

A fragment for ``\input``; the preamble needs ``adjustbox``, ``booktabs``, ``textcomp`` and ``threeparttable``. Numbers
and words come unchanged from the model; every character that is special in LaTeX is escaped.
"""

from __future__ import annotations

import re
from functools import cache
from string import ascii_lowercase

from jinja2 import Environment, PackageLoader, StrictUndefined

from paribus.report.model import Cell, ReportModel, Table

_PLAIN = {
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
}


_CHARACTERS = re.compile("|".join(map(re.escape, _PLAIN)))


def to_latex(model: ReportModel) -> str:
    """Return all tables; the last one is the provenance."""
    return _environment().get_template("report.tex.j2").render(model=model, escape=escape, cell=_cell, marks=_marks)


def escape(text: str) -> str:
    """Return the text with LaTeX's special characters escaped and backquoted names in typewriter type."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:
        return _escape("'".join(parts))
    return "".join(rf"\texttt{{{_escape(p)}}}" if i % 2 else _escape(p) for i, p in enumerate(parts))


def _escape(text: str) -> str:
    return _CHARACTERS.sub(lambda m: _PLAIN[m.group()], text)


def _cell(cell: Cell) -> str:
    text = rf"\textbf{{{escape(cell.text)}}}" if cell.bold else escape(cell.text)
    if not cell.note:
        return text
    return rf"\begin{{tabular}}[t]{{@{{}}r@{{}}}}{text}\\{{\scriptsize {escape(cell.note)}}}\end{{tabular}}"


def _marks(table: Table) -> dict[str, str]:
    """Return column key to footnote letter, for columns with a footnote."""
    noted = [c.key for c in table.columns if c.note]
    return dict(zip(noted, ascii_lowercase, strict=False))


@cache
def _environment() -> Environment:
    return Environment(  # noqa: S701 - LaTeX, not HTML: every value passes through `escape`
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
