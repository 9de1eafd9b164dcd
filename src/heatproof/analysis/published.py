"""A run beside the published numbers of a paper.

A number is *reproduced* if the interval of its difference from the published one lies within a
margin, `MARGIN` of the range of scores; it *differs* if that interval excludes zero and is not
within the margin; otherwise it is *undecided*, with the number of images that would decide. The
intervals of all numbers of a table hold together, and include the sampling error of the paper: that
of a mean over as many images as the paper had. Absence of evidence is no reproduction.

The two are *not comparable* where protocol, method, network or data are not the paper's, as far as
a run can tell: a network must have been opened under the paper's name with trained weights, or its
user says that it is the paper's (``Run.same_as``), and the data must not be another data set. They
are then shown side by side, with the rank correlation over the methods, and no verdict. A method
with other settings than the paper's is not shown.

A statistic over methods, such as the agreement of rankings under several baselines or a distance of
curves, is compared on any network of the same kind; an accuracy only on the network itself. The
coordinates of baselines (Picard et al., Fig. 4) are compared by their ranks alone, since the paper
measured distances to the evaluated images themselves and left out the last step.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from heatproof.analysis import paired_differences, wording
from heatproof.analysis.accuracy import proportion, readings
from heatproof.analysis.distinctness import Trio, least, trios
from heatproof.analysis.families import LEVEL
from heatproof.analysis.intervals import (
    RESAMPLES,
    Estimate,
    bootstrap_weights,
)
from heatproof.analysis.metric_curves import metric_curves
from heatproof.analysis.published_tables import (
    Entry,
    PublishedTable,
    network_name,
    published_tables,
)
from heatproof.analysis.ranks import (
    CONTROL,
    Key,
    Standings,
    agreement,
    average_ranks,
    rank_correlation,
)
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.errors import HeatproofError
from heatproof.methods import Expression, parse_methods
from heatproof.plan.spec import load_spec, parse_protocols
from heatproof.protocols import Protocol
from heatproof.runs.format import LOGITS, ProtocolFacts, SaidNetwork, TaskFacts, TensorKey
from heatproof.runs.run import Kept
from heatproof.tensor.filters import scaled_odd

NO_ESTIMATE = Estimate(math.nan, math.nan, math.nan)
MARGIN = 0.05  # of the range of a score, or of the published value if there is no range
EMBEDDED = ("paperbirds", "cifar10", "cifar100", "funnybirds")  # data sets that are known by name
CORRELATION = "correlation with "
AGREEMENT = "agreement over baselines"
LEAST_DISTANCE = "least distance"
COORDINATES = {  # of a baseline, and the curves that they are the means of
    "distance": "ood-raw",
    "half of the mean sigmoid": "mean-sigmoid",
}
OTHER_COORDINATES = (
    "coordinates of baselines are compared by their ranks: the paper has distances to the "
    "evaluated images themselves, and means without the last step"
)
OVER_METHODS = (AGREEMENT, LEAST_DISTANCE)  # statistics that a network of the same kind has too
FEWEST_FOR_RANKS = 4  # methods, and baselines
KERNEL = re.compile(r"smooth\((\d+), of=(\d+)\)")  # of maps of another size
FAMILIES = re.compile("bcos|bagnet|resnext|resnet|vgg|vit|googlenet")  # in names of models


@dataclass(frozen=True)
class Line:
    """A published number beside that of a run.

    Attributes:
        entry: The published number.
        model: The model of the run.
        found: The run's number; nan if it has none.
        images: How many images or maps it is a mean over; 0 if it is none.
        range: Lowest and highest possible value; None if there are none.
        reason: Why it is not comparable; empty if it is.
        difference: The run's number minus the published one, with an interval that holds for all
            comparable numbers of the table together.
        verdict: ``reproduced``, ``differs``, ``undecided`` or ``not comparable``.
        needed: How many images would decide it, if it is undecided; infinity if that is not known.
        said_by: How the run's user has said that the model is the paper's network; empty if that is
            not how it is known.
    """

    entry: Entry
    model: str
    found: Estimate
    images: int
    range: tuple[float, float] | None
    reason: str
    difference: Estimate = NO_ESTIMATE
    verdict: str = wording.NOT_COMPARABLE
    needed: float = math.inf
    said_by: str = ""

    @property
    def margin(self) -> float:
        """How far a reproduced number may be off."""
        if self.range is None:
            return MARGIN * abs(self.entry.value)
        return MARGIN * (self.range[1] - self.range[0])

    @property
    def shown_verdict(self) -> str:
        """The verdict, and by whom the network is known to be the paper's."""
        return wording.said_by(self.verdict, self.said_by)

    def judged(self, numbers: int, images: int) -> Line:
        """Decide whether the number is reproduced.

        Args:
            numbers: How many comparable numbers the table has.
            images: How many images the paper had.
        """
        value, low, high = self.found
        gap = value - self.entry.value
        difference = Estimate(gap, math.nan, math.nan)
        if self.reason:
            return replace(self, difference=difference)
        if not math.isfinite(low):
            return replace(self, difference=difference, verdict=wording.UNDECIDED)
        # for all numbers together, and with the error of the paper's own sample
        wider = _joint_quantile(numbers) * math.sqrt(1 + (self.images or images) / images)
        below = wider * (value - low) + self.entry.rounding
        above = wider * (high - value) + self.entry.rounding
        difference = Estimate(gap, gap - below, gap + above)
        inside = max(abs(difference.low), abs(difference.high)) <= self.margin
        outside = difference.low > 0 or difference.high < 0
        verdict = wording.UNDECIDED
        if inside or outside:
            verdict = wording.REPRODUCED if inside else wording.DIFFERS
        room = abs(self.margin - abs(gap)) - self.entry.rounding
        half = wider * max(value - low, high - value)
        needed = math.ceil(self.images * (half / room) ** 2) if room > 0 else math.inf
        return replace(self, difference=difference, verdict=verdict, needed=needed or math.inf)


