"""Rollout dumps of verl: read without loss, or refused by file and line."""

import json
import math
import re
from random import Random

import pytest

from paribus.errors import ParibusError
from paribus.recipe.resolve import resolve_base
from paribus.run_folder.metrics import find_metric
from paribus_runners.verl.dumps import Dropped, dropped_in, dump_files, metrics_of, read_dump

SIZE = 4
TEXTS = ("12", "", "a\nb", "ä\u2028\x00", '{"x": 1}', "日本 <think>", "\\u12", "x" * 3000)


def rows_of(random, form, step):
    """Return the rows of a dump as verl writes it: groups are ragged under the newer trainer, whole under the older."""
    rows = []
    for group in range(random.randint(1, 5)):
        prompt, more = random.choice(TEXTS) + f"?{group}", {}
        for rollout in sorted(random.sample(range(SIZE), random.randint(1, SIZE) if form == "v1" else SIZE)):
            if form == "v1":
                more = {"uid": f"6f_{group}-a_{rollout}_0"}
            elif random.random() < 0.9:
                more = {"acc": random.random() < 0.5, "request_id": random.choice(TEXTS)}
            if random.random() < 0.3:
                more = more | {"tool/calls": [1, {"a": None}], "pred": random.choice([None, "7", 7, 0.1])}
            score = random.choice([0, 1, -1.0, 0.30000000000000004, 1e-12])
            gts = random.choice(["7", None, 7, ["a", "b"]])
            text = random.choice(TEXTS)
            rows.append({"input": prompt, "output": text, "gts": gts, "score": score, "step": step} | more)
    return rows


def written(rows):
    """Return rows as verl's `_write_generations` writes them."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def cut(random, data, rows):
    """Cut the last line off inside of it."""
    last = data.rindex(b"\n", 0, -1) + 1 if len(rows) > 1 else 0
    return data[: random.randint(last + 1, len(data) - 1)], len(rows)


def emptied(random, data, rows):
    """Leave nothing."""
    return b"", 1


def one(change):
    """Return a fault that changes one row."""

    def fault(random, data, rows):
        place = random.randrange(len(rows))
        rows[place] = change(dict(rows[place]))
        return written(rows), place + 1

    return fault


def without(key):
    """Return a row's copy that lacks a key."""
    return lambda row: {k: v for k, v in row.items() if k != key}


def no_json(random, data, rows):
    """Break one line."""
    lines, place = data.split(b"\n"), random.randrange(len(rows))
    lines[place] = random.choice([b"{", b"[1]", b"", b"nul", b"\xff", b'{"input": "a"'])
    return b"\n".join(lines), place + 1


FAULTS = [
    cut,
    emptied,
    no_json,
    *(one(without(key)) for key in ("input", "output", "score", "step")),
    *(one(lambda row, v=v: row | {"score": v}) for v in (math.nan, math.inf, None, "1", True, 10**400)),
    *(one(lambda row, v=v: row | {"step": v}) for v in (99, 1.5, "1", None)),
    one(lambda row: row | {"input": 3}),
    one(lambda row: row | {"output": None}),
]


@pytest.mark.parametrize("form", ["v1", "v0"])
@pytest.mark.parametrize("seed", range(50))
def test_a_dump_is_read_without_loss(tmp_path, form, seed):
    """Every value of every line comes back, also of keys that nothing here knows, in the order of the file."""
    random = Random(seed)
    step = random.randint(1, 500)
    rows = rows_of(random, form, step)
    file = tmp_path / f"{step}.jsonl"
    file.write_bytes(written(rows))
    found = read_dump(file, SIZE)
    assert (found.format, found.step) == (form, step)
    read = [
        {"input": r.prompt, "output": r.text, "gts": r.answer, "score": r.score, "step": found.step}
        | ({"uid": r.uid} if r.uid else {}) | dict(r.more)
        for r in found.responses
    ]  # fmt: skip
    assert read == rows
    prompts = [{r.prompt for r in group} for group in found.groups]
    assert all(len(each) == 1 for each in prompts)
    assert len(prompts) == len({row["input"] for row in rows})
    values = metrics_of(recipe(), found)
    assert all(find_metric(name) and math.isfinite(value) for name, (value, _) in values.items())
    assert {source for _, source in values.values()} == {"derived"}


@pytest.mark.parametrize("form", ["v1", "v0"])
@pytest.mark.parametrize("seed", range(50))
def test_a_damaged_dump_is_refused_by_file_and_line(tmp_path, form, seed):
    """One damage to one line, and the message has that line: no value of another file is recorded in its place."""
    random = Random(1000 + seed)
    rows = rows_of(random, form, 7)
    data, line = FAULTS[seed % len(FAULTS)](random, written(rows), rows)
    file = tmp_path / "7.jsonl"
    file.write_bytes(data)
    with pytest.raises(ParibusError) as caught:
        read_dump(file, SIZE)
    assert re.match(rf"7\.jsonl:{line}: ", str(caught.value)), caught.value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({1: {"uid": "p_0_0"}}, "7.jsonl:2: `uid` p_0_0 stands in line 1, too"),
        ({1: {"uid": "p_1"}}, "7.jsonl:2: `uid` is 'p_1'"),
        ({1: {"uid": "p_1_1"}}, "7.jsonl:2: `uid` p_1_1 is a further output of one rollout"),
        ({2: {"input": "other"}}, "7.jsonl:3: `uid` p_2_0 is of the group of line 1, with another prompt"),
        ({4: {"uid": "p_4_0"}}, "7.jsonl:5: its group has more than 4 responses"),
        ({4: {"uid": None}}, "7.jsonl:5: `uid` is None"),
    ],
)
def test_groups_that_cannot_be_told_apart_are_refused(tmp_path, changes, message):
    """A uid that comes twice or is none, and a group with two prompts or too many responses."""
    rows = [{"input": "a", "output": "", "score": 1, "step": 7, "uid": f"p_{i}_0"} for i in range(4)]
    rows.append({"input": "b", "output": "", "score": 1, "step": 7, "uid": "q_0_0"})
    for place, change in changes.items():
        rows[place] |= change
    if 4 in changes:
        rows[4] |= {"input": "a"}
    file = tmp_path / "7.jsonl"
    file.write_bytes(written(rows))
    with pytest.raises(ParibusError) as caught:
        read_dump(file, SIZE)
    assert str(caught.value).startswith(message)


