"""Over several settings: mean ranks, who is told apart from whom, and whether rankings agree.

Everything comes from one bootstrap over samples with the same draws for all methods and settings, so comparisons are paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from heatproof.analysis.intervals import (
    RESAMPLES,
    AggregateDraws,
    Estimate,
    bootstrap_means,
    put_in,
    rank,
)
from heatproof.protocols import PROTOCOLS

Key = tuple[str, str, str]  # protocol, setting, baseline


@dataclass(frozen=True)
class Standings:
    """One model's methods under every setting."""

    model: str
    methods: list[str]
    settings: list[Key]
    means: np.ndarray  # (S, M); nan where a method has no score
    ranks: np.ndarray  # (S, M)
    drawn_means: np.ndarray  # (S, R, M)
    drawn_ranks: np.ndarray  # (S, R, M)

    @cached_property
    def mean_ranks(self) -> np.ndarray:  # (M,)
        """Over the settings; nan for a method that has no score under one of them."""
        return self.ranks.mean(0)

    @cached_property
    def drawn_mean_ranks(self) -> np.ndarray:  # (R, M)
        return self.drawn_ranks.mean(0)

    @cached_property
    def order(self) -> list[str]:
        """The ranked methods, best first; equal mean ranks in the order of their mean score."""
        higher = np.array(
            [PROTOCOLS[protocol].cls.higher_is_better for protocol, _, _ in self.settings]
        )
        scores = (self.means * np.where(higher, 1, -1)[:, None]).mean(0)
        ranked = [i for i in range(len(self.methods)) if np.isfinite(self.mean_ranks[i])]
        return [
            self.methods[i] for i in sorted(ranked, key=lambda i: (self.mean_ranks[i], -scores[i]))
        ]

    def score(self, setting: int, method: str) -> Estimate:
        i = self.methods.index(method)
        return Estimate.of(self.means[setting, i], self.drawn_means[setting, :, i])

    def mean_score(self, method: str) -> Estimate | None:
        """Over the settings; none where scores of several protocols would be mixed."""
        if not self.one_protocol:
            return None
        i = self.methods.index(method)
        return Estimate.of(self.means[:, i].mean(), self.drawn_means[:, :, i].mean(0))

    @property
    def one_protocol(self) -> bool:
        return len({protocol for protocol, _, _ in self.settings}) == 1

    def mean_rank(self, method: str) -> Estimate:
        i = self.methods.index(method)
        return Estimate.of(self.mean_ranks[i], self.drawn_mean_ranks[:, i])

    def rank_gap(self, better: str, other: str) -> Estimate:
        """How many places `other` is behind `better`, on average over the settings."""
        i, j = self.methods.index(better), self.methods.index(other)
        return Estimate.of(
            self.mean_ranks[j] - self.mean_ranks[i],
            self.drawn_mean_ranks[:, j] - self.drawn_mean_ranks[:, i],
        )

    def score_gap(self, better: str, other: str) -> Estimate | None:
        """Mean score of `better` minus that of `other`; none where scores of several protocols would be mixed."""
        if not self.one_protocol:
            return None
        i, j = self.methods.index(better), self.methods.index(other)
        gap, drawn = (
            self.means[:, i] - self.means[:, j],
            self.drawn_means[:, :, i] - self.drawn_means[:, :, j],
        )
        return Estimate.of(gap.mean(), drawn.mean(0))

    def ahead_in(self, setting: int, of: str, among: Sequence[str]) -> list[str]:
        """Which of these methods are better than it under one setting, beyond chance; the best first."""
        ranks, drawn, own = self.ranks[setting], self.drawn_ranks[setting], self.methods.index(of)
        at = {m: self.methods.index(m) for m in among if m != of}
        ahead = [
            m
            for m, i in at.items()
            if Estimate.of(ranks[own] - ranks[i], drawn[:, own] - drawn[:, i]).low > 0
        ]
        return sorted(ahead, key=lambda m: float(ranks[at[m]]))

    def first_share(self, method: str, among: Sequence[str]) -> float:
        """In how many draws it has the best mean rank of these methods, alone or shared."""
        drawn = self.drawn_mean_ranks[:, [self.methods.index(m) for m in among]]
        with np.errstate(invalid="ignore"):
            best = np.where(np.isfinite(drawn), drawn, np.inf).min(1)
            return float(np.mean(drawn[:, list(among).index(method)] <= best))


def standings(
    rows: pd.DataFrame,
    resamples: int = RESAMPLES,
    seed: int = 0,
    again: AggregateDraws | None = None,
) -> list[Standings]:
    """One a model, in the order of the rows; `again` as in `summarize`."""
    found = []
    for model, group in rows.groupby("model", sort=False):
        methods = list(dict.fromkeys(group["method"]))
        keys, means, drawn = [], [], []
        for key, part in group.groupby(["protocol", "setting", "baseline"], sort=False):
            table = part.pivot(index="sample", columns="method", values="value").reindex(
                columns=methods
            )
            keys.append(key)
            means.append(table.mean().to_numpy())
            drawn.append(bootstrap_means(table.to_numpy(), resamples, seed))
            put_in(drawn[-1], methods, (model, *key), again)
        higher = [PROTOCOLS[protocol].cls.higher_is_better for protocol, _, _ in keys]
        ranks = np.stack([rank(m, h) for m, h in zip(means, higher, strict=True)])
        drawn_ranks = np.stack([rank(d, h) for d, h in zip(drawn, higher, strict=True)])
        found.append(
            Standings(
                str(model), methods, keys, np.stack(means), ranks, np.stack(drawn), drawn_ranks
            )
        )
    return found


