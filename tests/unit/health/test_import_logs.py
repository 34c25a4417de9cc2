"""Logs of other trainers: what is read of them, and what is said of files that are none."""

import gzip
import json
import re

import pytest

from paribus.errors import LogFileError, MissingExtra, install_command
from paribus.external.importing import metric_lines
from paribus.external.live_names import LiveNames
from paribus.health.detector import Setting
from paribus.health.diagnose import judge_lines
from paribus.health.import_logs import map_keys, mappings, read_log, read_tensorboard
from paribus.health.judge import judge_log, read_run
from paribus.health.log_files import event_folder, find_log
from paribus.health.profile import load_profile
from paribus.health.signals import SIGNALS, with_signals
from paribus.run_folder.folder import MetricLine, RunFolder
from paribus.run_folder.metrics import find_metric

TRL = [
    {"step": 1, "entropy": 0.5, "completions/clipped_ratio": 0.1, "clip_ratio/high_mean": 0.02, "epoch": 0.1},
    {"step": 2, "entropy": 0.4, "reward": 1.0, "completions/clipped_ratio": 0.2},
    {"step": 2, "eval_reward": 0.7},
]


def write(path, text):
    """Write a file and return its path."""
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


def test_trainer_state_of_trl(tmp_path):
    """Rows of a step are joined; truncation is not taken for the clip of the ratio."""
    log = read_log(write(tmp_path / "trainer_state.json", {"log_history": TRL, "max_steps": 2}))
    assert log.mapped.trainer == "trl"
    assert [line.step for line in log.lines] == [1, 2]
    assert log.lines[0].values == {
        "policy/entropy": 0.5, "response/truncated_frac": 0.1, "clip/high_frac": 0.02,
    }  # fmt: skip
    assert log.lines[1].values["eval/heldout/avg_at_1"] == 0.7
    assert log.mapped.proxies == ("eval/heldout/avg_at_1",)
    assert log.mapped.unread == ("epoch",)


@pytest.mark.parametrize(
    ("records", "trainer", "values"),
    [
        ({"step": 3, "data": {"actor/entropy": 0.3, "response_length/clip_ratio": 0.2}}, "verl",
         {"policy/entropy": 0.3, "response/truncated_frac": 0.2}),
        ({"step": 3, "data": {"actor/pg_clipfrac": 0.1, "actor/pg_clipfrac_lower": 0.2}}, "verl",
         {"signal/clipped_frac": 0.1, "clip/dual_frac": 0.2}),
        ({"step": 3, "data": {"val-core/gsm8k/acc/mean@4": 0.6, "actor/entropy": 0.3}}, "verl",
         {"policy/entropy": 0.3, "eval/heldout/avg_at_1": 0.6}),
        ({"step": 3, "mismatch_kl/all/mean": 0.001, "reward/all/mean": 0.5}, "prime_rl",
         {"mismatch/k3": 0.001, "reward/mean": 0.5}),
        ({"step": 3, "val/stop_rate": 0.9, "policy/entropy_avg": 0.3}, "open_instruct",
         {"response/truncated_frac": pytest.approx(0.1), "policy/entropy": 0.3}),
        ({"step": 3, "time_ms": 5, "values": {"policy/entropy": "nan", "reward/mean": 0.5}}, "paribus",
         {"policy/entropy": pytest.approx(float("nan"), nan_ok=True), "reward/mean": 0.5}),
    ],
)  # fmt: skip
def test_json_lines_of_each_trainer(tmp_path, records, trainer, values):
    """The trainer is known by its names; a last line that is being written is left out."""
    log = read_log(write(tmp_path / "m.jsonl", json.dumps(records) + '\n{"step": 4, "da'))
    assert log.mapped.trainer == trainer
    assert [(line.step, line.values) for line in log.lines] == [(3, values)]


