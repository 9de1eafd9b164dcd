"""Measure the coverage of every interval on simulated data, where the truth is known.

    make soak
    python benchmarks/interval_coverage.py --repetitions 50 mean rank

prints a table and fails if an interval covers the truth too rarely, or too often where it claims to
be exact. docs/statistics.md explains the intervals and holds the table. Intervals are made with the
draws that every result has: the same number, and the same seed for all data sets.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import cast

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr

from heatproof.analysis import accuracy, ranks
from heatproof.analysis.agreement import agreement_matrix
from heatproof.analysis.distinctness import Trio, distinct, random_halves
from heatproof.analysis.intervals import RESAMPLES, Estimate, bootstrap_means
from heatproof.analysis.paired_differences import gap
from heatproof.analysis.rank_intervals import rank as rank_of
from heatproof.analysis.rank_intervals import rank_bounds
from heatproof.analysis.significance import paired_tests
from heatproof.analysis.soundness import at_levels, points
from heatproof.analysis.tables import ScoreTable
from heatproof.analysis.tradeoff import tradeoff
from heatproof.protocols import make_protocol
from heatproof.protocols.soundness import Soundness

LEAST, MOST = 0.93, 0.97
HALVES = 1000  # half-samples of soundness
DATA_SETS = 1000  # whose mean is the truth where no formula has it
Outcome = tuple[Estimate, float]  # an interval and the truth
Simulate = Callable[[np.random.Generator], list[Outcome]]


@dataclass(frozen=True)
class Scenario:
    """Simulated data with a known truth; ``simulate`` draws a data set and makes its intervals."""

    name: str
    simulate: Simulate


@dataclass(frozen=True)
class Kind:
    """Intervals of one kind; exact ones must not cover the truth too often either."""

    name: str
    exact: bool
    scenarios: list[Scenario]
    repetitions: int = 200


# Means: skewed scores, with and without clusters


def scores(shape: str, z: np.ndarray) -> np.ndarray:
    """Turn normal noise into scores."""
    return {
        "symmetric": z,
        "correlation near 1": np.tanh(1.6 + 0.7 * z),
        "localization": 1 / (1 + np.exp(1 - 1.2 * z)),
    }[shape]


SHAPES = ("symmetric", "correlation near 1", "localization")


@cache
def true_mean(shape: str) -> float:
    """Return the mean of all scores: zero where they are symmetric, else that of many."""
    if shape == "symmetric":
        return 0.0
    return float(scores(shape, np.random.default_rng(0).standard_normal(4_000_000)).mean())


def mean_of(shape: str, clusters: int, size: int) -> Scenario:
    def simulate(rng: np.random.Generator) -> list[Outcome]:
        shared = rng.standard_normal((clusters, 1))
        z = rng.standard_normal((clusters, size))
        if size > 1:
            z = math.sqrt(0.5) * (z + shared)
        labels = np.repeat(np.arange(clusters), size)
        estimate = Estimate.mean(scores(shape, z).ravel(), labels)
        return [(estimate, true_mean(shape))]

    name = f"{shape}, n = {clusters}" if size == 1 else f"{shape}, {clusters} × {size}"
    return Scenario(name, simulate)


def difference(samples: int) -> Scenario:
    """Two methods that share the difficulty of the samples."""

    def simulate(rng: np.random.Generator) -> list[Outcome]:
        z = rng.standard_normal(samples)
        both = [scores("localization", z + rng.standard_normal(samples)) for _ in range(2)]
        first, second = map(pd.Series, both)
        return [(gap(first, second)[0], 0.0)]

    return Scenario(f"n = {samples}", simulate)


def proportion(p: float, samples: int) -> Scenario:
    def simulate(rng: np.random.Generator) -> list[Outcome]:
        return [(accuracy.proportion((rng.random(samples) < p).astype(float)), p)]

    return Scenario(f"p = {p}, n = {samples}", simulate)


def change(p: float, q: float, samples: int) -> Scenario:
    def simulate(rng: np.random.Generator) -> list[Outcome]:
        before = rng.random(samples) < p
        kept = before & (rng.random(samples) < q / p)
        after = np.where(rng.random(samples) < 0.5, kept, rng.random(samples) < q)
        return [(accuracy.change(before.astype(float), after.astype(float)), q - p)]

    return Scenario(f"{p} to {q}, n = {samples}", simulate)


# Ranks and agreement of rankings


def draw_tables(
    truth: np.ndarray, samples: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw scores (samples) of true means (K, M); return means (K, M) and draws (K, R, M)."""
    shared = 0.3 * rng.standard_normal((samples, 1))
    of_method = 0.2 * rng.standard_normal((samples, truth.shape[1]))
    noise = 0.3 * rng.standard_normal((len(truth), samples, truth.shape[1]))
    tables = truth[:, None] + shared + of_method + noise
    draws = np.stack([bootstrap_means(table, RESAMPLES) for table in tables])
    return tables.mean(1), draws


