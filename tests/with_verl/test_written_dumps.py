"""What verl's own trainers write is read as it is."""

import ast
import json
import os
from pathlib import Path

import pytest
import verl

from paribus_runners.verl.dumps import read_dump

FILES = {"v1": "trainer/ppo/v1/trainer_base.py", "v0": "trainer/ppo/ray_trainer.py"}
MORE = {"v1": {"uid": ["6f-1_0_0", "6f-1_1_0", "a_0_0"]}, "v0": {"acc": [1.0, 0.0, 1.0], "short": [1]}}


def writer(form):
    """Return the function with which a trainer writes a dump; its module needs packages that nothing else here does."""
    tree = ast.parse((Path(verl.__file__).parent / FILES[form]).read_text())
    (found,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "_write_generations")
    found.decorator_list = []
    names = {"json": json, "os": os}
    exec(compile(ast.Module([found], []), FILES[form], "exec"), names)
    return names["_write_generations"]


@pytest.mark.parametrize("form", FILES)
def test_what_verl_writes_is_read(tmp_path, form):
    """Both trainers' own functions; a field of another length is left out by verl."""
    inputs, outputs = ["ä\n?", "ä\n?", "b"], ["1\u2028", "", '"']
    size = 2 if form == "v1" else 1
    writer(form)(inputs, outputs, ["7", None, 7], [1.0, 0.5, 0], MORE[form], str(tmp_path), 12)
    found = read_dump(tmp_path / "12.jsonl", size)
    assert (found.format, found.step) == (form, 12)
    assert [r.prompt for r in found.responses] == inputs
    assert [r.text for r in found.responses] == outputs
    assert [r.score for r in found.responses] == [1.0, 0.5, 0.0]
    assert [len(g) for g in found.groups] == ([2, 1] if form == "v1" else [1, 1, 1])
    assert [r.answer for r in found.responses] == ["7", None, 7]
    assert [dict(r.more) for r in found.responses] == ([{}] * 3 if form == "v1" else [{"acc": a} for a in (1, 0, 1)])