@cache
def _joint_quantile(numbers: int) -> float:
    """Return by how much intervals are widened to hold together for several numbers."""
    from scipy.special import ndtri  # slow to import

    return float(ndtri(1 - LEVEL / (2 * max(1, numbers))) / ndtri(1 - LEVEL / 2))


class Correlation(NamedTuple):
    """The rank correlation of a run with print.

    Attributes:
        model: The model of the run.
        of: The protocol, or the quantity whose ranks are compared.
        over: What is ranked: ``method`` or ``baseline``.
        estimate: Spearman's correlation; it has an interval over methods.
        number: How many are ranked.
    """

    model: str
    of: str
    over: str
    estimate: Estimate
    number: int


@dataclass(frozen=True)
class Comparison:
    """A run beside a published table.

    Attributes:
        table: The published table.
        lines: The numbers that the run has too.
        correlations: The rank correlations of the run's methods, or baselines, with the published
            ones.
        missing: Why the run lacks the other numbers, and how many for each reason.
        same_as: What the user says of the models that are compared.
    """

    table: PublishedTable
    lines: list[Line]
    correlations: list[Correlation]
    missing: dict[str, int]
    same_as: list[SaidNetwork] = field(default_factory=list)

    def to_frame(self) -> pd.DataFrame:
        """Return one line per number: the published one, the run's, and the verdict."""
        return pd.DataFrame(
            [
                {
                    "row": line.entry.row,
                    "quantity": line.entry.quantity,
                    "model": line.model,
                    "protocol": line.entry.protocol,
                    "method": line.entry.method,
                    "published": line.entry.value,
                    "run": line.found.value,
                    "low": line.found.low,
                    "high": line.found.high,
                    "difference": line.difference.value,
                    "difference_low": line.difference.low,
                    "difference_high": line.difference.high,
                    "margin": line.margin,
                    "n": line.images,
                    "verdict": line.verdict,
                    "said_by": line.said_by,
                    "reason": line.reason,
                    "needed": line.needed if math.isfinite(line.needed) else math.nan,
                }
                for line in self.lines
            ]
        )


