"""A store on a clock that tests set, in SQLite's memory and on a real PostgreSQL server."""

from support.databases import clock, database, server, store

__all__ = ["clock", "database", "server", "store"]
