"""A program in a process of its own: it fills an outbox, which is checked and recorded while it runs.

Runners that start other programs share this: `command` for those of users, `trl` for TRL in its own environment. The
program never writes into the records of a run. Nothing here is a shell, and nothing here needs torch.
"""
