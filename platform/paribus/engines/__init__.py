"""What starts processes. Engines are unreliable; the store is the truth."""
