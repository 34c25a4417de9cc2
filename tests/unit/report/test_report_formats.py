"""The formats: golden files, numbers that come from the model alone, hostile texts."""

from __future__ import annotations

import csv
import html
import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paribus.errors import install_command
from paribus.report.build import build_report
from paribus.report.model import ReportModel
from paribus.report.render import plotly as plotly_module
from paribus.report.render.html import to_html
from paribus.report.render.latex import escape_latex, latex_tables, to_latex
from paribus.report.render.plotly import forest_figure, legend, panel_figure, plotly_script
from paribus.report.render.text import (
    FIELDS,
    escape_markdown,
    to_csv,
    to_markdown,
    to_markdown_appendix,
    to_terminal,
)
from paribus.report.write import write_model
from support.studies import Shape, made_up_study

GOLDEN = Path(__file__).parents[2] / "golden" / "report"
RENDER = {
    "report.md": to_markdown,
    "report_appendix.md": to_markdown_appendix,
    "report.csv": to_csv,
    "report.tex": to_latex,
    "report.json": ReportModel.to_json,
    "report.txt": to_terminal,
}
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def numbers(text: str) -> set[str]:
    """All numbers in a text, without their signs."""
    return set(NUMBER.findall(text))


def known_numbers(model: ReportModel) -> set[str]:
    """All numbers that the model holds, in its texts and as values."""
    return numbers(model.to_json())


