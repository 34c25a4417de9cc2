"""The report of a study as it stands: the page that ``paribus report`` writes, in the dashboard."""

from __future__ import annotations

from fastapi import APIRouter
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from paribus.report.figures import plotly_script
from paribus.report.html import body_values, plots, to_html
from paribus_dashboards.home import NotThere
from paribus_dashboards.reports import Built, Report
from paribus_dashboards.web import Page, answer, home_of, quoted, render

router = APIRouter()


@router.get("/study/{study}/report")
def show(request: Request, study: str) -> Response:
    """Show the report."""
    return _render(request, study, "report_page.html", page)


@router.get("/study/{study}/report/body")
def body(request: Request, study: str) -> Response:
    """Show the report alone, for polling."""
    return _render(request, study, "report_body.html", None)


@router.get("/data/study/{study}/report.json")
def data(request: Request, study: str, figure: str) -> Response:
    """Answer with a figure of the report."""
    found = plots(_built(request, study).model)
    if figure not in found:
        raise NotThere(f"the report has no figure `{figure}` now")
    return answer(request, found[figure])


@router.get("/study/{study}/report.html")
def file(request: Request, study: str) -> Response:
    """Answer with the report as one file, to be kept."""
    text = to_html(_built(request, study).model, plotly_script())
    name = f"attachment; filename*=UTF-8''{quoted(study)}-report.html"
    return Response(text, headers={"content-disposition": name}, media_type="text/html; charset=utf-8")


def _built(request: Request, study: str) -> Built:
    home = home_of(request)
    report = home.report(home.study(study))
    if report.built is None:
        raise NotThere(report.trouble or "the report is still being built")
    return report.built


def _render(request: Request, study: str, template: str, shown: Page | None) -> Response:
    home = home_of(request)
    report: Report = home.report(home.study(study))
    values = body_values(report.built.model) if report.built else {}

    def drawn(key: str) -> Markup:
        at = f"/data/study/{quoted(study)}/report.json?figure={quoted(key)}"
        return Markup('class="chart" data-src="{}"').format(at)

    return render(request, template, shown, study, report=report, drawn=drawn, root="report/", **values)


page = Page(key="report", title="Report", place=6, router=router)
