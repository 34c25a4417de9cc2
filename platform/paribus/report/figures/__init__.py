"""The figures of a report as values: curves, forest plots and matrices, with their text alternatives.

Nothing here knows how they are drawn; `render.plotly` does that.
"""
