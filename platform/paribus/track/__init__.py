"""Metrics: their meaning, the run folder's files, the mirror in MLflow."""
