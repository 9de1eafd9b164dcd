"""Score a batch in memory: maps, shared passes, scores, failures; no files, no plan, no clock."""
