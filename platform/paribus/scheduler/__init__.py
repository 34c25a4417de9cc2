"""What runs when: takes up studies, starts their runs on an engine, grows adaptive ones, and detects when they end.

One serving loop (``serve``) does so for `paribus run` (one study) and `paribus scheduler` (all studies of a home).
What happens inside an attempt is in ``attempt``; nothing here computes results, trains, or imports ``report``.
"""
