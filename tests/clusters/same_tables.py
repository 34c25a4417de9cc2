"""A study gives the same tables on this machine, on a Ray cluster and on a Slurm cluster.

``make -C benchmarks engine-tables``, or

    PYTHONPATH=tests python tests/clusters/same_tables.py STUDY.yaml

The clusters are made of several nodes on this machine, with fake GPUs that nothing uses. Compared are all evaluations
of all runs, and all tables of the report but for the columns of the time that runs took.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clusters.started import NotInstalled, RayCluster, slurm_cluster
from paribus.run_folder.folder import RunFolder

TIMES = ("seconds", "time")
"""Columns of what no two trainings have in common."""


@contextmanager
def ray(_folder: Path) -> Iterator[tuple[Mapping[str, str], dict[str, Any]]]:
    """Yield the environment and the options of a Ray cluster."""
    with RayCluster() as cluster:
        yield cluster.environment, {"address": cluster.address, "jobs": 2}


@contextmanager
def slurm(folder: Path) -> Iterator[tuple[Mapping[str, str], dict[str, Any]]]:
    """Yield the environment and the options of a Slurm cluster."""
    with slurm_cluster(folder / "cluster") as configuration:
        yield {"SLURM_CONF": str(configuration)}, {"memory": "1900M", "jobs": 2}


@contextmanager
def local(_folder: Path) -> Iterator[tuple[Mapping[str, str], dict[str, Any]]]:
    """Yield nothing: this machine needs none."""
    yield {}, {}


def trained(study: Path, engine: str, cluster: Any, folder: Path) -> tuple[Any, Any]:
    """Run the study in a folder of its own; return its evaluations by run, and its tables by key."""
    folder.mkdir()
    with cluster(folder) as (environment, options):
        (folder / "engines.yaml").write_text(json.dumps({engine: options} if options else {}))
        command = [sys.executable, "-m", "paribus", "run", study, "--engine", engine, "--home", folder / "home"]
        command += ["--engine-options", folder / "engines.yaml"] if options else []
        began = time.monotonic()
        subprocess.run(command, cwd=folder, env={**os.environ, **environment}, check=True, stdout=sys.stderr)
        print(f"{engine}: {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    (report,) = folder.glob("reports/*/report.json")
    tables = json.loads(report.read_text())["tables"]
    return evaluations(folder / "home"), {t["key"]: timeless(t) for t in tables}


def timeless(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table without the columns of time."""
    kept = [i for i, column in enumerate(table["columns"]) if column["key"] not in TIMES]
    rows = [{**row, "cells": [row["cells"][i] for i in kept]} for row in table["rows"]]
    return {**table, "columns": [table["columns"][i] for i in kept], "rows": rows}


def evaluations(home: Path) -> Mapping[str, Any]:
    """Return step, right answers by problem and tokens of each evaluation, by run."""
    found: dict[str, Any] = {}
    for folder in home.glob("runs/*/a*"):
        found[folder.parent.name] = [(e.step, e.correct, e.tokens) for e in RunFolder(folder).read_evaluations()]
    return found


def main(study: Path) -> None:
    """Train on all engines, and say what differs."""
    with tempfile.TemporaryDirectory(prefix="same-tables-") as name:
        folder = Path(name)
        engines = {"local": local, "ray": ray, "slurm": slurm}
        found = {engine: trained(study, engine, cluster, folder / engine) for engine, cluster in engines.items()}
    runs, tables = found["local"]
    for engine in ("ray", "slurm"):
        other_runs, other_tables = found[engine]
        different = sorted(r for r in runs.keys() | other_runs.keys() if runs.get(r) != other_runs.get(r))
        wrong = sorted(k for k in tables.keys() | other_tables.keys() if tables.get(k) != other_tables.get(k))
        if different or wrong:
            sys.exit(f"{engine} differs from local in {len(different)} of {len(runs)} runs, and in the tables: {wrong}")
        print(f"{engine}: {len(runs)} runs and {len(tables)} tables are those of local: {', '.join(sorted(tables))}")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]).resolve())
    except NotInstalled as error:
        sys.exit(str(error))
