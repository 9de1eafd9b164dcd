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

from heatproof.analysis.intervals import (
    RESAMPLES,
    AggregateDraws,
    Estimate,
    RankedLayers,
    bootstrap_means,
    insert_draws,
    range_of,
    rank,
    rank_bounds,
    ranked_together,
)
from heatproof.analysis.tables import groups, score_table
from heatproof.bench.layout import MethodFacts
from heatproof.protocols import PROTOCOLS

Key = tuple[str, str, str]  # protocol, setting, baseline
REACH = 2  # standard errors by which ranks are moved
WEAK = 0.2  # correlation that errors that settings share may cause among unrelated rankings
Measure = Callable[[np.ndarray], np.ndarray]  # rankings (..., K, M) -> (...,)
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
            drawn_ranks=np.stack([rank(d, h) for d, h in zip(drawn, higher, strict=True)]),
            layers=tuple(self.layers[i] for i in chosen),
            layer=layer,
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
        )

    @cached_property
    def rank_intervals(self) -> np.ndarray:  # (2, S, M)
        """Lower and upper ends of the 95 % intervals of the ranks."""
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
    all_standings = []
    for (model,), group in groups(rows, ["model"]):
        methods = [str(method) for method in group["method"].unique()]
        keys = []
        means = []
        drawn = []
        columns = ["protocol", "setting", "baseline"]
        for (protocol, setting, baseline), part in groups(group, columns):
            key = (protocol, setting, baseline)
            table = score_table(part, methods)
            limits = range_of(key[0])
            keys.append(key)
            means.append(table.means)
            drawn.append(bootstrap_means(table.values, resamples, seed, table.clusters, limits))
            insert_draws(drawn[-1], methods, (model, *key), aggregate_draws)
        higher = [PROTOCOLS[protocol].cls.higher_is_better for protocol, _, _ in keys]
        own_layers = tuple((layers or {}).get((str(model), method), "") for method in methods)
        together = ranked_together(own_layers)
        ranks = [rank(m, h, together) for m, h in zip(means, higher, strict=True)]
        drawn_ranks = [rank(d, h, together) for d, h in zip(drawn, higher, strict=True)]
        all_standings.append(
            Standings(
                str(model),
                methods,
                keys,
                np.stack(means),
                np.stack(ranks),
                np.stack(drawn),
                np.stack(drawn_ranks),
                own_layers,
            )
        )
    return all_standings


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
    ranks = np.stack([ranks[c] for (_, ranks, _), c in parts])  # (K, M)
    draws = np.stack([drawn[:, c] for (_, _, drawn), c in parts], 1)  # (R, K, M)
    pairs = {
        pair: measure_agreement(_mean_correlation, ranks[list(pair)], draws[:, list(pair)])
        for pair in combinations(range(len(rankings)), 2)
    }
    values = {pair: e.value for pair, e in pairs.items() if np.isfinite(e.value)}
    return Agreement(
        common,
        pairs,
        measure_agreement(_mean_correlation, ranks, draws),
        measure_agreement(_least_correlation, ranks, draws),
        min(values, key=values.__getitem__, default=(0, 1)),
        *(
            measure_agreement(measure, ranks, draws)
            for measure in (rank_spread, flipped_pairs, kendall_w)
        ),
    )


def measure_agreement(measure: Measure, ranks: np.ndarray, draws: np.ndarray) -> Estimate:
    """Estimate a measure of agreement between K rankings.

    Args:
        measure: Computes it from rankings ``(..., K, M)``.
        ranks: The rankings ``(K, M)``.
        draws: The rankings in each bootstrap draw, ``(R, K, M)``.

    Returns:
        The measure with an interval: from draws, which agree less than the true rankings, to
        rankings without the noise that made them agree less.
    """
    draws = draws[np.isfinite(draws).all((1, 2))]
    estimate = Estimate.of(float(measure(ranks)), measure(draws))
    if not np.isfinite(estimate.low):
        return estimate
    reach = REACH * np.sqrt(((draws - ranks) ** 2).mean(0))
    apart = ranks - ranks.mean(0)
    moved = []
    correlations = _mean_correlation(draws)
    correlations = correlations[np.isfinite(correlations)]
    if not len(correlations):
        return estimate
    if np.quantile(correlations, 0.975) > 0:  # they may agree: without noise they agree more
        moved.append(ranks - np.clip(apart, -reach, reach))
    if np.quantile(correlations, 0.025) < WEAK:  # they may be unrelated, or disagree
        moved.append(ranks + np.sign(apart) * reach)
    ends = [float(measure(rankings.round(9))) for rankings in moved]
    ends = [end for end in ends if np.isfinite(end)]
    low = min([estimate.low, *ends])
    high = max([estimate.high, *ends])
    return Estimate(estimate.value, low, high)