def compare_published(run: RunStatistics, table: PublishedTable) -> Comparison:
    """Set a run beside a published table.

    Args:
        run: The run.
        table: The published table.

    Raises:
        HeatproofError: If the run has none of its numbers.
    """
    found = _RunBesidePrint(run).compare(table)
    if not found.lines:
        raise HeatproofError(
            f"{run.store.name} has no number of {table.name}: {'; '.join(found.missing)}; "
            f"heatproof run {table.study} has them"
        )
    return found


def all_comparisons(run: RunStatistics) -> list[Comparison]:
    """Set a run beside every published table that it has numbers of.

    A single method under a protocol of another paper says nothing about its table: where the models
    are not the paper's, a table needs enough methods for a rank correlation, or a statistic over
    methods.

    Args:
        run: The run.
    """
    beside_print = _RunBesidePrint(run)
    found = (beside_print.compare(table) for table in published_tables().values())
    return [
        comparison
        for comparison in found
        if comparison.correlations
        or any(not line.reason or line.entry.quantity in OVER_METHODS for line in comparison.lines)
    ]


@cache
def _parsed(protocol: str) -> Protocol:
    """Return a protocol that published numbers name, which thousands of them may."""
    (parsed,) = parse_protocols([protocol])
    return parsed


class _Missing(Exception):
    """Why a run does not have a published number."""


