"""The web side of Paribus."""
