"""The study board, and what all pages share."""

from __future__ import annotations

import json
import re

import click
import pytest
from click.testing import CliRunner

from paribus.cli import paribus as group
from paribus.errors import DashboardError, MissingExtra, install_command
from paribus.store.store import Store
from paribus_dashboards.board.figure import ArmCurves, score_figure
from paribus_dashboards.board.page import read_scores, spark, view
from paribus_dashboards.chart_style import Style, arm_styles
from paribus_dashboards.command import command
from paribus_dashboards.data.home import Home
from paribus_dashboards.server.serve import listen
from paribus_dashboards.web import json_text

BOARD = "/study/made-up"


def test_the_board_has_a_tile_for_each_run(home):
    """Arms stand below each other, seeds beside; each tile says status, state, step and score of its run."""
    study = home.study("made-up")
    scores, more = read_scores(home, study, None)
    found = view(study, {r.fingerprint: home.now(r) for r in study.runs}, scores)
    assert not more
    assert found.columns == ("0", "1", "2")
    assert [row.label for row in found.rows] == ["base", "+ clip_higher", "+ soft_overlong"]
    assert found.states == {"SUCCEEDED": 7, "RUNNING": 1, "QUEUED": 1}
    assert (found.ended, found.runs) == (7, 9)
    first, live, waiting = found.rows[0].tiles[0], found.rows[1].tiles[2], found.rows[2].tiles[2]
    assert (first.status, first.detector, first.step, first.steps) == ("critical", "entropy_collapse", 8, 40)
    assert len(first.spark.split()) == 5
    assert (live.state, live.step) == ("RUNNING", 4)
    assert (waiting.state, waiting.step, waiting.spark, waiting.last) == ("QUEUED", 0, "", None)


def test_lines_that_are_known_are_shown_even_if_there_is_no_time(folder):
    """An answer that may take no time asks for more, and once all is known it has all of it."""
    home = Home(folder)
    study = home.study("made-up")
    assert read_scores(home, study, -1) == ({}, True)
    all_of_them = read_scores(home, study, None)
    assert len(all_of_them[0]) == 8
    assert read_scores(home, study, -1) == all_of_them
    home.close()


def test_a_sparkline_stays_in_its_box():
    """The lowest score is at the bottom, the highest at the top, the last planned step at the right edge."""
    assert spark(((0, 0.0), (10, 1.0)), 10, 0.0, 1.0) == "0.0,21.0 96.0,1.0"
    assert spark(((0, 0.5), (10, 0.5)), 20, 0.5, 0.5) == "0.0,21.0 48.0,21.0"
    assert spark(((0, 0.5),), 20, 0.0, 1.0) == ""


