"""Reads YAML files with the place of every value, and words validation errors with their remedy.

Every YAML file that a user writes is read here. Nothing here knows what a study or a recipe is.
"""
