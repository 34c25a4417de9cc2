"""One attempt at a run: the supervisor, the runner's process beside it, and the detectors that watch it.

A supervisor stays light: it loads the detectors only after it has started the runner, and never the store or a trainer.
"""
