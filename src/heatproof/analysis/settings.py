"""The scores of every model and setting with their bootstrap draws, which all statistics share.

A setting is one protocol with all its options on one model: a table of images and methods. Methods
are ranked on the images that all ranked ones have a score for (`common_images`). A method without
a score on more than a tenth of the images is listed and not ranked, so that none gains by failing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from heatproof.analysis.intervals import (
    GROUP,
    RESAMPLES,
    AggregateDraws,
    RankedLayers,
    bootstrap_means,
    mean_ends,
    range_of,
)
from heatproof.analysis.rank_intervals import rank, ranked_together, tie_tolerance
from heatproof.analysis.significance import PairedTests, paired_tests
from heatproof.analysis.tables import ScoreTable, groups, positions, score_table
from heatproof.protocols import PROTOCOLS

if TYPE_CHECKING:
    from heatproof.analysis.pair_sequences import PairSequences

STATUSES = ["ok", "undefined", "failed", "missing", "n/a", "skipped"]
MOST_MISSING = 0.1  # of the images, on which a ranked method may lack a score
Limits = tuple[float, float] | None  # lowest and highest possible score
Key = tuple[str, str, str]  # protocol, setting, baseline
Raced = Mapping[tuple[str, Key], "PairSequences"]  # by model and setting


@dataclass(frozen=True)
class SettingScores:
    """The scores of M methods on N samples under one setting, with R bootstrap draws.

    Attributes:
        key: Model, protocol, setting and baseline.
        table: The scores.
        ranked: Which methods are ranked, ``(M,)``.
        usual: Samples that at least half of the methods with a score have one for, ``(N,)``.
        common: Samples that all ranked methods have a score for, ``(N,)``.
        draws: Draws of the means, ``(R, M)``.
        ends: Lower and upper ends of the 95 % intervals of the means, ``(2, M)``.
        aggregated: Methods whose score is not a mean over samples.
        statuses: Number of rows of each method by status, and last its scores whose map has a note,
            ``(M, 7)``.
        layers: The layer that each method explains.
        ranked_layers: The layer within which each method is ranked; empty for one that is ranked
            with those of every layer.
        limits: Lowest and highest possible score; None if there are none.
        raced: What all pairs show, if methods were dropped on the way; else None.
        evaluated: Which samples each method was evaluated on before it was dropped, ``(N, M)``;
            None if this was to be all.
    """

    key: tuple[str, ...]
    table: ScoreTable
    ranked: np.ndarray
    usual: np.ndarray
    common: np.ndarray
    draws: np.ndarray
    ends: np.ndarray
    aggregated: frozenset[str]
    statuses: np.ndarray
    layers: tuple[str, ...]
    ranked_layers: tuple[str, ...]
    limits: Limits = None
    raced: PairSequences | None = None
    evaluated: np.ndarray | None = None

    @property
    def methods(self) -> list[str]:
        """The M methods, in the order of the rows."""
        return self.table.methods

    @property
    def higher_is_better(self) -> bool:
        """The direction of the scores."""
        return PROTOCOLS[self.key[1]].cls.higher_is_better

    @property
    def together(self) -> np.ndarray | None:  # (M, M)
        """Pairs of methods that are ranked against each other; None for all."""
        return ranked_together(self.ranked_layers)

    @cached_property
    def used(self) -> np.ndarray:  # (N, M)
        """The scores that means are over: those on common images, or all of one not ranked."""
        if self.aggregated:  # the score of a method is computed from all of its samples
            return self.table.values
        shown = self.common[:, None] | ~self.ranked  # a method that was dropped has no more scores
        return np.where(shown, self.table.values, np.nan)

    @cached_property
    def means(self) -> np.ndarray:  # (M,)
        """The mean score of each method; nan for a method without a score."""
        return pd.DataFrame(self.used).mean().to_numpy()

    @cached_property
    def counts(self) -> np.ndarray:  # (M,)
        """The number of scores that each mean is over."""
        counts: np.ndarray = np.isfinite(self.used).sum(0)
        return counts

    @cached_property
    def missing(self) -> np.ndarray:  # (M,)
        """Number of usual samples that each method has no score for."""
        absent = ~np.isfinite(self.table.values)
        if self.evaluated is not None:
            absent &= self.evaluated
        lost: np.ndarray = absent[self.usual].sum(0)
        return lost

    @cached_property
    def standing(self) -> np.ndarray:  # (M,)
        """The means that methods are ranked by.

        The images of a method that was dropped may have been easier or harder than those after it.
        It stands as far from the mean of those that stayed longest as it did on its own images.
        """
        if self.evaluated is None:
            return self.means
        seen = self.evaluated & self.common[:, None] & self.ranked
        images = seen.sum(0)
        if not self.ranked.any() or (images[self.ranked] == images.max()).all():
            return self.means
        longest = self.ranked & (images == images.max())
        reference = self.table.values[:, longest].mean(1)  # nan where they were not evaluated
        whole = reference[seen[:, longest].all(1)].mean()
        own = [reference[column].mean() if column.any() else np.nan for column in seen.T]
        return np.where(self.ranked, self.means - own + whole, self.means)

    @cached_property
    def tolerance(self) -> float:
        """The largest difference of two means that is a tie."""
        return tie_tolerance(self.means)

    @cached_property
    def ranks(self) -> np.ndarray:  # (M,)
        """The rank of each method; nan for one that is not ranked."""
        return self.ranks_of(self.standing)

    def ranks_of(self, means: np.ndarray) -> np.ndarray:  # (..., M) -> same
        """Rank methods by other means, such as drawn ones."""
        compared = np.where(self.ranked, means, np.nan)
        return rank(compared, self.higher_is_better, self.together, self.tolerance)

    @cached_property
    def pairs(self) -> PairedTests:
        """The tests of all pairs of ranked methods, which are one family."""
        sign = 1 if self.higher_is_better else -1
        chosen = np.flatnonzero(self.ranked)
        chosen = chosen[np.argsort(-sign * self.standing[chosen], kind="stable")]
        if self.raced is not None:
            names = [self.methods[i] for i in chosen]
            draws = self.draws + self.standing - self.means
            return self.raced.tests(names, sign * self.standing[chosen], sign * draws[:, chosen])
        together = self.together
        return paired_tests(
            methods=[self.methods[i] for i in chosen],
            values=sign * self.table.values[:, chosen],
            clusters=self.table.clusters,
            common=self.common,
            usual=self.usual,
            means=sign * self.means[chosen],
            draws=sign * self.draws[:, chosen],
            aggregated=bool(self.aggregated),
            limits=signed(self.limits, sign),
            together=None if together is None else together[np.ix_(chosen, chosen)],
            tolerance=self.tolerance,
        )

    def of(self, methods: Sequence[str]) -> SettingScores:
        """Return the scores of some of the methods, all of which are ranked together.

        Which samples they are ranked on, and which pairs differ, stays as among all methods.
        """
        chosen = [i for i, method in enumerate(self.methods) if method in set(methods)]
        names = [self.methods[i] for i in chosen]
        part = replace(
            self,
            table=replace(self.table, methods=names, values=self.table.values[:, chosen]),
            ranked=self.ranked[chosen],
            draws=self.draws[:, chosen],
            ends=self.ends[:, chosen],
            statuses=self.statuses[chosen],
            layers=tuple(self.layers[i] for i in chosen),
            ranked_layers=("",) * len(chosen),
            evaluated=None if self.evaluated is None else self.evaluated[:, chosen],
        )
        part.__dict__["standing"] = self.standing[chosen]
        part.__dict__["pairs"] = self.pairs.of(names)
        return part


def signed(limits: Limits, sign: int) -> Limits:
    """Return the range of scores that are multiplied by 1 or −1."""
    if limits is None:
        return None
    low, high = sorted(sign * end for end in limits)
    return low, high


def common_images(
    values: np.ndarray, evaluated: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Choose the methods that are ranked, and the samples that they are ranked on.

    Args:
        values: Scores ``(N, M)``; not finite where a method has none.
        evaluated: Which samples each method was evaluated on, if it was dropped on the way.

    Returns:
        Which methods are ranked, ``(M,)``; which samples at least half of the methods with a score
        have one for, ``(N,)``; and which of these all ranked methods have one for, ``(N,)``.
    """
    scored = np.isfinite(values)
    asked = np.ones_like(scored) if evaluated is None else evaluated
    any_score = scored.any(0)
    usual = 2 * scored.sum(1) >= np.maximum(1, (any_score & asked).sum(1))
    lost = (asked & ~scored)[usual].sum(0)
    ranked = any_score & (lost <= MOST_MISSING * asked[usual].sum(0))
    common = usual & (scored | ~asked)[:, ranked].all(1) & ranked.any()
    return ranked & common.any(), usual, common


