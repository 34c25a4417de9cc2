"""The native runner: a small, exact trainer for causal language models. Light to import."""
