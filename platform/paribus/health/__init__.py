"""Verdicts on a run from its metrics."""
