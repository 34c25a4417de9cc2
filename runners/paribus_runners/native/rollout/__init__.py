"""Sampling responses from a policy."""