def test_csv_with_holes(tmp_path):
    """Empty cells are not logged; text cells are no metrics."""
    log = read_log(write(tmp_path / "m.csv", "step,entropy,kl,note\n1,0.5,,x\n2,,0.1,y\n"))
    assert [line.values for line in log.lines] == [{"policy/entropy": 0.5}, {"kl/ref_k3": 0.1}]


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffstep,entropy,kl\n1,0.5,0.1\n",
        "step, entropy, kl\n1, 0.5, 0.1\n",
        "\ufeffstep;entropy;kl\r\n1;0,5;0,1\r\n",
        'note\t"step"\tentropy\tkl\n"a, b; c"\t1\t0.5\t0.1\n',
    ],
)
def test_csv_as_spreadsheets_write_it(tmp_path, text):
    """A byte order mark, blanks in the header, semicolons or tabs between columns, commas in decimals."""
    (tmp_path / "m.csv").write_bytes(text.encode())
    assert [line.values for line in read_log(tmp_path / "m.csv").lines] == [{"policy/entropy": 0.5, "kl/ref_k3": 0.1}]


def test_a_number_beyond_all_is_not_finite(tmp_path):
    """Neither left out nor an error: `nan` reports it; also for a number as text."""
    log = read_log(write(tmp_path / "m.jsonl", f'{{"step": 1, "reward": -1{"0" * 400}, "kl": "1e999"}}\n'))
    assert log.lines[0].values == {"reward/mean": float("-inf"), "kl/ref_k3": float("inf")}


def test_what_the_writers_of_transformers_rename_is_the_same_run(tmp_path):
    """W&B and TensorBoard get `train/x` for `x` and `eval/x` for `eval_x`: all three logs hold the same metrics."""
    rows = [
        {"step": 1, "reward": 0.5, "completions/mean_length": 9.0},
        {"step": 2, "reward": 1.0, "eval_reward": 0.75, "eval_rewards/accuracy_reward/mean": 0.25},
    ]
    wanted = read_log(write(tmp_path / "trainer_state.json", {"log_history": rows}))
    assert wanted.lines[1].values == {"reward/mean": 1.0, "eval/heldout/avg_at_1": 0.25}
    renamed = [
        {k if k == "step" else "eval/" + k[5:] if k.startswith("eval_") else "train/" + k: v for k, v in row.items()}
        for row in rows
    ]
    tracked = read_log(write(tmp_path / "wandb.jsonl", "".join(json.dumps(row) + "\n" for row in renamed)))
    assert (tracked.lines, tracked.mapped.trainer) == (wanted.lines, "trl")
    pytest.importorskip("tensorboard")
    assert read_tensorboard(written_events(tmp_path / "tb", renamed)).lines == wanted.lines


