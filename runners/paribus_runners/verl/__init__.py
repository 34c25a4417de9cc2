"""The verl runner: verl's PPO trainer in an environment of its own, by overrides of its Hydra configuration.

What the platform asks is answered without verl (:mod:`.runner`), from what verl can do as data (`0.9.yaml`).
"""

from paribus_runners.verl.runner import VerlRunner

runner = VerlRunner()
"""What the entry point names."""
