"""The five formats and the terminal text of a report: they lay out the model's values and escape its texts.

Nothing here computes or rounds a number, or imports `analysis`, `tables` or `figures`.
"""
