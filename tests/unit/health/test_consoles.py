"""What trainers print on the console: no line with metrics is lost, and steps are those of the training."""

import json
import math

import pytest

from paribus.errors import LogFileError
from paribus.health.import_logs import read_log
from paribus.health.judge import judge_log
from paribus.health.profile import load_profile


def read(tmp_path, text):
    """Return the log of a console."""
    (tmp_path / "train.log").write_text(text)
    return read_log(tmp_path / "train.log")


def judged(log):
    """Return the verdict."""
    return judge_log(load_profile("default"), log)


def line(i, loss="0.1", **more):
    """Return a line as transformers prints it."""
    values = {"reward": 0.3 + 0.002 * i, "completions/mean_length": 100 + i % 3, "entropy": 0.5 + 0.001 * (i % 7)}
    shown = "".join(f", {k!r}: {v}" for k, v in {**values, "grad_norm": 0.5 + 0.01 * (i % 5), **more}.items())
    return f"{{'loss': {loss}{shown}}}\n"


@pytest.mark.parametrize(
    "loss",
    ["nan", "inf", "-inf", "np.float64(nan)", "numpy.float32(inf)", "tensor(nan, device='cuda:0')", "float('nan')",
     "torch.tensor([nan])", "tensor(-inf, dtype=torch.bfloat16)", "np.nan"],
)  # fmt: skip
def test_a_diverged_run_is_not_healthy(tmp_path, loss):
    """Loss and gradient become `nan` half way: found at that step, in whatever form they are printed."""
    log = read(tmp_path, "".join(line(i) if i <= 30 else line(i, loss, grad_norm=loss) for i in range(1, 61)))
    assert len(log.lines) == 60
    assert not log.trouble
    found = judged(log)
    assert (found.status, found.first.detector, found.first.step_onset) == ("critical", "nan", 31)


@pytest.mark.parametrize(
    ("text", "value"),
    [("np.float64(0.25)", 0.25), ("tensor(0.25, device='cuda:0', grad_fn=<MeanBackward0>)", None),
     ("'0.25'", 0.25), ("array(0.25, dtype=float32)", 0.25), ("[0.25]", 0.25), ("+0.25", 0.25),
     ("-tensor(0.25)", -0.25), ("1/4", None), ("datetime.timedelta(1)", None), ("reward", None)],
)  # fmt: skip
def test_a_number_is_read_or_its_metric_is_named(tmp_path, text, value):
    """What stands for a metric and is none of the forms is counted, with its place, and the run is not `ok`."""
    log = read(tmp_path, "".join(line(i) for i in range(1, 30)) + f"{{'reward': {text}, 'loss': 0.1}}\n")
    if value is None:
        assert log.trouble.startswith("1 entry looks like metrics: ")
        assert "train.log:30" in log.trouble
        assert (judged(log).status, "cannot be read" in judged(log).sentence) == ("unknown", True)
    else:
        assert (log.trouble, log.lines[-1].values["reward/mean"]) == ("", value)


def test_only_what_looks_like_metrics_and_cannot_be_read_is_named(tmp_path):
    """Sets, texts and cut settings are none; the last line may still be written; more than three are counted."""
    noise = "{'loss', 'reward'}\n{'role': 'user', 'content': 'loss {'}\n{'lr': 0.1, 'optimizer': {\n{'path': 'C:\\d'}\n"
    log = read(tmp_path, noise + "".join(line(i) for i in range(1, 30)) + "{'loss': 0.1, 'rewa")
    assert (log.trouble, len(log.lines)) == ("", 29)
    bad = "{'loss': 0.5, 'reward': <object>}\n"
    assert read(tmp_path, 5 * bad + line(1)).trouble.endswith("train.log:3 and 2 more")
    assert read(tmp_path, 5 * bad + line(1)).trouble.startswith("5 entries look")


@pytest.mark.parametrize(("open_", "close"), [("-", ""), ("tensor(", ")"), ("[", "]"), ("{'a': ", "}")])
@pytest.mark.parametrize("count", [2, 90, 900, 5000])
def test_values_in_values_end_in_no_traceback(tmp_path, open_, close, count):
    """However deep: what cannot be read is no number."""
    nested = open_ * count + "1" + close * count
    text = f"{{'loss': {nested}}}\nstep:1 - actor/pg_loss:{nested} - actor/entropy:0.5\n"
    assert read(tmp_path, text).lines[-1].values["policy/entropy"] == 0.5


def test_evaluations_are_no_steps(tmp_path):
    """60 lines of training with 30 evaluations and a summary are 60 steps; a fault is found at its step."""
    text = "{'eval_loss': 0.1, 'eval_reward': 0.2, 'epoch': 0.0}\n"
    for i in range(1, 61):
        text += line(i, entropy=0.5 if i <= 30 else 0.01, epoch=i / 10)
        text += f"{{'eval_loss': 0.1, 'eval_reward': 0.3, 'epoch': {i / 10}}}\n" * (i % 2)
    log = read(tmp_path, text + "{'train_runtime': 60.0, 'train_loss': 0.1, 'epoch': 6.0}\n")
    assert [x.step for x in log.lines] == list(range(61))
    assert [x.step for x in log.lines if "eval/heldout/avg_at_1" in x.values] == [0, *range(1, 61, 2)]
    assert (judged(log).first.detector, judged(log).first.step_onset) == ("entropy_collapse", 31)
    assert "the 60 counted lines of training" in log.notes[0]


