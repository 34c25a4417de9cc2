"""A store on a clock that tests set, in SQLite's memory and on a real PostgreSQL server."""

from support.databases import clock, server, store

__all__ = ["clock", "server", "store"]
