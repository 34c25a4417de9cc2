"""The tables of a report as values: one function a table, with its columns, cells and notes.

Statistics belong in `analysis` and `paribus.stats`, layout belongs in `render`.
"""
