"""The evidence about methods by its kind, and where kinds contradict each other.

Kinds of evidence answer different questions, so that there is no score over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from heatproof.analysis.evidence import Evidence
from heatproof.protocols import PROTOCOLS
from heatproof.protocols.base import KINDS, Kind

MOST_EXAMPLES = 3


@dataclass(frozen=True)
class KindEvidence:
    """Evidence of the settings of one kind.

    Attributes:
        kind: The kind.
        protocols: The ids of the protocols.
        evidence: The evidence under the settings that rank methods.
    """

    kind: Kind
    protocols: tuple[str, ...]
    evidence: Evidence


@dataclass(frozen=True)
class Conflict:
    """Two kinds that order methods in opposite ways.

    Attributes:
        kinds: The two kinds.
        count: The number of pairs of methods that they order in opposite ways.
        examples: Some of the pairs: the first is ahead under the first kind, and behind under the
            second.
    """

    kinds: tuple[Kind, Kind]
    count: int
    examples: tuple[tuple[str, str], ...]


def kind_of(protocol: str) -> Kind:
    """Return the kind of evidence that a protocol gives."""
    return PROTOCOLS[protocol].cls.kind


def by_kind(evidence: Evidence) -> list[KindEvidence]:
    """Return the evidence of each kind under which at least two methods are ranked."""
    settings = evidence.standing.settings
    found = []
    for kind in KINDS:
        chosen = [s for s, key in enumerate(settings) if kind_of(key[0]) == kind]
        part = evidence.under(chosen) if chosen else None
        if part is not None and len(part.used) and len(part.ranked) > 1:
            protocols = tuple(dict.fromkeys(settings[s][0] for s in chosen))
            found.append(KindEvidence(kind, protocols, part))
    return found


def conflicts(kinds: Sequence[KindEvidence]) -> list[Conflict]:
    """Return the kinds that order methods in opposite ways, most pairs first.

    A pair counts if one method is ahead in any order that is possible under the first kind, and
    behind in any that is possible under the second. Methods that may be the best come first.
    """
    found = []
    for one, other in combinations(kinds, 2):
        both = [m for m in one.evidence.ranked if m in other.evidence.ranked]
        pairs = [
            (a, b)
            for a in both
            for b in both
            if a != b and one.evidence.surely_better(a, b) and other.evidence.surely_better(b, a)
        ]
        if pairs:
            pairs.sort(key=lambda pair: sum(m in one.evidence.controls for m in pair))
            kept = tuple(pairs[:MOST_EXAMPLES])
            found.append(Conflict((one.kind, other.kind), len(pairs), kept))
    return sorted(found, key=lambda conflict: -conflict.count)
