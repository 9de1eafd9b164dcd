"""The networks of a run as a sample: what they say about another one of the same kind."""

from __future__ import annotations

from dataclasses import dataclass

from heatproof.analysis import wording
from heatproof.analysis.networks import OverNetworks, over_networks
from heatproof.analysis.run_statistics import RunStatistics


@dataclass(frozen=True)
class OfKind:
    """Mean scores over networks."""

    text: str  # which method may be the best
    explained: str
    tables: dict[str, list[OverNetworks]]  # by label of the setting, best mean first


def content(run: RunStatistics) -> OfKind | None:
    """Average over networks; None if no method is ranked on five or more."""
    tables: dict[str, list[OverNetworks]] = {}
    for found in over_networks(run.settings):
        tables.setdefault(run.setting_labels[found.key], []).append(found)
    if not tables:
        return None
    for lines in tables.values():
        lower = not run.protocols[lines[0].key].higher_is_better
        lines.sort(key=lambda found: found.mean.value if lower else -found.mean.value)
    text = wording.of_networks(run.evidence_of_networks)
    return OfKind(text, wording.NETWORKS_EXPLAINED, tables)
