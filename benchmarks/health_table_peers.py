"""Other tools on the courses of `health_table.py`, all under TRL's names: alarms on healthy ones, faults named.

    python benchmarks/health_table_peers.py --peers PYTHON --trl-python PYTHON --toolkit FOLDER --page

`--peers` has requirements-health.txt; `--trl-python` has TRL's environment and requirements-toolkit.txt; FOLDER is a
checkout of microsoft/post-training-toolkit, whose name on the package index holds an empty placeholder.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from health import SAME
from health_course_faults import ILL
from health_courses import Course, draw
from health_page import write
from health_peers import LOOKS
from health_table import HALVES, Judged, jobs, judge, share

SCRIPT = Path(__file__).with_name("health_peers.py")
TOOLS = {
    "ours": "Paribus",
    "plain": "18 fixed thresholds",
    "rldoctor": "rldoctor 0.2.0",
    "rlwatch": "rlwatch 0.5.1",
    "callback": "post-training-toolkit 0.2.0, its callback",
    "renamed": "post-training-toolkit, all rules, its own names for the metrics",
    "yaml": "post-training-toolkit, its rules in YAML alone, likewise",
}
"""A tool, as it is called here and in the table."""

_ENTROPY = ("mode_collapse_entropy", "grpo_entropy_collapse", "grpo_entropy_drop", "yaml_entropy_collapse")
_CLIPPED = ("grpo_clip_ratio_high", "yaml_clip_fraction_high")
_KL = ("kl_instability", "kl_above_target", "kl_volatility", "grpo_kl_divergence", "yaml_kl_divergence_high")
_IN_YAML = ("response_truncation_rate_high", "grpo_reward_without_quality")
TOOLKIT: Mapping[str, tuple[str, ...]] = {
    "entropy_collapse": _ENTROPY,
    "length_balloon": ("grpo_length_drift", "grpo_reward_length_correlation"),
    "length_collapse": ("length_collapse", "grpo_length_drift", "mode_collapse_length_variance"),
    "truncation": ("response_truncation_rate_high",),
    "reward_hacking": ("reward_hacking_suspected", "grpo_reward_without_quality"),
    "kl_blowup": _KL,
    "grad_spike": ("gradient_explosion", "gradient_instability"),
    "dead_update": ("gradient_vanishing",),
    "nan": ("critical_failure",),
    "zero_variance": ("grpo_reward_collapse", "yaml_grpo_group_reward_collapse"),
    "clip_saturation_high": _CLIPPED,
    "clip_saturation_low": _CLIPPED,
    "reward_crash": ("instability_hotspot",),
    "reward_noise": ("instability_hotspot", "reward_variance_spike", "yaml_reward_variance_spike"),
    "length_reward": ("grpo_reward_length_correlation",),
}
"""Our detector to the toolkit's insights for the same fault; where in doubt, in its favour."""


def theirs(tool: str, names: Sequence[str]) -> set[str]:
    """Return what names a fault in a tool: the same as one of these detectors of ours."""
    if tool in ("ours", "plain"):
        return set(names)
    table = SAME.get(tool, TOOLKIT)
    found = {other for name in names for other in table.get(name, ())}
    return {other for other in found if other.startswith("yaml_") or other in _IN_YAML} if tool == "yaml" else found


def drawn(half: str, each: int, begin: int) -> list[Course]:
    """Return the courses of a half whose fault TRL's logs can show, all under TRL's names."""
    wanted = (job for job in jobs(half, each, begin) if not job[2] or "trl" in ILL[job[2]].trainers)
    return [draw(seed, kind, fault, half=number, trainer="trl") for seed, kind, fault, number in wanted]


def said(command: Sequence[str], courses: Sequence[Course], path: str = "") -> list[dict[str, list[str]]]:
    """Return what tools in another environment say of each course."""
    text = "".join(json.dumps([with_spread(r) for r in c.records]) + "\n" for c in courses)
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command], input=text, capture_output=True, text=True, check=True, env=env)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def with_spread(record: Mapping[str, float]) -> dict[str, float]:
    """Return the record with TRL's `reward_std`, where the reward is the share of right answers."""
    reward = record["reward"]
    return {**record, **({"reward_std": math.sqrt(reward * (1 - reward))} if 0 <= reward <= 1 else {})}


