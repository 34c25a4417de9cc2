"""The detectors, one file per subject: each file has rules on one kind of metric and a tuple ``DETECTORS``.

Does not live here: when a rule that holds becomes a finding (``detector``), and the thresholds (``profiles/``).
"""
