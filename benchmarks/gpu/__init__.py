"""Benchmarks for one NVIDIA GPU without a network: ``make -C benchmarks gpu``; README.md beside this folder says how.

Each script measures with models of random weights that are made on the spot, and writes one JSON file. With ``--tiny``
it runs on a CPU within seconds, so that the tests notice what would fail on the day of a GPU.
``cases`` and ``page`` need no torch, so that docs/reference/performance.md can be written without it.
"""
