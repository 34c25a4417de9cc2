"""The report page: what ``paribus report`` writes, as a page that follows the study."""

from __future__ import annotations

from fastapi import APIRouter
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from paribus.report.render.html import body_values, plots, to_html
from paribus.report.render.plotly import plotly_script
from paribus_dashboards.data.home import NotFound
from paribus_dashboards.data.reports import Built, Report
from paribus_dashboards.format import quoted
from paribus_dashboards.web import Page, answer, home_of, render

router = APIRouter()


@router.get("/study/{study}/report")
def show(request: Request, study: str) -> Response:
    """Show the report."""
    return _render(request, study, "report/page.html", page)


@router.get("/study/{study}/report/body")
def body(request: Request, study: str) -> Response:
    """Show only the report, for polling."""
    return _render(request, study, "report/body.html", None)


@router.get("/data/study/{study}/report.json")
def data(request: Request, study: str, figure: str) -> Response:
    """Return a figure of the report."""
    found = plots(_built(request, study).model)
    if figure not in found:
        raise NotFound(f"the report has no figure `{figure}`")
    return answer(request, found[figure])


@router.get("/study/{study}/report.html")
def file(request: Request, study: str) -> Response:
    """Return the report as one file, for download."""
    text = to_html(_built(request, study).model, plotly_script())
    name = f"attachment; filename*=UTF-8''{quoted(study)}-report.html"
    return Response(text, headers={"content-disposition": name}, media_type="text/html; charset=utf-8")


def _built(request: Request, study: str) -> Built:
    home = home_of(request)
    report = home.report(home.study(study))
    if report.built is None:
        raise NotFound(report.trouble or "the report is still being built")
    return report.built


def _render(request: Request, study: str, template: str, shown: Page | None) -> Response:
    home = home_of(request)
    report: Report = home.report(home.study(study))
    values = body_values(report.built.model) if report.built else {}

    def drawn(key: str) -> Markup:
        at = f"/data/study/{quoted(study)}/report.json?figure={quoted(key)}"
        return Markup('class="chart" data-src="{}"').format(at)

    return render(request, template, shown, study, report=report, drawn=drawn, root="paribus.report/", **values)


page = Page(key="report", title="Report", place=6, router=router)
