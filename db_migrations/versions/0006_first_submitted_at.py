"""Add when a plan was first submitted: what was declared after results follows from it. 0: not recorded.

Plans of before get the earliest time that is known of them: that of their first new run, or of their last submission.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_KNOWN = """
UPDATE study SET first_submitted_at = COALESCE((
    SELECT MIN(event.at) FROM event JOIN run ON run.id = event.run_id
    WHERE run.study_id = study.id AND event.move = 'submit' AND event.at < study.submitted_at
), submitted_at)
"""


def upgrade() -> None:
    op.add_column("study", sa.Column("first_submitted_at", sa.Float(), nullable=False, server_default="0"))
    op.execute(_KNOWN)


def downgrade() -> None:
    op.drop_column("study", "first_submitted_at")
