"""Paribus: experiment tracking and ablation orchestration in RL post-training of language models.

This package is the platform: it plans, runs, watches and reports studies. It imports no training library and no runner;
those live in `paribus_runners`, and the pages in `paribus_dashboards`.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("paribus")
except PackageNotFoundError:  # imported from a path, without installed metadata
    __version__ = "0+unknown"
