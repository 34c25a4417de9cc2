"""The health page: the findings of a run, their onsets and remedies, or the runs of an arm side by side.

Page, panels, charts and templates of this page only; other pages may not import it.
"""
