"""The rows of a run as the tables of its races."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from heatproof.analysis.intervals import GROUP, RankedLayers, range_of
from heatproof.analysis.pair_sequences import Table
from heatproof.analysis.race import Race, hold_race
from heatproof.analysis.rank_intervals import ranked_together
from heatproof.analysis.settings import Key, Limits, signed
from heatproof.analysis.tables import groups, positions
from heatproof.plan.question import Question
from heatproof.protocols import PROTOCOLS

if TYPE_CHECKING:
    from heatproof.analysis.run_statistics import RunStatistics


def held_races(run: RunStatistics, question: Question, ends: Sequence[int]) -> dict[str, Race]:
    """Return the race of each model, as far as it was looked at.

    Args:
        run: The run.
        question: What is to be decided.
        ends: After how many images the scores were looked at.
    """
    return {
        model: hold_race(methods, tables, question, run.controls(methods), ends)
        for model, (methods, tables) in tables_of(
            run.rows, run.limits, run.ranked_layers, ends[-1] if ends else 0
        ).items()
        if tables
    }


def tables_of(
    rows: pd.DataFrame,
    limits: Mapping[Key, Limits] | None = None,
    layers: RankedLayers | None = None,
    images: int | None = None,
) -> dict[str, tuple[list[str], list[Table]]]:
    """Arrange the rows of a run for races: the methods of each model, and a table per setting.

    Args:
        rows: The scores of a run, in the order in which they were evaluated.
        limits: Lowest and highest possible scores of settings; by default those of the protocol.
        layers: The layer within which each method is ranked (see `ranks.ranked_layers`).
        images: How many images, or grids, are looked at; by default all.
    """
    found: dict[str, tuple[list[str], list[Table]]] = {}
    for (model,), of_model in groups(rows, ["model"]):
        methods = [str(method) for method in of_model["method"].unique()]
        together = ranked_together([(layers or {}).get((model, m), "") for m in methods])
        tables = []
        for (protocol, setting, baseline), part in groups(of_model, GROUP[1:]):
            entry = PROTOCOLS[protocol].cls
            if not entry.ranked:
                continue
            key = (protocol, setting, baseline)
            bounds = (limits or {}).get(key, range_of(protocol))
            sign = 1 if entry.higher_is_better else -1
            samples, names = pd.factorize(part["sample"])
            values = np.full((len(names), len(methods)), np.nan)
            values[samples, positions(part["method"], methods)] = sign * part["value"].to_numpy()
            clusters = samples
            if "cluster" in part:
                clusters = pd.factorize(part["cluster"])[0]
            of_sample = np.zeros(len(names), dtype=np.intp)
            of_sample[samples] = clusters
            seen = slice(None) if images is None else of_sample < images
            tables.append(Table(key, values[seen], of_sample[seen], signed(bounds, sign), together))
        found[model] = (methods, tables)
    return found
