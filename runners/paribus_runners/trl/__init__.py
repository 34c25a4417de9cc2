"""The TRL runner: Hugging Face's GRPOTrainer in an environment of its own, with Paribus' problems, rewards and numbers.

What the platform asks is answered without TRL (:mod:`.runner`), from what TRL can do as data (`1.16.yaml`). A run
starts :mod:`.entry` in TRL's environment and records what it writes, as the `command` runner does with any program.
"""

from paribus_runners.trl.runner import TrlRunner

runner = TrlRunner()
"""What the entry point names."""
