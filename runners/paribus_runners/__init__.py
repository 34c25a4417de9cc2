"""The training side of Paribus: the only place that imports torch."""
