"""Add budgets: the limits and sums of each study, the reservation and charge of each attempt."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_KEPT = "('succeed', 'stop_early', 'release')"
_RESULT = "('succeed', 'stop_early')"


def upgrade() -> None:
    op.create_table(
        "budget",
        sa.Column("study", sa.String(length=200), nullable=False),
        sa.Column("unit", sa.String(length=3), nullable=False),
        sa.Column("cap", sa.Float(), nullable=True),
        sa.Column("stated", sa.Float(), nullable=False),
        sa.Column("reserved", sa.Float(), nullable=False),
        sa.Column("spent", sa.Float(), nullable=False),
        sa.Column("wasted", sa.Float(), nullable=False),
        sa.Column("longest", sa.Float(), nullable=False),
        sa.Column("results", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("study", "unit", name=op.f("pk_budget")),
    )
    op.add_column("attempt", sa.Column("cap", sa.Float(), nullable=True))
    op.add_column("attempt", sa.Column("reserved", sa.Float(), nullable=False, server_default="0"))
    op.add_column("attempt", sa.Column("charged", sa.Float(), nullable=True))
    # charges what older versions have spent; the limits come from the study file at its next submission
    held = "CASE WHEN ended_at > started_at THEN ended_at - started_at ELSE 0.0 END"
    size = "CASE WHEN gpus > 0 THEN gpus ELSE 1.0 END"
    op.execute(f"UPDATE attempt SET charged = ({held}) * ({size}) WHERE ended_at IS NOT NULL")  # noqa: S608 - constants
    for unit, mine in (("gpu", "a.gpus > 0"), ("cpu", "a.gpus <= 0")):
        op.execute(
            "INSERT INTO budget (study, unit, stated, reserved, spent, wasted, longest, results) "  # noqa: S608 - constants
            f"SELECT s.name, '{unit}', 0.0, 0.0, COALESCE(SUM(a.charged), 0.0), "
            f"COALESCE(SUM(CASE WHEN a.outcome NOT IN {_KEPT} THEN a.charged END), 0.0), "
            f"COALESCE(MAX(CASE WHEN a.outcome IN {_KEPT} THEN a.charged END), 0.0), "
            f"COALESCE(SUM(CASE WHEN a.outcome IN {_RESULT} THEN 1 END), 0) "
            f"FROM study s LEFT JOIN attempt a ON a.study_id = s.id AND {mine} GROUP BY s.name"
        )


def downgrade() -> None:
    for column in ("charged", "reserved", "cap"):
        op.drop_column("attempt", column)
    op.drop_table("budget")