def no_false_difference(shape: str, clusters: int, size: int, equal: int) -> Scenario:
    """Ten methods, some with the same mean: whether no two of these are said to differ."""
    shift = 0.5 * np.maximum(np.arange(10) - equal + 1, 0)
    labels = np.repeat(np.arange(clusters), size).astype(object)
    names = [str(i) for i in range(10)]

    def simulate(rng: np.random.Generator) -> list[Outcome]:
        shared = rng.standard_normal((clusters, 1, 1)) + 0.5 * rng.standard_normal(
            (clusters, 1, 10)
        )
        noise = rng.standard_normal((clusters, size, 10))
        values = scores(shape, (shared + noise).reshape(-1, 10)) + shift
        table = ScoreTable(np.arange(len(values)), names, values, labels)
        found = paired_tests(table, True, np.zeros((1, 10)))
        same = np.isin(found.methods, names[:equal])
        wrong = found.different[np.ix_(same, same)].any()
        return [(Estimate(0.0, 0.0, 0.0), float(wrong))]

    name = f"{shape}, {equal} of 10 equal, {clusters} × {size}"
    return Scenario(name, simulate)


def rank_interval(step: float, samples: int) -> Scenario:
    truth = step * np.arange(10)[None]

    def simulate(rng: np.random.Generator) -> list[Outcome]:
        means, draws = draw_tables(truth, samples, rng)
        best, worst = rank_bounds(means[0], draws[0], True)
        ranks_ = rank_of(means[0], True)
        true_ranks = rank_of(truth[0], True)
        return [
            (Estimate(*ends), true)
            for *ends, true in zip(ranks_, best, worst, true_ranks, strict=True)
        ]

    return Scenario(f"10 methods, {step} apart, n = {samples}", simulate)


def mean_rank(step: float, apart: float, count: int, samples: int) -> Scenario:
    """The mean rank of ten methods over several settings; its interval is the mean of theirs."""
    deviations = np.random.default_rng(3).standard_normal((count, 10))
    truth = step * np.arange(10) + apart * deviations
    true = rank_of(truth, True).mean(0)

    def simulate(rng: np.random.Generator) -> list[Outcome]:
        means, draws = draw_tables(truth, samples, rng)
        pairs = zip(means, draws, strict=True)
        bounds = np.mean([rank_bounds(m, d, True) for m, d in pairs], axis=0)
        found = zip(rank_of(means, True).mean(0), *bounds, strict=True)
        return [(Estimate(*ends), t) for ends, t in zip(found, true, strict=True)]

    return Scenario(f"10 methods, {count} settings, {step} ± {apart}, n = {samples}", simulate)


def trade_off(spread: float, noise: float, samples: int) -> Scenario:
    """The rank correlation of two measures over eleven baselines.

    Args:
        spread: How far the baselines' true means are apart.
        noise: How far the second measure is from minus the first, over the baselines.
        samples: The number of images.
    """
    first = spread * np.random.default_rng(4).standard_normal(11)
    second = -first + noise * np.random.default_rng(5).standard_normal(11)
    truth = np.stack([first, second])
    true = float(spearmanr(first, second).statistic)

    def simulate(rng: np.random.Generator) -> list[Outcome]:
        shared = 0.3 * rng.standard_normal((2, samples, 1))
        tables = truth[:, None] + shared + 0.2 * rng.standard_normal((2, samples, 11))
        found = tradeoff(*tables)
        assert found is not None
        return [(found.correlation, true)]

    return Scenario(f"baselines {spread} ± {noise}, n = {samples}", simulate)


