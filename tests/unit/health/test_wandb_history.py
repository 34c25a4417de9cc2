"""W&B's own files, read without W&B: history, names, damaged ends, several runs, and their import."""

import json
import random
import struct
from contextlib import suppress

import pytest
from click.testing import CliRunner

from paribus.cli import paribus
from paribus.errors import LogFileError
from paribus.health.import_logs import open_log
from paribus.health.wandb_history import read_history, run_name
from paribus.health.wandb_log import append


def varint(number):
    """A number in seven bits a byte."""
    out = bytearray()
    while True:
        number, low = number >> 7, number & 127
        out.append(low | (128 if number else 0))
        if not number:
            return bytes(out)


def field(number, content):
    """A field of a message: a number, a text or a message."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def history(step, values):
    """A record with the values that were logged at once."""
    items = [field(1, field(2, name) + field(16, json.dumps(value))) for name, value in values.items()]
    return field(1, step + 1) + field(2, b"".join(items) + field(2, field(1, step)))


def wandb(folder, name, rows):
    """Write an offline run as W&B's library does."""
    folder.mkdir(parents=True)
    records = [field(17, field(1, "id") + field(8, name)), *(history(i, row) for i, row in enumerate(rows))]
    file = folder / "run-id.wandb"
    with file.open("w+b", buffering=0) as out:
        append(out, 0, records)
    return file


def trl(seed, steps=12):
    """What TRL logs to W&B in two calls a step, of which only one has the step."""
    draw = random.Random(seed)
    for step in range(1, steps + 1):
        yield {"train/global_step": step, "train/reward": draw.random(), "train/entropy": 0.5, "train/grad_norm": 0.1,
               "train/completions/mean_length": 20.0}  # fmt: skip
        yield {"eval/reward": draw.random(), "train/global_step": step}


def test_a_file_is_read_with_the_trainers_own_steps(tmp_path):
    """W&B counts calls; the step that the trainer logs is the step."""
    file = wandb(tmp_path / "offline-run-1-id", "grpo-s1", trl(0))
    for target in (file, file.parent, tmp_path):
        log = open_log(str(target), str)
        assert log is not None
        assert log.mapped.trainer == "trl"
        assert [line.step for line in log.lines] == list(range(1, 13))
        assert log.lines[0].values["policy/entropy"] == 0.5
        assert "eval/heldout/avg_at_1" in log.lines[0].values
    assert run_name(tmp_path) == "grpo-s1"
    assert run_name(tmp_path / "none") == ""


def test_nested_values_and_texts(tmp_path):
    """Mappings become names with dots, as W&B shows them; without another step W&B's own counts."""
    file = wandb(tmp_path / "r", "", [{"actor": {"entropy": 0.5}, "note": "hello", "x": "NaN"}])
    assert read_history(file).records[0][1] == {"actor.entropy": 0.5, "note": "hello", "x": "NaN", "_step": 0}


def test_values_in_their_own_types(tmp_path):
    """Newer versions of W&B write numbers, texts and truth values as such."""
    item = {"a": varint(6 << 3 | 1) + struct.pack("<d", 0.25), "b": field(5, 5), "c": field(7, "x"),
            "d": field(4, 1), "e": field(8, '{"f": 2}'), "g": field(3, 1)}  # fmt: skip
    items = b"".join(field(1, field(2, name) + value) for name, value in item.items())
    file = tmp_path / "run-x.wandb"
    with file.open("w+b", buffering=0) as out:
        append(out, 0, [field(2, items + field(2, field(1, 7)))])
    values = read_history(file).records[0][1]
    assert values == {"a": 0.25, "b": -3, "c": "x", "d": True, "e.f": 2, "g": None, "_step": 7}


@pytest.mark.parametrize("damage", ["cut", "zeros"])
def test_a_run_that_was_killed_is_read_to_its_last_record(tmp_path, damage):
    """What stands before is read, and a note says that bytes follow."""
    file = wandb(tmp_path / "r", "", list(trl(0)))
    data = file.read_bytes()
    file.write_bytes(data[:-5] if damage == "cut" else data + bytes(40))
    log = open_log(str(file), str)
    assert log is not None
    assert len(log.lines) == 12
    assert any("bytes that are no whole record" in note for note in log.notes)


def test_what_is_no_file_of_wandb_is_refused(tmp_path):
    """Empty, of something else, or with records of something else: the file is named."""
    file = tmp_path / "run-x.wandb"
    for data in (b"", b"not W&B's" * 9):
        file.write_bytes(data)
        with pytest.raises(LogFileError, match=r"run-x\.wandb: no record of W&B is in it"):
            open_log(str(file), str)
    with file.open("w+b", buffering=0) as out:
        append(out, 0, [b"\xff" * 12])
    with pytest.raises(LogFileError, match=r"run-x\.wandb, record 1: cannot be read"):
        open_log(str(file), str)


def test_random_records_never_end_in_a_traceback(tmp_path):
    """Whatever bytes a record has, it is read or refused."""
    draw, file = random.Random(0), tmp_path / "run-x.wandb"
    for _ in range(300):
        good = bytearray(history(1, {"train/loss": 0.5}))
        for _ in range(draw.randrange(1, 4)):
            good[draw.randrange(len(good))] = draw.randrange(256)
        with file.open("w+b", buffering=0) as out:
            append(out, 0, [bytes(good)])
        with suppress(LogFileError):
            open_log(str(file), str)


def test_several_runs_are_imported_by_their_names(tmp_path):
    """A folder of several is refused by name; as logs they become arms and seeds, and again nothing is recorded."""
    for i, name in enumerate(("grpo-s1", "grpo-s2", "drgrpo-s1", "drgrpo-s2")):
        wandb(tmp_path / "wandb" / f"offline-run-{i}-id", name, trl(i))
    with pytest.raises(LogFileError, match=r"has 4 runs of W&B, such as .*offline-run-0-id"):
        open_log(str(tmp_path / "wandb"), str)
    logs = [str(folder) for folder in sorted((tmp_path / "wandb").iterdir())]
    command = ["import", *logs, "--study", "w", "--name", "{arm}-s{seed}", "--home", str(tmp_path / "home"), "--json"]
    found = [json.loads(CliRunner().invoke(paribus, command, catch_exceptions=False).stdout) for _ in range(2)]
    added = {(x["arm"], x["seed"]) for x in found[0]["added"]}
    assert added == {("grpo", 1), ("grpo", 2), ("drgrpo", 1), ("drgrpo", 2)}
    assert (found[1]["added"], found[1]["known"]) == ([], 4)


def test_logs_of_oat(tmp_path):
    """Truncated responses are a count, which is divided by how many there were; the step is the round of learning."""
    rows = [
        {"train/learning_round": i, "actor/rewards": 0.5, "actor/response_tok_len": 100.0, "actor/no_eos_count": 32,
         "actor/num_data": 128, "train/entropy": 0.4, "train/policy_grad_norm": 0.2, "misc/lr": 1e-6}
        for i in range(1, 20)
    ]  # fmt: skip
    log = open_log(str(wandb(tmp_path / "r", "oat", rows)), str)
    assert log is not None
    assert log.mapped.trainer == "oat"
    assert log.lines[0].values["response/truncated_frac"] == 0.25
    assert (len(log.lines), log.mapped.relevant) == (19, ())
