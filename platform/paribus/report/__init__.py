"""The tables, figures and sentences of a study. Rendering never computes."""