class _RunBesidePrint:
    """The numbers of a run that papers have printed as well."""

    def __init__(self, run: RunStatistics):
        self.run = run
        self.same_as = run.same_as
        self._kept: dict[str, Kept] = {}
        self.store = run.store
        self.plan = run.plan
        self.rows = run.rows
        self.models = run.models

    def compare(self, table: PublishedTable) -> Comparison:
        """Set the run beside a published table, of which it may have no number."""
        lines: list[Line] = []
        missing: Counter[str] = Counter()
        for entry in table.entries:
            try:
                lines.append(self.line(entry))
            except _Missing as reason:
                missing[str(reason)] += 1
        comparable = sum(not line.reason for line in lines)
        judged = [line.judged(comparable, table.images) for line in lines]
        compared = dict.fromkeys(line.model for line in judged)
        said = [self.same_as[model] for model in compared if model in self.same_as]
        return Comparison(table, judged, self._correlations(judged), dict(missing), said)

    @cached_property
    def standings(self) -> dict[str, Standings]:
        """The standings of each model."""
        return {standing.model: standing for standing in self.run.standings}

    @cached_property
    def controls(self) -> list[str]:
        return [m for m, facts in self.plan.methods.items() if facts.family == CONTROL]

    def line(self, entry: Entry) -> Line:
        """Return a published number beside the run's; raises _Missing if it has no such number."""
        wanted = _parsed(entry.protocol)
        candidates = [p for p in self.plan.protocols if p.id == wanted.id]
        if not candidates:
            raise _Missing(f"it has no {wanted.id}")
        if entry.quantity in COORDINATES:
            candidates = [p for p in candidates if p.baseline == wanted.baseline_name]
        if not candidates:
            raise _Missing(f"it has {wanted.id} with other baselines")
        model = self._model(entry.model)
        if model is None:
            name = network_name(entry.paper, entry.model)
            raise _Missing(f"it has no model like {entry.model} (--as MODEL={name} says if it has)")
        of_the_model = not entry.method and entry.quantity not in OVER_METHODS
        if of_the_model and self._network(model) != entry.model:
            raise _Missing("an accuracy is compared on the paper's own networks alone")
        exact = [p for p in candidates if p.canonical == wanted.canonical]
        protocol = (exact or [_closest(candidates, wanted)])[0]
        method = self._method(entry.method, model) if entry.method else ""
        if method is None:
            raise _Missing("it has other methods, or methods with other settings")
        quantities = (f for name, f in QUANTITIES.items() if entry.quantity.startswith(name))
        found = next(quantities)(self, model, protocol, method, entry)
        if found is None:
            raise _Missing(_needs(entry))
        reasons = self._other_network(model, entry)
        if not exact:
            reasons.append(_other_protocol(protocol.canonical, wanted.canonical))
        if entry.quantity in COORDINATES:
            reasons.append(OTHER_COORDINATES)
        if entry.quantity == AGREEMENT:
            reasons += self._other_settings(protocol, entry.paper)
        if entry.quantity == LEAST_DISTANCE:
            reasons += self._other_trios(entry.paper)
        of_score = entry.quantity.startswith("score")
        limits = protocol.range if of_score else (0.0, 1.0)
        images = self._images(model, protocol.key, method)
        said = self.same_as.get(model)
        by = said.by if said and not reasons else ""
        return Line(entry, model, found, images, limits, "; ".join(reasons), said_by=by)

    def _network(self, model: str) -> str:
        """Return what network a model is, as its user says or by its name."""
        return self.same_as[model].network if model in self.same_as else model

    def _images(self, model: str, key: Key, method: str) -> int:
        """Return how many scores a mean is over."""
        summary = self.run.summary_frame
        same = (summary["model"] == model) & (summary["method"] == method)
        for column, value in zip(("protocol", "setting", "baseline"), key, strict=True):
            same &= summary[column] == value
        counts = summary.loc[same, "n"]
        return int(counts.iloc[0]) if len(counts) else self.run.counts.independent

    def _other_network(self, model: str, entry: Entry) -> list[str]:
        """Return why a model and its data may not be those of the paper."""
        wanted = entry.model
        reasons = []
        if self._network(model) != wanted:
            reasons.append(f"the model is {model}, not {wanted}")
        elif model not in self.same_as and not self._is_loaded(model):
            reasons.append(
                f"whether {model} has the paper's weights is not known; "
                f"--as {network_name(entry.paper, wanted)} says so"
            )
        data = str(self.run.provenance.spec.get("data", {}).get("name") or "")
        name = data.rpartition(":")[2] if data.startswith("watermark") else data.partition(":")[0]
        if name in EMBEDDED and not wanted.startswith((name, "cifar")):
            reasons.append(f"the images are of {name}")
        return reasons

    def _is_loaded(self, model: str) -> bool:
        """Return whether a spec opened a model by its name, with trained weights."""
        spec = self.run.provenance.spec
        if "version" not in spec:  # made of objects in Python, which may have any name
            return False
        for entry in spec.get("models", []):
            named = {"name": entry} if isinstance(entry, str) else dict(entry)
            if named.get("name") == model and named.get("as") in (None, model):
                return named.get("weights") != "random"
        return False

    def _other_settings(self, protocol: ProtocolFacts, paper: str) -> list[str]:
        """Return how baselines and methods differ from those of a paper's study."""
        spec = load_spec(f"{paper}/imagenet/stability")
        wanted = {p.baseline_name for p in spec.parsed_protocols() if p.id == protocol.id}
        found = {p.baseline for p in self.plan.protocols if p.key[:2] == protocol.key[:2]}
        reasons = []
        if found != wanted:
            reasons.append(f"there are {len(found)} baselines, not the {len(wanted)} of the paper")
        methods = {e.canonical for e in parse_methods([f"group:{paper}"])}
        own = {f.canonical for m, f in self.plan.methods.items() if m not in self.controls}
        if own != methods:
            reasons.append("the methods are not those of the paper")
        return reasons

    def _other_trios(self, paper: str) -> list[str]:
        """Return how the changed maps differ from those of a paper's study."""
        spec = load_spec(f"{paper}/imagenet/distinctness")
        wanted = {e.canonical for e in spec.expressions()}
        found = {self.plan.methods[m].canonical for trio in self.trios for m in trio.names}
        return [] if found == wanted else ["the changed maps are not those of the paper"]

    @cached_property
    def trios(self) -> list[Trio]:
        """The maps that exist unchanged, with attribution removed and introduced."""
        return trios(self.plan.methods)

    def _model(self, name: str) -> str | None:
        """Return the model of the run with a name, or else one of the same family."""
        said = [m for m, s in self.same_as.items() if s.network == name and m in self.models]
        if said or name in self.models:
            return said[0] if said else name
        family = _family(name)
        alike = [m for m in self.models if _family(m) == family]
        return alike[0] if alike else None

    def _method(self, text: str, model: str) -> str | None:
        """Return the label of a method with exactly these settings.

        A kernel for maps of another size is also found by its size in pixels of the model's maps.
        """
        wanted = {Expression.parse(text).canonical}
        kernel = KERNEL.search(text)
        if kernel:
            size, of = map(int, kernel.groups())
            scaled = scaled_odd(size, self._grid_height(model) / of)
            wanted.add(Expression.parse(text.replace(kernel[0], f"smooth({scaled})")).canonical)
        labels = (m for m, facts in self.plan.methods.items() if facts.canonical in wanted)
        return next(labels, None)

    def _grid_height(self, model: str) -> int:
        """Return the height in pixels of what a model is shown, a grid if there is one."""
        facts = self.run.provenance.models
        return max(f.height_and_width[0] for f in facts if f.model == model)

    def kept(self, model: str) -> Kept:
        """Return the stored tensors of a model."""
        if model not in self._kept:
            self._kept[model] = self.run.kept(model)
        return self._kept[model]

    def score(self, model: str, key: Key, method: str) -> Estimate | None:
        """Return the mean score of a method."""
        standing = self.standings.get(model)
        if standing is None or key not in standing.settings or method not in standing.methods:
            return None
        found = standing.score(standing.settings.index(key), method)
        return found if np.isfinite(found.value) else None

    def scores(self, model: str, key: Key) -> pd.DataFrame:
        """Return the scores of a model: samples down, methods across."""
        return paired_differences.table(self.rows, model, key)

    def tasks(self, model: str, protocol: ProtocolFacts) -> list[TaskFacts]:
        """Return the tasks in which a protocol evaluates a model."""
        return [
            t for t in self.plan.tasks if t.model == model and protocol.canonical in t.protocols
        ]

    def _correlations(self, lines: Sequence[Line]) -> list[Correlation]:
        """Return the rank correlations with print, over methods or over baselines."""
        groups: dict[tuple[str, str, str], list[Line]] = {}
        for line in lines:
            if line.entry.quantity in COORDINATES:
                key = line.model, line.entry.quantity, "baseline"
            elif line.entry.method and not line.entry.quantity.startswith(CORRELATION):
                key = line.model, line.entry.protocol, "method"
            else:
                continue
            groups.setdefault(key, []).append(line)
        found = []
        for (model, of, over), members in groups.items():
            if len(members) < FEWEST_FOR_RANKS:
                continue
            if over == "method":
                estimate = self._correlation(model, of, members)
            else:
                pairs = np.array([(line.found.value, line.entry.value) for line in members])
                value = _weighted_correlation(average_ranks(pairs.T).T, np.ones(len(pairs)))
                estimate = Estimate(value, math.nan, math.nan)
            found.append(Correlation(model, of, over, estimate, len(members)))
        return found

    def _correlation(self, model: str, protocol: str, lines: Sequence[Line]) -> Estimate:
        wanted = _parsed(protocol)
        key = _closest([p for p in self.plan.protocols if p.id == wanted.id], wanted).key
        standing = self.standings[model]
        setting = standing.settings.index(key)
        columns = [
            standing.methods.index(self._method(line.entry.method, model) or "") for line in lines
        ]
        drawn = standing.drawn_means[setting][:, columns]
        published = np.array([line.entry.value for line in lines])
        return rank_correlation(
            standing.means[setting][columns],
            published,
            drawn,
            np.broadcast_to(published, drawn.shape),
        )