def written_events(folder, rows):
    """Write an event file of TensorBoard and return its folder."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for row in rows:
        values = [Summary.Value(tag=k, simple_value=v) for k, v in row.items() if k != "step"]
        writer.add_event(Event(step=row["step"], wall_time=0.0, summary=Summary(value=values)))
    writer.close()
    return folder


def test_every_name_in_the_table_is_canonical_and_each_source_is_used_once():
    """A typing error in the table would otherwise read nothing in silence."""
    for table in mappings().values():
        assert all(find_metric(m) is not None or m in SIGNALS for m in table)
        keys = [k for source in table.values() for k in source.keys]
        assert len(keys) == len(set(keys))
    assert map_keys(["val/stop_rate"], "x").read({"val/stop_rate": 0.75}) == {"response/truncated_frac": 0.25}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "not JSON"),
        ("a.json", '{"a": 1}', "neither a `trainer_state.json`"),
        ("a.json", "[1]", "neither a `trainer_state.json`"),
        ("a.json", "[" * 100_000, "not JSON"),
        ("a.jsonl", "step 3: loss 0.5\n", r"a.jsonl:1: not JSON"),
        ("a.log", "Traceback: no metrics here\n", "no line has metrics as verl or transformers print them"),
        ("a.csv", "Step,one - train/reward,two - train/reward\n1,0.1,0.2\n", "columns of 2 runs, such as 'one'"),
        ("a.csv", "Step,o\0\x1b - train/reward,two - train/reward\n1,0.1,0.2\n", r"2 runs, such as 'o\\x00\\x1b'"),
        (
            "a.csv",
            "run_id,key,step,value\na,reward,1,1\nb,reward,1,1\n",
            r"of 2 runs \(column `run_id`\), such as .*a.*b",
        ),
        ("a.csv", "Run,step,reward\nx,1,1\nx,2,1\ny,1,1\n", r"of 2 runs \(column `Run`\)"),
        ("a.jsonl.gz", "no gzip", "not a gzip file"),
        ("a.jsonl", "[1]\n", r"a.jsonl:1: not an object"),
        ("a.jsonl", '{"entropy": 1}\n', "no record has a step"),
        ("a.jsonl", '{"step": 1.5, "entropy": 1}\n', "the step is 1.5"),
        ("a.jsonl", '{"step": "x"}\n', "the step is 'x'"),
        ("a.jsonl", '{"step": Infinity}\n', "must be a whole number"),
        ("a.jsonl", '{"step": 1e+308, "reward": 1}\n', "must be a whole number below 2"),
        ("a.jsonl", '{"step": 1, "foo": "x"}\n', "no record has a number: metrics are numbers under names"),
        ("a.jsonl", '{"step": 1, "foo": 2}\n', "has no metric of .*, but `foo`"),
        ("a.jsonl", '{"step": 1, "f\\u001b[2Jo": 2}\n', r"has no metric of .*, but `f\?\[2Jo`"),
        ("a.csv", "", "a.csv: the file is empty"),
        ("a.jsonl", "", "a.jsonl: the file is empty"),
        ("trainer_state.json", " \n", "trainer_state.json: the file is empty"),
        ("train.log", "", "train.log: the file is empty"),
        ("a.csv", 'step,a\n1,"' + "x" * 200_000, "not a CSV file"),
        ("a.jsonl", None, "No such file"),
    ],
)
def test_a_file_that_is_no_log_ends_in_a_message(tmp_path, name, text, message):
    """What is wrong, and where; no other exception."""
    if text is not None:
        write(tmp_path / name, text)
    with pytest.raises(LogFileError, match=message):
        read_log(tmp_path / name)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_byte_order_mark_says_how_a_log_is_read(tmp_path, encoding, packed):
    """PowerShell writes UTF-16 where output is redirected into a file, and spreadsheets do."""
    mark = "\ufeff" if encoding.endswith(("-le", "-be")) else ""
    data = (mark + '{"step": 1, "entropy": 0.5}\r\n{"step": 2, "entropy": 0.4}\r\n').encode(encoding)
    file = tmp_path / ("a.jsonl.gz" if packed else "a.jsonl")
    file.write_bytes(gzip.compress(data) if packed else data)
    assert [line.values["policy/entropy"] for line in read_log(file).lines] == [0.5, 0.4]


def test_bytes_that_are_no_text_end_in_a_message(tmp_path):
    """A binary file under a log's name is refused."""
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LogFileError, match="not a text file"):
        read_log(tmp_path / "a.jsonl")


def test_without_tensorboard_the_pip_line_is_told(tmp_path, monkeypatch):
    """An optional package that is missing is named with its extra."""
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.backend.event_processing.event_accumulator", None)
    with pytest.raises(MissingExtra, match=re.escape(install_command("tensorboard"))):
        read_tensorboard(tmp_path / "events.out.tfevents.1")


