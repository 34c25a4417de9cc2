"""The native runner: reinforcement learning of a causal language model with verifiable rewards, in one process."""

from paribus_runners.native.runner import NativeRunner

runner = NativeRunner()
"""The entry point ``paribus.runners: native``."""
