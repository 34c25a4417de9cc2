"""Runs that Paribus did not start: imported from the logs of other trainers, or tracked while their program trains.

They become runs of an external study, whose settings are not known. How logs are read, and what their names mean,
is in :mod:`paribus.health.import_logs`. Nothing here starts, stops or evaluates a training.
"""
