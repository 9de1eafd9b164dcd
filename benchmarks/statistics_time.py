"""What the statistics of a run take: summary, ranks, tests of all pairs, agreement and variance.

    python benchmarks/statistics_time.py         # 30 methods, 5 protocols, 1000 samples
    python benchmarks/statistics_time.py --samples 4000 --models 3

Scores are drawn; everything from rows in memory to all tables is measured, with the draws that
every result has. Times are those of the processor, with one thread, so that other work on the
machine matters little. The exit code is 1 if they exceed the bound.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from heatproof.analysis.agreement import agreement_matrix
from heatproof.analysis.evidence import Evidence
from heatproof.analysis.intervals import RESAMPLES
from heatproof.analysis.ranks import standings_of
from heatproof.analysis.settings import scored_settings, summary
from heatproof.analysis.significance import pair_lines
from heatproof.analysis.variance import split_variance
from heatproof.platform import peak_memory

PROTOCOLS = ["sds", "deletion", "insertion", "road", "srg", "ids", "completeness"]
BOUND = 5.0  # seconds


def drawn_rows(models: int, protocols: int, methods: int, samples: int) -> pd.DataFrame:
    """Draw scores: the effect of the method, the difficulty of the sample, and noise."""
    draw = np.random.default_rng(0)
    names = {
        "model": [f"net{i}" for i in range(models)],
        "protocol": PROTOCOLS[:protocols],
        "method": [f"method {i:02}" for i in range(methods)],
        "sample": [f"sample {i:05}" for i in range(samples)],
    }
    shape = tuple(len(texts) for texts in names.values())
    places = np.indices(shape).reshape(len(shape), -1)
    columns: dict[str, Any] = {
        name: pd.Categorical.from_codes(place, texts)
        for place, (name, texts) in zip(places, names.items(), strict=True)
    }
    scores = 0.2 + 0.01 * places[2] + draw.normal(0, 0.1, samples)[places[3]]
    columns["value"] = scores + draw.normal(0, 0.05, scores.shape)
    fixed = {"setting": "", "baseline": "zero", "layer": "input", "status": "ok", "note": ""}
    columns |= {name: pd.Categorical([text] * len(scores)) for name, text in fixed.items()}
    columns["cluster"] = columns["sample"]
    return pd.DataFrame(columns)


def over_settings(evidence: Evidence) -> list[Any]:
    """Compute what is said about the methods of a model."""
    intervals = [evidence.mean_rank(method) for method in evidence.ranked]
    return [evidence.possible_winners, evidence.decisive, evidence.elsewhere, *intervals]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=1)
    parser.add_argument("--protocols", type=int, default=5, help=f"at most {len(PROTOCOLS)}")
    parser.add_argument("--methods", type=int, default=30)
    parser.add_argument("--samples", type=int, default=1000)
    options = parser.parse_args()
    rows = drawn_rows(options.models, options.protocols, options.methods, options.samples)
    taken: dict[str, float] = {}

    def timed(name: str, compute: Callable[[], Any]) -> Any:
        begin = time.process_time()
        found = compute()
        taken[name] = time.process_time() - begin
        return found

    settings = timed("draws", lambda: scored_settings(rows))
    timed("tests", lambda: [scores.pairs for scores in settings])
    timed("summary", lambda: summary(settings))
    ranked = timed("ranks", lambda: standings_of(settings))
    timed("pairs", lambda: pair_lines({scores.key: scores.pairs for scores in settings}))
    timed("evidence", lambda: [over_settings(Evidence(s)) for s in ranked])
    timed("agreement", lambda: [agreement_matrix(s) for s in ranked])
    timed("variance", lambda: split_variance(ranked, {}))
    total = sum(taken.values())
    print(f"{len(rows):,} scores, {RESAMPLES:,} draws")
    for name, seconds in {**taken, "in all": total}.items():
        print(f"{name:12}{seconds:8.2f} s")
    print(f"{'memory':12}{(peak_memory() or 0) / 1e9:8.2f} GB")
    return int(total > BOUND)


if __name__ == "__main__":
    sys.exit(main())
