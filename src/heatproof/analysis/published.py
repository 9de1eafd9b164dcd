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
from collections.abc import Sequence
from functools import cache

import numpy as np

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.published_lines import Comparison, Correlation, Line
from heatproof.analysis.published_quantities import (
    AGREEMENT,
    BASELINE_COORDINATES,
    CORRELATION,
    FEWEST_FOR_RANKS,
    LEAST_DISTANCE,
    QUANTITIES,
    RunNumbers,
    weighted_correlation,
)
from heatproof.analysis.published_tables import (
    Entry,
    PublishedTable,
    network_name,
    published_tables,
)
from heatproof.analysis.ranks import Key, average_ranks, rank_correlation
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.errors import HeatproofError
from heatproof.methods import parse_methods
from heatproof.plan.spec import load_spec, parse_protocols
from heatproof.protocols import Protocol
from heatproof.runs.format import ProtocolFacts

DATA_KNOWN_BY_NAME = ("paperbirds", "cifar10", "cifar100", "funnybirds")
OTHER_COORDINATES = (
    "coordinates of baselines are compared by their ranks: the paper has distances to the "
    "evaluated images themselves, and means without the last step"
)
OVER_METHODS = (AGREEMENT, LEAST_DISTANCE)  # statistics that a network of the same kind has too
MODEL_FAMILIES = re.compile("bcos|bagnet|resnext|resnet|vgg|vit|googlenet")  # in names of models


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
    """Reason why a run does not have a published number."""


class _RunBesidePrint(RunNumbers):
    """A run beside published tables."""

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

    def line(self, entry: Entry) -> Line:
        """Return a published number beside the run's; raises _Missing if it has no such number."""
        wanted = _parsed(entry.protocol)
        candidates = [p for p in self.plan.protocols if p.id == wanted.id]
        if not candidates:
            raise _Missing(f"it has no {wanted.id}")
        if entry.quantity in BASELINE_COORDINATES:
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
        method = self.method(entry.method, model) if entry.method else ""
        if method is None:
            raise _Missing("it has other methods, or methods with other settings")
        quantities = (f for name, f in QUANTITIES.items() if entry.quantity.startswith(name))
        found = next(quantities)(self, model, protocol, method, entry)
        if found is None:
            raise _Missing(_needs(entry))
        reasons = self._other_network(model, entry)
        if not exact:
            reasons.append(_other_protocol(protocol.canonical, wanted.canonical))
        if entry.quantity in BASELINE_COORDINATES:
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
        if name in DATA_KNOWN_BY_NAME and not wanted.startswith((name, "cifar")):
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

    def _model(self, name: str) -> str | None:
        """Return the model of the run with a name, or else one of the same family."""
        said = [m for m, s in self.same_as.items() if s.network == name and m in self.models]
        if said or name in self.models:
            return said[0] if said else name
        family = _family(name)
        alike = [m for m in self.models if _family(m) == family]
        return alike[0] if alike else None

    def _correlations(self, lines: Sequence[Line]) -> list[Correlation]:
        """Return the rank correlations with print, over methods or over baselines."""
        groups: dict[tuple[str, str, str], list[Line]] = {}
        for line in lines:
            if line.entry.quantity in BASELINE_COORDINATES:
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
                value = weighted_correlation(average_ranks(pairs.T).T, np.ones(len(pairs)))
                estimate = Estimate(value, math.nan, math.nan)
            found.append(Correlation(model, of, over, estimate, len(members)))
        return found

    def _correlation(self, model: str, protocol: str, lines: Sequence[Line]) -> Estimate:
        wanted = _parsed(protocol)
        key = _closest([p for p in self.plan.protocols if p.id == wanted.id], wanted).key
        standing = self.standings[model]
        setting = standing.settings.index(key)
        columns = [
            standing.methods.index(self.method(line.entry.method, model) or "") for line in lines
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
    if entry.quantity in BASELINE_COORDINATES:
        return f"it needs ood=true and the curves of {entry.method}"
    if entry.quantity.startswith(CORRELATION):
        other = entry.quantity.removeprefix(CORRELATION)
        return f"it needs {other} and {FEWEST_FOR_RANKS} maps of each method"
    return f"it has no {entry.quantity} for {entry.method or entry.model}"


def _family(model: str) -> str:
    """Return the kind of network in a model's name: ``torchvision:resnet50`` is a resnet."""
    found = MODEL_FAMILIES.search(model.lower())
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