def test_pages_answer_304_to_who_has_them(client):
    """What has not changed costs a tag, no page."""
    for address in ("/", "/data/study/made-up/score.json"):
        first = client.get(address)
        assert first.status_code == 200
        again = client.get(address, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_every_address_on_the_board_is_answered(client):
    """Partials, data and static files that the page names are there."""
    page = client.get(BOARD).text
    named = re.findall(r'(?:data-poll|data-src|href|src)="(/[^"]*)"', page)
    for address in {a for a in named if "/health?" not in a}:
        assert client.get(address).status_code == 200, address
    assert client.get("/static/../app.py").status_code == 404
    assert client.get("/study/other").status_code == 404


def test_the_ladder_is_that_of_the_report(client, home):
    """The table on the board is the report's own."""
    home.report(home.study("made-up"), wait_s=None)
    shown = client.get(f"{BOARD}/tables").text
    assert "incomplete: 7 of 9 runs ended" in shown
    assert "+ clip_higher" in shown


def test_names_are_data(client, home):
    """What a study file says cannot become markup, neither in a page nor in a chart."""
    style = Style(colour="#0077bb", dash="solid")
    arm = ArmCurves(label="<b>%{x}</b>", style=style, seeds=({0: 1.0, 1: float("nan")},))
    text = json_text(score_figure([arm], "steps", "score"))
    assert "<b>" not in text
    assert json.loads(text)["data"][-1]["y"] == [1.0, None]
    assert "<script>alert" not in client.get("/study/%3Cscript%3Ealert(1)").text


def test_an_arm_has_one_colour_and_the_base_is_grey(home):
    """Colours follow the order of the plan, on every page as in the report."""
    plan = home.study("made-up").record.plan
    styles = arm_styles(plan)
    assert [styles[a.key].colour for a in plan.arms] == ["#8a8a8a", "#0077bb", "#ee7733"]


def test_a_band_is_drawn_from_three_seeds_on():
    """Below three seeds there is a mean and the seeds, no band; a mean ends where the first seed does."""
    style = Style(colour="#0077bb", dash="solid")
    seeds = ({0: 0.0, 1: 1.0}, {0: 1.0, 1: 2.0}, {0: 2.0})
    two = score_figure([ArmCurves(label="a", style=style, seeds=seeds[:2])], "x", "y")["data"]
    assert [t.get("fill") for t in two] == [None, None, None]
    assert two[-1]["y"] == [0.5, 1.5]
    three = score_figure([ArmCurves(label="a", style=style, seeds=seeds)], "x", "y")["data"]
    assert [t.get("fill") for t in three] == ["toself", None, None, None, None]
    assert three[-1]["x"] == [0]


@pytest.mark.parametrize("arguments", [["--host", "0.0.0.0"], ["--token-env", "A", "--token-file", "b"]])
def test_the_command_refuses_what_is_unsafe(arguments, tmp_path):
    """An open address without a token, or two tokens, is an error of the user before anything listens."""
    done = CliRunner().invoke(command, ["--home", str(tmp_path), *arguments])
    assert done.exit_code != 0
    assert isinstance(done.exception, DashboardError | SystemExit)


def test_a_study_that_is_not_there_is_refused(folder, tmp_path, monkeypatch):
    """A wrong name is no empty page, unless no study is there yet: then it may come to be."""
    served = []

    def serve(shown, _, listening):
        listening.close()
        served.append(shown.folder)

    monkeypatch.setattr("paribus_dashboards.server.serve.serve", serve)
    with Store.open(tmp_path / "empty"):
        pass
    for home in (folder, tmp_path / "none", tmp_path / "empty"):
        done = CliRunner().invoke(command, ["--home", str(home), "--study", "nope", "--port", "0"])
        assert (home == folder) == isinstance(done.exception, DashboardError)
        assert done.exception is None or "no study `nope`" in str(done.exception)
    assert served == [tmp_path / "none", tmp_path / "empty"]


def test_an_export_says_what_it_replaced(tmp_path, monkeypatch):
    """It replaces an existing file, as a report does, and says so."""
    file = tmp_path / "all.html"
    monkeypatch.setattr("paribus_dashboards.server.export.export", lambda _, at: at.write_text("pages"))
    said = [CliRunner().invoke(command, ["--home", str(tmp_path), "--export", str(file)]).output for _ in range(2)]
    assert said == [f"{file}  (0.0 MB)\n", f"{file}  (0.0 MB, replaced the existing file)\n"]


@pytest.mark.parametrize(
    "more", [["--host", "nohost.invalid"], ["--port", "0"], ["--token-env", "TOKEN"], ["--token-file", "token"]]
)
def test_an_export_refuses_what_only_a_server_uses(more, folder, tmp_path):
    """A host or a token that changes nothing is no part of what was asked for; no file is written."""
    done = CliRunner().invoke(command, ["--home", str(folder), "--export", str(tmp_path / "all.html"), *more])
    assert done.exit_code == 2
    assert "leave out --host, --port, --token-env and --token-file" in done.output
    assert not (tmp_path / "all.html").exists()


def test_without_the_extra_the_command_says_what_to_install(monkeypatch):
    """Neither a missing entry point nor a missing package is a traceback."""
    monkeypatch.setattr("paribus.cli.entry_points", lambda **_: ())
    with pytest.raises(MissingExtra, match=re.escape(install_command("dashboard"))):
        group.get_command(click.Context(group), "dashboard")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    done = CliRunner().invoke(command, [])
    assert isinstance(done.exception, MissingExtra)


def test_a_port_that_is_taken_is_an_error_with_a_remedy():
    """The second dashboard on a port says what to do."""
    with listen("127.0.0.1", 0) as first, pytest.raises(DashboardError, match="--port"):
        listen("127.0.0.1", first.getsockname()[1])


def many_arms(n, seeds=3):
    """Return arms whose scores rise with their number; the first is the base."""
    style = Style(colour="#0077bb", dash="solid")
    curve = [{0: 0.1, 10: 0.1 + i / 1000} for i in range(n)]
    return [ArmCurves(label=f"arm {i}" if i else "base", style=style, seeds=(curve[i],) * seeds) for i in range(n)]


def drawn_at_first(figure):
    """Return the labels of the arms that are shown without a choice."""
    return [t["name"] for t in figure["data"] if t.get("meta") and t["name"] not in figure["rest"]]


def test_the_chart_shows_the_base_and_the_five_best_arms():
    """The others are there to be pointed at; bands and single seeds are those of the shown arms only."""
    figure = score_figure(many_arms(9), "steps", "score", base="base")
    assert drawn_at_first(figure) == ["base", "arm 4", "arm 5", "arm 6", "arm 7", "arm 8"]
    assert figure["rest"] == ["arm 1", "arm 2", "arm 3"]
    assert "the base and the 5 best others of 9 arms" in figure["note"]
    assert sum(t.get("fill") == "toself" for t in figure["data"]) == 6
    lower = score_figure(many_arms(9), "steps", "loss", base="base", lower=True)
    assert drawn_at_first(lower) == ["base", "arm 1", "arm 2", "arm 3", "arm 4", "arm 5"]
    few = score_figure(many_arms(6), "steps", "score", base="base")
    assert (few["rest"], few["note"]) == ([], "")


def test_of_more_than_a_hundred_arms_the_best_are_drawn_and_the_note_says_so():
    """The five best are those of all arms, not of the first hundred."""
    figure = score_figure(many_arms(130, seeds=1), "steps", "score", base="base")
    assert drawn_at_first(figure) == ["base", *(f"arm {i}" for i in range(125, 130))]
    assert len(figure["rest"]) == 94
    assert "of 130 arms" in figure["note"]
    assert "The list has the best 100." in figure["note"]


def test_the_note_does_not_speak_of_a_base_without_a_score():
    """Nor are arms counted that have none."""
    arms = many_arms(8)
    arms[0] = ArmCurves(label="base", style=arms[0].style, seeds=({}, {}))
    figure = score_figure(arms, "steps", "score", base="base", among=" on this page")
    assert figure["note"].startswith("Shown: the 5 best of 7 arms with a score on this page")
