"""Engines start jobs on this machine or on a cluster, and report how they ended.

An engine is an unreliable launcher: retries, leases, results and budgets belong to the scheduler and the store.
Nothing here may import them.
"""
