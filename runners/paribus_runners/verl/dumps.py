"""verl's rollout dumps: one JSON-lines file a step, one line a response; and the canonical metrics that follow.

The newer trainer (`use_v1: true`) writes a ``uid``, `<prompt>_<rollout>_<output>`, and no other fields of the reward;
the older one writes those fields and no ``uid``, with the responses of a group one after another. A file is read whole,
with fields that nothing here knows, or refused by file and line. Source of the formats: `_log_rollout_data` in verl
0.9.1's `verl/trainer/ppo/ray_trainer.py` and `verl/trainer/ppo/v1/trainer_base.py`.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from paribus.errors import RunFolderError, RunnerError
from paribus.recipe.recipe import Recipe
from paribus.run_folder.json_text import field_of, fields, number, parse_json, shown, text, whole
from paribus.run_folder.metrics import Source

Format = Literal["v1", "v0"]
KNOWN = frozenset({"input", "output", "gts", "score", "step", "uid"})
MOST_BYTES = 1 << 30
"""Most bytes of a file: a step of 4,096 responses of 32,000 tokens has about a half of it."""

_UID = re.compile(r"(.+)_(\d+)_(\d+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Response:
    """One line.

    Attributes:
        line: its number in the file, from 1.
        group: responses with the same value answer the same prompt.
        prompt: the prompt's text, without special tokens.
        text: the response's, likewise.
        answer: the reference answer, as the training data have it.
        score: the reward after the length rule, before KL: the sum over tokens.
        uid: verl's name of it; empty in the older format.
        more: fields that nothing here knows, such as those of a reward function.
    """

    line: int
    group: str
    prompt: str
    text: str
    answer: Any
    score: float
    uid: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Dump:
    """The responses of one step that were trained on.

    Attributes:
        path: the file.
        step: the step, from 1.
        format: which of verl's trainers wrote it.
        responses: in the order of the file.
    """

    path: Path
    step: int
    format: Format
    responses: Sequence[Response]

    @property
    def groups(self) -> list[list[Response]]:
        """Responses to the same prompt, in the order in which prompts come first."""
        found: dict[str, list[Response]] = {}
        for response in self.responses:
            found.setdefault(response.group, []).append(response)
        return list(found.values())


def dump_files(folder: Path) -> dict[int, Path]:
    """Return the files of a folder by step, in order; other files are left alone."""
    found = {int(p.stem): p for p in folder.glob("*.jsonl") if re.fullmatch(r"0|[1-9]\d*", p.stem)}
    return dict(sorted(found.items()))


def read_dump(path: Path, group_size: int) -> Dump:
    """Return a file of a step.

    Args:
        path: the file, named after its step.
        group_size: responses to a prompt; a filter or a failed rollout leaves fewer, never more.

    Raises:
        RunFolderError: a line isn't JSON.
        RunnerError: anything else is wrong: an empty file, a last line that was cut off, a value of another type, a uid
            that comes twice, groups that have no clear border. The message begins with the file and the line.
    """
    if not path.stem.isdecimal():
        raise RunnerError(f"{path.name}:1: a dump is named after its step, such as 12.jsonl")
    lines = _lines(path)
    raw = [_row(path, at, line) for at, line in enumerate(lines, 1)]
    formats = {("v1" if "uid" in row else "v0"): at for at, row in reversed(list(enumerate(raw, 1)))}
    if len(formats) > 1:
        raise RunnerError(f"{path.name}:{max(formats.values())}: some lines have a `uid` and some have none")
    step = int(path.stem)
    for at, row in enumerate(raw, 1):
        if row["step"] != step:
            raise _wrong(path, at, f"`step` is {shown(row['step'])}, and the file is of step {step}")
    if "v1" in formats:
        return Dump(path=path, step=step, format="v1", responses=_with_uids(path, raw, group_size))
    return Dump(path=path, step=step, format="v0", responses=_in_blocks(path, raw, group_size))


def _lines(path: Path) -> list[bytes]:
    """Return the lines of a file, all of them complete."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise RunnerError(f"{path.name}:1: more than {MOST_BYTES >> 30} GiB: this is no dump of one step")
        data = path.read_bytes()
    except OSError as error:
        raise RunnerError(f"cannot read {path}: {error.strerror or error}") from error
    *lines, rest = data.split(b"\n")
    if rest:
        raise _wrong(path, len(lines) + 1, "the last line is cut off: verl was killed, or is still writing")
    if not lines:
        raise _wrong(path, 1, "the file is empty: verl was killed, or the step has no responses")
    return lines


