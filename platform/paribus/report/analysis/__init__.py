"""The numbers of a report: estimates, effects, tests, and what declared rules read from them.

Nothing here lays out a table or draws a figure, and nothing reads a store or a run folder.
"""
