"""The Ray engine: runs are processes in placement groups (``actors``) or Ray Jobs (``jobs``).

Only functions import Ray, so that every other module loads without it.
"""
