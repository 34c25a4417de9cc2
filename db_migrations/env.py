"""Run the migrations on the connection that :mod:`paribus.store.migrate` passes in."""

from alembic import context

from paribus.store.migrate import VERSION_TABLE
from paribus.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
