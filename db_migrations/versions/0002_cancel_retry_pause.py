"""Add the columns for cancel, retry and pause. Each has a default, for processes of the previous version."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_COLUMNS = (
    ("study", "paused", sa.Text(), ""),
    ("run", "generation", sa.Integer(), "0"),
    ("run", "requeues", sa.Integer(), "0"),
    ("run", "step", sa.Integer(), "0"),
    ("study_run", "withdrawn", sa.Boolean(), sa.false()),
    ("study_run", "recorded", sa.Boolean(), sa.false()),
)
_INDEXES = (
    ("ix_study_run_open", "study_run", ["study_id", "position"], "withdrawn IS false AND recorded IS false"),
    ("ix_attempt_live", "attempt", ["id"], "ended_at IS NULL"),
)


def upgrade() -> None:
    for table, name, kind, default in _COLUMNS:
        op.add_column(table, sa.Column(name, kind, nullable=False, server_default=default))
    op.execute("UPDATE study_run SET recorded = true WHERE run_id IN (SELECT run_id FROM result)")
    for name, table, columns, where in _INDEXES:
        # SQLite uses a partial index only if the query has the same condition, word for word
        on_sqlite = sa.text(where.replace("false", "0"))
        op.create_index(name, table, columns, sqlite_where=on_sqlite, postgresql_where=sa.text(where))


def downgrade() -> None:
    for name, table, _, _ in _INDEXES:
        op.drop_index(name, table_name=table)
    for table, name, _, _ in reversed(_COLUMNS):
        op.drop_column(table, name)