def test_a_resumed_attempt_replaces_what_came_after_its_first_step(tmp_path):
    """Lines, evaluations and samples of a run are joined over attempts; a damaged line is reported."""
    for token, steps in ((1, (1, 2, 3)), (2, (3, 4))):
        folder = RunFolder.of(tmp_path, "f" * 64, token)
        folder.path.mkdir(parents=True)
        for step in steps:
            folder.append_metrics(MetricLine(step=step, time_ms=0, values={"reward/mean": float(token)}))
        folder.samples.write_text("".join(json.dumps({"step": s, "response": str(token)}) + "\n" for s in steps))
    found = read_run(tmp_path, "f" * 64, 2)
    assert [(line.step, line.values["reward/mean"]) for line in found.lines] == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert [s.response for s in found.samples] == ["1", "1", "2", "2"]
    assert found.trouble == ""
    with folder.metrics.open("a") as file:
        file.write("step 5\n")
    damaged = read_run(tmp_path, "f" * 64, 2)
    assert damaged.lines == found.lines
    assert "a2/metrics.jsonl:3: not a metric line" in damaged.trouble


def trl_rows(count=12):
    """Return records of TRL that are enough for a verdict."""
    return [
        {"step": i, "reward": 0.02 * i, "completions/mean_length": 90.0, "grad_norm": 0.5 + 0.01 * (i % 3)}
        for i in range(1, count + 1)
    ]


def test_what_trainers_and_tools_write_is_the_same_log(tmp_path):
    """TRL's folder and checkpoints, JSON lines, gzip, consoles, CSV of W&B and of spreadsheets, and MLflow's files."""
    rows = trl_rows()
    lines = "".join(json.dumps(r) + "\n" for r in rows)
    state = {"log_history": rows}
    for step in (9, 12):
        (tmp_path / f"out/checkpoint-{step}").mkdir(parents=True)
        write(tmp_path / f"out/checkpoint-{step}/trainer_state.json", {"log_history": rows[:step]})
    write(tmp_path / "m.ndjson", lines)
    with gzip.open(tmp_path / "m.jsonl.gz", "wt") as file:
        file.write(lines)
    names = [k for k in rows[0] if k != "step"]
    panel = ['"Step",' + ",".join(f'"run-7 - train/{n}","run-7 - train/{n}__MIN"' for n in names)]
    panel += [f"{r['step']}," + ",".join(f"{r[n]},{r[n]}" for n in names) for r in rows]
    write(tmp_path / "wandb.csv", "\n".join(panel))
    long = ["run_id,key,value,step,timestamp"] + [f"a1,{n},{r[n]},{r['step']},0" for r in rows for n in names]
    write(tmp_path / "mlflow.csv", "\n".join(long))
    console = [str({k: v for k, v in r.items() if k != "step"}) for r in rows]
    write(tmp_path / "train.log", "WARNING: something\n" + "\n".join(console))
    kept = tmp_path / "mlruns/0/a1/metrics"
    for n in names:
        (kept / n).parent.mkdir(parents=True, exist_ok=True)
        write(kept / n, "".join(f"17 {r[n]} {r['step']}\n" for r in rows))
    wanted = read_log(write(tmp_path / "trainer_state.json", state)).lines
    found = [find_log(tmp_path / "out"), find_log(tmp_path / "mlruns"), tmp_path / "m.ndjson", tmp_path / "m.jsonl.gz"]
    found += [tmp_path / "wandb.csv", tmp_path / "mlflow.csv"]
    for path in found:
        assert read_log(path).lines == wanted, path
    printed = read_log(tmp_path / "train.log").lines
    assert printed == wanted


def test_the_console_of_verl(tmp_path):
    """Lines between others; numbers of numpy."""
    text = "(TaskRunner pid=1) step:3 - actor/entropy:0.25 - critic/score/mean:np.float64(0.5)"
    text += " - val-core/a/reward/mean@4:0.75\n"
    log = read_log(write(tmp_path / "run.log", "loading\n" + text))
    assert log.mapped.trainer == "verl"
    assert [(x.step, x.values) for x in log.lines] == [
        (3, {"policy/entropy": 0.25, "reward/mean": 0.5, "eval/heldout/avg_at_1": 0.75})
    ]


def test_the_csv_of_tensorboard_has_its_metric_in_its_name(tmp_path):
    """One value a row."""
    log = read_log(write(tmp_path / "run-a-tag-train_reward.csv", "Wall time,Step,Value\n1.0,1,0.5\n"), "trl")
    assert [x.values for x in log.lines] == [{"reward/mean": 0.5}]


