"""Count how often statements about a run are false, in simulated worlds where the truth is known.

    make soak
    python benchmarks/statements.py --worlds 50 --only wins
    python benchmarks/statements.py --rivals /tmp/rivals/bin/python  # see rivals.py

Every scenario draws worlds: images, methods and settings with true means. Their scores are read by
the code that reads a run, and what it says is compared with the truth: which method wins, which
pairs differ, whether two runs differ, whether a number is reproduced. The table is in
docs/statistics-evidence.md, and the rates of every scenario in docs/statements.csv (--csv). Beside
each statement stands how often it is made (power), and the same for the rule that was used before:
paired t-tests with Holm's procedure, and unadjusted intervals between runs.

No kind of statement may be false in more than 5 % of the worlds of a scenario, plus two standard
errors. Of many scenarios some exceed this by chance, so one that does is drawn again, with new
worlds and four times as many, and only these count. The exit code is 1 if they exceed it too.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import special, stats

from heatproof.analysis import wording
from heatproof.analysis.agreement import ranking_under
from heatproof.analysis.distinctness import swap_p_value
from heatproof.analysis.evidence import Evidence
from heatproof.analysis.families import LEVEL, holm
from heatproof.analysis.intervals import Estimate, bootstrap_means, range_of
from heatproof.analysis.networks import evidence_of_networks, over_networks
from heatproof.analysis.paired_differences import run_differences
from heatproof.analysis.published_lines import Line
from heatproof.analysis.published_tables import Entry
from heatproof.analysis.rank_intervals import rank
from heatproof.analysis.ranks import Rankings, agreement, standings_of
from heatproof.analysis.settings import SettingScores, scored_settings
from heatproof.analysis.tradeoff import tradeoff
from heatproof.report.sections.stability import SAME_FROM

RESAMPLES = 1000
AGAIN = 4  # times as many worlds for what exceeds the bound
NOT_OURS = ("old", "autorank", "mlstatreport")  # how statements of other rules begin
EQUAL = 1e-12  # true means that differ by less are equal


# Worlds


@dataclass(frozen=True)
class World:
    """How scores are drawn.

    Attributes:
        images: Number of images.
        methods: Number of methods.
        settings: Number of settings.
        means: The pattern of true means, of `MEANS`.
        scores: The distribution of scores, of `SCORES`.
        alike: Correlation of the errors of methods on an image.
        shared: Correlation of a method's errors between settings.
        missing: ``random`` for 3 % of the scores, ``hard`` for the worst 8 % of the last method.
        cluster: Number of images in a cluster; negative for clusters of 1 to as many.
    """

    images: int
    methods: int = 5
    settings: int = 1
    means: str = "equal"
    scores: str = "normal"
    alike: float = 0.3
    shared: float = 0.0
    missing: str = ""
    cluster: int = 1

    @property
    def name(self) -> str:
        """What a line of the table calls it."""
        parts = [self.scores, f"{self.means} means", f"n {self.images}", f"{self.methods} methods"]
        if self.settings > 1:
            parts.append(f"{self.settings} settings, shared {self.shared:g}")
        if self.cluster != 1:
            size = f"{self.cluster}" if self.cluster > 0 else f"1 to {-self.cluster}"
            parts.append(f"clusters of {size}")
        if self.missing:
            parts.append({"random": "3 % missing", "hard": "the hardest missing"}[self.missing])
        if self.alike != 0.3:
            parts.append(f"alike {self.alike:g}")
        return ", ".join(parts)


def crossed(methods: int, setting: int) -> np.ndarray:
    """Two methods that are first in turn, so that their mean ranks are equal."""
    steps = np.linspace(1.5, 0, methods)
    steps[:2] = steps[:2][:: 1 if setting % 2 == 0 else -1]
    return steps


MEANS: dict[str, Callable[[int, int], np.ndarray]] = {  # of methods, in standard deviations
    "equal": lambda methods, setting: np.zeros(methods),
    "nearly equal": lambda methods, setting: np.linspace(0.1, 0, methods),
    "separate": lambda methods, setting: np.linspace(1.5, 0, methods),
    "one best": lambda methods, setting: np.r_[0.7, np.zeros(methods - 1)],
    "two best": lambda methods, setting: np.r_[1.0, 1.0, np.zeros(methods - 2)],
    "last best": lambda methods, setting: np.r_[np.zeros(methods - 1), 0.05],
    "crossed": crossed,
}


@dataclass(frozen=True)
class Distribution:
    """Scores of a shape.

    Attributes:
        protocol: A protocol whose scores have its range and direction.
        of: Turns normal noise and a shift into scores.
        mean: Their true mean for a shift.
    """

    protocol: str
    of: Callable[[np.ndarray, np.ndarray], np.ndarray]
    mean: Callable[[np.ndarray], np.ndarray]


def gamma(z: np.ndarray) -> np.ndarray:
    """Turn normal noise into gamma noise of shape 2, with mean 0."""
    return stats.gamma.ppf(special.ndtr(z), 2) - 2


def unlike(z: np.ndarray) -> np.ndarray:  # (..., M) -> same
    """Turn the noise of the first method into normal scores, and that of others into lognormal."""
    skewed = np.exp(z) - math.exp(0.5)
    return 0.05 * np.concatenate([0.5 * z[..., :1], skewed[..., 1:]], -1)


def clipped_mean(shift: np.ndarray) -> np.ndarray:
    """Return the mean of min(1, .9 + .1 (z + shift)), where z is normal noise."""
    room = 1 - shift
    return 1 - 0.1 * (room * special.ndtr(room) + stats.norm.pdf(room))


SCORES = {
    "normal": Distribution("sds", lambda z, b: 0.1 * (z + b), lambda b: 0.1 * b),
    "lower is better": Distribution(
        "deletion", lambda z, b: 0.5 - 0.1 * (z + b), lambda b: 0.1 * b
    ),
    "skewed": Distribution("sds", lambda z, b: 0.06 * (gamma(z) + b), lambda b: 0.06 * b),
    "bounded": Distribution(
        "gridpg", lambda z, b: special.ndtr(z + b), lambda b: special.ndtr(b / math.sqrt(2))
    ),
    "0/1": Distribution(
        "gridpg", lambda z, b: 1.0 * (z + b > -0.5), lambda b: special.ndtr(b + 0.5)
    ),
    "0/1 at a bound": Distribution(
        "gridpg", lambda z, b: 1.0 * (z + b > -1.9), lambda b: special.ndtr(b + 1.9)
    ),
    "at a bound": Distribution(
        "gridpg", lambda z, b: np.minimum(1, 0.9 + 0.1 * (z + b)), clipped_mean
    ),
}
UNLIKE = "normal and lognormal"
NOT_CLAIMED = {  # shapes that differ between methods: differences are not symmetric
    UNLIKE: Distribution("sds", lambda z, b: unlike(z) + 0.05 * b, lambda b: 0.05 * b)
}


@dataclass(frozen=True)
class Drawn:
    """A world as it was drawn: rows of a run, all scores (S, N, M), and the truth (S, M)."""

    rows: pd.DataFrame
    complete: np.ndarray
    truth: np.ndarray


def clusters_of(world: World, rng: np.random.Generator) -> np.ndarray:  # (N,)
    """Return the number of the cluster that each image belongs to."""
    sizes = np.full(world.images, abs(world.cluster))
    if world.cluster < 0:
        sizes = rng.integers(1, -world.cluster + 1, world.images)
    return np.repeat(np.arange(world.images), sizes)[: world.images]


def noise(world: World, clusters: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # (S, N, M)
    """Draw normal noise of variance 1 with the correlations of a world."""

    def drawn(settings: int, methods: int) -> np.ndarray:
        alone = rng.standard_normal((settings, world.images, methods))
        if world.cluster == 1:
            return alone
        of_cluster = rng.standard_normal((settings, world.images, methods))[:, clusters]
        return math.sqrt(0.5) * (alone + of_cluster)

    own = math.sqrt(world.shared) * drawn(1, world.methods)
    own = own + math.sqrt(1 - world.shared) * drawn(world.settings, world.methods)
    return math.sqrt(world.alike) * drawn(1, 1) + math.sqrt(1 - world.alike) * own


def draw(world: World, rng: np.random.Generator) -> Drawn:
    """Draw the scores of a world."""
    distribution = (SCORES | NOT_CLAIMED)[world.scores]
    clusters = clusters_of(world, rng)
    shifts = np.stack([MEANS[world.means](world.methods, s) for s in range(world.settings)])
    complete = distribution.of(noise(world, clusters, rng), shifts[:, None])
    values = complete.copy()
    sign = -1 if world.scores == "lower is better" else 1
    if world.missing == "random":
        values[rng.random(values.shape) < 0.03] = np.nan
    if world.missing == "hard":
        for of_setting in values:
            worst = np.argsort(sign * of_setting[:, -1])[: max(1, int(0.08 * world.images))]
            of_setting[worst, -1] = np.nan
    rows = rows_of(values, distribution.protocol, clusters)
    return Drawn(rows, complete, distribution.mean(shifts))


def rows_of(values: np.ndarray, protocol: str, clusters: np.ndarray) -> pd.DataFrame:
    """Write scores (S, N, M) as the rows of a run."""
    settings, images, methods = np.indices(values.shape).reshape(3, -1)

    def texts(codes: np.ndarray, prefix: str) -> pd.Categorical:
        return pd.Categorical.from_codes(codes, [f"{prefix}{i:03}" for i in range(codes.max() + 1)])

    def same(text: str) -> pd.Categorical:
        return pd.Categorical.from_codes(np.zeros(values.size, dtype=int), [text])

    scores = values.ravel()
    return pd.DataFrame(
        {
            "model": same("net"),
            "protocol": same(protocol),
            "setting": same(""),
            "baseline": texts(settings, "b"),
            "method": texts(methods, "m"),
            "sample": texts(images, ""),
            "cluster": texts(clusters[images], "c"),
            "value": scores,
            "status": np.where(np.isfinite(scores), "ok", "undefined"),
        }
    )


def position(method: str) -> int:
    """Return the number of a method by its name."""
    return int(method[1:])


def positions(methods: Sequence[str]) -> list[int]:
    return [position(method) for method in methods]


def true_ranks(truth: np.ndarray) -> np.ndarray:  # (M,) -> (M,)
    """Return ranks of true means; equal ones share the best."""
    return 1 + (truth[None, :] > truth[:, None] + EQUAL).sum(1)


# Statements


class Counts:
    """How often statements of each kind were false, and how often they were made."""

    def __init__(self) -> None:
        self.false: dict[str, list[float]] = {}
        self.made: dict[str, list[float]] = {}

    def add(self, kind: str, false: Sequence[float], made: Sequence[float] = ()) -> None:
        """Count the statements of one kind in one world.

        Args:
            kind: The kind.
            false: Whether each statement that could have been made was false.
            made: What of the truth was stated, where there is something to state.
        """
        if len(false):
            self.false.setdefault(kind, []).append(float(np.mean(false)))
        if len(made):
            self.made.setdefault(kind, []).append(float(np.mean(made)))

    def results(self, scenario: Scenario) -> Iterator[Result]:
        """Yield the rates of each kind."""
        for kind, false in self.false.items():
            made = self.made.get(kind, [])
            power = float(np.mean(made)) if made else math.nan
            yield Result(scenario, kind, float(np.mean(false)), power, len(false))


WINS = "wins (a setting)"
POSSIBLE = "may be the best (a setting)"
PAIRS = "two methods differ"
RANK = "rank interval"
MEAN = "interval of a mean"
ALL_WINS = "wins (all settings)"
ALL_POSSIBLE = "may be the best (all settings)"
MEAN_RANK = "interval of a mean rank"
FAILING = "named first by failing"
OLD_WINS = "old: wins"
OLD_PAIRS = "old: two methods differ"
RUNS_DIFFER = "two runs differ"
OLD_RUNS_DIFFER = "old: two runs differ"
GATE_ALARM = "gate: worse than allowed"
GATE_KEPT = "gate: not worse than allowed"
REPRODUCED = "reproduced"
DIFFERS = "differs from print"
AGREEMENT = "interval of an agreement"
CHANGES = "hardly changes, or changes, the ranking"
TREND = "trade-off: a trend"
OFF = "trade-off: off the line"
DISTINCT = "curves are distinct"
NEW_NETWORK = "score of a new network"
THESE_NETWORKS = "mean over these networks"
KIND_WINS = "wins (other networks)"
KIND_POSSIBLE = "may be the best (other networks)"


def run_statements(world: World, rng: np.random.Generator, counts: Counts) -> None:
    """Count what is said about the methods of one run."""
    drawn = draw(world, rng)
    settings = scored_settings(drawn.rows, resamples=RESAMPLES)
    found = [setting_statements(*pair, world) for pair in zip(settings, drawn.truth, strict=True)]
    for kind in found[0]:
        outcomes = [of_setting[kind] for of_setting in found]
        counts.add(kind, [f for f, _ in outcomes if f >= 0], [m for _, m in outcomes if m >= 0])
    (standing,) = standings_of(settings)
    evidence = Evidence(standing)
    if world.settings > 1:
        over_settings(evidence, drawn.truth, counts)
    if world.missing == "hard":
        # by chance, common images put it first as often as they cost it the first place
        named = evidence.leader == f"m{world.methods - 1:03}"
        counts.add(FAILING, [named - first_with_all_scores(drawn.complete)])


def first_with_all_scores(complete: np.ndarray) -> float:  # (S, N, M)
    """Return whether the last method is first by mean rank if no score is missing; ties share."""
    ranks = np.mean([true_ranks(means) for means in complete.mean(1)], axis=0)
    first = ranks <= ranks.min() + EQUAL
    return float(first[-1]) / first.sum()


NOTHING = -1.0  # no statement could have been made


def setting_statements(
    scores: SettingScores, truth: np.ndarray, world: World
) -> dict[str, tuple[float, float]]:
    """Return for each kind whether a statement under one setting is false, and its power."""
    tests = scores.pairs
    true = truth[positions(tests.methods)]
    if len(true) < 2:
        return dict.fromkeys(
            (WINS, POSSIBLE, PAIRS, RANK, MEAN, OLD_WINS, OLD_PAIRS), (0.0, NOTHING)
        )
    best = true >= true.max() - EQUAL
    better = true[:, None] > true + EQUAL
    possible = np.isin(tests.methods, tests.best(tests.methods))
    lowest, highest = tests.rank_ends
    ranks = true_ranks(true)
    outside = (ranks < lowest - 1e-9) | (ranks > highest + 1e-9)
    found = {
        WINS: winner_outcome(possible, best),
        POSSIBLE: (float((best & ~possible).any()), power_of(~possible, ~best)),
        PAIRS: (float((tests.ahead & ~better).any()), power_of(tests.ahead, better)),
        RANK: (float(outside.any()), 1 - float(np.mean(highest - lowest)) / (len(true) - 1)),
        MEAN: mean_outcome(scores, truth, world),
    }
    values = scores.table.values if scores.higher_is_better else -scores.table.values
    ahead = old_tests(values, scores.table.clusters)
    wrong = truth[:, None] <= truth + EQUAL
    unbeaten = ahead.sum(1) == len(truth) - 1
    old_possible = unbeaten if unbeaten.any() else np.ones(len(truth), dtype=bool)
    found[OLD_WINS] = winner_outcome(old_possible, truth >= truth.max() - EQUAL)
    found[OLD_PAIRS] = (float((ahead & wrong).any()), power_of(ahead, ~wrong))
    return found


def power_of(stated: np.ndarray, true: np.ndarray) -> float:
    """Return the fraction of what is true that was stated."""
    return float(stated[true].mean()) if true.any() else NOTHING


def winner_outcome(possible: np.ndarray, best: np.ndarray) -> tuple[float, float]:
    """Return whether a win is false, and whether the only best method was said to win."""
    wins = possible.sum() == 1
    right = wins and best.sum() == 1 and bool(best[possible].all())
    return float(wins and not right), float(right) if best.sum() == 1 else NOTHING


def mean_outcome(scores: SettingScores, truth: np.ndarray, world: World) -> tuple[float, float]:
    """Return the fraction of the intervals of means that miss the truth, and their mean width."""
    if world.missing == "hard":  # the mean over common images is another one
        return NOTHING, NOTHING
    of_scores = truth if scores.higher_is_better else 0.5 - truth
    low, high = scores.ends
    true = of_scores[positions(scores.methods)]
    covered = (low <= true + 1e-9) & (high >= true - 1e-9)
    return float(1 - covered.mean()), float(np.mean(high - low))


def old_tests(values: np.ndarray, clusters: np.ndarray) -> np.ndarray:  # (N, M) -> (M, M)
    """Test all pairs by paired t-tests over clusters, with Holm's procedure."""
    methods = values.shape[1]
    first, second = np.triu_indices(methods, 1)
    differences = values[:, first] - values[:, second]
    finite = np.isfinite(differences)
    codes = pd.factorize(clusters)[0]
    table = np.zeros((codes.max() + 1, len(codes)))
    table[codes, np.arange(len(codes))] = 1
    number = table @ finite
    totals = table @ np.where(finite, differences, 0)
    present = number > 0
    groups = present.sum(0)
    gaps = totals.sum(0) / np.maximum(number.sum(0), 1)
    rest = np.where(present, totals - gaps * number, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.sqrt((rest**2).sum(0) * groups / (groups - 1)) / number.sum(0)
        p = 2 * special.stdtr(groups - 1, -np.abs(gaps) / errors)
    p = np.where(errors > 0, np.maximum(p, 2.0 ** (1 - groups)), 1.0)
    significant = np.nan_to_num(holm(p), nan=1.0) <= LEVEL
    ahead = np.zeros((methods, methods), dtype=bool)
    ahead[first, second] = significant & (gaps > 0)
    ahead[second, first] = significant & (gaps < 0)
    return ahead


def over_settings(evidence: Evidence, truth: np.ndarray, counts: Counts) -> None:
    """Count what is said about methods over all settings."""
    chosen = positions(evidence.ranked)
    if len(chosen) < 2:
        return
    # ranks are among the methods that a setting ranks
    ranks = np.zeros(len(chosen))
    for scores in evidence.used:
        number = evidence.standing.scores.index(scores)
        ranked = positions(scores.pairs.methods)
        of_setting = true_ranks(truth[number][ranked])
        ranks += [of_setting[ranked.index(m)] for m in chosen]
    ranks /= len(evidence.used)
    best = ranks <= ranks.min() + EQUAL
    possible = np.isin(evidence.ranked, evidence.possible_winners)
    false, power = winner_outcome(possible, best)
    counts.add(ALL_WINS, [false], [power] if power >= 0 else [])
    missed = (best & ~possible).any()
    power = power_of(~possible, ~best)
    counts.add(ALL_POSSIBLE, [missed], [power] if power >= 0 else [])
    intervals = [evidence.mean_rank(m) for m in evidence.ranked]
    outside = any(
        not low - 1e-9 <= true <= high + 1e-9
        for (_, low, high), true in zip(intervals, ranks, strict=True)
    )
    width = float(np.mean([high - low for _, low, high in intervals]))
    counts.add(MEAN_RANK, [outside], [1 - width / (len(chosen) - 1)])


# Two runs


@dataclass(frozen=True)
class TwoRuns:
    """Two runs of the same methods on the same images, of which the second may be worse.

    Attributes:
        world: The first run; the second has other noise, correlated by one half.
        worse: By how much the means of the second run are lower.
        lines: How many of the lines are; 0 for all.
        allowed: The tolerance of the gate.
    """

    world: World
    worse: float = 0.0
    lines: int = 0
    allowed: float = 0.0

    @property
    def name(self) -> str:
        change = f"{self.lines or 'all'} worse by {self.worse:g}" if self.worse else "unchanged"
        return f"{change}, tolerance {self.allowed:g}, {self.world.name}"


def run_pair(scenario: TwoRuns, rng: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Draw the rows of two runs."""
    world = scenario.world
    distribution = (SCORES | NOT_CLAIMED)[world.scores]
    clusters = clusters_of(world, rng)
    common = noise(world, clusters, rng)
    runs = []
    for _ in range(2):
        z = math.sqrt(0.5) * (common + noise(world, clusters, rng))
        runs.append(distribution.of(z, np.zeros(world.methods)))
    changed = world.settings * world.methods if not scenario.lines else scenario.lines
    shift = np.zeros(world.settings * world.methods)
    shift[:changed] = scenario.worse
    runs[1] = lowered(runs[1], shift.reshape(world.settings, 1, world.methods), world.scores, rng)
    first, second = (rows_of(values, distribution.protocol, clusters) for values in runs)
    texts = dict.fromkeys(("model", "protocol", "setting", "baseline", "method", "sample"), str)
    return first.astype(texts), second.astype(texts)


def lowered(
    values: np.ndarray, by: np.ndarray, scores: str, rng: np.random.Generator
) -> np.ndarray:
    """Lower the means of scores; of 0/1 scores, some 1 become 0."""
    if not scores.startswith("0/1"):
        return values - by
    mean = float(SCORES[scores].mean(np.zeros(1))[0])
    return values * (rng.random(values.shape) >= by / mean)


def comparison_statements(scenario: TwoRuns, rng: np.random.Generator, counts: Counts) -> None:
    """Count what `compare` and the gate say about two runs."""
    first, second = run_pair(scenario, rng)
    methods = first["method"].unique()
    allowed = dict.fromkeys(methods, scenario.allowed)
    protocol = str(first["protocol"].iloc[0])
    limits = {
        (protocol, "", str(baseline)): range_of(protocol) for baseline in first["baseline"].unique()
    }
    lines = run_differences(first, second, {}, {}, None, allowed, limits)
    different = lines["p"].to_numpy() <= LEVEL
    old = old_differences(first, second, scenario.world)
    total = scenario.world.settings * scenario.world.methods
    is_worse = np.zeros(total, dtype=bool)
    is_worse[: scenario.lines or total] = scenario.worse > 0
    for kind, found in ((RUNS_DIFFER, different), (OLD_RUNS_DIFFER, old)):
        false = found & ~is_worse
        power = [float(found[is_worse].mean())] if is_worse.any() else []
        counts.add(kind, [float(false.any())], power)
    outcome = lines["outcome"].to_numpy()
    gate_statements(outcome, scenario.worse * is_worse, scenario.allowed, counts)


def old_differences(first: pd.DataFrame, second: pd.DataFrame, world: World) -> np.ndarray:
    """Return which lines differ by 95 % intervals that are not adjusted for their number."""
    differences = (second["value"] - first["value"]).to_numpy()
    table = differences.reshape(world.settings, world.images, world.methods)
    columns = table.transpose(1, 0, 2).reshape(world.images, -1)
    clusters = first["cluster"].to_numpy()[: world.images * world.methods : world.methods]
    low, high = np.quantile(
        bootstrap_means(columns, RESAMPLES, 0, clusters), (0.025, 0.975), axis=0
    )
    return (low > 0) | (high < 0)


def gate_statements(outcome: np.ndarray, worse: np.ndarray, allowed: float, counts: Counts) -> None:
    """Count whether the gate fails or passes falsely."""
    too_much = worse > allowed + EQUAL
    alarm = outcome == "worse"
    kept = outcome == "kept"
    counts.add(
        GATE_ALARM,
        [(alarm & ~too_much).any()],
        [alarm[too_much].mean()] if too_much.any() else [],
    )
    fine = worse < allowed - EQUAL
    counts.add(GATE_KEPT, [(kept & too_much).any()], [kept[fine].mean()] if fine.any() else [])


# Beside print


@dataclass(frozen=True)
class Printed:
    """Numbers of a paper, and of a run on other images.

    Attributes:
        world: The run; every method is a number of the table.
        paper: How many images the paper had.
        off: By how many margins the true means of the run differ.
    """

    world: World
    paper: int
    off: float = 0.0

    @property
    def name(self) -> str:
        how = f"off by {self.off:g} margins" if self.off else "the same truth"
        return f"beside print of n {self.paper}, {how}, {self.world.name}"


def print_statements(scenario: Printed, rng: np.random.Generator, counts: Counts) -> None:
    """Count verdicts beside a publication."""
    world = scenario.world
    drawn = draw(world, rng)
    (scores,) = scored_settings(drawn.rows, resamples=RESAMPLES)
    other = World(scenario.paper, world.methods, 1, world.means, world.scores, world.alike)
    printed = draw(other, rng).complete[0].mean(0)
    limits = scores.limits
    assert limits is not None
    verdicts = []
    for i, value in enumerate(printed):
        margin = 0.05 * (limits[1] - limits[0])
        entry = Entry("", "score", "net", "", f"m{i}", round(value - scenario.off * margin, 3), 3)
        found = Estimate(float(scores.means[i]), *map(float, scores.ends[:, i]))
        line = Line(entry, "net", found, world.images, limits, "")
        verdicts.append(line.judged(world.methods, scenario.paper).verdict)
    said = np.array(verdicts)
    same = scenario.off == 0
    reproduced = said == wording.REPRODUCED
    differs = said == wording.DIFFERS
    if abs(scenario.off) > 1:
        counts.add(REPRODUCED, [reproduced.any()])
        counts.add(DIFFERS, [0.0], [differs.mean()])
    if same:
        counts.add(DIFFERS, [differs.any()])
        counts.add(REPRODUCED, [0.0], [reproduced.mean()])


# Agreement


@dataclass(frozen=True)
class Agreeing:
    """Rankings under several settings, whose true means differ by chance.

    Attributes:
        world: Number of images, methods and settings.
        step: By how much neighbouring methods differ, in standard deviations.
        apart: How far a method's true mean varies between settings.
    """

    world: World
    step: float
    apart: float

    @property
    def name(self) -> str:
        return f"rankings {self.step:g} ± {self.apart:g}, {self.world.name}"


def agreement_statements(scenario: Agreeing, rng: np.random.Generator, counts: Counts) -> None:
    """Count intervals of agreement that miss the truth, and what is said about the ranking."""
    world = scenario.world
    shifts = scenario.step * np.arange(world.methods)
    shifts = shifts + scenario.apart * rng.standard_normal((world.settings, world.methods))
    clusters = clusters_of(world, rng)
    distribution = (SCORES | NOT_CLAIMED)[world.scores]
    values = distribution.of(noise(world, clusters, rng), shifts[:, None])
    rows = rows_of(values, distribution.protocol, clusters)
    (standing,) = standings_of(scored_settings(rows, resamples=RESAMPLES))
    found = agreement([ranking_under(standing, [s]) for s in range(world.settings)])
    if found is None:
        return
    true = Rankings(rank(distribution.mean(shifts), True))
    measures = {
        found.mean: true.correlation(),
        found.least: true.least_correlation(),
        found.spread: true.spread(),
        found.flipped: true.flipped(),
        found.concordance: true.concordance(),
    }
    given = math.isfinite(found.mean.low)
    missed = [
        given and not interval.low - 1e-9 <= value <= interval.high + 1e-9
        for interval, value in measures.items()
    ]
    counts.add(AGREEMENT, missed, [given])
    same = float(true.correlation()) >= SAME_FROM
    hardly = given and found.mean.low >= SAME_FROM
    changes = given and found.mean.high < SAME_FROM
    counts.add(CHANGES, [(hardly and not same) or (changes and same)], [hardly or changes])


# Trade-off and distances


@dataclass(frozen=True)
class Baselines:
    """Baselines with a trend, or without one, between two measures."""

    count: int
    slope: float
    images: int = 64

    @property
    def name(self) -> str:
        return f"{self.count} baselines, slope {self.slope:g}, n {self.images}"


def tradeoff_statements(scenario: Baselines, rng: np.random.Generator, counts: Counts) -> None:
    """Count trends over baselines, and baselines off the line."""
    distance = rng.standard_normal(scenario.count)
    left = scenario.slope * distance + rng.standard_normal(scenario.count)
    shape = (scenario.images, scenario.count)
    found = tradeoff(
        distance + 0.5 * rng.standard_normal(shape), left + 0.5 * rng.standard_normal(shape)
    )
    assert found is not None
    trend = found.p <= LEVEL
    if scenario.slope:
        counts.add(TREND, [trend and found.correlation * scenario.slope < 0], [trend])
    else:
        counts.add(TREND, [trend])
    counts.add(OFF, [bool(found.off.any())])


@dataclass(frozen=True)
class Curves:
    """The curves of two maps, which may differ."""

    images: int
    apart: float

    @property
    def name(self) -> str:
        return f"curves {self.apart:g} apart, n {self.images}"


@dataclass(frozen=True)
class DrawnCurve:
    """Correctness of N images at S steps, as a curve."""

    values: np.ndarray
    samples: Sequence[str] = field(default_factory=list)

    @property
    def measured(self) -> tuple[np.ndarray, ...]:
        return (self.values,)

    def curve_of(self, measured: Sequence[np.ndarray]) -> np.ndarray:
        steps = np.linspace(0, 1, measured[0].shape[1])
        return np.stack([steps, measured[0].mean(0)], 1)


def curve_statements(scenario: Curves, rng: np.random.Generator, counts: Counts) -> None:
    """Count curves that are said to differ."""
    late = rng.random((scenario.images, 1))
    steps = np.linspace(0, 1, 12)
    names = [str(i) for i in range(scenario.images)]
    maps = []
    for shift in (0.0, scenario.apart):
        start = late + shift + 0.2 * rng.standard_normal((scenario.images, 1))
        maps.append(DrawnCurve((steps > start).astype(float), names))
    distinct = swap_p_value(*maps) <= LEVEL
    if scenario.apart:
        counts.add(DISTINCT, [0.0], [distinct])
    else:
        counts.add(DISTINCT, [distinct])


# Networks


@dataclass(frozen=True)
class Networks:
    """Networks of a kind, on which scores of methods vary.

    Attributes:
        count: How many networks a run has; one more is drawn, which it has not.
        world: The run; `shared` is the correlation of errors between networks.
        apart: How far a method's true mean varies between networks, in standard deviations.
        skewed: Whether true means vary by gamma noise instead of normal noise.
    """

    count: int
    world: World
    apart: float
    skewed: bool = False

    @property
    def name(self) -> str:
        how = "skewed, " if self.skewed else ""
        return f"{self.count} networks {self.apart:g} apart, {how}{self.world.name}"


def network_statements(scenario: Networks, rng: np.random.Generator, counts: Counts) -> None:
    """Count what is said about the networks of a run, and about another one."""
    world = replace(scenario.world, settings=scenario.count + 1)
    z = rng.standard_normal((world.settings, world.methods))
    effects = scenario.apart * (gamma(z) / math.sqrt(2) if scenario.skewed else z)
    kind = MEANS[world.means](world.methods, 0)
    distribution = SCORES[world.scores]
    clusters = clusters_of(world, rng)
    shifts = kind + effects
    values = distribution.of(noise(world, clusters, rng), shifts[:, None])
    truth = distribution.mean(shifts)
    settings = []
    for network in range(scenario.count):
        rows = rows_of(values[network][None], distribution.protocol, clusters)
        rows["model"] = f"net{network}"
        settings += scored_settings(rows, resamples=RESAMPLES)
    found = over_networks(settings)
    places = [position(line.method) for line in found]
    these = truth[:-1].mean(0)[places]
    missed_these, missed_new = (
        [not e.low - 1e-9 <= t <= e.high + 1e-9 for e, t in zip(estimates, true, strict=True)]
        for estimates, true in (
            ([line.mean for line in found], these),
            ([line.new for line in found], truth[-1][places]),
        )
    )
    widths = [line.mean.high - line.mean.low for line in found]
    counts.add(THESE_NETWORKS, missed_these, widths)
    counts.add(NEW_NETWORK, missed_new, [line.new.high - line.new.low for line in found])
    evidence = evidence_of_networks(settings, ())
    assert evidence is not None
    true = kind[positions(evidence.ranked)]
    best = true >= true.max() - EQUAL
    possible = np.isin(evidence.ranked, evidence.possible_winners)
    false, power = winner_outcome(possible, best)
    counts.add(KIND_WINS, [false], [power] if power >= 0 else [])
    power = power_of(~possible, ~best)
    counts.add(KIND_POSSIBLE, [(best & ~possible).any()], [power] if power >= 0 else [])


# Other packages


def rival_statements(world: World, worlds: int, seed: int, python: Path) -> Iterator[Result]:
    """Count what other packages say about the same worlds; see rivals.py."""
    own = zlib.crc32(world.name.encode())
    drawn = [draw(world, np.random.default_rng([own, seed, i])) for i in range(worlds)]
    sign = -1 if world.scores == "lower is better" else 1
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "worlds.npz"
        np.savez(file, **{f"world{i:05}": sign * d.complete[0] for i, d in enumerate(drawn)})
        script = Path(__file__).with_name("rivals.py")
        command = [str(python), str(script), str(file)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for package, relations in json.loads(printed.splitlines()[-1]).items():
        counts = Counts()
        for relation, d in zip(relations, drawn, strict=True):
            truth = d.truth[0]
            ahead = np.zeros((len(truth), len(truth)), dtype=bool)
            for i, j in relation or []:
                ahead[i, j] = True
            better = truth[:, None] > truth + EQUAL
            power = power_of(ahead, better)
            wrong = bool((ahead & ~better).any())
            counts.add(f"{package}: two methods differ", [wrong], [power] if power >= 0 else [])
            unbeaten = ahead.sum(1) == len(truth) - 1
            possible = unbeaten if unbeaten.any() else np.ones(len(truth), dtype=bool)
            false, power = winner_outcome(possible, truth >= truth.max() - EQUAL)
            counts.add(f"{package}: wins", [false], [power] if power >= 0 else [])
        yield from counts.results(world)


def is_shared_with_rivals(scenario: Scenario) -> bool:
    """Return whether other packages answer the questions of a scenario: one complete table."""
    if not isinstance(scenario, World):
        return False
    return scenario.settings == 1 and not scenario.missing and scenario.cluster == 1


# Scenarios

Scenario = World | TwoRuns | Printed | Agreeing | Baselines | Curves | Networks
STATEMENTS: dict[type, Callable[..., None]] = {
    World: run_statements,
    TwoRuns: comparison_statements,
    Printed: print_statements,
    Agreeing: agreement_statements,
    Baselines: tradeoff_statements,
    Curves: curve_statements,
    Networks: network_statements,
}
SCENARIOS: list[Scenario] = [
    *(World(n, 5, scores=scores) for scores in SCORES for n in (8, 16, 64)),
    *(World(256, 5, scores=scores) for scores in ("normal", "bounded", "0/1 at a bound")),
    *(World(n, 2) for n in (8, 16, 64)),
    *(World(64, 5, means="one best", scores=scores) for scores in SCORES),
    *(World(n, 5, means="one best") for n in (8, 16, 256)),
    *(World(n, 10, means="two best", scores=s) for s in ("normal", "skewed") for n in (16, 64)),
    *(World(n, 6, means="nearly equal") for n in (16, 256)),
    *(World(n, 8, means="separate") for n in (16, 64)),
    World(64, 30),
    World(64, 30, means="separate"),
    *(World(64, 10, means=means, alike=0.9) for means in ("equal", "one best")),
    World(32, 5, cluster=4),
    World(64, 5, cluster=4, scores="bounded"),
    *(World(64, 5, cluster=-4, means=means) for means in ("equal", "one best")),
    *(World(n, 5, missing="random", scores=s) for s in ("normal", "0/1") for n in (16, 64)),
    *(
        World(n, 5, missing="hard", scores=s)
        for s in ("normal", "bounded", "0/1")
        for n in (16, 64)
    ),
    World(256, 5, missing="hard"),
    *(World(64, 5, means="one best", missing=missing) for missing in ("random", "hard")),
    World(64, 5, means="last best", missing="hard"),
    *(World(n, 5, 3, shared=s) for s in (0.0, 0.9) for n in (16, 64)),
    *(World(n, 5, 2, "crossed", shared=s) for s in (0.0, 0.9) for n in (16, 64, 256)),
    World(64, 5, 8, "crossed", shared=0.5),
    World(64, 6, 3, "separate", shared=0.8),
    World(256, 6, 3, "one best", shared=0.5),
    World(64, 6, 8, "one best", shared=0.5),
    World(64, 6, 3, "two best", shared=0.8),
    World(64, 6, 3, "nearly equal", shared=0.5, missing="hard"),
    World(64, 6, 3, "separate", shared=0.8, missing="random"),
    *(World(n, 2, scores=UNLIKE) for n in (8, 16, 64, 256)),
    *(TwoRuns(World(n, 4, scores=s)) for s in ("normal", "skewed", "0/1") for n in (8, 16, 64)),
    TwoRuns(World(16, 4, scores="0/1 at a bound")),
    TwoRuns(World(64, 10, 2)),
    TwoRuns(World(64, 4, cluster=4)),
    *(TwoRuns(World(n, 4), allowed=0.02) for n in (16, 64, 256)),
    *(TwoRuns(World(n, 4), 0.02, allowed=0.02) for n in (16, 256)),
    *(
        TwoRuns(World(n, 4, scores=s), 0.021, allowed=0.02)
        for s in ("normal", "0/1")
        for n in (16, 256)
    ),
    TwoRuns(World(16, 4, scores="0/1 at a bound"), 0.021, allowed=0.02),
    *(TwoRuns(World(n, 4), 0.06, 1, allowed=0.02) for n in (16, 64, 256)),
    TwoRuns(World(256, 4, scores="0/1"), 0.1, 1, allowed=0.02),
    *(
        Printed(World(n, k, scores=scores), 500, off)
        for scores in ("bounded", "0/1")
        for n, k in ((16, 20), (64, 20), (256, 5))
        for off in (0.0, 1.02)
    ),
    *(Printed(World(1000, 5, scores="bounded"), 1000, off) for off in (0.0, 3.0)),
    *(
        Agreeing(World(n, m, k, shared=s), step, apart)
        for m, k, step, apart in ((8, 2, 0.5, 0.1), (8, 2, 0.0, 0.5), (12, 4, 0.3, 0.3))
        for n in (16, 64, 256)
        for s in (0.0, 0.9)
    ),
    *(Baselines(n, slope) for n in (8, 11) for slope in (0.0, -2.0)),
    *(Curves(n, apart) for n in (16, 64) for apart in (0.0, 0.15)),
    *(Networks(k, World(64, 5, shared=0.5), 0.5) for k in (5, 8, 16)),
    *(Networks(k, World(16, 5, shared=0.5), 0.1) for k in (5, 16)),
    *(Networks(k, World(64, 5, means="one best", shared=0.5), 0.3) for k in (5, 8, 16)),
    Networks(8, World(64, 5, scores="bounded", shared=0.5), 0.5),
    *(Networks(k, World(64, 5, shared=0.5), 0.5, skewed=True) for k in (5, 16)),
]


# Counting


@dataclass(frozen=True)
class Result:
    """How often a kind of statement was false and made in the worlds of a scenario."""

    scenario: Scenario
    kind: str
    false: float
    made: float
    worlds: int
    again: bool = False

    @property
    def bound(self) -> float:
        """The largest rate that is allowed: 5 % and two standard errors."""
        return LEVEL + 2 * math.sqrt(LEVEL * (1 - LEVEL) / max(1, self.worlds))

    @property
    def exceeds(self) -> bool:
        """Whether a statement that is claimed is false too often."""
        claimed = not self.kind.startswith(NOT_OURS) and UNLIKE not in self.scenario.name
        return claimed and self.false > self.bound


def count(scenario: Scenario, worlds: int, seed: int) -> list[Result]:
    """Draw worlds of a scenario and count its statements."""
    counts = Counts()
    own = zlib.crc32(scenario.name.encode())
    for world in range(worlds):
        rng = np.random.default_rng([own, seed, world])
        STATEMENTS[type(scenario)](scenario, rng, counts)
    return list(counts.results(scenario))


def counted_twice(scenario: Scenario, worlds: int) -> Iterator[Result]:
    """Count statements, and those that are false too often once more in new worlds."""
    results = count(scenario, worlds, 0)
    if not any(result.exceeds for result in results):
        yield from results
        return
    fresh = {result.kind: result for result in count(scenario, AGAIN * worlds, 1)}
    for result in results:
        new = fresh[result.kind]
        yield Result(scenario, new.kind, new.false, new.made, new.worlds, again=True)


MADE = {  # what the last column is, where it is not the fraction of the truth that is stated
    MEAN: "mean width",
    RANK: "1 − width / widest",
    MEAN_RANK: "1 − width / widest",
    NEW_NETWORK: "mean width",
    THESE_NETWORKS: "mean width",
    AGREEMENT: "given",
    CHANGES: "said",
}


def kind_lines(results: Sequence[Result]) -> list[str]:
    """Return the table of all kinds: the scenario where each is false most often, and power."""
    lines = [
        "| statement | scenarios | false, mean | false, most | where | power |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    claimed = [result for result in results if UNLIKE not in result.scenario.name]
    for kind in dict.fromkeys(result.kind for result in claimed):
        of_kind = [result for result in claimed if result.kind == kind]
        worst = max(of_kind, key=lambda result: result.false)
        made = [result.made for result in of_kind if math.isfinite(result.made)]
        power = f"{min(made):.2f} to {max(made):.2f}" if made else ""
        if power and kind in MADE:
            power += f" ({MADE[kind]})"
        mean = np.mean([result.false for result in of_kind])
        where = worst.scenario.name if worst.false > 0 else ""
        lines.append(
            f"| {kind} | {len(of_kind)} | {mean:.3f} | {worst.false:.3f} | {where} | {power} |"
        )
    return lines


TITLES = {
    World: "One run",
    TwoRuns: "Two runs",
    Printed: "Beside print",
    Agreeing: "Agreement of rankings",
    Baselines: "Trade-off",
    Curves: "Distances of curves",
    Networks: "Other networks",
}


def all_lines(results: Sequence[Result]) -> pd.DataFrame:
    """Return one line per scenario and statement."""
    return pd.DataFrame(
        [
            {
                "about": TITLES[type(result.scenario)],
                "worlds": result.scenario.name,
                "number": result.worlds,
                "statement": result.kind,
                "false": round(result.false, 3),
                "power": round(result.made, 2),
            }
            for result in results
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=200, help="per scenario")
    parser.add_argument("--only", default="", help="a kind of statement, or a part of its name")
    parser.add_argument("--csv", type=Path, help="file for the rates of every scenario")
    parser.add_argument("--rivals", type=Path, help="Python with other packages; see rivals.py")
    options = parser.parse_args()
    results: list[Result] = []
    begin = time.monotonic()
    for number, scenario in enumerate(SCENARIOS, 1):
        if options.only and not any(options.only in r.kind for r in count(scenario, 1, 0)):
            continue
        found = [r for r in counted_twice(scenario, options.worlds) if options.only in r.kind]
        if options.rivals and is_shared_with_rivals(scenario):
            assert isinstance(scenario, World)
            found += rival_statements(scenario, options.worlds, 0, options.rivals)
        results += found
        false = ", ".join(f"{r.kind} {r.false:.3f}{'!' * r.exceeds}" for r in found if r.false > 0)
        seconds = time.monotonic() - begin
        print(
            f"{number}/{len(SCENARIOS)}, {seconds:.0f} s: {scenario.name}: {false or 'none false'}",
            flush=True,
        )
        if options.csv:
            all_lines(results).to_csv(options.csv, index=False)
    print("\n".join(kind_lines(results)))
    exceeding = [r for r in results if r.exceeds]
    for result in exceeding:
        print(
            f"false too often: {result.kind}, {result.scenario.name}: {result.false:.3f} of "
            f"{result.worlds} worlds, more than {result.bound:.3f}"
        )
    return int(bool(exceeding))


if __name__ == "__main__":
    sys.exit(main())