@pytest.mark.parametrize(
    "evaluation",
    ["step:50 - test/score:0.5", "{'eval_reward': 0.5, 'step': '50'}", "{'eval_reward': 0.5, 'step': 50}",
     "{'eval_reward': 0.5, 'step': 50.0}"],
)  # fmt: skip
def test_the_step_of_an_evaluation_is_not_that_of_the_training_after_it(tmp_path, evaluation):
    """Lines of training without a step are counted on, whatever the evaluation prints; the note is true."""
    log = read(tmp_path, line(1) + line(2) + f"{evaluation}\n" + line(3))
    assert [x.step for x in log.lines if "reward/mean" in x.values] == [1, 2, 3]
    assert log.notes[0].startswith("No line of training has a step: steps are the 3 counted lines")


def test_an_epoch_that_is_no_number_ends_in_no_traceback(tmp_path):
    """Too large, a text, a list, or none."""
    epochs = ["1" + "0" * 400, "'x'", "[1, 2]", "None", "nan", "1e999"]
    assert [x.step for x in read(tmp_path, "".join(line(1, epoch=e) for e in epochs)).lines] == list(range(1, 7))


def test_a_step_that_is_printed_counts(tmp_path):
    """Under any of its names, also for evaluations that come without; nothing is said of counting."""
    text = "".join(line(i, global_step=10 * i) + "{'eval_reward': 0.3}\n" for i in range(1, 9))
    log = read(tmp_path, text)
    assert ([x.step for x in log.lines], log.notes) == ([10 * i for i in range(1, 9)], ())


def test_the_progress_bar_before_each_line_is_the_step(tmp_path):
    """If it rises from line to line; a bar of something else does not, and lines are counted."""
    bars = "".join(f" 20%|##  | {10 * i}/500 [00:0{i}<00:20, 1.9it/s]{line(i)}" for i in range(1, 9))
    log = read(tmp_path, bars)
    assert [x.step for x in log.lines] == [10 * i for i in range(1, 9)]
    assert "progress bar" in log.notes[0]
    same = "".join(f" 20%|##  | 16/16 [00:0{i}<00:00, 1.9it/s]{line(i)}" for i in range(1, 9))
    assert [x.step for x in read(tmp_path, same).lines] == list(range(1, 9))


def test_a_restart_repeats_its_steps(tmp_path):
    """The epoch falls back to a checkpoint's: from there on later lines replace earlier ones, and a note says so."""
    epochs = [0.1 * i for i in range(1, 9)] + [0.1 * i for i in range(6, 11)]
    log = read(tmp_path, "".join(line(i, epoch=e) for i, e in enumerate(epochs, 1)))
    assert [x.step for x in log.lines] == list(range(1, 11))
    assert log.lines[5].values["reward/mean"] == pytest.approx(0.3 + 0.002 * 9)
    assert "train.log:9: taken for a restart" in log.notes[1]


def test_two_processes_print_the_same_line(tmp_path):
    """Twice in one row: one step. Two different dicts in one row are two."""
    both = "".join(f"  2%| {line(i).strip()}{line(i)}" for i in range(1, 9))
    assert len(read(tmp_path, both).lines) == 8
    assert len(read(tmp_path, line(1).strip() + line(2)).lines) == 2


def test_verl_prints_numbers_of_numpy_and_torch(tmp_path):
    """Colours, calls with blanks and `nan`; a value that is none of these is named."""
    head = "\x1b[36m(TaskRunner pid=1)\x1b[0m step:{} - critic/score/mean:{} - actor/entropy:0.5 - timing_s/gen:x"
    forms = ["np.float64(0.5)", "tensor(0.5, device='cuda:0')", "0.5", "nan", "<none>"]
    log = read(tmp_path, "".join(head.format(i, f) + "\x1b[0m\n" for i, f in enumerate(forms, 1)))
    rewards = [x.values.get("reward/mean") for x in log.lines]
    assert rewards[:3] == [0.5, 0.5, 0.5]
    assert math.isnan(rewards[3])
    assert log.trouble.endswith("train.log:5 (`critic/score/mean`)")
    assert all(x.values["policy/entropy"] == 0.5 for x in log.lines)
    assert log.notes == ()


@pytest.mark.parametrize("mark", [" - ", "\n - "])
def test_a_step_of_verl_may_be_wrapped_and_coloured(tmp_path, mark):
    """Viewers of Ray jobs show a metric a line; a lone step without metrics is none."""
    step = f"\x1b[36m(TaskRunner pid=1)\x1b[0m step:3{mark}actor/entropy:0.25{mark}critic/score/mean:0.5\n"
    path = tmp_path / "run.log"
    path.write_text("at step:2\n" + step + "Training Progress: 1%\n")
    assert [(x.step, x.values) for x in read_log(path).lines] == [(3, {"policy/entropy": 0.25, "reward/mean": 0.5})]


@pytest.mark.parametrize("console", [True, False])
def test_the_step_of_ms_swift_is_the_first_of_two_numbers(tmp_path, console):
    """It logs `240/960`; other text is no step."""
    row = {"reward": 0.5, "global_step/max_steps": "240/960", "percentage": "25.00%"}
    path = tmp_path / ("swift.log" if console else "logging.jsonl")
    path.write_text(str(row) if console else json.dumps(row))
    assert [(x.step, x.values) for x in read_log(path).lines] == [(240, {"reward/mean": 0.5})]
    path.write_text((str(row) if console else json.dumps(row)).replace("240/960", "240 of 960"))
    with pytest.raises(LogFileError, match="it must be a whole number"):
        read_log(path)
