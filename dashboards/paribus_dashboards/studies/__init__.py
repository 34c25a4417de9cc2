"""The list of studies, the first page of a dashboard.

Rows and template of this page only; other pages may not import it.
"""
