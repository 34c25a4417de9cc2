"""Broken study files: one answer has every mistake, each with its place and with what to write."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from paribus.errors import StudyFileError
from paribus.study.load import LoadedStudy, load_study

Read = Callable[[str], LoadedStudy]
BASE = "study: s\nbase: {preset: grpo, set: {kl: off}}\n"
TRICKS = "tricks:\n  a: {clip.high: 0.28}\n  b: {aggregation: token_batch}\n  c: {scale: none}\n"
SOLO = "designs: {solo: {kind: add_one}}\n"


def answer(read: Read, content: str) -> list[str]:
    """Return the lines about a refused study, without its file."""
    with pytest.raises(StudyFileError) as caught:
        read(content)
    return [line.removeprefix(f"{caught.value.file}:") for line in str(caught.value).splitlines()]


HIDDEN = {
    "a key of the ladder": (
        TRICKS + "designs: {d: {kind: cumulative, order: [a, bb], revers: true}}\n",
        ["7:44: designs.d.order.2: there is no trick `bb`", "7:49: designs.d.revers: unknown key"],
    ),
    "a value that is no list": (
        "designs: {d: {kind: grid, over: {clip.hgh: [0.2], schedule.steps: 3, clip.low: [0.1, 0.1]}}}\n",
        ["3:34: designs.d.over.clip.hgh: ", "3:67: designs.d.over.schedule.steps: ", "3:86: designs.d.over.clip.low."],
    ),
    "a range": (
        TRICKS + "designs: {d: {kind: search, trials: 2, tricks: [zz], "
        "over: {clip.high: 3, clip.low: {low: 0.1, high: 1}}}}\n",
        ["7:49: designs.d.tricks.1: there is no trick `zz`", "7:72: designs.d.over.clip.high: "],
    ),
    "an arm": (
        TRICKS + "designs: {d: {kind: list, arms: {x: 3, y: {tricks: [zz]}, z: {set: {kll: 1}}}}}\n",
        ["7:37: designs.d.arms.x: ", "7:53: designs.d.arms.y.tricks.1: ", "7:69: designs.d.arms.z.set.kll: "],
    ),
    "needs": (
        TRICKS + "needs: {a: [zz]}\n"
        "designs:\n  d: {kind: pairs, tricks: [a, yy]}\n  g: {kind: grid, over: {clip.hgh: [1]}}\n",
        ["7:13: needs.a.1: ", "9:32: designs.d.tricks.2: there is no trick `yy`", "10:26: designs.g.over.clip.hgh: "],
    ),
    "a path": (
        TRICKS + "path: {to: dapoo}\nneeds: {a: [zz], clip: [kl]}\nconflicts: [[a, qq]]\n"
        "designs:\n  d: {kind: cumulative, order: [a, clip, length, yy, a]}\n  e: {kind: leave_one_out}\n",
        ["7:12: path.to: there is no preset `dapoo`",
         "8:13: needs.a.1: there is no trick `zz`. Tricks of this study: a, b, c and those of its path.",
         "9:17: conflicts.1.2: there is no trick `qq`", "11:50: designs.d.order.4: there is no trick `yy`",
         "11:54: designs.d.order.5: the trick `a` appears twice"],
    ),
    "a key of the path": (
        "path: {to: dapo, group: {both: [clip, length]}}\ndesigns:\n"
        "  d: {kind: cumulative, order: [both, clup]}\n  e: {kind: add_one}\n",
        ["3:18: path.group: unknown key `group`",
         "5:39: designs.d.order.2: there is no trick `clup`. Did you mean `clip`? Tricks of this study: those of"],
    ),
    "a circle": (
        TRICKS + "needs: {a: [b], b: [a]}\ndesigns: {d: {kind: cumulative, order: [a, a]}}\n",
        ["7:9: needs.a: a circle", "8:44: designs.d.order.2: the trick `a` appears twice"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HIDDEN)
def test_one_mistake_hides_no_other_of_a_design(read: Read, name: str) -> None:
    """A design is checked without its wrong entry, and its names of tricks whatever is wrong with `needs`."""
    content, expected = HIDDEN[name]
    found = answer(read, BASE + content)
    assert len(found) == len(expected)
    for line, start in zip(found, expected, strict=True):
        assert line.startswith(start)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("tricks: [a, b]\n" + SOLO, "3:9: tricks: expects a mapping"),
        ("tricks: {1: {clip.high: 0.2}}\n" + SOLO, "3:10: keys are text"),
        ("tricks: 3\ndesigns: {d: {kind: pairs, tricks: [a, b]}}\n", "3:9: tricks: expects a mapping"),
    ],
)
def test_tricks_that_cannot_be_read_are_not_missed(read: Read, content: str, line: str) -> None:
    """Designs are not blamed for tricks whose names are not known."""
    (found,) = answer(read, BASE + content)
    assert found.startswith(line)


@pytest.mark.parametrize(
    ("wrong", "written", "right"),
    [
        ("seeds: three", "seeds: {n: 3}", None),
        ("budget: lots", "budget: {gpu_hours: 10.0}", None),
        ("budget: {prior: 3}", "prior: {low: 0.5, expected: 1.0, high: 2.0}", "budget: {{{}}}"),
        ("evaluate: {sets: [x]}", "sets: {cool: {temperature: 0.5}}", "evaluate: {{{}}}"),
        ("evaluate: {sets: {x: 3}}", "{samples: 8}", "evaluate: {{sets: {{x: {}}}}}"),
        ("timeouts: 9", "timeouts: {reward: 600.0}", None),
        ("health: nan", "health: {stop_on: [nan]}", None),
        ("report: x", "report: {symptom_correction: holm}", None),
        ("resources: x", "resources: {gpus: 1}", None),
        ("checkpoint: x", "checkpoint: {every: 20}", None),
        ("mirror: mlflow", "[mlflow]", "mirror: {}"),
        ("needs: {a: b}", "[b]", "needs: {{a: {}}}"),
        ("seeds: {min: 3, max: 8, until: decided, looks: 3}", "[3]", "seeds: {{min: 3, max: 8, until: decided}}"),
        ("seeds: {min: 3, max: 8, until: decided, looks: 8.0}", "[8]", "seeds: {{min: 3, max: 8, until: decided}}"),
        ("health: {command: 3}", 'write ["3"]', 'health: {{command: ["3"]}}'),
        ("health: {command: '3'}", 'write ["3"]', 'health: {{command: ["3"]}}'),
        ("health: {command: true}", 'write ["true"]', 'health: {{command: ["true"]}}'),
        ("health: {command: .inf}", "write [inf]", "health: {{command: [inf]}}"),
        ("health: {command: 'stop, now'}", 'write ["stop, now"]', 'health: {{command: ["stop, now"]}}'),
        ("health: {stop_on: kl_blowup}", "[kl_blowup]", "health: {{stop_on: {}}}"),
    ],
)
def test_what_an_answer_says_to_write_is_accepted(read: Read, wrong: str, written: str, right: str | None) -> None:
    """Word by word, in the place that it names."""
    designs = "designs: {solo: {kind: list, arms: {x: {tricks: [a, b]}}}}\n"
    (found,) = answer(read, f"{BASE}{TRICKS}{designs}{wrong}\n")
    assert written in found
    read(f"{BASE}{TRICKS}{designs}{(right or '{}').format(written)}\n")


@pytest.mark.parametrize(
    ("wrong", "end"),
    [
        ("mirror: .inf", "inf is not. Allowed in it: `mlflow`, `tensorboard`, `wandb`."),
        ("mirror: wandbb",
         "`wandbb` is not. Did you mean `wandb`? Allowed in it: `mlflow`, `tensorboard`, `wandb`."),
        ("seeds: {min: 3, max: 8, until: decided, looks: three}", "seeds.looks: expects a list, and `three` is not"),
    ],
)  # fmt: skip
def test_what_cannot_be_in_a_list_is_not_put_into_one(read: Read, wrong: str, end: str) -> None:
    """The answer has the names that can be in it, if there are any."""
    (found,) = answer(read, f"{BASE}{TRICKS}{SOLO}{wrong}\n")
    assert found.endswith(end)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("{}", "designs: {solo: {kind: add_one}}"),
        ("[add_one]", "designs: {solo: {kind: add_one}}"),
        ("{d: add_one}", "designs: {d: {kind: add_one}}"),
        ("{d: {kind: list, arms: 3}}", "designs: {d: {kind: list, arms: {wide: {set: {clip.high: 0.28}}}}}"),
        ("{d: {kind: grid, over: [clip.high]}}", "designs: {d: {kind: grid, over: {clip.high: [0.2, 0.28]}}}"),
        ("{d: {kind: grid, over: {clip: {high: [0.2]}}}}",
         "designs: {d: {kind: grid, over: {clip.high: [0.2, 0.28]}}}"),
        ("{d: {kind: grid, over: {clip.high: 0.3}}}", "designs: {d: {kind: grid, over: {clip.high: [0.3]}}}"),
        ("{d: {kind: search, trials: 2, over: {clip.high: [0.2]}}}",
         "designs: {d: {kind: search, trials: 2, over: {clip.high: {low: 0.2, high: 0.3}}}}"),
        ("{d: {kind: cumulative, order: [a, b], random: {n: 9, seed: 1}}}",
         "designs: {d: {kind: cumulative, order: [a, b], random: {n: 1, seed: 1}}}"),
        ("{d: {kind: cumulative, order: a}}", "designs: {d: {kind: cumulative, order: [a]}}"),
        ("{d: {kind: fractional, resolution: 5}}", "designs: {d: {kind: fractional, resolution: 3}}"),
    ],
)  # fmt: skip
def test_what_an_answer_says_of_designs_is_accepted(read: Read, wrong: str, right: str) -> None:
    """The answer has, word by word, what the right study has in the place that it names."""
    (found,) = answer(read, f"{BASE}{TRICKS}designs: {wrong}\n")
    said = found.partition("write ")[2].removeprefix("e.g. ").partition(" or ")[0].strip("`")
    assert (said and said in right) or "use `resolution: 3`" in found or "write 1" in found
    read(f"{BASE}{TRICKS}{right}\n")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "1:1: the file is empty"),
        ("# nothing\n", "1:1: the file is empty"),
        ("study: s\nbase:\n" + TRICKS + SOLO, "2:6: base: expects a mapping, and null is not: write e.g. `base: {"),
        (BASE[9:] + TRICKS + SOLO, "1:1: `study` is missing: write e.g. `study: my-study`"),
        (BASE.replace("study: s", "study: My Study") + TRICKS + SOLO, "beginning with a letter or digit: write `my-s"),
        (BASE + TRICKS + "designs: {solo: {kind: add_one}\n",
         ": what is opened in line 7, column 10, is not closed, or lacks a comma"),
        (BASE + TRICKS + SOLO + "question: 'it's'\n",
         ": text goes on behind a quote that ends it. Put the whole text into the other kind of quotes"),
        (BASE + TRICKS + SOLO + "question: does it: help?\n", ", and a text with `: ` in it stands in quotes"),
    ],
)  # fmt: skip
def test_every_answer_has_a_line_and_says_what_to_write(read: Read, content: str, line: str) -> None:
    """Also where the file is empty or no YAML."""
    (found,) = answer(read, content)
    assert re.match(r"\d+:\d+: ", found)
    assert line in found


def test_an_included_file_that_is_not_there_has_a_near_name(tmp_path: Path) -> None:
    """One of the YAML files in its folder."""
    (tmp_path / "base.yaml").write_text("seeds: {n: 2}\n")
    (tmp_path / "study.yaml").write_text("include: bsae.yaml\n" + BASE + TRICKS + SOLO)
    with pytest.raises(StudyFileError, match=r"study.yaml:1:10: include: .*bsae.yaml. Did you mean `base.yaml`\?"):
        load_study(tmp_path / "study.yaml")
