"""Scores that are missing and why, and the samples on which the best methods do worst."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures import pictures
from heatproof.methods.notes import kind_of
from heatproof.report.sections.base import section
from heatproof.report.sections.common import mean_scores
from heatproof.report.site import Site
from heatproof.runs.run import Kept

KINDS = {
    "failed": "The method or the protocol raised an error; the others continued.",
    "missing": "There is no saved map for the sample and the class that is explained.",
    "undefined": "There is a map, but its score is not defined; it is left out of the mean.",
    "skipped": "The image could not be used.",
    "n/a": "The method does not apply to this model or data; this is not a failure.",
}
BEST_METHODS = 3
WORST_SAMPLES = 6


@dataclass(frozen=True)
class Group:
    """All missing scores with the same message."""

    message: str
    count: int
    methods: list[str]
    models: list[str]
    settings: int
    samples: list[str]


@dataclass(frozen=True)
class Kind:
    """A status, what it means, and the scores that have it."""

    status: str
    meaning: str
    groups: list[Group]


@dataclass(frozen=True)
class NoteGroup:
    """All maps of a method with the same kind of note."""

    kind: str
    method: str
    family: str
    models: list[str]
    count: int
    example: str
    sample: str  # of the example


@dataclass(frozen=True)
class WorstSample:
    """A sample; its photo is None if it was not kept."""

    id: str
    value: float
    photo: str | None


@dataclass(frozen=True)
class WorstOfMethod:
    """The samples on which a method does worst."""

    name: str
    family: str
    samples: list[WorstSample]


@dataclass(frozen=True)
class Worst:
    """The worst samples of the best methods on a model."""

    model: str
    methods: list[WorstOfMethod]
    unseen: int  # samples whose images were not kept


@dataclass(frozen=True)
class Content:
    """The content of the template."""

    kinds: list[Kind]
    notes: list[NoteGroup]
    worst: list[Worst]
    total: int
    protocol: str
    damage: list[tuple[str, str]]  # file and problem


@section(
    "failures",
    short="Failures",
    question="What failed, and where do the best methods do worst?",
    order=110,
)
def content(run: RunStatistics, site: Site) -> Content:
    """Return missing scores by status and message, and the worst samples of each model."""
    protocol = _first_protocol(run)
    worst_by_model = [_worst(run, site, s.model, s.order, protocol) for s in run.standings]
    return Content(
        kinds=[
            Kind(status, meaning, _groups(run.rows[run.rows["status"] == status]))
            for status, meaning in KINDS.items()
        ],
        notes=_notes(run),
        worst=[worst for worst in worst_by_model if worst is not None],
        total=len(run.rows),
        protocol=protocol,
        damage=[
            (path.relative_to(run.store.root).as_posix(), problem)
            for path, problem in run.store.damage.items()
        ],
    )


def _groups(rows: pd.DataFrame) -> list[Group]:
    """Group scores by message, largest group first."""
    groups = []
    for message, part in rows.groupby("message", sort=False, dropna=False):
        groups.append(
            Group(
                message=str(message),
                count=len(part),
                methods=list(dict.fromkeys(part["method"])),
                models=list(dict.fromkeys(part["model"])),
                settings=len(part[["protocol", "setting", "baseline"]].drop_duplicates()),
                samples=list(dict.fromkeys(part["sample"])),
            )
        )
    return sorted(groups, key=lambda group: -group.count)


def _notes(run: RunStatistics) -> list[NoteGroup]:
    """Group what methods say about their maps, by method and kind of note."""
    rows = run.rows[run.rows["note"] != ""]
    maps = rows.drop_duplicates(["model", "method", "sample", "target"])
    groups = []
    for (method, kind), part in maps.groupby(["method", maps["note"].map(kind_of)], sort=False):
        first = part.iloc[0]
        groups.append(
            NoteGroup(
                kind=kind,
                method=method,
                family=run.family(method),
                models=list(dict.fromkeys(part["model"])),
                count=len(part),
                example=first["note"],
                sample=first["sample"],
            )
        )
    return groups


def _first_protocol(run: RunStatistics) -> str:
    """Return the first protocol: the scores of two cannot be mixed."""
    return next(iter(run.protocols))[0] if run.protocols else ""


def _worst(
    run: RunStatistics, site: Site, model: str, order: list[str], protocol: str
) -> Worst | None:
    """Return the worst samples of the best methods; None if there are only controls."""
    best = [m for m in order if not run.is_control(m)][:BEST_METHODS]
    if not best:
        return None
    columns = run.rows[["method", "protocol", "sample", "value"]]
    rows = columns[(run.rows["model"] == model) & (run.rows["protocol"] == protocol)]
    views = run.views(model).items()
    view = next((v for v, keys in views if any(key[0] == protocol for key in keys)), None)
    kept = run.kept(model, view)
    methods = []
    for method in best:
        scores = mean_scores(rows, [method])[::-1].head(WORST_SAMPLES)
        samples = [
            WorstSample(str(sample), float(value), _photo(site, kept, str(sample)))
            for sample, value in scores.items()
        ]
        methods.append(WorstOfMethod(method, run.family(method), samples))
    return Worst(model, methods, kept.total - len(kept.with_images))


def _photo(site: Site, kept: Kept, sample: str) -> str | None:
    if sample not in kept.with_images:
        return None
    return site.picture(pictures.photo(kept.image(sample)))
