"""Paribus: experiment tracking and ablation orchestration in RL post-training of language models."""

from importlib.metadata import version

__version__ = version("paribus")
