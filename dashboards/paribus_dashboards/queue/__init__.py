"""The queue and budget page: running attempts, devices, the queue, all studies, and spending.

Page, chart and templates of this page only; other pages may not import it.
"""
