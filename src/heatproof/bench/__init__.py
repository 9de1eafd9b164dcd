"""Evaluation end to end: specs, plans, tasks and run directories."""
