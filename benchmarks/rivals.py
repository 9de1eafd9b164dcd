"""Ask other packages which methods differ, for `statements.py --rivals`.

It runs in an environment of its own, which has none of heatproof:

    python -m venv /tmp/rivals
    /tmp/rivals/bin/pip install autorank mlstatreport
    python benchmarks/statements.py --rivals /tmp/rivals/bin/python

The first argument is a file of NumPy with one table ``(N, M)`` per world, images down, higher being
better. What is printed is JSON: by package and world, which methods are ahead of which.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from itertools import permutations

import numpy as np
import pandas as pd

ALPHA = 0.05
Relation = list[tuple[int, int]]  # pairs of methods, the better one first


def by_autorank(scores: pd.DataFrame) -> Relation:
    """Return which methods are ahead, as the report of autorank words its result."""
    from autorank import autorank

    found = autorank(scores, alpha=ALPHA, verbose=False)
    if found.pvalue >= ALPHA:
        return []
    table = found.rankdf
    if len(table) == 2:
        return [(int(table.index[0]), int(table.index[1]))]

    def ahead(i: int, j: int) -> bool:
        if found.posthoc == "tukeyhsd":  # intervals that do not overlap
            return bool(table.loc[i, "ci_lower"] > table.loc[j, "ci_upper"])
        return bool(table.loc[j, "meanrank"] - table.loc[i, "meanrank"] > found.cd)

    return [(int(i), int(j)) for i, j in permutations(table.index, 2) if ahead(i, j)]


def by_mlstatreport(scores: pd.DataFrame) -> Relation:
    """Return which methods are ahead, by the workflow of mlstatreport without a control."""
    from mlstatreport.models.benchmark import AnalysisConfig, BenchmarkData
    from mlstatreport.statistics.analysis import perform_statistical_analysis

    names = tuple(f"m{i}" for i in scores.columns)
    data = BenchmarkData(tuple(map(str, scores.index)), names, scores.set_axis(list(names), axis=1))
    found = perform_statistical_analysis(data, AnalysisConfig(metric_name="score", alpha=ALPHA))
    if found.pairwise_test is not None:
        means = scores.mean()
        best, worst = int(means.idxmax()), int(means.idxmin())
        return [(best, worst)] if found.pairwise_test.rejected else []
    relation = []
    for pair in found.nemenyi_posthoc:
        if pair.rejected:
            a, b = int(pair.algorithm_a[1:]), int(pair.algorithm_b[1:])
            relation.append((a, b) if pair.average_rank_a < pair.average_rank_b else (b, a))
    return relation


PACKAGES: dict[str, Callable[[pd.DataFrame], Relation]] = {
    "autorank": by_autorank,
    "mlstatreport": by_mlstatreport,
}


def main() -> None:
    warnings.simplefilter("ignore")
    import matplotlib

    matplotlib.use("Agg")
    worlds = np.load(sys.argv[1])
    found: dict[str, list[Relation | None]] = {}
    for name, relation_of in PACKAGES.items():
        found[name] = []
        for world in worlds.files:
            try:
                found[name].append(relation_of(pd.DataFrame(worlds[world])))
            except Exception as error:  # such as of scores that are all the same
                print(f"{name}: {error}", file=sys.stderr)
                found[name].append(None)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
