"""Plans of runs: specs, studies, tasks with the keys of their records, passes and cost."""
