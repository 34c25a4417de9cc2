-- Commits a write to the log of the server, and asks for the outcome: a standby or a full disk fails here.
\set ON_ERROR_STOP on
BEGIN;
SELECT pg_current_xact_id() AS number, pg_logical_emit_message(true, 'paribus', 'healthcheck') \gset
COMMIT;
SELECT 1 / (pg_xact_status(:'number'::xid8) = 'committed')::int AS works;