def table(found: Sequence[tuple[Course, Mapping[str, Sequence[str]]]]) -> list[str]:
    """Return the rows: alarms and names of each tool, then each fault."""
    fine = [names for course, names in found if not course.fault]
    bad = [(course, names) for course, names in found if course.fault]
    faults = [f for f in ILL if any(c.fault == f for c, _ in bad)]
    lines = [
        "| | any alarm | faults named | kinds of faults it has a rule for |",
        "|---|---:|---:|---:|",
    ]
    for tool, shown in TOOLS.items():
        alarms = share(bool(names[tool]) for names in fine)
        named = share(bool(theirs(tool, c.names) & set(names[tool])) for c, names in bad)
        has = sum(bool(theirs(tool, ILL[f].names)) for f in faults)
        lines.append(f"| {shown} | {alarms} | {named} | {has} of {len(faults)} |")
    lines += ["", f"| fault | {' | '.join(TOOLS)} |", f"|---|{'---:|' * len(TOOLS)}"]
    for fault in faults:
        mine = [(c, names) for c, names in bad if c.fault == fault]
        cells = [
            share(bool(theirs(t, c.names) & set(names[t])) for c, names in mine) if theirs(t, ILL[fault].names) else "—"
            for t in TOOLS
        ]
        lines.append(f"| {fault} | {' | '.join(cells)} |")
    return lines


ABOUT = """## Other tools on independent courses

`make -C benchmarks courses-peers TOOLKIT=FOLDER` gives {healthy} healthy courses and {bad} with one of {faults} faults
of the table above, all under TRL's names, to other tools, too (`health_table_peers.py`). An alarm is a warning or
worse; the toolkit's insights of medium and high severity count. A fault is named if an alarm is meant for it; a dash:
the tool has no such rule. `callback` is the toolkit's callback as TRL calls it, looking at each run {looks} times. Of
the names that TRL 1.16 logs it knows reward, loss, KL and entropy; `renamed` gives its rules the other metrics under
the names that they look for, and `yaml` are those of these rules that are written in YAML. Its rules judge the whole
run or the last 200 steps against fixed numbers: an entropy below 1 nat, for instance, is a collapse of high severity.
Courses and matching are ours; what helps a tool was decided for it. One run a fault says little of a rate.
"""


def page(found: Sequence[tuple[Course, Mapping[str, Sequence[str]]]]) -> list[str]:
    """Return the section of the page."""
    bad = [c for c, _ in found if c.fault]
    about = ABOUT.format(
        healthy=len(found) - len(bad),
        bad=len(bad),
        faults=len({c.fault for c in bad}),
        looks=LOOKS,
    )
    return [about, *table(found)]


def main() -> None:
    """Judge, print, and write into the page if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, help="python that has rldoctor and rlwatch")
    parser.add_argument("--trl-python", type=Path, required=True, help="python that has the needs of the toolkit")
    parser.add_argument("--toolkit", type=Path, required=True, help="a checkout of microsoft/post-training-toolkit")
    parser.add_argument("--half", choices=HALVES, default="fresh")
    parser.add_argument("--each", type=int, default=1)
    parser.add_argument("--begin", type=int, default=3000, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--page", action="store_true", help="write the table into docs/reference/health.md")
    chosen = parser.parse_args()
    courses = drawn(chosen.half, chosen.each, chosen.begin)
    with ProcessPoolExecutor(chosen.jobs) as pool:
        mine: list[Judged] = list(pool.map(judge, courses, chunksize=4))
    doctors = said([str(chosen.peers), str(SCRIPT), "judge"], courses)
    kit = said([str(chosen.trl_python), str(SCRIPT), "toolkit"], courses, str(chosen.toolkit.resolve()))
    found = [
        (course, {"ours": our.alarms, "plain": our.plain, **doctor, **tool})
        for course, our, doctor, tool in zip(courses, mine, doctors, kit, strict=True)
    ]
    lines = page(found)
    print("\n".join(lines))
    if chosen.page:
        write(Path(__file__).name, lines)


if __name__ == "__main__":
    main()
