"""From a study file to a plan: tricks, designs, arms, runs."""
