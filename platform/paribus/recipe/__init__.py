"""Recipes: the factors of the objective with their levels, presets, patches, formulas, and their analysis.

Everything here is data and pure functions about one recipe. Studies, runs, runners and torch may not be imported.
"""
