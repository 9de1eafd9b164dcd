"""Ranks over several settings: mean ranks, significant differences, and agreement of rankings.

Everything comes from one bootstrap over samples with the same draws for all methods and settings,
so comparisons are paired. Rankings compare like with like: every protocol has the same weight in a
mean rank, however many settings it has, and where a method was run at several layers, methods are
ranked within a layer.

A draw adds noise to every ranking, so drawn rankings agree less than the estimated ones, and these
less than the true ones. Percentiles of draws therefore miss the truth where rankings agree well.
Intervals of agreement extend to what the rankings would give if every rank were moved towards the
mean rank of its method, by `REACH` of its standard errors; or away from it where rankings disagree
(docs/statistics.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np
import pandas as pd

from heatproof.analysis.intervals import RESAMPLES, AggregateDraws, Estimate, RankedLayers
from heatproof.analysis.rank_intervals import places, rank, rank_bounds, ranked_together
from heatproof.analysis.settings import SettingScores, scored_settings
from heatproof.protocols import PROTOCOLS
from heatproof.runs.format import MethodFacts

Key = tuple[str, str, str]  # protocol, setting, baseline
REACH = 2  # standard errors by which ranks are moved
WEAK = 0.2  # correlation that errors that settings share may cause among unrelated rankings
CONTROL = "control"  # the family of methods that do not depend on the model
ALIASES = ("input", "middle", "final", "cam")  # of layers, in the order of preference


def ranked_layers(rows: pd.DataFrame, methods: Mapping[str, MethodFacts]) -> RankedLayers:
    """Return the layer within which each method is ranked.

    Where a run has a method at several layers of a model, a method at one layer is not ranked
    against another at another layer: the layer would decide, not the method. Otherwise every method
    is at the layer that it is defined for, and all are ranked together.

    Args:
        rows: The scores of a run.
        methods: What is on record about each method.

    Returns:
        A name of the layer by (model, method), an alias where the run uses one. Methods that are
        ranked with those of every layer are missing: controls, and all methods of a model without a
        method at several layers.
    """
    ranked: dict[tuple[str, str], str] = {}
    columns = ["model", "method", "layer"]
    at_layers = rows.loc[rows["layer"] != "", columns].drop_duplicates()
    for model, part in at_layers.groupby("model", sort=False):
        layer_of = {
            method: layer
            for method, layer in zip(part["method"], part["layer"], strict=True)
            if method in methods and methods[method].family != CONTROL
        }
        pairs = {(methods[method].layerless, layer) for method, layer in layer_of.items()}
        if len(pairs) == len({method for method, _ in pairs}):
            continue
        used: dict[str, set[str]] = {}
        for method, layer in layer_of.items():
            used.setdefault(layer, set()).add(methods[method].layer)
        names = {
            layer: next((alias for alias in ALIASES if alias in aliases), layer)
            for layer, aliases in used.items()
        }
        ranked |= {(str(model), method): names[layer] for method, layer in layer_of.items()}
    return ranked


@dataclass(frozen=True)
class Standings:
    """Scores and ranks of a model's M methods under S settings, with R bootstrap draws.

    Attributes:
        model: Name of the model.
        methods: The methods.
        settings: Protocol, setting and baseline of each setting.
        means: Mean scores ``(S, M)``; nan for a method without a score.
        ranks: Ranks ``(S, M)``.
        drawn_means: Mean scores in each draw, ``(S, R, M)``.
        drawn_ranks: Ranks in each draw, ``(S, R, M)``.
        layers: The layer within which each method is ranked; empty for one that is ranked with
            those of every layer.
        layer: The layer that these standings are restricted to, if `at` has returned them.
        scores: The scores under each setting, which know the intervals of ranks; empty if they are
            of other methods.
    """

    model: str
    methods: list[str]
    settings: list[Key]
    means: np.ndarray
    ranks: np.ndarray
    drawn_means: np.ndarray
    drawn_ranks: np.ndarray
    layers: tuple[str, ...]
    layer: str = ""
    scores: tuple[SettingScores, ...] = ()

    @cached_property
    def by_layer(self) -> list[Standings]:
        """The standings at each layer; these alone if all methods are ranked together."""
        names = [name for name in dict.fromkeys(self.layers) if name]
        return [self.at(name) for name in names] if names and not self.layer else [self]

    def at(self, layer: str) -> Standings:
        """Return the standings of the methods at one layer, and of those without a layer."""
        chosen = [i for i, name in enumerate(self.layers) if name in ("", layer)]
        higher = [PROTOCOLS[protocol].cls.higher_is_better for protocol, _, _ in self.settings]
        means = self.means[:, chosen]
        drawn = self.drawn_means[..., chosen]
        return replace(
            self,
            methods=[self.methods[i] for i in chosen],
            means=means,
            ranks=np.stack([rank(m, h) for m, h in zip(means, higher, strict=True)]),
            drawn_means=drawn,
            drawn_ranks=_drawn_ranks(drawn, higher),
            layers=tuple(self.layers[i] for i in chosen),
            layer=layer,
            scores=(),
        )

    def under(self, settings: Sequence[int]) -> Standings:
        """Return the standings under some of the settings, by their indices."""
        chosen = list(settings)
        return replace(
            self,
            settings=[self.settings[s] for s in chosen],
            means=self.means[chosen],
            ranks=self.ranks[chosen],
            drawn_means=self.drawn_means[chosen],
            drawn_ranks=self.drawn_ranks[chosen],
            scores=tuple(self.scores[s] for s in chosen) if self.scores else (),
        )

    @cached_property
    def rank_intervals(self) -> np.ndarray:  # (2, S, M)
        """Lower and upper ends of the 95 % intervals of the ranks."""
        if self.scores:
            ends = np.full((2, *self.means.shape), np.nan)
            for s, scores in enumerate(self.scores):
                ends[:, s, [self.methods.index(m) for m in scores.methods]] = scores.rank_ends
            return ends
        together = ranked_together(self.layers) if not self.layer else None
        bounds = [
            rank_bounds(means, drawn, PROTOCOLS[protocol].cls.higher_is_better, together)
            for means, drawn, (protocol, _, _) in zip(
                self.means, self.drawn_means, self.settings, strict=True
            )
        ]
        return np.stack(bounds, 1)

    @cached_property
    def weights(self) -> np.ndarray:  # (S,)
        """The weight of each setting: protocols have equal weights, as have settings of one.

        They are whole numbers, so that means of ranks have no rounding errors that untie them.
        """
        settings = Counter(protocol for protocol, _, _ in self.settings)
        multiple = math.lcm(*settings.values())
        return np.array([multiple // settings[protocol] for protocol, _, _ in self.settings])

    @cached_property
    def mean_ranks(self) -> np.ndarray:  # (M,)
        """Mean ranks over settings and protocols; nan for a method that lacks one of the scores."""
        return self._weighted_mean(self.ranks)

    @cached_property
    def drawn_mean_ranks(self) -> np.ndarray:  # (R, M)
        """Mean ranks over settings and protocols, in each draw."""
        return self._weighted_mean(self.drawn_ranks)

    def _weighted_mean(self, values: np.ndarray) -> np.ndarray:  # (S, ...) -> (...)
        return np.tensordot(self.weights.astype(float), values, 1) / self.weights.sum()

    @cached_property
    def order(self) -> list[str]:
        """The ranked methods, best first; equal mean ranks are ordered by mean score.

        If methods are ranked within layers, those of several layers alternate.
        """
        higher = np.array(
            [PROTOCOLS[protocol].cls.higher_is_better for protocol, _, _ in self.settings]
        )
        scores = self._weighted_mean(self.means * np.where(higher, 1, -1)[:, None])
        ranked = [i for i in range(len(self.methods)) if np.isfinite(self.mean_ranks[i])]
        return [
            self.methods[i] for i in sorted(ranked, key=lambda i: (self.mean_ranks[i], -scores[i]))
        ]

    def score(self, setting: int, method: str) -> Estimate:
        """Estimate the mean score of a method under one setting."""
        i = self.methods.index(method)
        return Estimate.of(self.means[setting, i], self.drawn_means[setting, :, i])

    def mean_score(self, method: str) -> Estimate | None:
        """Estimate the mean score over the settings; None if they are of several protocols."""
        if not self.one_protocol:
            return None
        i = self.methods.index(method)
        return Estimate.of(self.means[:, i].mean(), self.drawn_means[:, :, i].mean(0))

    @property
    def one_protocol(self) -> bool:
        """Whether all settings are of the same protocol, so that scores can be averaged."""
        return len({protocol for protocol, _, _ in self.settings}) == 1

    def mean_rank(self, method: str) -> Estimate:
        """Estimate the mean rank of a method over the settings.

        The interval is the mean of the intervals under the settings, which is exact for one setting
        and too wide for several that do not err in the same direction.
        """
        i = self.methods.index(method)
        low, high = (self._weighted_mean(ends) for ends in self.rank_intervals)
        return Estimate(float(self.mean_ranks[i]), float(low[i]), float(high[i]))

    def rank_gap(self, better: str, other: str) -> Estimate:
        """Estimate how many ranks ``other`` is behind ``better``, on average over the settings."""
        i = self.methods.index(better)
        j = self.methods.index(other)
        return Estimate.of(
            self.mean_ranks[j] - self.mean_ranks[i],
            self.drawn_mean_ranks[:, j] - self.drawn_mean_ranks[:, i],
        )

    def score_gap(self, better: str, other: str) -> Estimate | None:
        """Estimate the mean score of ``better`` minus that of ``other``.

        Returns:
            The difference, or None if the settings are of several protocols.
        """
        if not self.one_protocol:
            return None
        i = self.methods.index(better)
        j = self.methods.index(other)
        gap = self.means[:, i] - self.means[:, j]
        drawn = self.drawn_means[:, :, i] - self.drawn_means[:, :, j]
        return Estimate.of(gap.mean(), drawn.mean(0))

    def significantly_better(self, setting: int, method: str, among: Sequence[str]) -> list[str]:
        """Return which methods are significantly better than a method under one setting.

        Args:
            setting: Index of the setting.
            method: The method to compare with.
            among: The methods to consider.

        Returns:
            The better methods, best first.
        """
        ranks = self.ranks[setting]
        drawn = self.drawn_ranks[setting]
        compared = self.methods.index(method)
        better = []
        for other in among:
            i = self.methods.index(other)
            gap = Estimate.of(ranks[compared] - ranks[i], drawn[:, compared] - drawn[:, i])
            if other != method and gap.low > 0:
                better.append(other)
        return sorted(better, key=lambda m: float(ranks[self.methods.index(m)]))

    def first_fraction(self, method: str, among: Sequence[str]) -> float:
        """Return the fraction of draws in which a method has the best mean rank, alone or tied.

        Args:
            method: The method.
            among: The methods to compare, including ``method``.
        """
        drawn = self.drawn_mean_ranks[:, [self.methods.index(m) for m in among]]
        with np.errstate(invalid="ignore"):
            best = np.where(np.isfinite(drawn), drawn, np.inf).min(1)
            return float(np.mean(drawn[:, list(among).index(method)] <= best))


def standings(
    rows: pd.DataFrame,
    resamples: int = RESAMPLES,
    seed: int = 0,
    aggregate_draws: AggregateDraws | None = None,
    layers: RankedLayers | None = None,
) -> list[Standings]:
    """Compute ranks and bootstrap draws of all methods under all settings.

    Args:
        rows: The scores of a run, one row per sample, protocol and method.
        resamples: Number of bootstrap draws.
        seed: Seed of the bootstrap.
        aggregate_draws: Draws of protocols that aggregate over all samples (see `summarize`).
        layers: The layer within which each method is ranked (see `ranked_layers`).

    Returns:
        One entry per model, in the order of the rows.
    """
    return standings_of(scored_settings(rows, resamples, seed, aggregate_draws, layers))


def standings_of(settings: Sequence[SettingScores]) -> list[Standings]:
    """Rank all methods of each model under its settings, and in every draw.

    Args:
        settings: The scores of all models and settings.

    Returns:
        One entry per model, in the order of the settings.
    """
    by_model: dict[str, list[SettingScores]] = {}
    for scores in settings:
        by_model.setdefault(scores.key[0], []).append(scores)
    return [_standings_of_model(model, of_model) for model, of_model in by_model.items()]


def _standings_of_model(model: str, settings: Sequence[SettingScores]) -> Standings:
    methods = list(dict.fromkeys(method for scores in settings for method in scores.methods))
    column = {method: i for i, method in enumerate(methods)}
    resamples = len(settings[0].draws)
    means = np.full((len(settings), len(methods)), np.nan)
    drawn = np.full((len(settings), resamples, len(methods)), np.nan)
    layer_of: dict[str, str] = {}
    for s, scores in enumerate(settings):
        chosen = [column[method] for method in scores.methods]
        means[s, chosen] = scores.table.means
        drawn[s][:, chosen] = scores.draws
        layer_of |= dict(zip(scores.methods, scores.ranked_layers, strict=True))
    higher = [scores.higher_is_better for scores in settings]
    layers = tuple(layer_of[method] for method in methods)
    together = ranked_together(layers)
    return Standings(
        model,
        methods,
        [(key[1], key[2], key[3]) for key in (scores.key for scores in settings)],
        means,
        np.stack([rank(m, h, together) for m, h in zip(means, higher, strict=True)]),
        drawn,
        _drawn_ranks(drawn, higher, together),
        layers,
        scores=tuple(settings),
    )


def _drawn_ranks(
    drawn: np.ndarray, higher: Sequence[bool], together: np.ndarray | None = None
) -> np.ndarray:  # (S, R, M) -> same
    """Rank methods in every draw; whole numbers need no double precision."""
    ranks = np.empty(drawn.shape, np.float32)
    for s, (means, is_higher) in enumerate(zip(drawn, higher, strict=True)):
        ranks[s] = rank(means, is_higher, together)
    return ranks


@dataclass(frozen=True)
class Agreement:
    """How far rankings of the same methods agree.

    Attributes:
        methods: The methods that all rankings contain.
        pairs: Spearman correlation of each pair of rankings.
        mean: Mean of these correlations.
        least: Smallest of these correlations.
        least_pair: The pair with the smallest correlation.
        spread: Standard deviation of a method's rank over the rankings, averaged over methods.
        flipped: Fraction of (pair of methods, pair of rankings) with opposite orders.
        concordance: Kendall's W, from 0 for unrelated rankings to 1 for equal ones.
    """

    methods: list[str]
    pairs: dict[tuple[int, int], Estimate]
    mean: Estimate
    least: Estimate
    least_pair: tuple[int, int]
    spread: Estimate
    flipped: Estimate
    concordance: Estimate


def agreement(
    rankings: Sequence[tuple[Sequence[str], np.ndarray, np.ndarray]], leave_out: Sequence[str] = ()
) -> Agreement | None:
    """Measure how far rankings agree on the methods that all of them contain.

    Args:
        rankings: Each as methods, ranks ``(M,)`` and drawn ranks ``(R, M)``.
        leave_out: Methods to ignore.

    Returns:
        The agreement, or None for fewer than two rankings or three common methods.
    """
    if len(rankings) < 2:
        return None
    ranked = [
        {m for m, r in zip(methods, ranks, strict=True) if np.isfinite(r)}
        for methods, ranks, _ in rankings
    ]
    common = [m for m in rankings[0][0] if all(m in r for r in ranked) and m not in leave_out]
    if len(common) < 3:
        return None
    columns = [[list(methods).index(m) for m in common] for methods, _, _ in rankings]
    parts = list(zip(rankings, columns, strict=True))
    whole = Rankings(np.stack([ranks[c] for (_, ranks, _), c in parts]))
    drawn = Rankings(np.stack([draws[:, c] for (_, _, draws), c in parts], 1))
    pairs = {
        pair: measure_agreement(Rankings.correlation, whole.only(pair), drawn.only(pair))
        for pair in combinations(range(len(rankings)), 2)
    }
    values = {pair: e.value for pair, e in pairs.items() if np.isfinite(e.value)}
    drawn = drawn.finite()
    measures = (
        Rankings.correlation,
        Rankings.least_correlation,
        Rankings.spread,
        Rankings.flipped,
        Rankings.concordance,
    )
    mean, least, *others = (measure_agreement(m, whole, drawn) for m in measures)
    least_pair = min(values, key=values.__getitem__, default=(0, 1))
    return Agreement(common, pairs, mean, least, least_pair, *others)


class Rankings:
    """K rankings of the same M methods, or R draws of them, and how far they agree.

    Args:
        ranks: Ranks ``(K, M)``, or ``(R, K, M)`` for draws; ties may have any common rank.
    """

    def __init__(self, ranks: np.ndarray):
        self.ranks = ranks

    @cached_property
    def average(self) -> np.ndarray:
        """The ranks, where equal ones have their mean rank and nan stays nan."""
        return average_ranks(self.ranks)

    @cached_property
    def standardized(self) -> np.ndarray:
        """Average ranks with mean 0 and norm 1; nan if they are constant or one is missing."""
        centred = self.average - self.average.mean(-1, keepdims=True)
        norm = np.sqrt((centred**2).sum(-1, keepdims=True))
        return np.divide(centred, norm, out=np.full_like(centred, np.nan), where=norm > 0)

    def only(self, chosen: Sequence[int]) -> Rankings:
        """Return some of the K rankings; what is known about them is not computed again."""
        part = Rankings(self.ranks[..., list(chosen), :])
        part.__dict__["standardized"] = self.standardized[..., list(chosen), :]
        return part

    def finite(self) -> Rankings:
        """Return the draws in which every method has a rank."""
        complete = np.isfinite(self.ranks).all((1, 2))
        if complete.all():
            return self
        return Rankings(self.ranks[complete])

    @cached_property
    def _correlation(self) -> np.ndarray:
        """The mean correlation of all pairs, from the length of the sum of standardized ranks."""
        count = self.ranks.shape[-2]
        squared = (self.standardized.sum(-2) ** 2).sum(-1)
        return np.clip((squared - count) / (count * (count - 1)), -1, 1)

    def correlation(self) -> np.ndarray:
        """Compute the mean Spearman correlation of all pairs of rankings."""
        return self._correlation

    def least_correlation(self) -> np.ndarray:
        """Compute the smallest Spearman correlation of a pair, of those that are defined."""
        count = self.ranks.shape[-2]
        least = np.full(self.ranks.shape[:-2], np.nan)
        for k in range(count - 1):
            others = self.standardized[..., k + 1 :, :]
            products = (self.standardized[..., k : k + 1, :] * others).sum(-1)
            least = np.fmin(least, np.fmin.reduce(np.clip(products, -1, 1), axis=-1))
        return least

    def spread(self) -> np.ndarray:
        """Compute the standard deviation of a method's rank, averaged over methods."""
        deviations: np.ndarray = self.average.std(-2).mean(-1)
        return deviations

    def flipped(self) -> np.ndarray:
        """Compute the fraction of (pair of methods, pair of rankings) with opposite orders.

        Ties do not count as opposite.
        """
        rankings, methods = self.ranks.shape[-2:]
        total = np.zeros(self.ranks.shape[:-2])
        for i in range(methods - 1):
            method, others = self.ranks[..., i : i + 1], self.ranks[..., i + 1 :]
            above = (method < others).sum(-2)
            below = (method > others).sum(-2)
            total += (above * below).sum(-1)
        pairs = methods * (methods - 1) / 2
        return total / pairs / (rankings * (rankings - 1) / 2)

    def concordance(self) -> np.ndarray:
        """Compute Kendall's W, corrected for ties; nan if all are tied in every ranking."""
        rankings, methods = self.ranks.shape[-2:]
        sums = self.average.sum(-2)
        apart = ((sums - sums.mean(-1, keepdims=True)) ** 2).sum(-1)
        deviations = ((self.average - (methods + 1) / 2) ** 2).sum(-1)
        ties = methods * (methods**2 - 1) - 12 * deviations  # Σ(t³ − t) of every ranking
        most = rankings**2 * methods * (methods**2 - 1) - rankings * ties.sum(-1)
        return np.divide(12 * apart, most, out=np.full_like(apart, np.nan), where=most > 0)


