"""Evidence of a run about its methods: the facts that every sentence about them is made of.

Under one setting, all pairs of ranked methods are one family of tests (`significance`). A method is
*ahead* of another if the family says so; the methods that none is ahead of may be the best, and one
that is alone among them wins. Over several settings, methods are compared by mean rank. What the
tests say about the order under each setting, at a level that is divided by the number of settings,
bounds how far two mean ranks can be apart: who may be the best, and the intervals of mean ranks,
follow from these bounds, so that nothing is claimed that another order, which the data allow, would
contradict. `wording` turns these facts into sentences; nothing else does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from heatproof.analysis.families import LEVEL
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Standings
from heatproof.analysis.settings import Key, SettingScores
from heatproof.analysis.significance import first_fractions
from heatproof.protocols import PROTOCOLS


@dataclass(frozen=True)
class NotRanked:
    """A method without a rank under a setting.

    Attributes:
        method: The method.
        key: The setting.
        scored: How many images it has a score for.
        usual: How many most methods have a score for.
    """

    method: str
    key: Key
    scored: int
    usual: int

    @property
    def failed(self) -> bool:
        """Whether it has some scores, but too few to be ranked."""
        return self.scored > 0


class Evidence:
    """Evidence of the scores of one model about its methods, or about those at one layer.

    Args:
        standing: Scores and ranks of the model.
        controls: Methods that never look at the model; they are ranked and cannot win.
        passes: Passes for one map of each method; None where they are not known.
    """

    def __init__(
        self,
        standing: Standings,
        controls: Collection[str] = (),
        passes: Mapping[str, int | None] | None = None,
    ):
        self.standing = standing
        self.controls = frozenset(controls)
        self.passes = passes or {}

    @property
    def model(self) -> str:
        return self.standing.model

    @property
    def layer(self) -> str:
        return self.standing.layer

    @cached_property
    def used(self) -> list[SettingScores]:
        """The scores under the settings that apply."""
        both = zip(self.standing.scores, self.standing.weights, strict=True)
        return [scores for scores, weight in both if weight]

    @property
    def unused(self) -> list[Key]:
        """The settings that rank too few methods to count in a mean rank."""
        both = zip(self.standing.settings, self.standing.weights, strict=True)
        return [key for key, weight in both if not weight and PROTOCOLS[key[0]].cls.ranked]

    def under(self, settings: Sequence[int]) -> Evidence:
        """Return the evidence under some of the settings, by their indices."""
        return Evidence(self.standing.under(settings), self.controls, self.passes)

    @cached_property
    def ranked(self) -> list[str]:
        """The methods that are ranked under every setting that applies, best first."""
        return self.standing.order

    @cached_property
    def real(self) -> list[str]:
        """The ranked methods that are no controls, best first."""
        return [m for m in self.ranked if m not in self.controls]

    @cached_property
    def ranked_controls(self) -> list[str]:
        """The ranked controls, best first."""
        return [m for m in self.ranked if m in self.controls]

    @cached_property
    def not_ranked(self) -> list[NotRanked]:
        """The methods without a rank, by setting."""
        return [
            NotRanked(
                method,
                (scores.key[1], scores.key[2], scores.key[3]),
                int(np.isfinite(scores.table.values[:, i]).sum()),
                int(scores.usual.sum()),
            )
            for scores in self.standing.scores
            if PROTOCOLS[scores.key[1]].cls.ranked
            for i, method in enumerate(scores.methods)
            if not scores.ranked[i]
        ]

    def place(self, method: str) -> int:
        """Return the place of a ranked method by mean rank; equal ones share the first."""
        return 1 + int((self._mean_rank_of(self.ranked) < self._mean_rank_of([method])).sum())

    def _mean_rank_of(self, methods: Sequence[str]) -> np.ndarray:
        columns = [self.standing.methods.index(m) for m in methods]
        return self.standing.mean_ranks[columns]

    def mean_rank(self, method: str) -> Estimate:
        """Estimate the mean rank of a method; the intervals of all methods hold together."""
        value = float(self.standing.mean_ranks[self.standing.methods.index(method)])
        if method not in self.ranked:
            return Estimate(value, math.nan, math.nan)
        i = self.ranked.index(method)
        low = high = 0.0
        for weight, ahead, fewer in zip(self._weights, self._ahead, self._unshown, strict=True):
            low += weight * (1 + ahead[:, i].sum())
            high += weight * (len(self.ranked) + fewer - ahead[i].sum())
        return Estimate(value, min(low, value), max(high, value))

    @cached_property
    def _weights(self) -> list[float]:
        weights = self.standing.weights[self.standing.weights > 0]
        return list(weights / weights.sum())

    @property
    def _level(self) -> float:
        return LEVEL / max(1, len(self.used))

    @cached_property
    def _ahead(self) -> list[np.ndarray]:
        """Leads of ranked methods (rows) over others, under each setting that applies."""
        relations = []
        for scores in self.used:
            columns = [scores.pairs.methods.index(m) for m in self.ranked]
            relations.append(scores.pairs.ahead_at(self._level)[np.ix_(columns, columns)])
        return relations

    @cached_property
    def _unshown(self) -> list[int]:
        """Number of methods that each setting ranks, but not all settings do."""
        return [len(scores.pairs.methods) - len(self.ranked) for scores in self.used]

    @cached_property
    def _least_gaps(self) -> np.ndarray:  # (M, M)
        """By how many ranks the column is behind the row at least, in any possible order."""
        return least_gaps(self._weights, self._ahead, self._unshown, len(self.ranked))

    def surely_better(self, method: str, other: str) -> bool:
        """Return whether a method is ahead by mean rank, in any order that is possible."""
        i, j = self.ranked.index(method), self.ranked.index(other)
        return bool(self._least_gaps[i, j] > 0)

    @cached_property
    def possible_winners(self) -> list[str]:
        """The methods, controls aside, that may be the best; the one that is named comes first."""
        return self._possible(self.real)

    def _possible(self, among: Sequence[str]) -> list[str]:
        chosen = [self.ranked.index(m) for m in among]
        gaps = self._least_gaps[np.ix_(chosen, chosen)]
        possible = [m for k, m in enumerate(among) if not (gaps[:, k] > 0).any()]
        return sorted(possible, key=lambda m: self._order_of_names(m, ()))

    def _order_of_names(
        self, method: str, without: Collection[str]
    ) -> tuple[float, int, float, int]:
        """Order methods by the mean rank that they are sure of, by missing scores, then by passes.

        Methods with missing scores have the ranks that they would have if these were the worst.
        """
        rank = 0.0
        missing = 0
        for weight, scores in zip(self._weights, self.used, strict=True):
            pairs = scores.pairs
            own = pairs.floors[pairs.methods.index(method)]
            others = [i for i, m in enumerate(pairs.methods) if m != method and m not in without]
            rank += weight * (1 + int((pairs.floors[others] > own + scores.tolerance).sum()))
            missing += int(scores.missing[scores.methods.index(method)])
        passes = self.passes.get(method)
        place = self.ranked.index(method)
        return round(rank, 9), missing, math.inf if passes is None else passes, place

    @property
    def leader(self) -> str:
        """The method that is named first; empty if none is ranked."""
        return self.possible_winners[0] if self.possible_winners else ""

    @property
    def winner(self) -> str:
        """The only method that may be the best; empty if there are several, or no other."""
        alone = len(self.possible_winners) == 1 and len(self.real) > 1
        return self.leader if alone else ""

    @property
    def others(self) -> list[str]:
        """The methods besides the leader that may be the best, by mean rank."""
        return [m for m in self.real if m in self.possible_winners and m != self.leader]

    @cached_property
    def cheapest(self) -> str:
        """The cheapest of the possible winners, if it needs fewer passes than the leader."""
        known = {m: n for m in self.possible_winners if (n := self.passes.get(m)) is not None}
        if self.leader not in known:
            return ""
        best = min(known, key=lambda m: known[m])
        return best if known[best] < known[self.leader] else ""

    @cached_property
    def decisive(self) -> list[str]:
        """The other methods without any one of which another method would be named first."""
        if len(self.used) < 2 or len(self.real) < 2:
            return []
        found = []
        for left_out in self.ranked:
            if left_out == self.leader:
                continue
            rest = [m for m in self.real if m != left_out]
            first = min(rest, key=lambda m: self._order_of_names(m, (left_out,)))
            if first != self.leader:
                found.append(left_out)
        return found

    @cached_property
    def undivided(self) -> list[Key]:
        """The settings under which no two methods differ, if others that do count as much."""
        keys = [(s.key[1], s.key[2], s.key[3]) for s in self.used if not s.pairs.ahead.any()]
        return keys if 0 < len(keys) < len(self.used) else []

    @cached_property
    def fragile(self) -> list[str]:
        """Methods with a lead that would not stand if their missing scores were the worst."""
        names = [
            m for s in self.used for m, f in zip(s.pairs.methods, s.pairs.fragile, strict=True) if f
        ]
        return list(dict.fromkeys(names))

    def first_fraction(self, method: str) -> float:
        """Return how often a method has the best mean rank in bootstrap draws; ties are split.

        It is among the methods that are no controls; nan if methods were dropped on the way.
        """
        if any(scores.raced is not None for scores in self.used):
            return math.nan
        columns = [self.standing.methods.index(m) for m in self.real]
        fractions = first_fractions(-self.standing.drawn_mean_ranks[:, columns])
        return float(fractions[self.real.index(method)])

    @cached_property
    def elsewhere(self) -> list[tuple[Key, str]]:
        """The settings under which another method is ahead of the leader, and the best of those."""
        found = []
        for scores in self.used:
            pairs = scores.pairs
            relation = pairs.ahead_at(self._level)[:, pairs.methods.index(self.leader)]
            better = [m for m, is_ahead in zip(pairs.methods, relation, strict=True) if is_ahead]
            better = [m for m in better if m not in self.controls]
            if better:
                found.append(((scores.key[1], scores.key[2], scores.key[3]), better[0]))
        return found


def least_gaps(
    weights: Sequence[float],
    relations: Sequence[np.ndarray],
    unshown: Sequence[int],
    count: int,
) -> np.ndarray:  # (M, M)
    """Return by how many mean ranks the column is behind the row at least, in any possible order.

    Args:
        weights: The weight of each setting in a mean rank; their sum is 1.
        relations: Which methods are ahead of which under each setting, ``(M, M)``.
        unshown: How many more methods each setting ranks.
        count: The number of methods.
    """
    total = np.zeros((count, count))
    for weight, ahead, fewer in zip(weights, relations, unshown, strict=True):
        relation = ahead.astype(float)
        surely_between = relation @ relation
        # k may be below j and above i, unless k is ahead of j or i is ahead of k
        maybe = 1 - relation
        np.fill_diagonal(maybe, 0)
        most = 1 + maybe @ maybe + fewer
        total += weight * np.where(ahead, 1 + surely_between, -most)
    np.fill_diagonal(total, 0)
    return total
