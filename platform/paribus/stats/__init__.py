"""Statistics on numpy and scipy alone."""