def _correlations(ranks: np.ndarray) -> np.ndarray:  # (..., K, M) -> (..., pairs)
    standardized = _standardized(ranks)
    first, second = np.triu_indices(ranks.shape[-2], 1)
    return _product(standardized[..., first, :], standardized[..., second, :])


def _mean_correlation(ranks: np.ndarray) -> np.ndarray:
    return _correlations(ranks).mean(-1)


def _least_correlation(ranks: np.ndarray) -> np.ndarray:
    return np.fmin.reduce(_correlations(ranks), axis=-1)  # of those that are defined


def rank_spread(ranks: np.ndarray) -> np.ndarray:  # (..., K rankings, M methods) -> (...,)
    """Compute the standard deviation of each method's rank over rankings, averaged over methods."""
    return average_ranks(ranks).std(-2).mean(-1)


def flipped_pairs(ranks: np.ndarray) -> np.ndarray:  # (..., K, M) -> (...,)
    """Compute the fraction of (pair of methods, pair of rankings) with opposite orders.

    Ties do not count as opposite.
    """
    rankings, methods = ranks.shape[-2:]
    above, below = np.triu_indices(methods, 1)
    order = np.sign(ranks[..., above] - ranks[..., below])  # (..., K, pairs)
    up = (order > 0).sum(-2)
    down = (order < 0).sum(-2)
    return (up * down).mean(-1) / (rankings * (rankings - 1) / 2)


def kendall_w(ranks: np.ndarray) -> np.ndarray:  # (..., K, M) -> (...,)
    """Compute Kendall's coefficient of concordance, corrected for ties.

    It is nan if all methods are tied in every ranking.
    """
    rankings, methods = ranks.shape[-2:]
    average = average_ranks(ranks)
    sums = average.sum(-2)
    apart = ((sums - sums.mean(-1, keepdims=True)) ** 2).sum(-1)
    deviations = ((average - (methods + 1) / 2) ** 2).sum(-1)
    ties = methods * (methods**2 - 1) - 12 * deviations  # Σ(t³ − t) of every ranking
    most = rankings**2 * methods * (methods**2 - 1) - rankings * ties.sum(-1)
    return np.divide(12 * apart, most, out=np.full_like(apart, np.nan), where=most > 0)


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
    ranks = average_ranks(np.stack([a, b]))
    if _mean_correlation(ranks) < 0:  # columns that disagree are one column and another reversed
        value, low, high = rank_correlation(a, -b, drawn_a, -drawn_b)
        return Estimate(-value, -high, -low)
    drawn = average_ranks(np.stack([drawn_a, drawn_b], 1))
    return measure_agreement(_mean_correlation, ranks, drawn)


def _standardized(ranks: np.ndarray) -> np.ndarray:  # (..., M) -> same
    """Return average ranks with mean 0 and norm 1; nan if they are constant or one is missing."""
    again = average_ranks(ranks)
    centred = again - again.mean(-1, keepdims=True)
    norm = np.sqrt((centred**2).sum(-1, keepdims=True))
    return np.divide(centred, norm, out=np.full_like(centred, np.nan), where=norm > 0)


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.clip((a * b).sum(-1), -1, 1)


def average_ranks(values: np.ndarray) -> np.ndarray:
    """Rank values along the last axis; equal ones get their mean rank, and nan stays nan."""
    from scipy.stats import rankdata  # takes a second to import

    ranks: np.ndarray = rankdata(values, axis=-1, nan_policy="propagate")
    return ranks