def rankings(step: float, apart: float, count: int, methods: int, samples: int) -> Scenario:
    """Rankings under several settings; methods differ by ``step``, settings by ``apart``."""
    deviations = np.random.default_rng(3).standard_normal((count, methods))
    truth = step * np.arange(methods) + apart * deviations
    names = [str(i) for i in range(methods)]

    def measured(ranked: np.ndarray, drawn: np.ndarray) -> list[Estimate]:
        agreed = ranks.agreement([(names, *pair) for pair in zip(ranked, drawn, strict=True)])
        assert agreed is not None
        return [agreed.mean, agreed.least, agreed.spread, agreed.flipped, agreed.concordance]

    true_ranks = rank_of(truth, True)
    true = [e.value for e in measured(true_ranks, true_ranks[:, None])]

    def simulate(rng: np.random.Generator) -> list[Outcome]:
        means, draws = draw_tables(truth, samples, rng)
        found = measured(rank_of(means, True), rank_of(draws, True))
        return list(zip(found, true, strict=True))

    return Scenario(f"{count} × {methods}, {step} ± {apart}, n = {samples}", simulate)


def protocol_rankings(step: float, apart: float, samples: int) -> Scenario:
    """Two protocols with three settings each, ranked by the mean rank over them (two rankings).

    This is what the report and ``Result.agreement`` compare, by the same function.
    """
    methods = 10
    deviations = np.random.default_rng(3).standard_normal((6, methods))
    truth = step * np.arange(methods) + apart * deviations
    names = [str(i) for i in range(methods)]
    keys = [(protocol, "", str(k)) for protocol in ("insertion", "sds") for k in range(3)]

    def measured(means: np.ndarray, draws: np.ndarray) -> Estimate:
        ranked = rank_of(means, True)
        drawn = rank_of(draws, True)
        layers = ("",) * methods
        standing = ranks.Standings("net", names, keys, means, ranked, draws, drawn, layers)
        found = agreement_matrix(standing)
        assert found is not None
        return found.cell(0, 1)

    true = measured(truth, truth[:, None]).value

    def simulate(rng: np.random.Generator) -> list[Outcome]:
        return [(measured(*draw_tables(truth, samples, rng)), true)]

    return Scenario(f"2 protocols × 3 settings, {step} ± {apart}, n = {samples}", simulate)


# Soundness


def accuracy_curve(shape: str, steps: int, eps: float) -> np.ndarray:
    """Return the true accuracy after each step."""
    x = np.arange(1, steps + 1) / steps
    on = np.arange(steps) // 2 % 3 != 2
    near = np.where(np.arange(steps) % 2, 1.08, 0.92)
    return {
        "rises at first": 0.9 * (1 - np.exp(-3.2 * x)),
        "sigmoid": 0.9 / (1 + np.exp(-12 * (x - 0.35))),
        "random map": 0.1 + 0.8 * x**3,
        "rises slowly": 0.9 * x**1.3,
        "plateaus": 0.9 * np.cumsum(on) / on.sum(),
        "around eps": np.minimum(np.cumsum(eps * near), 0.97),
        "just under eps": 0.9375 * eps * np.arange(1, steps + 1),
    }[shape]


