"""Run inside the scheduler's container, with the code on standard input: what became of the runs, as one JSON line."""

import json
import os
from collections import Counter
from itertools import islice

import sqlalchemy as sa

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.home import home
from paribus.run_folder.attempt_files import read_attempt
from paribus.run_folder.checkpoints import tokens
from paribus.run_folder.folder import RunFolder
from paribus.store.database import Database, database_url
from paribus.store.reader import Reader

with Reader.open(home()) as reader:
    seen = snapshot(reader, deep=True)
mlflow = Database(database_url(home()).set(database="mlflow"))
prints = {run.id: run.fingerprint for run in seen.runs}
lost, doubled, points, steps_twice, resumed, hosts = 0, 0, 0, 0, 0, set()
with mlflow.read() as connection:
    copies = connection.execute(sa.text("SELECT value, run_uuid FROM tags WHERE key = 'paribus.run'")).all()
    for result in seen.results:
        folder = RunFolder.of(home(), prints[result.run_id], result.token)
        hosts.add(read_attempt(folder)["runner"]["host"])
        lines = list(folder.read_metrics())
        earlier = [RunFolder.of(home(), prints[result.run_id], token) for token in tokens(folder.path.parent)]
        others = [list(islice(each.read_metrics(), 2)) for each in earlier if each.path != folder.path]
        resumed += lines[:2] in others  # they hold times, so they are equal only where they were taken over
        steps_twice += len(lines) - len({line.step for line in lines})
        written = {(key, line.step) for line in lines for key in line.values}
        held = Counter()
        for value, run in copies:
            if value == prints[result.run_id]:
                found = connection.execute(sa.text("SELECT key, step FROM metrics WHERE run_uuid = :run"), {"run": run})
                held.update((key, step) for key, step in found)
        points += len(written)
        lost += len(written - held.keys())
        doubled += sum(number > 1 for number in held.values())
mlflow.close()
counts = Counter(str(run.state) for run in seen.runs)
print(
    json.dumps(
        {
            "states": counts,
            "results": len(seen.results),
            "copies": len(copies),
            "attempts": len(seen.attempts),
            "again": len(seen.attempts) - len({attempt.run_id for attempt in seen.attempts}),
            "points": points,
            "lost": lost,
            "doubled": doubled + steps_twice,
            "violations": [f"{v.invariant}: {v.message}" for v in audit(seen)],
            "user": os.getuid(),
            "hosts": sorted(hosts),
            "resumed": resumed,
        }
    )
)
