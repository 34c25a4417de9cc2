"""The Python API: `paribus.load`, `paribus.Study`, `paribus.results` and `paribus.studies`, for notebooks and scripts.

It reads and presents what the rooms below compute; no number is computed here. Results are read without writing a byte
into the home folder, the database or the archive that they come from. `pandas` and `plotly` are imported when a frame
or a figure is asked for, never before. Users import the names from `paribus` itself.
"""
