"""The command runner: any program in any language trains, and this package checks and records what it writes.

The program never writes into the records of a run: it fills an outbox, which :mod:`.records` reads. Nothing here is a
shell, and nothing here needs torch.
"""

from paribus_runners.command.runner import CommandRunner

runner = CommandRunner()
"""What the entry point names."""
