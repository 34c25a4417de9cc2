"""Figures as plain plotly dictionaries: pure functions of frozen views, which can be tested without a browser."""
