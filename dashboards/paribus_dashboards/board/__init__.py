"""The board: arms by seeds with the health of each run, the score over training, and the report's main tables.

Page, chart and templates of this page only; other pages may not import it.
"""
