"""Checks of a home folder: the invariants of its store and run folders, and `paribus doctor`.

Everything here only reads. The checks import any part of the platform; only the command line imports the checks.
"""
