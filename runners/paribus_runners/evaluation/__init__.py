"""Evaluation: counts per held-out problem and the metrics that follow from them.

Works with any trainer: the model is a callable from prompts to sampled texts. No torch, no trainer code.
"""
