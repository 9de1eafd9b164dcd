"""How many images, maps and passes a race will take, by the scores of a pilot.

Data sets of the size of the spec are drawn from the pilot's images, and races are held over them. A
pilot is a sample itself: it is drawn anew before each of them, so that the range has both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heatproof.analysis.pair_sequences import Table
from heatproof.analysis.race import Race, hold_race
from heatproof.analysis.race_lanes import maps_of
from heatproof.analysis.race_tables import tables_of
from heatproof.analysis.rounds import key_of
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.analysis.settings import Key
from heatproof.errors import HeatproofError, join_limited
from heatproof.plan.cost import plan_passes
from heatproof.plan.question import Question
from heatproof.plan.tasks import Plan, Record
from heatproof.tensor.noise import generator

DRAWS = 20
RANGE = (0.1, 0.5, 0.9)  # ends and middle of what is told


@dataclass(frozen=True)
class RaceForecast:
    """What races over data sets like a pilot take; each as low, middle and high.

    Attributes:
        pilot: Images of the pilot.
        decided: In which fraction of them every race is decided.
        images: Images that are evaluated.
        of_images: How many there are.
        maps: Maps that are computed.
        of_maps: How many there are.
        passes: Forward and backward passes.
        of_passes: How many a fixed number of images takes.
    """

    pilot: int
    decided: float
    images: tuple[float, float, float]
    of_images: int
    maps: tuple[float, float, float]
    of_maps: int
    passes: tuple[float, float, float]
    of_passes: int


def forecast_race(plan: Plan, question: Question, pilot: RunStatistics) -> RaceForecast:
    """Forecast the race of a plan.

    Args:
        plan: The plan.
        question: What is to be decided.
        pilot: A run of the same methods and protocols on few images.

    Raises:
        HeatproofError: If the pilot lacks models, methods or protocols of the plan.
    """
    found = tables_of(pilot.rows, pilot.limits, pilot.ranked_layers)
    tables = {model: _wanted(plan, model, *found.get(model, ([], []))) for model in _models(plan)}
    images = max(len(task.data.ids) for task in plan.tasks)
    most = min(images, question.at_most or images)
    rows = []
    for number in range(DRAWS):
        races = {}
        for model, (methods, of_model) in tables.items():
            rng = generator(plan.seed, f"forecast {model}", str(number))
            drawn = _drawn(of_model, most, rng)
            races[model] = hold_race(methods, drawn, question, pilot.controls(methods))
        rows.append(
            (
                all(race.ended for race in races.values()),
                max(race.images for race in races.values()),
                sum(maps_of(race) for race in races.values()),
                _passes(_raced(plan, races)),
            )
        )
    columns = np.array(rows, dtype=float).T
    ranges = [tuple(np.quantile(column, RANGE).tolist()) for column in columns[1:]]
    return RaceForecast(
        max(len(np.unique(t.clusters)) for _, of_model in tables.values() for t in of_model),
        float(columns[0].mean()),
        ranges[0],
        most,
        ranges[1],
        most * sum(len(methods) for methods, _ in tables.values()),
        ranges[2],
        _passes(plan),
    )


def _models(plan: Plan) -> list[str]:
    return list(dict.fromkeys(task.model_name for task in plan.tasks))


def _wanted(
    plan: Plan, model: str, methods: Sequence[str], tables: Sequence[Table]
) -> tuple[list[str], list[Table]]:
    """Return what a pilot has of the methods and settings of a plan.

    Raises:
        HeatproofError: If it lacks some.
    """
    records = [r for t in plan.tasks if t.model_name == model for r in t.applicable]
    labels = list(dict.fromkeys(r.expression.label for r in records))
    keys = {key_of(r) for r in records if type(r.protocol).ranked}
    lacking = [label for label in labels if label not in methods]
    lacking += [" ".join(filter(None, key)) for key in keys - {table.key for table in tables}]
    if lacking:
        raise HeatproofError(
            f"the pilot has no {join_limited(lacking)} of {model}; run the spec on few images, "
            "such as with --limit 32 -o runs/pilot, and name it by --pilot"
        )
    columns = [methods.index(label) for label in labels]
    chosen = [
        Table(
            table.key,
            table.values[:, columns],
            table.clusters,
            table.limits,
            None if table.together is None else table.together[np.ix_(columns, columns)],
        )
        for table in tables
        if table.key in keys
    ]
    return labels, chosen


def _drawn(tables: Sequence[Table], images: int, rng: np.random.Generator) -> list[Table]:
    """Draw images of a pilot, drawn anew; the same for all settings that have as many."""
    chosen: dict[int, np.ndarray] = {}
    found = []
    for table in tables:
        count = int(table.clusters.max()) + 1
        if count not in chosen:
            chosen[count] = rng.choice(rng.integers(count, size=count), images)
        members = [np.flatnonzero(table.clusters == k) for k in range(count)]
        rows = [members[k] for k in chosen[count]]
        clusters = np.repeat(np.arange(images), [len(r) for r in rows])
        values = table.values[np.concatenate(rows)]
        found.append(Table(table.key, values, clusters, table.limits, table.together))
    return found


def _raced(plan: Plan, races: Mapping[str, Race]) -> Plan:
    """Return the part of a plan that races take."""
    found = []
    for task in plan.tasks:
        race = races[task.model_name]
        seen = {s.key: race.evaluated(i) for i, s in enumerate(race.sequences)}
        longest = max(images for of_setting in seen.values() for images in of_setting.values())

        def taken(
            record: Record,
            start: int = task.indices.start,
            seen: Mapping[Key, Mapping[str, int]] = seen,
            longest: int = longest,
        ) -> bool:
            return start < seen.get(key_of(record), {}).get(record.expression.label, longest)

        records = task.records.where(taken)
        if len(records):
            found.append(replace(task, records=records))
    return replace(plan, tasks=tuple(found))


def _passes(plan: Plan) -> int:
    """Return the forward and backward passes of a plan."""
    return sum(sum(of_view.values()) for of_view in plan_passes(plan).values())
