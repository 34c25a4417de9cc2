"""The tables of the store. Every constraint is named, so that migrations can change it on SQLite, too."""

from __future__ import annotations

import sqlalchemy as sa

from paribus.store.states import RunState

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_STATES = ", ".join(f"'{s}'" for s in RunState)

study = sa.Table(
    "study",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("plan", sa.Text, nullable=False),
    sa.Column("submitted_at", sa.Float, nullable=False),
    sa.Column("paused", sa.Text, nullable=False, server_default=""),
    sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
    sa.Column("weight", sa.Float, nullable=False, server_default="1"),
    sa.Column("first_submitted_at", sa.Float, nullable=False, server_default="0"),
    sa.UniqueConstraint("name", "fingerprint"),
)

run = sa.Table(
    "run",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("study_id", sa.Integer, sa.ForeignKey("study.id"), nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("state", sa.String(20), nullable=False),
    sa.Column("token", sa.Integer, nullable=False),
    sa.Column("lease_until", sa.Float),
    sa.Column("not_before", sa.Float, nullable=False),
    sa.Column("program_failures", sa.Integer, nullable=False),
    sa.Column("infrastructure_failures", sa.Integer, nullable=False),
    sa.Column("cancel_requested", sa.Boolean, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("signature", sa.Text, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False, server_default="0"),
    sa.Column("requeues", sa.Integer, nullable=False, server_default="0"),
    sa.Column("step", sa.Integer, nullable=False, server_default="0"),
    sa.UniqueConstraint("fingerprint"),
    sa.CheckConstraint(f"state IN ({_STATES})", name="state"),
    sa.Index(None, "state", "lease_until"),
)

# Lets claims skip runs that have a result. A link whose run has a result may lack the flag; other links never have it.
_RECORDED = sa.Column("recorded", sa.Boolean, nullable=False, server_default=sa.false())
_WITHDRAWN = sa.Column("withdrawn", sa.Boolean, nullable=False, server_default=sa.false())
_OPEN = sa.and_(_WITHDRAWN.is_(False), _RECORDED.is_(False))

study_run = sa.Table(
    "study_run",
    metadata,
    sa.Column("study_id", sa.Integer, sa.ForeignKey("study.id"), nullable=False),
    sa.Column("run_id", sa.Integer, sa.ForeignKey("run.id"), nullable=False),
    sa.Column("arm", sa.String(64), nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    _WITHDRAWN,
    _RECORDED,
    sa.PrimaryKeyConstraint("study_id", "run_id"),
    sa.Index(None, "run_id"),
    sa.Index("ix_study_run_open", "study_id", "position", sqlite_where=_OPEN, postgresql_where=_OPEN),
)

_ENDED_AT = sa.Column("ended_at", sa.Float)
_LIVE = _ENDED_AT.is_(None)

attempt = sa.Table(
    "attempt",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("run_id", sa.Integer, sa.ForeignKey("run.id"), nullable=False),
    sa.Column("study_id", sa.Integer, sa.ForeignKey("study.id")),  # null: that study was deleted
    sa.Column("token", sa.Integer, nullable=False),
    sa.Column("engine", sa.String(40), nullable=False),
    sa.Column("worker", sa.String(200), nullable=False),
    sa.Column("submit_name", sa.String(80), nullable=False),
    sa.Column("external_id", sa.String(200), nullable=False),
    sa.Column("gpus", sa.Float, nullable=False),
    sa.Column("cpus", sa.Float, nullable=False, server_default="0"),
    sa.Column("claimed_at", sa.Float, nullable=False),
    sa.Column("started_at", sa.Float),
    _ENDED_AT,
    sa.Column("outcome", sa.String(20), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("signature", sa.Text, nullable=False),
    sa.Column("cap", sa.Float),
    sa.Column("reserved", sa.Float, nullable=False, server_default="0"),
    sa.Column("charged", sa.Float),
    sa.UniqueConstraint("run_id", "token"),
    sa.UniqueConstraint("submit_name"),
    sa.Index("ix_attempt_live", "id", sqlite_where=_LIVE, postgresql_where=_LIVE),
)

device = sa.Table(
    "device",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("host", sa.String(200), nullable=False),
    sa.Column("kind", sa.String(3), nullable=False),
    sa.Column("name", sa.String(100), nullable=False),
    sa.Column("amount", sa.Float, nullable=False),
    sa.Column("memory", sa.Float, nullable=False),
    sa.Column("idle", sa.Float, nullable=False),
    sa.Column("cordoned", sa.Text, nullable=False, server_default=""),
    sa.UniqueConstraint("host", "kind", "name"),
)

# The share of a GPU that an attempt holds from its claim to its end; its CPU cores are in its own row.
lease = sa.Table(
    "lease",
    metadata,
    sa.Column("run_id", sa.Integer, sa.ForeignKey("run.id"), nullable=False),
    sa.Column("token", sa.Integer, nullable=False),
    sa.Column("device_id", sa.Integer, sa.ForeignKey("device.id"), nullable=False),
    sa.Column("share", sa.Float, nullable=False),
    sa.PrimaryKeyConstraint("run_id", "token", "device_id"),
)

# No longer used, like the last two columns of `device`; kept so that databases of older versions keep their schema.
waiting = sa.Table(
    "waiting",
    metadata,
    sa.Column("study_id", sa.Integer, sa.ForeignKey("study.id"), nullable=False),
    sa.Column("host", sa.String(200), nullable=False),
    sa.Column("gpus", sa.Float, nullable=False),
    sa.Column("gpu_memory", sa.Float, nullable=False),
    sa.Column("cpus", sa.Float, nullable=False),
    sa.Column("since", sa.Float, nullable=False),
    sa.Column("seen", sa.Float, nullable=False),
    sa.PrimaryKeyConstraint("study_id", "host"),
)

budget = sa.Table(
    "budget",
    metadata,
    sa.Column("study", sa.String(200), nullable=False),
    sa.Column("unit", sa.String(3), nullable=False),
    sa.Column("cap", sa.Float),
    sa.Column("stated", sa.Float, nullable=False),
    sa.Column("reserved", sa.Float, nullable=False),
    sa.Column("spent", sa.Float, nullable=False),
    sa.Column("wasted", sa.Float, nullable=False),
    sa.Column("longest", sa.Float, nullable=False),
    sa.Column("results", sa.Integer, nullable=False),
    sa.PrimaryKeyConstraint("study", "unit"),
)

result = sa.Table(
    "result",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("run_id", sa.Integer, sa.ForeignKey("run.id"), nullable=False),
    sa.Column("token", sa.Integer, nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("payload_hash", sa.String(64), nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.UniqueConstraint("run_id"),
)

event = sa.Table(
    "event",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("run_id", sa.Integer, sa.ForeignKey("run.id"), nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("token", sa.Integer, nullable=False),
    sa.Column("move", sa.String(20), nullable=False),
    sa.Column("source", sa.String(20), nullable=False),
    sa.Column("target", sa.String(20), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Index(None, "run_id"),
)

# What people say of a study or a run, one line for each change; it names them by text, so it outlives a deleted study.
remark = sa.Table(
    "remark",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("study", sa.String(200), nullable=False),
    sa.Column("run", sa.String(64), nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("author", sa.String(200), nullable=False),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Index(None, "study"),
    sa.Index(None, "run"),
)

# The largest numbers that deleted rows had: SQLite would give them away again, and an old attempt would fit a new run.
used_number = sa.Table(
    "used_number",
    metadata,
    sa.Column("table_name", sa.String(20), primary_key=True),
    sa.Column("last", sa.Integer, nullable=False),
)