def scored_settings(
    rows: pd.DataFrame,
    resamples: int = RESAMPLES,
    seed: int = 0,
    aggregate_draws: AggregateDraws | None = None,
    layers: RankedLayers | None = None,
    limits: Mapping[Key, Limits] | None = None,
    raced: Raced | None = None,
) -> list[SettingScores]:
    """Arrange the scores of a run by setting, and draw their means.

    Args:
        rows: The scores of a run, one row per sample, protocol and method.
        resamples: Number of bootstrap draws.
        seed: Seed of the bootstrap.
        aggregate_draws: Draws of protocols that aggregate over all samples (see
            `halves.bootstrap_aggregates`).
        layers: The layer within which each method is ranked (see `ranks.ranked_layers`).
        limits: Lowest and highest possible scores of settings; by default those of the protocol.
        raced: What all pairs show, if methods were dropped on the way.

    Returns:
        One entry per model, protocol, setting and baseline, in the order of the rows.
    """
    settings = []
    names = [*GROUP, "method", "layer", "sample", "cluster", "value", "status", "note"]
    used = rows[[name for name in names if name in rows]]
    for key, group in groups(used, GROUP):
        table = score_table(group)
        bounds = (limits or {}).get((key[1], key[2], key[3]), range_of(key[1]))
        known = aggregate_draws or {}
        aggregated = {m: i for i, m in enumerate(table.methods) if (*key, m) in known}
        sequences = (raced or {}).get((key[0], (key[1], key[2], key[3])))
        evaluated = None if sequences is None else _evaluated(group, table)
        ranked, usual, common = common_images(table.values, evaluated)
        if not PROTOCOLS[key[1]].cls.ranked:
            ranked = np.zeros_like(ranked)
        scores = SettingScores(
            key,
            table,
            ranked,
            usual,
            common,
            np.empty(0),
            np.empty(0),
            frozenset(aggregated),
            _status_counts(group, table.methods),
            _layers_of(group, table.methods),
            tuple((layers or {}).get((key[0], method), "") for method in table.methods),
            bounds,
            sequences,
            evaluated,
        )
        draws = bootstrap_means(scores.used, resamples, seed, table.clusters, bounds)
        for method, column in aggregated.items():
            draws[:, column] = known[*key, method]
        low, high = mean_ends(scores.used, draws, table.clusters, bounds)
        ends = np.stack([np.minimum(low, scores.means), np.maximum(high, scores.means)])
        settings.append(replace(scores, draws=draws, ends=ends))
    return settings


