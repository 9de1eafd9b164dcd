"""Compute a plan into a run: tasks, what is written and when, engines and progress."""
