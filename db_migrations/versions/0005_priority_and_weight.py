"""Add priority and weight of a study. Both have a default, for processes of the previous version."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("study", sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("study", sa.Column("weight", sa.Float(), nullable=False, server_default="1"))


def downgrade() -> None:
    op.drop_column("study", "weight")
    op.drop_column("study", "priority")