@pytest.mark.parametrize(
    ("names", "trainer"),
    [
        (["train/reward", "train/response_length", "train/response_clip_ratio", "train/policy_loss"], "openrlhf"),
        (["rollout/raw_reward", "rollout/response_len/mean", "rollout/truncated_ratio", "train/grad_norm"], "slime"),
        (["critic/score/mean", "tokens/response_length/mean", "critic/entropy/mean"], "roll"),
        (["train/reward", "train/mean_gen_tokens_per_sample", "train/approx_entropy", "train/gen_kl_error"], "nemo_rl"),
    ],
)  # fmt: skip
def test_trainers_are_known_by_their_names(names, trainer):
    """Names that two trainers share do not decide."""
    assert map_keys(names, "x").trainer == trainer


def test_the_step_of_an_evaluation_is_no_score(tmp_path):
    """Lines of slime have `eval/step` beside scores: it is the step of a line without another one."""
    lines = [{"rollout/step": i, "rollout/raw_reward": 0.5, "train/grad_norm": 0.3} for i in (1, 2)]
    lines[1] |= {"eval/step": 2, "eval/tau": 0.25}
    lines.append({"eval/step": 3, "eval/tau": 0.75})
    log = read_log(write(tmp_path / "m.jsonl", "".join(json.dumps(x) + "\n" for x in lines)))
    assert (log.mapped.trainer, log.mapped.relevant) == ("slime", ())
    scores = [(x.step, x.values.get("eval/heldout/avg_at_1")) for x in log.lines]
    assert scores == [(1, None), (2, 0.25), (3, 0.75)]
    names = ["eval/step", "eval/tau", "rollout/raw_reward"]
    assert map_keys(names, "x", "slime").keys["eval/tau"][0] == "eval/heldout/avg_at_1"