def sample_curves(
    curve: np.ndarray,
    samples: int,
    flips: float,
    rng: np.random.Generator,
    late: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw correctness and mass per step; samples that are correct late have flatter maps."""
    if late is None:
        late = rng.random(samples)
    start = np.searchsorted(curve, late)
    correct = np.arange(len(curve)) >= start[:, None]
    correct = correct ^ (rng.random(correct.shape) < flips)
    slope = np.exp(0.4 * rng.standard_normal(samples) - 0.5 * (late - 0.5))
    profile = np.exp(-2 * np.arange(len(curve)) / len(curve))
    mass = profile ** slope[:, None] * rng.gamma(3, 1 / 3, correct.shape)
    return correct.astype(float), mass


def mean_soundness(
    protocol: Soundness, curve: np.ndarray, samples: int, flips: float, level: float
) -> float:
    """Estimate soundness on very many data sets of the same size, and average."""
    rng = np.random.default_rng([0, 0])  # other data sets than those of the intervals
    everyone = torch.ones(1, samples)
    values = []
    for _ in range(DATA_SETS):
        score, mass = (torch.from_numpy(x) for x in sample_curves(curve, samples, flips, rng))
        values.append(protocol.at_levels((level,), score, mass, everyone).item())
    return float(np.nanmean(values))


def soundness(shape: str, steps: int, eps: float, samples: int, flips: float = 0.02) -> Scenario:
    protocol = cast(Soundness, make_protocol("soundness", {"eps": eps}))
    curve = accuracy_curve(shape, steps, eps)
    level = 0.5
    truth = cache(lambda: mean_soundness(protocol, curve, samples, flips, level))

    def simulate(rng: np.random.Generator) -> list[Outcome]:
        score, mass = sample_curves(curve, samples, flips, rng)
        seed = int(rng.integers(2**31))
        (estimate,) = at_levels(protocol, score, mass, (level,), HALVES, seed)
        return [(estimate, truth())] if math.isfinite(estimate.value) else []

    return Scenario(f"{shape}, {steps} steps, eps = {eps}, n = {samples}", simulate)


def same_curve(shape: str, samples: int) -> Scenario:
    """Two maps of the same images with the same true curve: chance must exceed their distance."""
    protocol = make_protocol("soundness", {"eps": 0.04})
    curve = accuracy_curve(shape, 24, 0.04)

    def simulate(rng: np.random.Generator) -> list[Outcome]:
        late = rng.random(samples)
        maps = [sample_curves(curve, samples, 0.02, rng, late) for _ in range(2)]
        curves = {name: points(protocol, *one).xy for name, one in zip("ab", maps, strict=True)}
        curves["c"] = curves["a"] + 10  # far from both
        score, mass = maps[0]
        halves = [
            tuple(points(protocol, score[rows], mass[rows]).xy for rows in pair)
            for pair in random_halves(samples)
        ]
        found = distinct([Trio("", "", *"abc")], curves, {"a": halves}).each[0]
        return [(Estimate(0.0, 0.0, found.chance), found.value)]

    return Scenario(f"{shape}, n = {samples}", simulate)


KINDS = [
    Kind(
        "mean",
        True,
        [mean_of(s, n, 1) for s in SHAPES for n in (16, 32, 64, 256)]
        + [mean_of("correlation near 1", 5000, 1)],  # drawn in blocks
        400,
    ),
    Kind("clustered mean", True, [mean_of(s, g, 4) for s in SHAPES for g in (8, 16, 64)], 400),
    Kind("paired difference", True, [difference(n) for n in (16, 64)], 600),
    Kind("proportion", True, [proportion(p, n) for p in (0.5, 0.9) for n in (40, 128)], 2000),
    Kind("change of a proportion", True, [change(0.8, 0.6, 64), change(0.95, 0.9, 128)], 2000),
    Kind(
        "no false difference",
        False,
        [
            no_false_difference(shape, clusters, size, equal)
            for shape in SHAPES
            for clusters, size, equal in ((16, 1, 10), (64, 1, 10), (64, 1, 5), (16, 4, 10))
        ],
        1000,
    ),
    Kind("rank", False, [rank_interval(s, n) for s in (0.01, 0.05, 0.2) for n in (32, 128)]),
    Kind("mean rank", False, [mean_rank(s, 0.03, 4, n) for s in (0.02, 0.1) for n in (32, 128)]),
    Kind(
        "trade-off",
        False,
        [trade_off(s, e, n) for s, e in ((0.1, 0.03), (0.1, 0.1), (0.02, 0.02)) for n in (32, 128)],
    ),
    Kind(
        "agreement of rankings",
        False,
        [
            rankings(step, apart, count, methods, samples)
            for count, methods in ((2, 8), (4, 15))
            for step, apart in ((0.15, 0.02), (0.05, 0.03), (0.02, 0.02), (0.0, 0.05))
            for samples in (64, 256)
        ],
    ),
    Kind(
        "agreement of protocols",
        False,
        [
            protocol_rankings(step, apart, samples)
            for step, apart in ((0.15, 0.02), (0.05, 0.03), (0.02, 0.02), (0.0, 0.05))
            for samples in (64, 256)
        ],
    ),
    Kind(
        "soundness",
        True,
        [
            soundness(shape, steps, eps, samples)
            for shape in ("rises at first", "sigmoid", "random map", "plateaus", "just under eps")
            for steps, eps, samples in ((24, 0.04, 128), (24, 0.04, 512), (98, 0.01, 1000))
        ]
        + [
            soundness("rises at first", 98, 0.01, 256),
            soundness("rises slowly", 98, 0.01, 1000),
            soundness("around eps", 24, 0.04, 128),
        ],
        400,
    ),
    Kind("distance by chance", False, [same_curve(s, 128) for s in ("sigmoid", "rises at first")]),
]


@dataclass(frozen=True)
class Result:
    """The coverage of one scenario."""

    coverage: float
    width: float
    repetitions: int

    def is_outside(self, kind: Kind) -> bool:
        """Return whether it is outside the limits by more than two standard errors."""
        allowance = 2 * math.sqrt(0.95 * 0.05 / self.repetitions)
        too_often = kind.exact and self.coverage > MOST + allowance
        return self.coverage < LEAST - allowance or too_often


def measure(scenario: Scenario, repetitions: int, seed: int = 0) -> Result:
    """Simulate data sets and count how often an interval covers the truth."""
    rng = np.random.default_rng(seed)
    covered = []
    widths = []
    for _ in range(repetitions):
        outcomes = scenario.simulate(rng)
        covered.append(np.mean([e.low - 1e-9 <= t <= e.high + 1e-9 for e, t in outcomes]))
        widths.append(np.mean([e.high - e.low for e, _ in outcomes]))
    return Result(float(np.mean(covered)), float(np.mean(widths)), repetitions)


def measure_one(job: tuple[int, int, int, int]) -> Result:
    """Measure a scenario by its indices, in another process."""
    kind, scenario, repetitions, seed = job
    torch.set_num_threads(1)
    return measure(KINDS[kind].scenarios[scenario], repetitions, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", help="beginnings of names; all by default")
    parser.add_argument("--repetitions", type=int, help="data sets per scenario")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="number of processes")
    arguments = parser.parse_args()
    jobs = [
        (i, j, arguments.repetitions or kind.repetitions, arguments.seed)
        for i, kind in enumerate(KINDS)
        for j in range(len(kind.scenarios))
        if not arguments.kinds or any(kind.name.startswith(k) for k in arguments.kinds)
    ]
    print("| interval of | data | coverage | mean width | data sets |")
    print("| --- | --- | --- | --- | --- |")
    by_kind: dict[int, list[float]] = {}
    outside = []
    with ProcessPoolExecutor(arguments.workers) as pool:
        for (i, j, *_), result in zip(jobs, pool.map(measure_one, jobs), strict=True):
            kind = KINDS[i]
            scenario = kind.scenarios[j]
            coverage = f"{result.coverage:.3f}"
            by_kind.setdefault(i, []).append(result.coverage)
            if result.is_outside(kind):
                outside.append(f"{kind.name}, {scenario.name}: {coverage}")
            print(
                f"| {kind.name} | {scenario.name} | {coverage} | {result.width:.3f} | "
                f"{result.repetitions} |",
                flush=True,
            )
    for i, coverages in by_kind.items():
        kind = KINDS[i]
        pooled = float(np.mean(coverages))
        print(f"| **{kind.name}** | all | **{pooled:.3f}**, least {min(coverages):.3f} | | |")
        if pooled < LEAST or (kind.exact and pooled > MOST):
            outside.append(f"{kind.name}, pooled: {pooled:.3f}")
    if outside:
        sys.exit(f"outside {LEAST}–{MOST}:\n" + "\n".join(outside))


if __name__ == "__main__":
    main()
