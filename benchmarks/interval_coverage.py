"""Measure the coverage of every interval on simulated data, where the truth is known.

    make soak
    python benchmarks/interval_coverage.py --repetitions 50 mean rank

prints a table and fails if an interval covers the truth too rarely, or too often where it claims to
be exact. docs/statistics-evidence.md holds the table. Intervals are made with the
draws that every result has: the same number, and the same seed for all data sets. Where there is no
interval, as of the agreement of rankings that few images leave open, a data set does not count.
statements.py counts the false statements that are made of such intervals and of tests.
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

from heatproof.analysis import accuracy, ranks
from heatproof.analysis.agreement import agreement_matrix
from heatproof.analysis.evidence import Evidence
from heatproof.analysis.intervals import RESAMPLES, Estimate, bootstrap_means
from heatproof.analysis.paired_differences import gap
from heatproof.analysis.rank_intervals import rank as rank_of
from heatproof.analysis.settings import SettingScores, scored_settings
from heatproof.analysis.soundness import at_levels
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
        estimate = Estimate.mean(scores(shape, z).ravel(), labels.tolist())
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


Name = tuple[str, str]  # of a setting: protocol, baseline


def draw_tables(truth: np.ndarray, samples: int, rng: np.random.Generator) -> np.ndarray:
    """Draw scores of true means (K, M): tables (K, samples, M) with errors that they share."""
    shared = 0.3 * rng.standard_normal((samples, 1))
    of_method = 0.2 * rng.standard_normal((samples, truth.shape[1]))
    noise = 0.3 * rng.standard_normal((len(truth), samples, truth.shape[1]))
    return truth[:, None] + shared + of_method + noise


def settings_of(
    tables: np.ndarray, clusters: np.ndarray | None = None, names: list[Name] | None = None
) -> list[SettingScores]:
    """Read tables (K, N, M) as the rows of a run: one setting each."""
    setting, sample, method = np.indices(tables.shape).reshape(3, -1)
    keys = names or [("sds", str(k)) for k in range(len(tables))]

    def texts(codes: np.ndarray, values: list[str]) -> pd.Categorical:
        found, unique = pd.factorize(np.array(values, dtype=object))
        return pd.Categorical.from_codes(found[codes], list(unique))

    of_sample = np.arange(tables.shape[1]) if clusters is None else clusters
    rows = pd.DataFrame(
        {
            "model": texts(np.zeros_like(setting), ["net"]),
            "protocol": texts(setting, [protocol for protocol, _ in keys]),
            "setting": texts(np.zeros_like(setting), [""]),
            "baseline": texts(setting, [baseline for _, baseline in keys]),
            "method": texts(method, [f"{i:02}" for i in range(tables.shape[2])]),
            "sample": texts(sample, [f"{i:05}" for i in range(tables.shape[1])]),
            "cluster": texts(sample, [f"{i:05}" for i in of_sample]),
            "value": tables.ravel(),
        }
    )
    unlimited = {(protocol, "", baseline): None for protocol, baseline in keys}
    return scored_settings(rows, RESAMPLES, limits=unlimited)


def no_false_difference(shape: str, clusters: int, size: int, equal: int) -> Scenario:
    """Ten methods, some with the same mean: whether no two of these are said to differ."""
    shift = 0.5 * np.maximum(np.arange(10) - equal + 1, 0)
    labels = np.repeat(np.arange(clusters), size)
    same_mean = [f"{i:02}" for i in range(equal)]

    def simulate(rng: np.random.Generator) -> list[Outcome]:
        shared = rng.standard_normal((clusters, 1, 1)) + 0.5 * rng.standard_normal(
            (clusters, 1, 10)
        )
        noise = rng.standard_normal((clusters, size, 10))
        values = scores(shape, (shared + noise).reshape(-1, 10)) + shift
        (setting,) = settings_of(values[None], labels)
        same = np.isin(setting.pairs.methods, same_mean)
        wrong = setting.pairs.different[np.ix_(same, same)].any()
        return [(Estimate(0.0, 0.0, 0.0), float(wrong))]

    name = f"{shape}, {equal} of 10 equal, {clusters} × {size}"
    return Scenario(name, simulate)


def rank_interval(step: float, samples: int) -> Scenario:
    truth = step * np.arange(10)[None]

    def simulate(rng: np.random.Generator) -> list[Outcome]:
        (setting,) = settings_of(draw_tables(truth, samples, rng))
        true_ranks = rank_of(truth[0], True)
        lowest, highest = setting.pairs.rank_ends
        return [
            (Estimate(math.nan, low, high), true_ranks[int(method)])
            for method, low, high in zip(setting.pairs.methods, lowest, highest, strict=True)
        ]

    return Scenario(f"10 methods, {step} apart, n = {samples}", simulate)


def mean_rank(step: float, apart: float, count: int, samples: int) -> Scenario:
    """The mean rank of ten methods over several settings."""
    deviations = np.random.default_rng(3).standard_normal((count, 10))
    truth = step * np.arange(10) + apart * deviations
    true = rank_of(truth, True).mean(0)

    def simulate(rng: np.random.Generator) -> list[Outcome]:
        (standing,) = ranks.standings_of(settings_of(draw_tables(truth, samples, rng)))
        evidence = Evidence(standing)
        return [(evidence.mean_rank(m), true[int(m)]) for m in evidence.ranked]

    return Scenario(f"10 methods, {count} settings, {step} ± {apart}, n = {samples}", simulate)


def with_interval(outcomes: list[Outcome]) -> list[Outcome]:
    """Leave out what has no interval."""
    return [(estimate, true) for estimate, true in outcomes if math.isfinite(estimate.low)]


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
        tables = draw_tables(truth, samples, rng)
        draws = np.stack([bootstrap_means(table, RESAMPLES) for table in tables])
        found = measured(rank_of(tables.mean(1), True), rank_of(draws, True))
        return with_interval(list(zip(found, true, strict=True)))

    return Scenario(f"{count} × {methods}, {step} ± {apart}, n = {samples}", simulate)


def protocol_rankings(step: float, apart: float, samples: int) -> Scenario:
    """Two protocols with three settings each, ranked by the mean rank over them (two rankings).

    This is what the report and ``Result.agreement`` compare, by the same function.
    """
    methods = 10
    deviations = np.random.default_rng(3).standard_normal((6, methods))
    truth = step * np.arange(methods) + apart * deviations
    names = [(protocol, str(k)) for protocol in ("insertion", "sds") for k in range(3)]
    of_protocols = rank_of(truth, True).reshape(2, 3, methods).mean(1)
    true = float(ranks.Rankings(rank_of(of_protocols, False)).correlation())

    def simulate(rng: np.random.Generator) -> list[Outcome]:
        settings = settings_of(draw_tables(truth, samples, rng), names=names)
        (standing,) = ranks.standings_of(settings)
        found = agreement_matrix(standing)
        assert found is not None
        return with_interval([(found.cell(0, 1), true)])

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
]


@dataclass(frozen=True)
class Result:
    """The coverage of one scenario."""

    coverage: float
    width: float
    repetitions: int

    def is_outside(self, kind: Kind) -> bool:
        """Return whether it is outside the limits by more than two standard errors."""
        if not self.repetitions:
            return False
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
        if not outcomes:
            continue
        covered.append(np.mean([e.low - 1e-9 <= t <= e.high + 1e-9 for e, t in outcomes]))
        widths.append(np.mean([e.high - e.low for e, _ in outcomes]))
    if not covered:
        return Result(math.nan, math.nan, 0)
    return Result(float(np.mean(covered)), float(np.mean(widths)), len(covered))


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
            coverage = f"{result.coverage:.3f}" if result.repetitions else "none"
            width = f"{result.width:.3f}" if result.repetitions else ""
            if result.repetitions:
                by_kind.setdefault(i, []).append(result.coverage)
            if result.is_outside(kind):
                outside.append(f"{kind.name}, {scenario.name}: {coverage}")
            print(
                f"| {kind.name} | {scenario.name} | {coverage} | {width} | {result.repetitions} |",
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
