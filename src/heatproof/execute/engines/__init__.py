"""Engines: what computes the tasks of a run, on this machine or on many."""
