"""PostgreSQL for the checks."""

from support.databases import server

__all__ = ["server"]
