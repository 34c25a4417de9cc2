"""Bytes and processor time of each page of the dashboard at 100, 1,000 and 10,000 runs, beside another revision.

The home folders are made by the project's own writers: a few runs line by line, the others as hard links to them.
Each revision reads the same folders in processes of their own, in turns; the report, which another process builds, is
left out. Prints a table for documentation.

    python benchmarks/dashboard_pages.py --against HEAD~1
    python benchmarks/dashboard_pages.py --quick
"""

from __future__ import annotations

import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from rollups import Costs, Size, course, write

from paribus.contract import Evaluate, Job
from paribus.errors import ParibusError
from paribus.health.judge import LiveJudge
from paribus.run_folder.folder import RunFolder
from paribus.store.store import Store
from paribus.study.plan import Plan
from support.plans import small_plan

STUDY = "scale"
PAGES = ("", "/health", "/health?arm=arm0", "/compare", "/samples", "/heatmap", "/queue")
SHAPES = ((10, 10), (100, 10), (1000, 10), (100, 100))
"""Arms and seeds."""

COURSES, STEPS = 5, 200

HEAD = """\
| arms x seeds | page | kB | largest chart, kB | CPU first, s | next, s | its charts, s | before: kB, CPU | times |
|---|---|---|---|---|---|---|---|---|"""


def judge(plan: Plan, folder: RunFolder, lines: list) -> None:
    """Write the health of a run, as its supervisor would have."""
    arm = plan.arms[0]
    job = Job(
        run="0" * 64, study=plan.study, arm=arm.label, runner=plan.runner, seed=0, token=1, recipe=arm.recipe,
        evaluate=plan.evaluate, cache="",
    )  # fmt: skip
    LiveJudge(folder, job).take(lines)


def make_home(home: Path, arms: int, seeds: int) -> None:
    """Make the home folder of a study whose runs have all ended."""
    size = Size(arms=arms, seeds=seeds, steps=STEPS, courses=COURSES)
    plan = replace(
        small_plan(STUDY, arms=arms, seeds=seeds, steps=STEPS), evaluate=Evaluate(every=20, problems=20, samples=2)
    )
    costs = Costs(append=[], packing=[], lines=[], series=[], points=[])
    made: list[RunFolder] = []
    with Store.open(home) as store:
        study = store.add_study(plan)
        for number in range(len(plan.runs)):
            claim = store.claim(study.id, engine="none", worker="benchmark")
            assert claim is not None
            store.start(claim.run_id, claim.token)
            folder = RunFolder.of(home, claim.fingerprint, claim.token)
            if number < COURSES:
                lines, evaluations = course(plan, size, number)
                write(folder, lines, evaluations, costs)
                judge(plan, folder, lines)
                made.append(folder)
            else:
                shutil.copytree(made[number % COURSES].path, folder.path, copy_function=os.link)
            store.finish(claim.run_id, claim.token, {"status": "succeeded"})


def look(home: Path) -> dict[str, dict[str, float]]:
    """Return what each page costs: bytes, bytes of its charts, processor seconds of first, next and charts."""
    from fastapi.testclient import TestClient

    from paribus_dashboards.data.home import Home
    from paribus_dashboards.server.access import Access
    from paribus_dashboards.server.app import make_app

    def no_report(folder: Path, study: str) -> None:
        raise ParibusError("the report is left out")

    shown = Home(home, make_report=no_report)  # type: ignore[arg-type]
    client = TestClient(make_app(shown, access=Access(), keep_s=0), base_url="http://localhost")
    client.get("/")  # what the first page of any kind costs once: imports and templates

    def get(at: str) -> tuple[str, float]:
        before = time.process_time()
        found = client.get(at)
        assert found.status_code == 200, at
        return found.text, time.process_time() - before

    found = {}
    for page in PAGES:
        at = f"/study/{STUDY}{page}"
        text, first = get(at)
        _, again = get(at)
        charts = [get(html.unescape(src)) for src in re.findall(r'data-src="([^"]+)"', text)]
        found[page or "board"] = {
            "bytes": len(text.encode()), "chart_bytes": max((len(t) for t, _ in charts), default=0),
            "first": first, "next": again, "charts": sum(s for _, s in charts),
        }  # fmt: skip
    shown.close()
    return found


def measure(home: Path, tree: Path) -> dict[str, dict[str, float]]:
    """Return the costs of the pages with the code of a working tree, in a process of its own."""
    paths = [tree / p for p in ("platform", "runners", "dashboards", "tests")] + [Path(__file__).parent]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, __file__, "--look", str(home)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    return dict(json.loads(done.stdout))


def main() -> None:
    """Make the home folders, measure, and print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="at most 1,000 runs")
    options.add_argument("--against", metavar="REVISION", help="also measure this revision, and print the ratio")
    options.add_argument("--homes", type=Path, help="keep the home folders here, or use those that are there")
    options.add_argument("--look", type=Path, help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.look:
        print(json.dumps(look(asked.look)))
        return
    root = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as scratch:
        trees = {"now": root}
        if asked.against:
            trees["before"] = Path(scratch) / "before"
            subprocess.run(
                ["git", "worktree", "add", "-q", "--detach", trees["before"], asked.against], cwd=root, check=True
            )
        print(HEAD)
        for arms, seeds in SHAPES[: 2 if asked.quick else None]:
            home = (asked.homes or Path(scratch)) / f"{arms}x{seeds}"
            if not home.exists():
                make_home(home, arms, seeds)
            found = {name: measure(home, tree) for name, tree in trees.items()}
            for page, now in found["now"].items():
                row = f"| {arms} x {seeds} | {page} | {now['bytes'] / 1e3:.0f} | {now['chart_bytes'] / 1e3:.0f} | "
                row += f"{now['first']:.2f} | {now['next']:.2f} | {now['charts']:.2f} |"
                if "before" in found:
                    old = found["before"][page]
                    row += f" {old['bytes'] / 1e3:.0f}, {old['first']:.2f}, {old['next']:.2f}, {old['charts']:.2f} |"
                    row += f" {old['first'] / now['first']:.1f} |"
                print(row, flush=True)
        if asked.against:
            subprocess.run(["git", "worktree", "remove", "--force", trees["before"]], cwd=root, check=True)


if __name__ == "__main__":
    main()