def test_blocks_of_the_older_trainer_are_whole(tmp_path):
    """Without a uid groups are blocks of lines; two formats in one file, a split block and another name are errors."""
    rows = [{"input": "a", "output": "", "score": 1, "step": 7} for _ in range(6)]
    file = tmp_path / "7.jsonl"
    file.write_bytes(written(rows))
    with pytest.raises(ParibusError, match=r"7\.jsonl:6: the file ends inside a group"):
        read_dump(file, SIZE)
    file.write_bytes(written([*rows[:2], rows[2] | {"input": "b"}, *rows[3:]]))
    with pytest.raises(ParibusError, match=r"7\.jsonl:3: the prompt is another"):
        read_dump(file, SIZE)
    file.write_bytes(written([*rows[:2], rows[2] | {"uid": "p_0_0"}]))
    with pytest.raises(ParibusError, match=r"7\.jsonl:3: some lines have a `uid`"):
        read_dump(file, SIZE)
    (tmp_path / "last.jsonl").write_bytes(written(rows))
    with pytest.raises(ParibusError, match=r"last\.jsonl:1: a dump is named after its step"):
        read_dump(tmp_path / "last.jsonl", SIZE)
    with pytest.raises(ParibusError, match="cannot read"):
        read_dump(tmp_path / "8.jsonl", SIZE)
    assert list(dump_files(tmp_path)) == [7]


def recipe(**patch):
    """Return a recipe of GRPO, patched."""
    found = resolve_base("grpo", {"kl": "off", "task": "chain", **patch}).recipe
    assert found is not None
    return found


def dump_of(tmp_path, *groups, **more):
    """Return a dump with scores by group."""
    rows = [
        {"input": f"p{g}", "output": "", "score": score, "step": 7, "uid": f"{g}_{i}_0", **more}
        for g, scores in enumerate(groups)
        for i, score in enumerate(scores)
    ]
    file = tmp_path / "7.jsonl"
    file.write_bytes(written(rows))
    return read_dump(file, SIZE)


def test_metrics_by_hand(tmp_path):
    """Ragged groups: means over responses and over groups, and verdicts where the reward says them."""
    found = metrics_of(recipe(**{"reward.map": "binary01"}), dump_of(tmp_path, (1, 0, 0), (1, 1), (0, 0, 0, 0)))
    assert {k: round(v, 6) for k, (v, _) in found.items()} == {
        "reward/mean": round(3 / 9, 6),
        "reward/shaped_mean": round(3 / 9, 6),
        "reward/std_within_group": round((1 / 3) ** 0.5 / 3, 6),
        "reward/correct_frac": round(3 / 9, 6),
        "group/all_correct_frac": round(1 / 3, 6),
        "group/all_wrong_frac": round(1 / 3, 6),
        "group/zero_std_frac": round(2 / 3, 6),
        "sampling/waste_frac": 0.0,
    }


def test_nothing_is_said_that_a_dump_does_not_hold(tmp_path):
    """A shaped reward gives no raw one and no verdicts; a score of the task itself gives no verdicts either."""
    rule = {"length.rule": {"kind": "soft_overlong", "soft_start": 24, "hard_cap": 37}, "reward.map": "binary01"}
    shaped = metrics_of(recipe(**rule), dump_of(tmp_path, (1, 0.5), (0, 0)))
    assert set(shaped) == {"reward/shaped_mean", "reward/std_within_group", "sampling/waste_frac"}
    assert "reward/correct_frac" in metrics_of(recipe(**rule), dump_of(tmp_path, (1, 0.5), (0, 0), acc=True))
    assert "reward/correct_frac" not in metrics_of(recipe(), dump_of(tmp_path, (1, 0.5), (0, 0)))


def test_dropped_groups_come_from_the_counters(tmp_path):
    """The share of groups without spread counts those that the filter dropped; means over the others are proxies."""
    logged = {"training/filter_groups/evicted_samples": 6.0, "training/filter_groups/discarded_surplus_samples": 0.0}
    dropped = dropped_in(logged)
    assert dropped == Dropped(equal=6)
    refill = recipe(filter={"kind": "refill", "metric": "reward_std"})
    found = metrics_of(refill, dump_of(tmp_path, (1, 0), (0, 1)), dropped)
    assert found["group/zero_std_frac"] == (6 / 8, "derived")
    assert found["sampling/waste_frac"] == (6 / 8, "proxy")
    assert found["reward/mean"] == (0.5, "proxy")
    surplus = metrics_of(refill, dump_of(tmp_path, (1, 0), (0, 1)), Dropped(equal=6, surplus=1))
    assert "group/zero_std_frac" not in surplus
    assert dropped_in({}) == Dropped()
