"""What one training job is: the factors of the objective, the presets, the recipe."""
