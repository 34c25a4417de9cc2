"""The only truth about states, leases and results."""
