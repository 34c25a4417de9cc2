"""The heatmap page: prompts by steps, coloured by the mean reward of their groups.

Page, drawing, template, stylesheet and script of this page only; other pages may not import it.
"""
