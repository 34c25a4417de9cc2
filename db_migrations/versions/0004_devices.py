"""Add the GPUs and CPU cores of hosts and what each attempt holds of them.

The table ``waiting`` and the columns ``idle`` and ``cordoned`` are no longer used.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "device",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("host", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=3), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("amount", sa.Float(), nullable=False),
        sa.Column("memory", sa.Float(), nullable=False),
        sa.Column("idle", sa.Float(), nullable=False),
        sa.Column("cordoned", sa.Text(), nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device")),
        sa.UniqueConstraint("host", "kind", "name", name=op.f("uq_device_host_kind_name")),
    )
    op.create_table(
        "lease",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("share", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_lease_run_id_run")),
        sa.ForeignKeyConstraint(["device_id"], ["device.id"], name=op.f("fk_lease_device_id_device")),
        sa.PrimaryKeyConstraint("run_id", "token", "device_id", name=op.f("pk_lease")),
    )
    op.create_table(
        "waiting",
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("host", sa.String(length=200), nullable=False),
        sa.Column("gpus", sa.Float(), nullable=False),
        sa.Column("gpu_memory", sa.Float(), nullable=False),
        sa.Column("cpus", sa.Float(), nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.Column("seen", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["study.id"], name=op.f("fk_waiting_study_id_study")),
        sa.PrimaryKeyConstraint("study_id", "host", name=op.f("pk_waiting")),
    )
    op.add_column("attempt", sa.Column("cpus", sa.Float(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("attempt", "cpus")
    for table in ("waiting", "lease", "device"):
        op.drop_table(table)
