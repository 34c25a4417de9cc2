"""Health checks: detectors judge a run from its metrics, evaluations and samples, while it trains or afterwards.

Lives here: detectors, thresholds, diagnosis, remedies, ``health.json``, and the import of other trainers' logs.
Does not live here: the store, the scheduler, and how findings are shown (``cli``, ``report``, the dashboards).
"""
