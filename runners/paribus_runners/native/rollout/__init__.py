"""Rollouts: sampling responses from a policy, collecting the groups of a step, queueing them until they are trained on.

Advantages and losses are in :mod:`paribus_runners.native.objective`; nothing here updates weights.
"""