@dataclass(frozen=True)
class Agreement:
    """How far rankings of the same methods agree."""

    methods: list[str]
    pairs: dict[tuple[int, int], Estimate]  # Spearman correlation of which two rankings
    mean: Estimate
    least: Estimate
    least_pair: tuple[int, int]
    spread: Estimate  # standard deviation of a method's rank from ranking to ranking, averaged over the methods
    flipped: Estimate  # share of (two methods, two rankings) that one ranking orders one way and the other the other way
    concordance: Estimate  # Kendall's W: 1 where all rankings are the same, 0 where nothing is left of them on average


def agreement(
    rankings: Sequence[tuple[Sequence[str], np.ndarray, np.ndarray]], leave_out: Sequence[str] = ()
) -> Agreement | None:
    """Of rankings given as (methods, ranks (M,), drawn ranks (R, M)); over the methods that all of them rank.

    None for fewer than two rankings or three methods: two methods can only agree or disagree.
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
    point = [_standardized(ranks[c]) for (_, ranks, _), c in zip(rankings, columns, strict=True)]
    drawn = [_standardized(draws[:, c]) for (_, _, draws), c in zip(rankings, columns, strict=True)]
    which = list(combinations(range(len(rankings)), 2))
    values = np.array([_product(point[a], point[b]) for a, b in which])
    draws = np.stack([_product(drawn[a], drawn[b]) for a, b in which])  # (pairs, R)
    known = draws[:, np.isfinite(draws).all(0)]
    told = np.stack(
        [ranks[c] for (_, ranks, _), c in zip(rankings, columns, strict=True)]
    )  # (rankings, M)
    told_draws = np.stack(
        [d[:, c] for (_, _, d), c in zip(rankings, columns, strict=True)], 1
    )  # (R, rankings, M)
    least = int(np.argmin(np.where(np.isfinite(values), values, np.inf)))
    return Agreement(
        common,
        {pair: Estimate.of(values[i], draws[i]) for i, pair in enumerate(which)},
        Estimate.of(values.mean(), known.mean(0)),
        Estimate.of(values[least], known.min(0)),
        which[least],
        *(
            Estimate.of(float(how(told)), how(told_draws))
            for how in (rank_spread, flipped_pairs, kendall_w)
        ),
    )


def rank_spread(ranks: np.ndarray) -> np.ndarray:  # (..., K rankings, M methods) -> (...,)
    """The standard deviation of a method's rank over the rankings, averaged over the methods."""
    return rankdata(ranks, axis=-1, nan_policy="propagate").std(-2).mean(-1)


def flipped_pairs(ranks: np.ndarray) -> np.ndarray:  # (..., K, M) -> (...,)
    """Of all pairs of methods and pairs of rankings, the share that the two rankings order in opposite ways. Ties are not flips."""
    rankings, methods = ranks.shape[-2:]
    above, below = np.triu_indices(methods, 1)
    ways = np.sign(ranks[..., above] - ranks[..., below])  # (..., K, pairs)
    up, down = (ways > 0).sum(-2), (ways < 0).sum(-2)
    return (up * down).mean(-1) / (rankings * (rankings - 1) / 2)


def kendall_w(ranks: np.ndarray) -> np.ndarray:  # (..., K, M) -> (...,)
    """Kendall's coefficient of concordance, corrected for ties; nan where every ranking is one tie."""
    rankings, methods = ranks.shape[-2:]
    average = rankdata(ranks, axis=-1, nan_policy="propagate")
    sums = average.sum(-2)
    apart = ((sums - sums.mean(-1, keepdims=True)) ** 2).sum(-1)
    ties = methods * (methods**2 - 1) - 12 * ((average - (methods + 1) / 2) ** 2).sum(
        -1
    )  # Σ(t³ − t) of every ranking
    most = rankings**2 * methods * (methods**2 - 1) - rankings * ties.sum(-1)
    return np.divide(12 * apart, most, out=np.full_like(apart, np.nan), where=most > 0)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:  # (..., M), (..., M) -> (...,)
    """Spearman's; nan where all values of one are equal, or one is missing."""
    return _product(_standardized(a), _standardized(b))


def _standardized(ranks: np.ndarray) -> np.ndarray:  # (..., M) -> same
    """Average ranks with mean 0 and norm 1; nan where all are equal, or one is missing."""
    again = rankdata(ranks, axis=-1, nan_policy="propagate")
    centred = again - again.mean(-1, keepdims=True)
    norm = np.sqrt((centred**2).sum(-1, keepdims=True))
    return np.divide(centred, norm, out=np.full_like(centred, np.nan), where=norm > 0)


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.clip((a * b).sum(-1), -1, 1)
