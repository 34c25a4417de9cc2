"""The copy of runs in MLflow, kept by a process of its own that reads run folders and the store.

It may lag, but it never blocks a run and loses nothing. Only ``client`` imports MLflow; nothing here writes the store.
"""
