"""The report as one HTML file without external resources: it contains styles, data and plotly's script."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from paribus.report.model import Figure, ReportModel, Table
from paribus.report.render.plotly import Json, forest_figure, legend, panel_figure, parallel_figure
from paribus.text import plural

_TRICK = re.compile(r"(?<!\S)([+-] \S+)")


_INTERVAL = re.compile(r"(\[[^\[\]]*\]|± [0-9.]+|\(n=[0-9]+\))")


def to_html(model: ReportModel, script: str | None) -> str:
    """Return the page.

    Args:
        model: the report.
        script: plotly's script; ``None``: the page has no figures and says how to install them.
    """
    values = body_values(model, figures=bool(script)) | {
        "drawn": lambda key: Markup('class="plot" data-plot="{}"').format(key),
        "root": "",
        "plots": _embedded(plots(model)) if script else "",
        "script": _packed(script) if script else "",
    }
    return report_environment("paribus.report.render").get_template("report.html.j2").render(values)


def body_values(model: ReportModel, *, figures: bool = True) -> dict[str, Any]:
    """Return the values that ``body.html.j2`` needs, except ``drawn`` and ``root``, the folder of the templates."""
    return {
        "model": model,
        "lead": [t for t in model.tables if t.lead],
        "main": [t for t in model.tables if t.main and not t.lead],
        "more": [t for t in model.tables if not t.main and not t.lead],
        "lead_figures": [f for f in model.figures if f.lead and figures],
        "figures": [f for f in model.figures if (figures or f.matrices) and not f.lead],
        "titles": {t.key: t.title for t in model.tables},
        "drawable": figures,
        "legend": legend,
    }


def plots(model: ReportModel) -> dict[str, Json]:
    """Return key to plotly figure, for all plots but matrices."""
    found: dict[str, Json] = {}
    for figure in model.figures:
        styles = legend(figure)
        found |= {p.key: panel_figure(p, styles) for p in figure.panels}
        found |= {f.key: forest_figure(f) for f in figure.forests}
        found |= {p.key: parallel_figure(p) for p in figure.parallels}
    return found


def _embedded(value: object) -> Markup:
    """Return JSON that cannot close the script element around it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704 - no `<` is left


def _packed(script: str) -> str:
    """Return the script gzipped, as base64; a browser unpacks it in 0.1 s."""
    return base64.b64encode(gzip.compress(script.encode(), compresslevel=9, mtime=0)).decode()


def names(text: str, plain: Callable[[str], Markup] = escape) -> Markup:
    """Return the text as HTML, with backquoted names as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return plain(text)
    marked = (Markup("<code>{}</code>").format(_whole(p)) if i % 2 else plain(p) for i, p in enumerate(parts))
    return Markup("").join(marked)


def label(text: str) -> Markup:
    """Return the label of a row as HTML that breaks between tricks, not within one."""
    return names(text, _whole)


def _whole(text: str) -> Markup:
    """Return the text as HTML that does not break between a sign and its trick."""
    parts = _TRICK.split(text)
    marked = (Markup('<span class="part">{}</span>').format(p) if i % 2 else escape(p) for i, p in enumerate(parts))
    return Markup("").join(marked)


def value(text: str) -> Markup:
    """Return a cell's text as HTML with its interval in smaller type."""
    parts = _INTERVAL.split(text)
    marked = (Markup('<span class="ci">{}</span>').format(p) if i % 2 else escape(p) for i, p in enumerate(parts))
    return Markup("").join(marked)


def with_report_filters(environment: Environment) -> Environment:
    """Return the environment with the globals and filters that the templates of tables and figures need."""
    environment.globals |= {"noted": _noted, "plural": plural}
    environment.filters |= {"names": names, "label": label, "value": value, "kind": _kind}
    return environment


def _noted(table: Table) -> list[tuple[str, str]]:
    return [(c.label, c.note) for c in table.columns if c.note]


def _kind(figure: Figure) -> str:
    return "forests" if figure.forests else "panels"


@cache
def report_environment(package: str) -> Environment:
    """Return the environment of a package's templates that show tables and figures of a report."""
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return with_report_filters(environment)
