"""The Slurm engine: every run is a batch script (``script``), submitted and watched with Slurm's ``commands``.

Nothing else in Paribus may call Slurm.
"""