def _needs(entry: Entry) -> str:
    """Return what a run needs for the quantity of an entry."""
    if entry.quantity == AGREEMENT:
        return f"it needs {FEWEST_FOR_RANKS} methods with scores under {FEWEST_FOR_RANKS} baselines"
    if entry.quantity == LEAST_DISTANCE:
        return "it needs maps as they are, with attribution removed and introduced"
    if entry.quantity in COORDINATES:
        return f"it needs ood=true and the curves of {entry.method}"
    if entry.quantity.startswith(CORRELATION):
        other = entry.quantity.removeprefix(CORRELATION)
        return f"it needs {other} and {FEWEST_FOR_RANKS} maps of each method"
    return f"it has no {entry.quantity} for {entry.method or entry.model}"


def _family(model: str) -> str:
    """Return the kind of network in a model's name: ``torchvision:resnet50`` is a resnet."""
    found = FAMILIES.search(model.lower())
    return found[0] if found else model


def _other_protocol(found: str, wanted: str) -> str:
    """Say in which settings two protocols of canonical names differ."""
    name, own = _call_parts(found)
    wanted_name, paper = _call_parts(wanted)
    if name != wanted_name:
        return f"the protocol is {found}, not {wanted}"
    differing = [
        f"{setting}={own.get(setting)}, not {paper.get(setting)}"
        for setting in dict.fromkeys([*paper, *own])
        if own.get(setting) != paper.get(setting)
    ]
    return f"{name.partition('@')[0]} has {', '.join(differing)}"


