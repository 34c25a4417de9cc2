"""Rewards: what turns a response and its reference answer into a verdict.

Verifiers live here, free of torch and of any trainer. How a verdict becomes an advantage is the trainer's business.
"""
