"""The compare page: chosen arms over training, their effects, and the settings in which they differ.

Page, charts and templates of this page only; other pages may not import it.
"""