def _row(path: Path, at: int, line: bytes) -> dict[str, Any]:
    try:
        row: dict[str, Any] = fields(parse_json(line, path.name, at))
    except RunFolderError:
        raise
    except ValueError as error:
        raise _wrong(path, at, f"{error}: a line is one object") from None
    try:
        text(field_of(row, "input"), "input")
        text(field_of(row, "output"), "output")
        whole(field_of(row, "step"), "step", 0)
        if not math.isfinite(number(field_of(row, "score"), "score")):
            raise ValueError(f"`score` is {row['score']}, which is no reward")
    except ValueError as error:
        raise _wrong(path, at, str(error)) from None
    return row


def _response(row: Mapping[str, Any], at: int, group: str) -> Response:
    return Response(
        line=at, group=group, prompt=row["input"], text=row["output"], answer=row.get("gts"),
        score=float(row["score"]), uid=row.get("uid", ""), more={k: v for k, v in row.items() if k not in KNOWN},
    )  # fmt: skip


def _with_uids(path: Path, raw: Sequence[Mapping[str, Any]], group_size: int) -> list[Response]:
    seen: dict[str, int] = {}
    prompts: dict[str, tuple[str, int]] = {}
    sizes: dict[str, int] = {}
    found = []
    for at, row in enumerate(raw, 1):
        match = _UID.fullmatch(row["uid"]) if isinstance(row["uid"], str) else None
        if match is None:
            raise _wrong(path, at, f"`uid` is {shown(row['uid'])}, and not <prompt>_<rollout>_<output>")
        group, _, output = match.groups()
        if int(output):
            raise _wrong(path, at, f"`uid` {row['uid']} is a further output of one rollout, and a run has one each")
        if row["uid"] in seen:
            raise _wrong(path, at, f"`uid` {row['uid']} stands in line {seen[row['uid']]}, too")
        prompt, first = prompts.setdefault(group, (row["input"], at))
        if prompt != row["input"]:
            raise _wrong(path, at, f"`uid` {row['uid']} is of the group of line {first}, with another prompt")
        sizes[group] = sizes.get(group, 0) + 1
        if sizes[group] > group_size:
            raise _wrong(path, at, f"its group has more than {group_size} responses, `schedule.group_size`")
        seen[row["uid"]] = at
        found.append(_response(row, at, group))
    return found


def _in_blocks(path: Path, raw: Sequence[Mapping[str, Any]], group_size: int) -> list[Response]:
    """Return responses whose groups are blocks of lines: the older trainer drops none."""
    found = []
    for at, row in enumerate(raw, 1):
        block, place = divmod(at - 1, group_size)
        if place and row["input"] != raw[at - 2]["input"]:
            raise _wrong(
                path, at, f"the prompt is another than in line {at - 1}, and groups are blocks of {group_size}"
            )
        found.append(_response(row, at, str(block)))
    if len(raw) % group_size:
        raise _wrong(path, len(raw), f"the file ends inside a group: {len(raw)} lines in blocks of {group_size}")
    return found


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """What the newer trainer's replay buffer has counted in a step, in groups.

    Attributes:
        equal: whose metric was the same for all responses.
        surplus: that were finished and not needed.
        failed: whose rollouts failed.
        stale: that were too old.
    """

    equal: int = 0
    surplus: int = 0
    failed: int = 0
    stale: int = 0

    @property
    def all(self) -> int:
        """Groups that were sampled and not trained on."""
        return self.equal + self.surplus + self.failed + self.stale


