"""Trainers, and what they share: tasks, rewards, evaluation.

``native/`` imports the shared packages, never the other way round; nothing here imports the dashboards.
"""
