"""From a study file to a plan: the study language, designs, arms and runs, warnings, precision and cost.

Pure functions on frozen values: nothing here opens the store, starts a run or draws a figure.
"""
