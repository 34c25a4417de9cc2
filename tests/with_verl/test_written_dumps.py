"""What verl's own trainer writes is read as it is."""

import json

import pytest
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

from paribus_runners.verl.dumps import read_dump

MORE = {"v1": {"uid": ["6f-1_0_0", "6f-1_1_0", "a_0_0"]}, "v0": {"acc": [1.0, 0.0, 1.0], "short": [1]}}


@pytest.mark.parametrize("form", ["v1", "v0"])
def test_what_verl_writes_is_read(tmp_path, form):
    """Both formats, by the function that both trainers write with; a field of another length is left out by verl."""
    inputs, outputs = ["ä\n?", "ä\n?", "b"], ["1\u2028", "", '"'] if form == "v1" else ["x", "y", "z"]
    size = 2 if form == "v1" else 1
    RayPPOTrainer._write_generations(inputs, outputs, ["7", None, 7], [1.0, 0.5, 0], MORE[form], str(tmp_path), 12)
    found = read_dump(tmp_path / "12.jsonl", size)
    assert (found.format, found.step) == (form, 12)
    assert [r.prompt for r in found.responses] == inputs
    assert [r.text for r in found.responses] == outputs
    assert [r.score for r in found.responses] == [1.0, 0.5, 0.0]
    assert [len(g) for g in found.groups] == ([2, 1] if form == "v1" else [1, 1, 1])
    assert [r.answer for r in found.responses] == ["7", None, 7]
    assert all(json.dumps(dict(r.more)) for r in found.responses)
