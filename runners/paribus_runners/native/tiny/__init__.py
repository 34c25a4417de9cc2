"""The tiny models: a Llama of 108 thousand parameters and a mixture of experts, built and warmed up when needed.

The data in :mod:`.spec` needs no torch; :mod:`.make` does. Training with rewards is not in here.
"""
