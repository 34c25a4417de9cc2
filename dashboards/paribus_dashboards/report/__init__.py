"""The report page: the newest report of a study, with all its figures.

Page and templates of this page only; other pages may not import it. ``data/reports.py`` builds the report.
"""
