"""The dashboard of Paribus: pages about studies and runs, served to a browser or exported to one file.

One folder per page, ``server`` above them and ``data`` below. Nothing here changes a store or a run folder, and no
number is computed that the report computes.
"""