def _call_parts(canonical: str) -> tuple[str, dict[str, str]]:
    """Return the name with its version, and the settings, of a canonical name."""
    name, _, rest = canonical.partition("(")
    parts = re.split(r", (?=\w+=)", rest.removesuffix(")"))
    settings = (part.partition("=") for part in parts if part)
    return name, {setting: value for setting, _, value in settings}


def _closest(candidates: Sequence[ProtocolFacts], wanted: Protocol) -> ProtocolFacts:
    """Return the protocol that shares most settings with another; the first of several."""
    settings = wanted.model_dump()

    def shared(protocol: ProtocolFacts) -> int:
        equal = (protocol.settings.get(name) == value for name, value in settings.items())
        return sum(equal) + 2 * (protocol.baseline == wanted.baseline_name)

    return max(candidates, key=shared)


def _score(
    run: _RunBesidePrint, model: str, protocol: ProtocolFacts, method: str, entry: Entry
) -> Estimate | None:
    return run.score(model, protocol.key, method)


def _half_scale(
    run: _RunBesidePrint, model: str, protocol: ProtocolFacts, method: str, entry: Entry
) -> Estimate | None:
    found = run.score(model, protocol.key, method)
    return None if found is None else Estimate(*((end + 1) / 2 for end in found))


def _correlation_with(
    run: _RunBesidePrint, model: str, protocol: ProtocolFacts, method: str, entry: Entry
) -> Estimate | None:
    """Return the rank correlation of a method's scores with another's, over the samples."""
    other = run._method(entry.quantity.removeprefix(CORRELATION), model)
    table = run.scores(model, protocol.key)
    if other not in table or method not in table:
        return None
    pair = table[[method, other]].dropna()
    if len(pair) < FEWEST_FOR_RANKS:
        return None
    clusters = dict(zip(run.rows["sample"], run.rows["cluster"], strict=True))
    together = [clusters[sample] for sample in pair.index]
    ranks = pair.rank().to_numpy()
    drawn = np.array(
        [
            _weighted_correlation(ranks, weights)
            for chunk in bootstrap_weights(len(pair), RESAMPLES, clusters=together)
            for weights in chunk
        ]
    )
    return Estimate.of(_weighted_correlation(ranks, np.ones(len(pair))), drawn)