def test_a_folder_with_several_runs_of_tensorboard_is_refused(tmp_path):
    """Each start of a trainer writes a folder: none is judged in place of all; what lies below a run is its own."""
    for name in ("runs/a", "runs/a/settings", "runs/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "events.out.tfevents.1").touch()
    assert event_folder(tmp_path / "runs/a") == tmp_path / "runs/a"
    with pytest.raises(LogFileError, match=r"has 2 runs of TensorBoard, such as .*runs/a, .*runs/b; name one of them"):
        event_folder(tmp_path)
    assert event_folder(tmp_path / "runs/a/settings/none") is None


def test_two_points_for_a_hit_are_no_share(tmp_path):
    """A reward function that pays 2 is not taken for a share of correct responses, but for a part of the reward."""
    rows = [{**r, "rewards/correctness_reward_func/mean": 2.0 * r["reward"] + 1} for r in trl_rows()]
    log = read_log(write(tmp_path / "trainer_state.json", {"log_history": rows}))
    assert all("reward/correct_frac" not in x.values for x in log.lines)
    assert log.lines[0].values["signal/task_reward"] == 2.0 * trl_rows()[0]["reward"] + 1
    assert judge_log(load_profile("default"), log).status == "ok"


@pytest.mark.parametrize(("gain", "named"), [(0.5, ()), (-0.7, ("reward_hacking",))])
@pytest.mark.parametrize("renamed", ["eval_reward", "eval_rewards/accuracy_reward/mean", "eval/reward"])
def test_a_held_out_reward_above_one_is_no_share(tmp_path, renamed, gain, named):
    """It is the held-out score in its own units: no impossible share, and a fall of it is found all the same."""
    rows = [
        {**r, renamed: 1.4 + gain * r["step"] / 60 + 0.01 * (i % 3)} if i % 5 == 0 else r
        for i, r in enumerate(trl_rows(60))
    ]
    log = read_log(write(tmp_path / "trainer_state.json", {"log_history": rows}))
    assert {m for x in log.lines for m in x.values if m.startswith("eval/")} == set()
    assert log.lines[0].values["signal/score"] == rows[0][renamed]
    assert {f.detector for f in judge_log(load_profile("default"), log).raised} & {"data_bug", "reward_hacking"} == {
        *named
    }


def test_a_held_out_reward_above_one_that_arrives_live_is_no_impossible_share():
    """Of a tracked run only what has been logged is known; another trainer's evaluation is a proxy, ours is none."""
    live = LiveNames("trl")
    values = [live.line({"eval_reward": x, "reward": 1.0, "entropy": 1.0}) for x in (0.4, 1.4)]
    for sources, state in ((values[1][1], "ok"), ({}, "critical")):
        lines = [MetricLine(step=i, time_ms=0, values=v, sources=sources) for i, (v, _) in enumerate(values, start=1)]
        found = judge_lines(Setting(profile=load_profile("default"), planned=2), with_signals(lines))
        assert next(f.state for f in found if f.detector == "data_bug") == state


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("names", [("acc@1", "acc_1"), ("acc_1", "acc@1")])
def test_names_that_differ_only_in_other_characters_are_kept_apart(tmp_path, live, names):
    """The name that needs no change keeps its form, whichever comes first."""
    row = {"step": 1, "reward": 1.0, "entropy": 1.0, **{name: float(name == "acc@1") for name in names}}
    if live:
        values, _ = LiveNames("trl").line({k: v for k, v in row.items() if k != "step"})
    else:
        (line,) = metric_lines(read_log(write(tmp_path / "t.json", {"log_history": [row]})), 0)
        values = line.values
    kept = {name: value for name, value in values.items() if "acc" in name}
    assert kept.pop("native/trl/acc_1") == 0.0
    ((other, value),) = kept.items()
    assert re.fullmatch("native/trl/acc_1-[0-9a-f]{8}", other)
    assert value == 1.0


def test_a_number_that_is_not_finite_is_no_unit(tmp_path):
    """A share of correct responses that becomes NaN stays one, and the NaN is found."""
    rows = [{**r, "rewards/accuracy_reward/mean": float("nan") if r["step"] > 30 else 0.5} for r in trl_rows(60)]
    log = read_log(write(tmp_path / "t.json", {"log_history": rows}))
    assert log.lines[0].values["reward/correct_frac"] == 0.5
    assert judge_log(load_profile("default"), log).sentence.startswith("Critical: nan since step 31")


def test_green_needs_reward_length_and_one_of_entropy_kl_and_gradient(tmp_path):
    """What is missing is named; short runs are unknown."""
    for without, says in (
        ("reward", "no reward in 8"),
        ("completions/mean_length", "no length"),
        ("grad_norm", "no one of entropy"),
    ):
        rows = [{k: v for k, v in r.items() if k != without} | {"learning_rate": 1e-6} for r in trl_rows()]
        said = judge_log(load_profile("default"), read_log(write(tmp_path / "t.json", {"log_history": rows})))
        assert (said.status, says in said.sentence) == ("unknown", True), said.sentence
    few = judge_log(load_profile("default"), read_log(write(tmp_path / "t.json", {"log_history": trl_rows(7)})))
    assert (few.status, "7 recorded steps, at least 8" in few.sentence) == ("unknown", True)


def test_a_line_that_only_looks_like_metrics_is_none(tmp_path):
    """What Python reads as a set, or does not read at all, stands in many consoles; a row may be cut."""
    lines = "{'loss', 'reward'}\n{'a': 1, []: 2}\n{'entropy': 0.5}\n"
    assert [x.values for x in read_log(write(tmp_path / "x.out", lines)).lines] == [{"policy/entropy": 0.5}]
    rows = "key,step,value\nentropy,1,0.5\nentropy\nentropy,2\n"
    assert [x.step for x in read_log(write(tmp_path / "x.csv", rows)).lines] == [1]
    with pytest.raises(LogFileError, match=r"x.csv:2: the step is '9+…; it must be a whole number"):
        read_log(write(tmp_path / "x.csv", f"step,entropy\n{'9' * 5000},1\n"))