Measure = Callable[[Rankings], np.ndarray]


def measure_agreement(measure: Measure, whole: Rankings, drawn: Rankings) -> Estimate:
    """Estimate a measure of agreement between K rankings.

    Args:
        measure: Computes it.
        whole: The rankings.
        drawn: The rankings in each bootstrap draw.

    Returns:
        The measure with an interval: from draws, which agree less than the true rankings, to
        rankings without the noise that made them agree less.
    """
    drawn = drawn.finite()
    estimate = Estimate.of(float(measure(whole)), measure(drawn))
    if not np.isfinite(estimate.low):
        return estimate
    ranks = whole.ranks
    reach = REACH * np.sqrt(((drawn.ranks - ranks) ** 2).mean(0))
    apart = ranks - ranks.mean(0)
    moved = []
    correlations = drawn.correlation()
    correlations = correlations[np.isfinite(correlations)]
    if not len(correlations):
        return estimate
    if np.quantile(correlations, 0.975) > 0:  # they may agree: without noise they agree more
        moved.append(ranks - np.clip(apart, -reach, reach))
    if np.quantile(correlations, 0.025) < WEAK:  # they may be unrelated, or disagree
        moved.append(ranks + np.sign(apart) * reach)
    ends = [float(measure(Rankings(rankings.round(9)))) for rankings in moved]
    ends = [end for end in ends if np.isfinite(end)]
    low = min([estimate.low, *ends])
    high = max([estimate.high, *ends])
    return Estimate(estimate.value, low, high)