def _weighted_correlation(values: np.ndarray, weights: np.ndarray) -> float:  # (N, 2), (N,)
    centred = values - np.average(values, axis=0, weights=weights)
    covariance = (weights[:, None] * centred).T @ centred
    spread = np.sqrt(covariance[0, 0] * covariance[1, 1])
    return float(covariance[0, 1] / spread) if spread > 0 else np.nan


def _agreement_over_baselines(
    run: _RunBesidePrint, model: str, protocol: ProtocolFacts, method: str, entry: Entry
) -> Estimate | None:
    standing = run.standings.get(model)
    if standing is None:
        return None
    chosen = [s for s, key in enumerate(standing.settings) if key[:2] == protocol.key[:2]]
    if len(chosen) < FEWEST_FOR_RANKS:
        return None
    rankings = [(standing.methods, standing.ranks[s], standing.drawn_ranks[s]) for s in chosen]
    agreed = agreement(rankings, run.controls)
    if agreed is None or len(agreed.methods) < FEWEST_FOR_RANKS:
        return None
    return agreed.mean


def _accuracy(
    run: _RunBesidePrint, model: str, protocol: ProtocolFacts, method: str, entry: Entry
) -> Estimate | None:
    correct: list[bool] = []
    for task in run.tasks(model, protocol):
        stored = run.store.tensors(task.name, (LOGITS,))
        if LOGITS in stored.tensors and task.view.cell is None:
            predictions = stored.tensors[LOGITS].argmax(1).tolist()
            labels = stored.samples.labels
            pairs = zip(predictions, labels, strict=True)
            correct += [p == label for p, label in pairs if label is not None]
    return proportion(np.array(correct, dtype=float)) if correct else None


def _worst_patch_accuracy(
    run: _RunBesidePrint, model: str, protocol: ProtocolFacts, method: str, entry: Entry
) -> Estimate | None:
    """Return the accuracy without the patch whose deletion leaves the lowest probability."""
    keys = [TensorKey.shared(protocol.canonical, name) for name in ("correct", "log_prob")]
    values: list[np.ndarray] = []
    for task in run.tasks(model, protocol):
        stored = run.store.tensors(task.name, keys)
        labelled = [label is not None for label in stored.samples.labels]
        if all(key in stored.tensors for key in keys) and any(labelled):
            correct, log_prob = (stored.tensors[key].numpy()[labelled] for key in keys)
            read = readings(np.ones(len(correct)), correct, log_prob)
            values.append(read["worst"])
    return proportion(np.concatenate(values)) if values else None


def _least_distance(
    run: _RunBesidePrint, model: str, protocol: ProtocolFacts, method: str, entry: Entry
) -> Estimate | None:
    """Return the mean distance of the two nearest curves of changed maps; it has no interval."""
    curves = metric_curves(run.run, model, protocol)
    compared = [trio for trio in run.trios if all(name in curves for name in trio.names)]
    if not compared:
        return None
    return Estimate(float(np.mean([least(trio, curves) for trio in compared])), np.nan, np.nan)


def _coordinate(
    run: _RunBesidePrint, model: str, protocol: ProtocolFacts, method: str, entry: Entry
) -> Estimate | None:
    """Return the mean over steps and samples of a distance, or of the information left."""
    curves = run.kept(model).curves(protocol, method, COORDINATES[entry.quantity])
    if curves is None:
        return None
    scale = 0.5 if entry.quantity.startswith("half") else 1.0
    return Estimate.mean(scale * curves.double().mean(1).numpy())


Quantity = Callable[[_RunBesidePrint, str, ProtocolFacts, str, Entry], Estimate | None]
QUANTITIES: dict[str, Quantity] = {  # by how the name of a quantity begins
    "score": _score,
    "half-scale score": _half_scale,
    CORRELATION: _correlation_with,
    AGREEMENT: _agreement_over_baselines,
    "accuracy": _accuracy,
    "worst-patch accuracy": _worst_patch_accuracy,
    LEAST_DISTANCE: _least_distance,
    **dict.fromkeys(COORDINATES, _coordinate),
}