COUNTERS: Mapping[str, str] = {
    "equal": "training/filter_groups/evicted_samples",
    "surplus": "training/filter_groups/discarded_surplus_samples",
    "failed": "training/rollout_failure/evicted_samples",
    "stale": "training/off_policy/evicted_samples",
}
"""verl's names; it logs none where nothing was dropped."""


def dropped_in(logged: Mapping[str, float]) -> Dropped:
    """Return the counters of a step's log."""
    return Dropped(**{name: int(logged.get(key, 0)) for name, key in COUNTERS.items()})


def metrics_of(recipe: Recipe, dump: Dump, dropped: Dropped = Dropped()) -> dict[str, tuple[float, Source]]:
    """Return the canonical metrics of a step that its dump gives, each with its source.

    Nothing is said of what dumps don't hold: tokens, probabilities, and the rewards of groups that were dropped. Where
    groups were dropped, means over the others are ``proxy``: the definitions count all that was sampled.

    Args:
        recipe: of the run.
        dump: the step.
        dropped: its counters.
    """
    source: Source = "proxy" if dropped.all else "derived"
    groups = dump.groups
    scores = [r.score for r in dump.responses]
    kept = {
        "reward/shaped_mean": statistics.fmean(scores),
        "reward/std_within_group": statistics.fmean(
            statistics.stdev([r.score for r in g]) if len(g) > 1 else 0.0 for g in groups
        ),
    }
    if recipe.kl.kind == "reward":  # verl writes the reward before KL
        kept = {"reward/mean": kept["reward/shaped_mean"]} if recipe.length.rule.kind == "none" else {}
    elif recipe.length.rule.kind == "none":
        kept["reward/mean"] = kept["reward/shaped_mean"]
    verdicts = [_correct(recipe, response) for response in dump.responses]
    if all(verdict is not None for verdict in verdicts):
        kept["reward/correct_frac"] = statistics.fmean(map(bool, verdicts))
        right = {id(r): bool(v) for r, v in zip(dump.responses, verdicts, strict=True)}
        kept["group/all_correct_frac"] = statistics.fmean(all(right[id(r)] for r in g) for g in groups)
        kept["group/all_wrong_frac"] = statistics.fmean(not any(right[id(r)] for r in g) for g in groups)
    found: dict[str, tuple[float, Source]] = {name: (value, source) for name, value in kept.items()}
    if recipe.length.rule.kind == "none" and not (dropped.all - dropped.equal):
        equal = sum(len({r.score for r in g}) == 1 for g in groups) + dropped.equal
        whole = not dropped.equal or (recipe.filter.kind == "refill" and recipe.filter.metric == "reward_std")
        found["group/zero_std_frac"] = (equal / (len(groups) + dropped.all), "derived" if whole else "proxy")
    sampled = len(groups) + dropped.all
    found["sampling/waste_frac"] = (dropped.all / sampled, "proxy" if dropped.all else "derived")  # in groups
    return found


def _correct(recipe: Recipe, response: Response) -> bool | None:
    """Return whether the verifier accepted a response; ``None``: the dump does not say."""
    said = response.more.get("acc")
    if said in (0, 1):
        return bool(said)
    plain = set(recipe.reward.counts) == {"correct"} and recipe.length.rule.kind == "none"
    if not plain or recipe.reward.map == "scalar":
        return None
    weight = recipe.reward.counts["correct"] * recipe.reward.factor
    worth = {weight: True, (-weight if recipe.reward.map == "pm1" else 0.0): False}
    return next((v for value, v in worth.items() if math.isclose(response.score, value, abs_tol=1e-6)), None)


def _wrong(path: Path, at: int, message: str) -> RunnerError:
    return RunnerError(f"{path.name}:{at}: {message}")
