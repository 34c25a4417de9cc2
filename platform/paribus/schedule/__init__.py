"""What runs when, and who may say that it has ended."""