def rank_correlation(
    a: np.ndarray, b: np.ndarray, drawn_a: np.ndarray, drawn_b: np.ndarray
) -> Estimate:
    """Estimate Spearman's correlation of two columns.

    Args:
        a: Values ``(M,)``.
        b: Values ``(M,)``.
        drawn_a: Draws of the first column, ``(R, M)``.
        drawn_b: Draws of the second column, ``(R, M)``.

    Returns:
        The correlation; nan if a column is constant or has missing values.
    """
    ranks = Rankings(average_ranks(np.stack([a, b])))
    if ranks.correlation() < 0:  # columns that disagree are one column and another reversed
        value, low, high = rank_correlation(a, -b, drawn_a, -drawn_b)
        return Estimate(-value, -high, -low)
    drawn = Rankings(average_ranks(np.stack([drawn_a, drawn_b], 1)))
    return measure_agreement(Rankings.correlation, ranks, drawn)


def average_ranks(values: np.ndarray) -> np.ndarray:
    """Rank values along the last axis from 1 for the lowest; equal ones get their mean rank.

    Where a value is nan, none has a rank.
    """
    lowest = places(values)
    highest = values.shape[-1] + 1 - places(-values)
    missing = np.isnan(values).any(-1, keepdims=True)
    return np.where(missing, np.nan, (lowest + highest) / 2)