def _evaluated(rows: pd.DataFrame, table: ScoreTable) -> np.ndarray:  # (N, M)
    """Return which samples have a row of each method."""
    samples = positions(rows["sample"], list(table.samples))
    found: np.ndarray = np.zeros(table.values.shape, dtype=bool)
    found[samples, positions(rows["method"], table.methods)] = True
    return found


def _status_counts(rows: pd.DataFrame, methods: Sequence[str]) -> np.ndarray:  # (M, 7)
    """Count the rows of each method by status, and last its scores whose map has a note."""
    size = (len(methods), len(STATUSES))
    if "status" not in rows:
        return np.zeros((size[0], size[1] + 1), dtype=np.intp)
    method_of = positions(rows["method"], methods)
    status_of = positions(rows["status"], STATUSES)
    counts = np.bincount(method_of * size[1] + status_of, minlength=size[0] * size[1])
    noted = np.zeros(size[0], dtype=np.intp)
    if "note" in rows:
        is_noted = (rows["status"] == "ok") & (rows["note"] != "")
        noted = np.bincount(method_of[is_noted.to_numpy()], minlength=size[0])
    return np.column_stack([counts.reshape(size), noted])


def _layers_of(rows: pd.DataFrame, methods: Sequence[str]) -> tuple[str, ...]:
    """Return the layer of each method."""
    if "layer" not in rows:
        return ("",) * len(methods)
    layer_of = rows.drop_duplicates("method").set_index("method")["layer"]
    return tuple(str(layer_of[method]) for method in methods)


def summarize(
    rows: pd.DataFrame,
    resamples: int = RESAMPLES,
    seed: int = 0,
    aggregate_draws: AggregateDraws | None = None,
    layers: RankedLayers | None = None,
    limits: Mapping[Key, Limits] | None = None,
    raced: Raced | None = None,
) -> pd.DataFrame:
    """Summarize scores, one line per model, protocol, setting, baseline and method.

    The arguments are those of `scored_settings`, and the result is that of `summary`.
    """
    return summary(scored_settings(rows, resamples, seed, aggregate_draws, layers, limits, raced))


def summary(settings: Sequence[SettingScores]) -> pd.DataFrame:
    """Summarize scores, one line per model, protocol, setting, baseline and method.

    Returns:
        Mean with its 95 % interval, rank with its interval, the number ``n`` of scores that it is
        over, and the numbers of undefined, failed, missing, not applicable and skipped samples,
        and of scores whose map has a note (``noted``). The mean of a ranked method is over the
        samples that all ranked methods have a score for; that of another is over its own.
    """
    lines = []
    for scores in settings:
        best, worst = _rank_ends(scores)
        for i, method in enumerate(scores.methods):
            estimate = (scores.means[i], *scores.ends[:, i])
            ranked = (scores.ranks[i], best[i], worst[i])
            counts = [int(scores.counts[i]), *scores.statuses[i, 1:].tolist()]
            lines.append((*scores.key, method, scores.layers[i], *estimate, *ranked, *counts))
    statistics = ["mean", "low", "high", "rank", "rank_low", "rank_high"]
    columns = [*GROUP, "method", "layer", *statistics, "n", *STATUSES[1:], "noted"]
    return pd.DataFrame(lines, columns=columns)


def _rank_ends(scores: SettingScores) -> np.ndarray:  # (2, M)
    """Return the intervals of ranks in the order of the methods; nan for one that is not ranked."""
    ends = np.full((2, len(scores.methods)), np.nan)
    ends[:, [scores.methods.index(m) for m in scores.pairs.methods]] = scores.pairs.rank_ends
    if scores.raced is not None:  # pairs were compared on images of their own
        ends = np.stack([np.minimum(ends[0], scores.ranks), np.maximum(ends[1], scores.ranks)])
    return ends
