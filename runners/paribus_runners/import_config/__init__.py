"""`paribus import-config`: studies from the configurations of trainers, one file for each trainer.

Nothing here trains, and no number of a run depends on it.
"""