@pytest.mark.parametrize("name", RENDER)
def test_golden(name: str, model: ReportModel) -> None:
    """Each format of a study with known numbers is as kept; PARIBUS_UPDATE_GOLDEN=1 writes the files anew."""
    text = RENDER[name](model)
    path = GOLDEN / name
    if os.environ.get("PARIBUS_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


shapes = st.builds(
    Shape,
    seeds=st.integers(1, 5),
    steps=st.just(4),
    designs=st.sampled_from([("cumulative",), ("list",), ("cumulative", "add_one", "leave_one_out")]),
    tricks=st.just(("soft_overlong", "clip_higher")),
    paired=st.booleans(),
    noise=st.sampled_from([0.0, 0.1, 1.0, 20.0]),
    outcomes=st.lists(
        st.tuples(
            st.sampled_from(["base", "+ soft_overlong", "soft_overlong"]),
            st.integers(0, 4),
            st.sampled_from(["failed", "stopped_early", "cancelled", "pending"]),
        ),
        max_size=6,
    ).map(tuple),
    problems=st.just(40),
    samples=st.sampled_from([1, 2]),
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shapes)
def test_rendering_never_computes(shape: Shape) -> None:
    """Whatever the study, every number in every format is a number of the model."""
    model = build_report(made_up_study(shape))
    known = known_numbers(model)
    footnotes = re.compile(r"\[\^\d+[a-z]\]")
    for shown in (to_markdown(model), to_markdown_appendix(model)):
        assert numbers(footnotes.sub("", re.sub(r"\]\([^)]*\)", "]", shown))) <= known
    assert numbers(to_terminal(model).replace("\n", " ")) <= known | numbers(to_terminal(model, width=10_000))
    assert numbers(to_terminal(model, width=10_000)) <= known
    layout = re.compile(r"\\setlength\{\\tabcolsep\}\{4pt\}|(?:p|\\parbox\[t\])\{0\.\d+\\linewidth\}|T1")
    assert numbers(layout.sub("", to_latex(model))) <= known
    rows = list(csv.reader(io.StringIO(to_csv(model))))
    assert all(len(row) == len(FIELDS) for row in rows)
    assert numbers(" ".join(cell for row in rows for cell in row)) <= known
    assert numbers(visible(to_html(model, None))) <= known


def test_a_narrow_terminal_breaks_no_word_of_a_table(model: ReportModel) -> None:
    """At 80 columns a table that is too wide continues below, with the labels of its rows again."""
    shown = to_terminal(model, width=80)
    assert max(map(len, shown.splitlines())) <= 80
    for table in model.main_tables():
        for row in table.rows:
            assert row.label in shown
        words = {word for column in table.columns for word in column.label.split()}
        assert words <= set(shown.split())


def visible(page: str) -> str:
    """The text that a reader of the page sees, with titles."""
    body = re.sub(r"(?s)<(style|script).*?</\1>|<head>.*?</head>|<h\d|</h\d", " ", page)
    titles = " ".join(re.findall(r'title="([^"]*)"', body))
    return html.unescape(re.sub(r"<[^>]*>", " ", body) + titles)


def test_drawn_numbers_are_the_models(model: ReportModel) -> None:
    """Every coordinate of every figure is a number of the model."""
    values = set(re.findall(r"-?\d[\d.e+-]*", model.to_json()))
    drawn = []
    for figure in model.figures:
        plots = [panel_figure(p, legend(figure)) for p in figure.panels] + [forest_figure(f) for f in figure.forests]
        drawn += [v for p in plots for t in p["data"] for axis in "xy" for v in t[axis] if isinstance(v, float | int)]
    assert drawn
    assert {repr(v) for v in drawn} <= values


def test_figures_are_valid_for_plotly(model: ReportModel) -> None:
    """Plotly accepts every figure; every panel names both axes, and has a line an arm."""
    graph_objects = pytest.importorskip("plotly.graph_objects")
    for figure in model.figures:
        for panel in figure.panels:
            plot = panel_figure(panel, legend(figure))
            graph_objects.Figure(plot)
            assert plot["layout"]["xaxis"]["title"]["text"]
            assert plot["layout"]["yaxis"]["title"]["text"]
            assert {t["name"] for t in plot["data"]} == {line.arm for line in panel.lines}
        for forest in figure.forests:
            graph_objects.Figure(forest_figure(forest))


def test_styles_differ_for_many_arms() -> None:
    """Twenty-nine arms have twenty-nine different styles, none by colour alone beyond the palette."""
    styles = {(c, d) for c in plotly_module.COLOURS for d in plotly_module.DASHES}
    assert len(styles) == 28


def test_html_needs_no_network(model: ReportModel) -> None:
    """No element loads anything from elsewhere, the policy forbids it, and the file is at most 5 MB."""
    pytest.importorskip("plotly")
    page = to_html(model, plotly_script())
    assert len(page.encode()) < 5_000_000
    markup = re.sub(r'(?s)<script type="application/[^>]*>.*?</script>', "", page)
    assert not re.findall(r"""(?:src|action)\s*=|href="(?!#)|url\(|@import|https?://""", markup)
    assert "default-src 'none'" in markup


def test_html_without_plotly_says_how_to_get_figures(model: ReportModel) -> None:
    """Without plotly the page has no script, and names the missing part."""
    page = to_html(model, None)
    assert "<script" not in page
    assert "paribus[figures]" in page


def test_written_without_plotly(model: ReportModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If plotly cannot be imported all five files are written, and a note says what is missing."""
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    written = write_model(model, tmp_path / "deep" / "folder")
    assert sorted(p.name for p in written.paths) == [
        "report.csv",
        "report.html",
        "report.json",
        "report.md",
        "report.tex",
        "report_appendix.md",
    ]
    assert {p.stem for p in (tmp_path / "deep" / "folder" / "tables").iterdir()} == {t.key for t in model.tables}
    assert all(p.stat().st_size > 0 for p in written.paths)
    assert install_command("figures") in written.notes[0]


def test_json_is_the_model(model: ReportModel) -> None:
    """The JSON text holds the schema version and every table and row of the model."""
    raw = json.loads(model.to_json())
    assert raw["schema_version"] == 1
    assert [t["key"] for t in raw["tables"]] == [t.key for t in model.tables]
    assert [len(t["rows"]) for t in raw["tables"]] == [len(t.rows) for t in model.tables]


def test_latex_structure(model: ReportModel) -> None:
    """Booktabs rules, no vertical rules, as many cells as columns, balanced braces and environments."""
    text = to_latex(model)
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == len(model.tables) + 1
    specs = re.findall(r"\\begin\{tabular\}\{@\{\}(.*?)@\{\}\}", text)
    assert specs
    assert not any("|" in s for s in specs)
    for table, spec in zip(model.tables, specs, strict=False):
        assert len(spec) == len(table.columns) + 1
    bare = text.replace(r"\\", "")
    assert bare.replace(r"\{", "").count("{") == bare.replace(r"\}", "").count("}")
    for name in ("table", "tabular", "minipage", "adjustbox"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}")


def test_latex_tables_define_their_intervals(model: ReportModel) -> None:
    """Each file holds one table; a note that begins with a bracket is no label of its item."""
    whole = latex_tables(model)
    assert whole.keys() == {t.key for t in model.tables}
    for text in whole.values():
        assert text.count(r"\begin{table}") == 1
        assert r"\item" not in text
    assert "\n[low, high]: 95\\% Student t interval" in whole["ladder.score"]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(model: ReportModel, tmp_path: Path) -> None:
    """The fragment compiles in a plain article with the packages that its first lines name."""
    if not subprocess.run(["kpsewhich", "adjustbox.sty"], capture_output=True, timeout=60).stdout:
        pytest.skip("adjustbox is not installed")
    preamble = r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage{adjustbox,booktabs,textcomp}"
    (tmp_path / "report.tex").write_text(to_latex(model))
    (tmp_path / "main.tex").write_text(preamble + r"\begin{document}\input{report.tex}\end{document}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


hostile = st.text(alphabet=st.sampled_from(list("ab`|\\*_<>&$%#{}~^[](\"'!\n− Δ†")), max_size=30)


@given(hostile)
@example("`\\|`")
def test_hostile_texts_stay_in_their_cell(text: str) -> None:
    """No text breaks a Markdown row, opens an HTML element, or leaves a LaTeX command unescaped."""
    shown = escape_markdown(text)
    assert "\n" not in shown
    assert not re.search(r"(?<!\\)(?:\\\\)*\|", shown)
    latex = escape_latex(text)
    bare = re.sub(r"\\(?:text\w+\{\}|ldots\{\}|dag\{\}|[{}$&#_%])|\\texttt\{|\$(?:-|\\\w+)\$", "", latex)
    assert not re.search(r"[\\$&#_%~^]", bare)


@given(hostile, hostile)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hostile_study_renders(model: ReportModel, question: str, label: str) -> None:
    """A question and a label full of markup render in every format, and add no element to the page."""
    table = model.tables[1]
    rows = (replace(table.rows[0], label=label), *table.rows[1:])
    changed = replace(model, question=question, tables=(model.tables[0], replace(table, rows=rows), *model.tables[2:]))
    for render in RENDER.values():
        render(changed)
    tags = re.compile(r"<[a-zA-Z/!][^>]*>")
    plain = [t for t in tags.findall(to_html(model, None)) if not t.startswith(("<code", "</code"))]
    assert len([t for t in tags.findall(to_html(changed, None)) if not t.startswith(("<code", "</code"))]) == len(plain)


def test_csv_texts_are_no_formulas(model: ReportModel) -> None:
    """A cell that begins like a formula is quoted for spreadsheets; numbers keep all digits of the model."""
    table = next(t for t in model.tables if t.key == "learning")
    rows = (replace(table.rows[0], label="=1+1"), *table.rows[1:])
    changed = replace(model, tables=(replace(table, rows=rows),))
    found = list(csv.DictReader(io.StringIO(to_csv(changed))))
    assert found[0]["row"] == "'=1+1"
    score = next(r for r in found if r["column"] == "score")
    assert float(score["value"]) == table.rows[0].cells[2].value
    assert len(score["seeds"].split()) == 3


def chromium() -> str | None:
    """Path of a headless browser, if there is one."""
    return next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)


@pytest.mark.skipif(chromium() is None, reason="chromium is not installed")
@pytest.mark.slow
def test_page_in_a_browser(model: ReportModel, tmp_path: Path) -> None:
    """In headless Chromium all figures are drawn and nothing is written to the console."""
    pytest.importorskip("plotly")
    page = tmp_path / "report.html"
    page.write_text(to_html(model, plotly_script()), encoding="utf-8")
    command = [
        str(chromium()),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    command += ["--window-size=1200,9000", "--virtual-time-budget=20000", "--enable-logging=stderr", "--dump-dom"]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    plots = sum(len(f.panels) + len(f.forests) for f in model.figures)
    assert done.stdout.count('data-drawn="yes"') == plots
    assert done.stdout.count("main-svg") >= plots


def test_report_modules_are_light() -> None:
    """Importing what the renderers are made of loads neither plotly nor scipy."""
    names = ("model", "render.text", "render.plotly", "render.html")
    modules = ", ".join(f"paribus.report.{name}" for name in names)
    code = f"import sys, {modules}; print([m for m in ('plotly', 'scipy', 'numpy', 'sqlalchemy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("outcome", ["pending", "failed", "cancelled"])
def test_a_study_without_a_score_has_a_report_in_every_format(outcome: str) -> None:
    """Before the first run has ended, and where all have failed, figures refer to no table that is not there."""
    arms = ("base", "clip_higher")
    ends = tuple((arm, seed, outcome) for arm in arms for seed in (0, 1))
    model = build_report(made_up_study(Shape(seeds=2, steps=8, designs=("add_one",), tricks=arms[1:], outcomes=ends)))
    assert any(figure.panels for figure in model.figures) or outcome != "pending"
    assert {figure.table for figure in model.figures} <= {"", *(table.key for table in model.tables)}
    for rendered in (to_html(model, "x"), to_markdown(model), to_latex(model), to_csv(model), model.to_json()):
        assert rendered
    to_terminal(model)
