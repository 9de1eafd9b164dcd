"""Across protocols: intervals and ranks."""
