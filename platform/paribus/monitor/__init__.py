"""Watching a running study: its progress, an alert for each finding that becomes critical, webhooks.

It reads the store and the run folders. It never writes the store and never decides anything about a run.
"""
