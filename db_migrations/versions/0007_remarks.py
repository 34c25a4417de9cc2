"""Add what people note of studies and runs. An attempt whose study was deleted is charged to no study."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_OF_ITS_RUN = """
UPDATE attempt SET study_id = (SELECT run.study_id FROM run WHERE run.id = attempt.run_id) WHERE study_id IS NULL
"""


def upgrade() -> None:
    op.create_table(
        "remark",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study", sa.String(length=200), nullable=False),
        sa.Column("run", sa.String(length=64), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("author", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_remark")),
    )
    op.create_index(op.f("ix_remark_study"), "remark", ["study"])
    op.create_index(op.f("ix_remark_run"), "remark", ["run"])
    op.create_table(
        "used_number",
        sa.Column("table_name", sa.String(length=20), nullable=False),
        sa.Column("last", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("table_name", name=op.f("pk_used_number")),
    )
    with op.batch_alter_table("attempt") as attempt:
        attempt.alter_column("study_id", existing_type=sa.Integer(), nullable=True)


def downgrade() -> None:
    op.execute(_OF_ITS_RUN)
    with op.batch_alter_table("attempt") as attempt:
        attempt.alter_column("study_id", existing_type=sa.Integer(), nullable=False)
    op.drop_table("used_number")
    op.drop_table("remark")
