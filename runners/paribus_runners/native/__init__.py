"""The native runner: reinforcement learning of a causal language model with verifiable rewards.

The adapter (:mod:`.runner`) is light; torch is imported when a run starts. Nothing outside this package imports it but
through the entry point ``paribus.runners: native``.
"""

from paribus_runners.native.runner import NativeRunner

runner = NativeRunner()
"""What the entry point names."""
