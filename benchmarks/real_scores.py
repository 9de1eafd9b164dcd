"""Count false differences of methods on the scores of a run, if all methods had the same mean.

    heatproof run quickstart
    python benchmarks/real_scores.py runs/quickstart

The mean of each method is subtracted from its scores, so that no method is better than another,
and images are drawn from the run with replacement. Distributions and correlations of scores are
the real ones, unlike in `statements.py`. A family of all pairs is false if any pair differs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from scipy import stats

import heatproof as hp
from heatproof.analysis.families import LEVEL, holm, pair_family


def false_rates(
    scores: np.ndarray, images: int, draws: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Return how often the family, and paired t-tests with Holm's procedure, are false.

    Args:
        scores: Scores ``(N, M)`` of methods with the same mean.
        images: The number of images that are drawn.
        draws: The number of data sets.
        rng: The source of random numbers.
    """
    first, second = np.triu_indices(scores.shape[1], 1)
    false = np.zeros(2)
    for _ in range(draws):
        drawn = scores[rng.integers(len(scores), size=images)]
        family = pair_family(drawn, images, (first, second), 0.0)
        p = stats.ttest_1samp(drawn[:, first] - drawn[:, second], 0).pvalue
        false += np.nanmin(family.p) <= LEVEL, np.nanmin(holm(p)) <= LEVEL
    ours, t_tests = false / draws
    return float(ours), float(t_tests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--draws", type=int, default=200, help="data sets of each setting")
    parser.add_argument("--images", type=int, nargs="+", default=[8, 16, 32])
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    settings = [s for s in hp.Result.load(options.run).settings if s.ranked.sum() > 1]
    for images in options.images:
        rates = []
        for scores in settings:
            values = scores.table.values[np.ix_(scores.common, scores.ranked)]
            rates.append(false_rates(values - values.mean(0), images, options.draws, rng))
        ours, t_tests = np.array(rates).T
        print(
            f"{images} images, {len(settings)} settings: {ours.mean():.3f} (at most "
            f"{ours.max():.3f}); t-tests {t_tests.mean():.3f} (at most {t_tests.max():.3f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
