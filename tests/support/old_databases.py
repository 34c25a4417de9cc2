"""Databases as earlier revisions left them, with the rows that those could hold."""

import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory

from paribus.home import data_root
from paribus.store.models import PLAN
from support.plans import small_plan


def scripts():
    """Return the migrations, oldest first."""
    config = Config()
    config.set_main_option("script_location", str(data_root("db_migrations")))
    return [s.revision for s in ScriptDirectory.from_config(config).walk_revisions()][::-1]


REVISIONS = scripts()


def fill(database):
    """Write one finished and one interrupted run with the columns that a revision has and that have no default."""
    plan = small_plan(arms=1, seeds=2)
    done, waiting = (p.fingerprint for p in plan.runs)
    run = {"study_id": 1, "token": 1, "not_before": 0.0, "program_failures": 0, "infrastructure_failures": 0,
           "cancel_requested": False, "reason": "", "signature": ""}  # fmt: skip
    attempt = {"study_id": 1, "token": 1, "engine": "local", "worker": "here", "external_id": "", "gpus": 0.0,
               "claimed_at": 5.0, "started_at": 6.0, "ended_at": 7.0, "reason": "", "signature": ""}  # fmt: skip
    result = {"run_id": 1, "token": 1, "payload": "{}", "at": 7.0,
              "payload_hash": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"}  # fmt: skip
    log = [(1, 0, "submit", "PLANNED", "QUEUED"), (1, 1, "claim", "QUEUED", "LEASED"),
           (1, 1, "start", "LEASED", "RUNNING"), (1, 1, "succeed", "RUNNING", "SUCCEEDED"),
           (2, 0, "submit", "PLANNED", "QUEUED"), (2, 1, "claim", "QUEUED", "LEASED"),
           (2, 1, "start", "LEASED", "RUNNING"), (2, 1, "release", "RUNNING", "QUEUED")]  # fmt: skip
    names = ("run_id", "token", "move", "source", "target")
    study = {"name": plan.study, "fingerprint": plan.fingerprint, "plan": PLAN.dump_json(plan).decode()}
    rows = {
        "study": [{**study, "submitted_at": 1.0}],
        "run": [
            {**run, "fingerprint": done, "seed": 0, "state": "SUCCEEDED"},
            {**run, "fingerprint": waiting, "seed": 1, "state": "QUEUED"},
        ],
        "study_run": [{"study_id": 1, "run_id": i + 1, "arm": "arm0", "position": i} for i in range(2)],
        "attempt": [
            {**attempt, "run_id": 1, "submit_name": "one", "outcome": "succeed"},
            {**attempt, "run_id": 2, "submit_name": "two", "outcome": "release"},
        ],
        "result": [result],
        "event": [{**dict(zip(names, line, strict=True)), "at": 7.0, "reason": ""} for line in log],
    }
    tables = sa.MetaData()
    with database.write() as connection:
        tables.reflect(connection)
        if "budget" in tables.tables:
            sums = {"stated": 0.0, "reserved": 0.0, "wasted": 0.0}
            used = {
                "cpu": {"spent": 2.0, "longest": 1.0, "results": 1},
                "gpu": {"spent": 0.0, "longest": 0.0, "results": 0},
            }
            rows["budget"] = [{"study": plan.study, "unit": u, **sums, **more} for u, more in used.items()]
            rows["attempt"] = [{**row, "charged": 1.0} for row in rows["attempt"]]
        for name, values in rows.items():
            connection.execute(sa.insert(tables.tables[name]), values)
