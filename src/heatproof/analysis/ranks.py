"""Ranks over several settings: mean ranks, significant differences, and agreement of rankings.

Everything comes from one bootstrap over samples with the same draws for all methods and settings,
so comparisons are paired. Rankings compare like with like: every protocol has the same weight in a
mean rank, however many settings it has, and where a method was run at several layers, methods are
ranked within a layer.

A draw adds noise to every ranking, so drawn rankings agree less than the estimated ones, and these
less than the true ones: percentiles of draws miss the truth where rankings agree well. And settings
on the same images share their errors, so that unrelated rankings seem to agree if images are few.
`measure_agreement` says when an interval is given, and how far (docs/statistics-others.md).
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
from heatproof.analysis.rank_intervals import places
from heatproof.analysis.settings import Key as Key
from heatproof.analysis.settings import SettingScores, scored_settings
from heatproof.runs.format import MethodFacts

RANK_REACH = 2  # standard errors by which ranks are moved
LEAST_RELIABILITY = 0.8  # mean correlation of a ranking with its draws, for an interval
NEARLY_ALL_DRAWS = 0.995  # of the draws
MOST_COMPARED_DRAWS = 1000
CONTROL = "control"  # the family of methods that do not depend on the model
LAYER_ALIASES = ("input", "middle", "final", "cam")  # of layers, in the order of preference


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
            layer: next((alias for alias in LAYER_ALIASES if alias in aliases), layer)
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
        ranks: Ranks ``(S, M)``; nan for a method that is not ranked.
        drawn_means: Mean scores in each draw, ``(S, R, M)``.
        drawn_ranks: Ranks in each draw, ``(S, R, M)``.
        layers: The layer within which each method is ranked; empty for one that is ranked with
            those of every layer.
        scores: The scores under each setting.
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
    scores: tuple[SettingScores, ...]
    layer: str = ""

    @cached_property
    def by_layer(self) -> list[Standings]:
        """The standings at each layer; these alone if all methods are ranked together."""
        names = [name for name in dict.fromkeys(self.layers) if name]
        return [self.at(name) for name in names] if names and not self.layer else [self]

    def at(self, layer: str) -> Standings:
        """Return the standings of the methods at one layer, and of those without a layer."""
        names = zip(self.methods, self.layers, strict=True)
        return replace(self.only([m for m, name in names if name in ("", layer)]), layer=layer)

    def only(self, methods: Sequence[str]) -> Standings:
        """Return the standings of some methods; which pairs differ stays as among all."""
        layer_of = dict(zip(self.methods, self.layers, strict=True))
        part = _standings_of_model(self.model, [scores.of(methods) for scores in self.scores])
        return replace(part, layers=tuple(layer_of[m] for m in part.methods), layer=self.layer)

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
            scores=tuple(self.scores[s] for s in chosen),
        )

    @cached_property
    def applies(self) -> np.ndarray:  # (S,)
        """Whether a setting ranks at least half of the methods that any setting ranks, and two.

        The others have no weight in a mean rank: a setting that does not apply costs itself alone.
        """
        ranked = np.isfinite(self.ranks)
        counts = ranked.sum(1)
        least = max(2, ranked.any(0).sum() / 2)
        return counts >= (least if (counts >= least).any() else 1)

    @cached_property
    def weights(self) -> np.ndarray:  # (S,)
        """The weight of each setting: protocols have equal weights, as have settings of one.

        They are whole numbers, so that means of ranks have no rounding errors that untie them.
        """
        used = [key[0] for key, applies in zip(self.settings, self.applies, strict=True) if applies]
        count = Counter(used)
        multiple = math.lcm(*count.values())
        weights = [multiple // count[key[0]] if count[key[0]] else 0 for key in self.settings]
        return np.array(weights) * self.applies

    @cached_property
    def mean_ranks(self) -> np.ndarray:  # (M,)
        """Mean ranks over the settings that apply; nan for a method that one does not rank."""
        return self.weighted_mean(self.ranks)

    @cached_property
    def drawn_mean_ranks(self) -> np.ndarray:  # (R, M)
        """Mean ranks over the settings that apply, in each draw."""
        return self.weighted_mean(self.drawn_ranks)

    def weighted_mean(self, values: np.ndarray) -> np.ndarray:  # (S, ...) -> (...)
        """Average over the settings that apply, then over protocols."""
        if not self.weights.any():
            return np.full(values.shape[1:], np.nan)
        used = np.flatnonzero(self.weights)
        return np.tensordot(self.weights[used].astype(float), values[used], 1) / self.weights.sum()

    @cached_property
    def order(self) -> list[str]:
        """The ranked methods, best first; equal mean ranks are ordered by mean score.

        If methods are ranked within layers, those of several layers alternate.
        """
        signs = np.array([1 if scores.higher_is_better else -1 for scores in self.scores])
        scores = self.weighted_mean(self.means * signs[:, None])
        ranked = [i for i in range(len(self.methods)) if np.isfinite(self.mean_ranks[i])]
        return [
            self.methods[i] for i in sorted(ranked, key=lambda i: (self.mean_ranks[i], -scores[i]))
        ]

    def score(self, setting: int, method: str) -> Estimate:
        """Estimate the mean score of a method under one setting."""
        scores = self.scores[setting]
        if method not in scores.methods:
            return Estimate(np.nan, np.nan, np.nan)
        i = scores.methods.index(method)
        return Estimate(float(scores.means[i]), *map(float, scores.ends[:, i]))

    @property
    def one_protocol(self) -> bool:
        """Whether all settings are of the same protocol, so that scores can be averaged."""
        return len({protocol for protocol, _, _ in self.settings}) == 1

    def mean_score(self, method: str) -> Estimate | None:
        """Estimate the mean score over the settings; None if they are of several protocols."""
        if not self.one_protocol:
            return None
        if len(self.settings) == 1:
            return self.score(0, method)
        i = self.methods.index(method)
        return Estimate.of(self.means[:, i].mean(), self.drawn_means[:, :, i].mean(0))


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
    shape = (len(settings), len(settings[0].draws), len(methods))
    means = np.full((shape[0], shape[2]), np.nan)
    ranks = np.full((shape[0], shape[2]), np.nan)
    drawn = np.full(shape, np.nan)
    drawn_ranks = np.full(shape, np.nan, np.float32)  # whole numbers need no double precision
    layer_of: dict[str, str] = {}
    for s, scores in enumerate(settings):
        chosen = [column[method] for method in scores.methods]
        means[s, chosen] = scores.means
        ranks[s, chosen] = scores.ranks
        drawn[s][:, chosen] = scores.draws
        drawn_ranks[s][:, chosen] = scores.ranks_of(scores.draws)
        layer_of |= dict(zip(scores.methods, scores.ranked_layers, strict=True))
    return Standings(
        model,
        methods,
        [(key[1], key[2], key[3]) for key in (scores.key for scores in settings)],
        means,
        ranks,
        drawn,
        drawn_ranks,
        tuple(layer_of[method] for method in methods),
        tuple(settings),
    )


@dataclass(frozen=True)
class Agreement:
    """Agreement of rankings of the same methods.

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

    Drawn rankings agree less than the true ones where these agree, and more where settings share
    their errors. There is an interval only if every ranking is determined well enough
    (`LEAST_RELIABILITY`); it reaches to what rankings without noise would give, and to equal
    rankings if no two methods are ordered differently beyond doubt.

    Args:
        measure: Computes it.
        whole: The rankings.
        drawn: The rankings in each bootstrap draw.
    """
    drawn = drawn.finite()
    value = float(measure(whole))
    if not len(drawn.ranks):
        return Estimate(value, np.nan, np.nan)
    reliability = (drawn.standardized * whole.standardized).sum(-1).mean(0)
    if not reliability.min() >= LEAST_RELIABILITY:
        return Estimate(value, np.nan, np.nan)
    estimate = Estimate.of(value, measure(drawn))
    ranks = whole.ranks
    reach = RANK_REACH * np.sqrt(((drawn.ranks - ranks) ** 2).mean(0))
    apart = ranks - ranks.mean(0)
    moved = [ranks - np.clip(apart, -reach, reach), ranks + np.sign(apart) * reach]
    if not _contradict(drawn.ranks):
        moved.append(np.broadcast_to(ranks.mean(0), ranks.shape))
    ends = [float(measure(Rankings(rankings.round(9)))) for rankings in moved]
    ends = [end for end in ends if np.isfinite(end)]
    return Estimate(value, min([estimate.low, *ends]), max([estimate.high, *ends]))


def _contradict(drawn: np.ndarray) -> bool:  # (R, K, M)
    """Return whether two rankings order some two methods differently in nearly all draws."""
    some = drawn[:MOST_COMPARED_DRAWS]
    for i in range(some.shape[-1] - 1):
        before = (some[..., i : i + 1] < some[..., i + 1 :]).mean(0)  # (K, M - i - 1)
        after = (some[..., i : i + 1] > some[..., i + 1 :]).mean(0)
        if ((before.max(0) >= NEARLY_ALL_DRAWS) & (after.max(0) >= NEARLY_ALL_DRAWS)).any():
            return True
    return False


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
