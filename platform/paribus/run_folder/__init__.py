"""The run folder: the files through which a trainer and the platform talk, and readers and writers for them.

Lives here: the layout of the folder, the metric schema, metric lines, series and samples.
Does not live here: the store, studies, and anything that interprets a metric (``health``, ``report``).
"""
