"""Evaluate in growing rounds: which tasks of a plan are computed, given what was dropped before.

After each round the scores are read, races are held (`race`), and the next round lacks what they
dropped. Everything follows from the rows and the question, so that a run that is resumed, computed
by other workers or with another batch size drops the same; what was dropped when, and the numbers
that decided it, are in ``race.json``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from heatproof.analysis.race import Contest, Drop, Race
from heatproof.analysis.race_tables import held_races
from heatproof.analysis.ranks import CONTROL
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.analysis.settings import Key
from heatproof.data.tiles import image_of
from heatproof.errors import HeatproofError, join_limited, unknown
from heatproof.plan.question import Question
from heatproof.plan.tasks import Plan, Record, Task
from heatproof.runs.race_file import RaceFile, RecordedContest, RecordedDrop, RecordedRace
from heatproof.runs.store import Store


def rounds_of(plan: Plan) -> Callable[[Store], Iterator[Plan]] | None:
    """Return what divides a plan into rounds; None if it has a fixed number of images.

    Raises:
        HeatproofError: If there is nothing to decide, or not by this plan.
    """
    if plan.question is None:
        return None
    _check(plan, plan.question)
    return lambda store: _rounds(plan, store)


def _rounds(plan: Plan, store: Store) -> Iterator[Plan]:
    """Yield what is to be computed up to the end of each round; it must be, before the next."""
    question = plan.question
    assert question is not None
    most = max(len(task.data.ids) for task in plan.tasks)
    races: dict[str, Race] = {}
    chosen: dict[str, Task] = {}
    ends: list[int] = []
    before = 0
    for end in question.rounds(most):
        new = {
            task.name: narrowed
            for task in plan.tasks
            if before <= task.indices.start < end
            and (narrowed := _narrowed(task, question, races.get(task.model_name))) is not None
        }
        if not new:
            break
        chosen |= new
        yield replace(plan, tasks=tuple(chosen[t.name] for t in plan.tasks if t.name in chosen))
        ends.append(end)
        races = held_races(RunStatistics(store), question, ends)
        store.write_race(_recorded(question, ends, most, races))
        before = end


def _narrowed(task: Task, question: Question, race: Race | None) -> Task | None:
    """Return a task with the methods that are still evaluated; None if there are none."""
    if race is None:
        if not question.pair:
            return task

        def wanted(record: Record) -> bool:
            named = (*question.pair, *question.keep)
            return record.expression.label in named or _is_control(record)

    else:
        active = {s.key: set(race.active(i)) for i, s in enumerate(race.sequences)}
        anywhere = set().union(*active.values())

        def wanted(record: Record) -> bool:
            return record.expression.label in active.get(key_of(record), anywhere)

    records = task.records.where(wanted)
    return replace(task, records=records) if len(records) else None


def key_of(record: Record) -> Key:
    """Return the setting of a record: protocol, setting and baseline."""
    protocol = record.protocol
    return protocol.id, protocol.setting, protocol.baseline_name


def _is_control(record: Record) -> bool:
    return record.expression.entry.family == CONTROL


def _check(plan: Plan, question: Question) -> None:
    """Check that a plan can be decided round by round.

    Raises:
        HeatproofError: If it cannot; the message says why.
    """
    records = [record for task in plan.tasks for record in task.applicable]
    ranked = {r.protocol.id: r.protocol for r in records if type(r.protocol).ranked}
    if not ranked:
        raise HeatproofError(
            "decide: none of the protocols ranks methods, so there is nothing to decide; add one "
            "that does, such as sds"
        )
    data = {task.data.name: task.data.ids for task in plan.tasks}
    tiled = [name for name, ids in data.items() if any(image_of(i) != i for i in ids)]
    if tiled:
        raise HeatproofError(
            f"decide: {tiled[0]} has tiles, and those of an image depend on each other, which a "
            "look after every round does not allow for; run it without decide"
        )
    whole = [name for name, protocol in ranked.items() if protocol.aggregates]
    if whole:
        raise HeatproofError(
            f"decide: {join_limited(whole)} computes a score from all images together, so it "
            "cannot be looked at round by round; leave it out, or run it without decide"
        )
    labels = list(dict.fromkeys(record.expression.label for record in records))
    for name in (*question.pair, *question.keep):
        if name not in labels:
            raise unknown("method", name, labels, "(in decide)")
    controls = {record.expression.label for record in records if _is_control(record)}
    real = [label for label in labels if label not in controls]
    if len(real) < 2 and not question.pair:
        raise HeatproofError(
            f"decide: there is nothing to decide, with {real[0] if real else 'no method'} alone"
            f"{' beside controls' if controls else ''}; add methods, or run without decide"
        )


def _recorded(
    question: Question, ends: list[int], most: int, races: Mapping[str, Race]
) -> RaceFile:
    """Return what is stored of races."""
    return RaceFile(
        question=question.model_dump(mode="json"),
        ends=tuple(ends),
        most=most,
        races=tuple(
            RecordedRace(
                model=model,
                contests=tuple(_recorded_contest(race, contest) for contest in race.contests),
            )
            for model, race in races.items()
        ),
    )


def _recorded_contest(race: Race, contest: Contest) -> RecordedContest:
    return RecordedContest(
        settings=tuple(race.sequences[s].key for s in contest.settings),
        images=contest.images,
        ended=contest.ended,
        left=tuple((images, tuple(left)) for images, left in contest.left),
        drops=tuple(_recorded_drop(race, drop) for drop in contest.drops),
    )


def _recorded_drop(race: Race, drop: Drop) -> RecordedDrop:
    return RecordedDrop(
        method=drop.method,
        images=drop.images,
        reason=drop.reason,
        behind=drop.behind,
        setting=None if drop.setting is None else race.sequences[drop.setting].key,
        gap=_finite(drop.gap),
        least=_finite(drop.least),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
