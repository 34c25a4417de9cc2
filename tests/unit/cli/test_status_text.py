"""What `paribus status` says below its table."""

import click
import pytest
from click.testing import CliRunner

from paribus.cli.status import command, show_runs, show_studies


@pytest.mark.parametrize(
    ("states", "told"),
    [
        (["ended"], False),
        (["ended", "paused", "out of budget"], False),
        (["ended", "queued"], True),
        (["running"], True),
        ([], False),
    ],
)
def test_nobody_is_missed_where_nothing_waits(capsys, states, told):
    """That no process trains is said where something is queued or runs, not of studies that have ended."""
    one = {"priority": 0, "weight": 1.0, "runs": 4, "states": {}, "paused": "", "tags": []}
    show_studies([{**one, "study": f"s{i}", "state": state} for i, state in enumerate(states)], None, as_json=False)
    assert ("No process of this machine trains the open studies" in capsys.readouterr().out) == told


@pytest.mark.parametrize(("pages", "rest"), [(1, "the only one is 1"), (6, "the last one is 6")])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_page_that_is_not_there_is_refused(pages, rest, as_json):
    """An empty table would say that there are no runs."""
    with pytest.raises(click.BadParameter, match=f"there is no page 7: {rest}"):
        show_runs({"page": 7, "pages": pages}, as_json)


@pytest.mark.parametrize("arguments", [["--page", "2"], ["--state", "failed"]])
def test_what_chooses_runs_needs_a_study(arguments):
    """An option that does nothing is refused."""
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2
    assert "name a STUDY" in done.output


@pytest.mark.parametrize(("at_end", "words"), [(True, "stopped at the last"), (False, "stopped early")])
def test_a_run_that_was_stopped_at_its_last_step_is_not_said_to_be_early(at_end, words, capsys):
    """A report uses the same words."""
    run = {"fingerprint": "f" * 12, "arm": "a", "seed": 0, "state": "STOPPED_EARLY", "attempt": 1, "step": 4,
           "steps": 4, "reward": None, "health": "critical", "detector": "nan", "reason": "", "tags": [], "note": "",
           "stopped_at_end": at_end}  # fmt: skip
    page = {"page": 1, "pages": 1, "runs": [run], "stage": "", "budget": [], "tags": [], "note": "", "archived": False}
    show_runs({**page, "paused": ""}, as_json=False)
    assert words in capsys.readouterr().out
