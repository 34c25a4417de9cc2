"""Statistics of training runs: estimates with intervals, tests, corrections, power, scores of evaluations.

Pure functions of numbers, each with its source. They know nothing of studies, stores or reports.
"""
