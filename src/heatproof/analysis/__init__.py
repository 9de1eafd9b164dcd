"""Statistics of results: intervals, ranks, and the numbers behind the report."""
