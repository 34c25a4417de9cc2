"""What `paribus status` says below its table."""

import pytest

from paribus.cli.status import show_studies


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
