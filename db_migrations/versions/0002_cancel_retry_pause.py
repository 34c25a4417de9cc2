"""What cancelling, retrying and pausing need. Each column has a default, for writers of the revision before."""

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
)


def upgrade() -> None:
    for table, name, kind, default in _COLUMNS:
        op.add_column(table, sa.Column(name, kind, nullable=False, server_default=default))


def downgrade() -> None:
    for table, name, _, _ in reversed(_COLUMNS):
        op.drop_column(table, name)
