"""A run, end to end."""
