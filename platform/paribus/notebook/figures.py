"""Finds the figure that a name means, and makes a plotly figure of it: the same data and layout as in the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paribus.errors import MissingExtra, ParibusError, did_you_mean
from paribus.notebook.frames import EXTRA
from paribus.report.analysis.analysis import Analysis
from paribus.report.figures.curves import metric_panel
from paribus.report.model import Figure, ReportModel
from paribus.report.render.plotly import Json, forest_figure, legend, panel_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

ACCURACY = ("accuracy", "score")
"""Names of the study's primary metric."""

_EFFECTS = "effects"
_CURVES = "curves."


def plot(model: ReportModel, analysis: Analysis, name: str) -> go.Figure:
    """Return the figure of this name.

    Args:
        model: the report.
        analysis: what it was built from, for metrics that the report doesn't draw.
        name: ``accuracy``, ``effects``, a metric, or the key of a figure of the report.

    Raises:
        ParibusError: there is no such figure; the message lists what there is.
        MissingExtra: plotly is not installed.
    """
    drawn = _drawn(model)
    found = drawn.get(name)
    if found is None:
        metric = analysis.score.metric if name in ACCURACY else name
        panel = metric_panel(analysis, metric)
        if panel is not None:
            made = panel_figure(panel, legend(Figure(key=metric, title="", caption="", panels=(panel,))))
            found = (panel.title, made)
    if found is None:
        raise _unknown(model, analysis, name, drawn)
    return _figure(*found)


def _drawn(model: ReportModel) -> dict[str, tuple[str, Json]]:
    """Return key to heading and figure, for all panels and forest plots, also under their short names."""
    found: dict[str, tuple[str, Json]] = {}
    for figure in model.figures:
        styles = legend(figure)
        found |= {p.key: (p.title, panel_figure(p, styles)) for p in figure.panels}
        found |= {f.key: (f.title or figure.title, forest_figure(f)) for f in figure.forests}
        if figure.lead and figure.forests:
            found.setdefault(_EFFECTS, (figure.title, forest_figure(figure.forests[0])))
        if figure.key.startswith(_CURVES):
            for panel in figure.panels:
                short = panel.key.removeprefix(f"{figure.key}.")
                for name in ACCURACY if short == "score" else (short,):
                    found.setdefault(name, found[panel.key])
    return found


def _unknown(model: ReportModel, analysis: Analysis, name: str, drawn: Mapping[str, object]) -> ParibusError:
    metrics = {m for run in analysis.data.runs for m in run.recorded.names}
    near = did_you_mean(name, [*drawn, *ACCURACY, *metrics])
    if not drawn and not metrics:
        return ParibusError(
            f"the study `{model.study}` has no figure `{name}`: none of its runs has recorded a metric yet."
        )
    shown = [key for key in drawn if not key.startswith(_CURVES)]
    return ParibusError(
        f"the study `{model.study}` has no figure `{name}`.{near} "
        f"There are: {', '.join(shown)}; and each of the {len(metrics)} recorded metrics by its name."
    )


def _figure(title: str, json: Json) -> go.Figure:
    """Return a plotly figure with a heading and a legend, which the page of a report has around it."""
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise MissingExtra(EXTRA, "A plot") from None
    named: set[str] = set()
    data: list[Any] = []
    for trace in json["data"]:
        drawn = trace.get("hoverinfo") != "skip" and "name" in trace
        fresh = drawn and trace["name"] not in named
        data.append({**trace, "legendgroup": trace.get("name", ""), "showlegend": fresh})
        named |= {trace["name"]} if fresh else set()
    layout = json["layout"]
    margin = {**layout["margin"], "t": 40}
    width = {"showlegend": len(named) > 1, "height": max(layout["height"] + 32, 360), "margin": margin}
    return go.Figure(data=data, layout={**layout, **width, "title": {"text": _plain(title), "font": {"size": 14}}})


def _plain(title: str) -> str:
    """Return a heading without plotly's markup."""
    return title.replace("&", "&amp;").replace("<", "&lt;").replace("`", "")
