"""The report of a study: `collect` reads its runs, `build` makes the model, `write` renders and writes the files.

Rendering never computes. Describing results loads no runner, and nothing here writes to the store.
"""
