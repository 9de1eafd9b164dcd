"""A run with its statistics, which the report, tables and figures share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import get_args

import pandas as pd
import torch
from pydantic import ValidationError
from torch import Tensor

from heatproof.analysis import wording
from heatproof.analysis.agreement import AgreementMatrix, By, agreement_frame, agreement_matrix
from heatproof.analysis.counts import SampleCounts
from heatproof.analysis.evidence import Evidence
from heatproof.analysis.halves import bootstrap_aggregates
from heatproof.analysis.intervals import GROUP, AggregateDraws, RankedLayers
from heatproof.analysis.networks import evidence_of_networks, over_networks
from heatproof.analysis.paired_differences import method_differences
from heatproof.analysis.planning import check_difference, needed_images
from heatproof.analysis.race import Race
from heatproof.analysis.race_lanes import Lanes, all_lanes, maps_of
from heatproof.analysis.race_tables import held_races
from heatproof.analysis.race_wording import saved, story
from heatproof.analysis.ranks import CONTROL, Key, Standings, ranked_layers, standings_of
from heatproof.analysis.seeds import SeedSpread, seed_spreads, with_other_seeds
from heatproof.analysis.settings import Limits, Raced, SettingScores, scored_settings, summary
from heatproof.analysis.significance import pair_lines
from heatproof.analysis.tables import groups
from heatproof.analysis.variance import Shares, split_variance
from heatproof.errors import HeatproofError, join_limited, unknown
from heatproof.plan.question import Question
from heatproof.runs.format import IMAGES, TaskFacts, TensorKey
from heatproof.runs.run import Run
from heatproof.text import short_titles

MOST_INPUT_MEAN = 1.5  # of normalized images, in absolute value
LEAST_INPUT_STD = 0.3
MOST_INPUT_STD = 3.0
CRISP_BELOW_PIXELS = 160  # smaller images are drawn with square pixels


class RunStatistics(Run):
    """A run with its statistics; each is computed once."""

    @cached_property
    def aggregate_draws(self) -> AggregateDraws:
        """Draws of the protocols that aggregate over all samples."""
        return bootstrap_aggregates(self)

    @cached_property
    def ranked_layers(self) -> RankedLayers:
        """The layer within which each (model, method) is ranked, where layers are compared."""
        return ranked_layers(self.rows, self.methods)

    @cached_property
    def settings(self) -> list[SettingScores]:
        """The scores of every model and setting with their draws, which all statistics share."""
        return scored_settings(
            self.rows[~self.rows["method"].isin(self.other_seeds)],
            aggregate_draws=self.aggregate_draws,
            layers=self.ranked_layers,
            limits=self.limits,
            raced=self.raced,
        )

    @cached_property
    def other_seeds(self) -> list[str]:
        """Methods that are another with noise of its own; they are not ranked beside it."""
        return [m for labels in with_other_seeds(self.methods).values() for m in labels[1:]]

    @cached_property
    def seed_spreads(self) -> list[SeedSpread]:
        """How scores vary between seeds of the same method, where the run has several.

        Settings whose values are computed from all samples together have none.
        """
        found = seed_spreads(self.rows, self.methods)
        return [s for s in found if not self.protocols[s.setting].aggregates]

    def over_seeds(self) -> pd.DataFrame:
        """Compare the scores of methods that were evaluated with several seeds.

        Returns:
            One line per model, protocol, setting, baseline and method: ``seeds``, ``n`` (samples
            that all of them have a score for), ``lowest`` and ``highest`` (mean score of a seed),
            ``between`` (the variance of a sample's score between seeds, averaged over samples),
            ``variance`` (of the scores over samples) and ``share``, the first of the second.
        """
        names = ["method", "seeds", "n", "lowest", "highest", "between", "variance", "share"]
        lines = [
            (
                *(*s.key, s.method, len(s.means), s.n, min(s.means), max(s.means)),
                *(s.between, s.total, s.share),
            )
            for s in self.seed_spreads
        ]
        return pd.DataFrame(lines, columns=[*GROUP, *names])

    @cached_property
    def question(self) -> Question | None:
        """What the run was to decide; None if it had a fixed number of images."""
        recorded = self.store.race().question
        try:
            return Question.model_validate(recorded) if recorded else None
        except ValidationError:
            self.store.damage[self.store.paths.race] = "it does not say what was to be decided"
            return None

    @cached_property
    def races(self) -> dict[str, Race]:
        """The race of each model, from its rows; empty if the number of images was fixed."""
        if self.question is None:
            return {}
        return held_races(self, self.question, self.store.race().ends)

    @cached_property
    def race_story(self) -> list[str]:
        """Which methods were dropped when, and why the race of each model ended, in words."""
        told = story(self.race_lanes, self.race_images, self.titles.__getitem__)
        return [*told, saved(*self.race_maps)] if told else []

    @cached_property
    def race_lanes(self) -> list[Lanes]:
        """Which method was in for how many images, in each race."""
        return all_lanes(self.races)

    @property
    def race_images(self) -> int:
        """How many images there were for a race."""
        return self.store.race().most

    @property
    def race_maps(self) -> tuple[int, int]:
        """How many maps were computed, and how many all images would have taken."""
        maps = sum(maps_of(race) for race in self.races.values())
        return maps, sum(len(race.methods) for race in self.races.values()) * self.race_images

    @property
    def raced(self) -> Raced:
        """What all pairs of methods show under each setting of each race."""
        found = self.races.items()
        return {(model, s.key): s for model, race in found for s in race.sequences}

    @property
    def limits(self) -> dict[Key, Limits]:
        """Lowest and highest possible score under each setting."""
        return {key: protocol.range for key, protocol in self.protocols.items()}

    def table(self, model: str, key: Key) -> pd.DataFrame:
        """Return the scores of a model under one setting: samples down, methods across."""
        found = (scores.table for scores in self.settings if scores.key == (model, *key))
        table = next(found, None)
        return pd.DataFrame() if table is None else table.frame

    @cached_property
    def summary_frame(self) -> pd.DataFrame:
        return summary(self.settings)

    def summary_of(self, standing: Standings) -> pd.DataFrame:
        """Return the summary of the methods of standings, which may be those at one layer."""
        return summary(standing.scores) if standing.layer else self.summary_frame

    @cached_property
    def standings(self) -> list[Standings]:
        """Standings of each model that has rows."""
        return standings_of(self.settings)

    @cached_property
    def evidence(self) -> list[Evidence]:
        """Evidence of each model, or of each layer, where methods are ranked within layers."""
        return [
            self.evidence_of(at_layer)
            for standing in self.standings
            for at_layer in standing.by_layer
        ]

    def evidence_of(self, standing: Standings) -> Evidence:
        """Return the evidence of standings."""
        passes = {method: self.passes(method) for method in standing.methods}
        return Evidence(standing, self.controls(standing.methods), passes)

    @cached_property
    def evidence_of_networks(self) -> Evidence | None:
        """Evidence of five networks or more about others of their kind; None for fewer."""
        if any(self.ranked_layers.values()) or self.races:
            return None
        return evidence_of_networks(self.settings, self.controls(list(self.methods)))

    @cached_property
    def not_ranked(self) -> list[str]:
        """Methods that have scores and are not ranked, with the reason, in words."""
        reasons = [reason for evidence in self.evidence for reason in evidence.not_ranked]
        failed = [reason for reason in reasons if reason.failed]
        return wording.not_ranked(failed, self.setting_labels)

    @cached_property
    def input_advice(self) -> list[str]:
        """Advice about models whose images hardly fit their normalization, in sentences."""
        return [text for model in self.models if (text := self._input_advice(model))]

    def _input_advice(self, model: str) -> str:
        """Compare the stored images of a model with the mean and std that it was said to expect."""
        facts = self.facts(model)
        if facts is None or not facts.mean:
            return ""
        for task in self.tasks_of(facts.subject):
            images = self.store.tensors(task.name, (IMAGES,)).tensors.get(IMAGES)
            if images is None or not len(images) or images.shape[1] != len(facts.mean):
                continue
            shown = images.double() / 255
            channels = (shown - torch.tensor(facts.mean)[:, None, None]) / torch.tensor(facts.std)[
                :, None, None
            ]
            mean, std = float(channels.mean()), float(channels.std())
            if abs(mean) <= MOST_INPUT_MEAN and LEAST_INPUT_STD <= std <= MOST_INPUT_STD:
                return ""
            return (
                f"after normalization, the images of {self.titles[model]} have mean {mean:.2f} and "
                f"standard deviation {std:.2f}, which are near 0 and 1 for most networks (B-cos "
                "networks see images as they are): check mean and std of the model "
                f"({facts.normalization}), and whether images are normalized twice or not at all"
            )
        return ""

    def passes(self, method: str) -> int | None:
        """Return how many forward and backward passes a map of a method takes; None if unknown."""
        cost = self.methods[method].cost if method in self.methods else None
        return None if cost is None else sum(cost)

    @cached_property
    def counts(self) -> SampleCounts:
        """Numbers of images, grids and maps that were evaluated."""
        return self._count(self.rows)

    @cached_property
    def counts_of(self) -> dict[tuple[str, Key], SampleCounts]:
        """Numbers of images, grids and maps that were evaluated, by model and setting."""
        columns = self.rows[[*GROUP, "status", "sample"]]
        parts = groups(columns, GROUP)
        return {(key[0], (key[1], key[2], key[3])): self._count(part) for key, part in parts}

    def _count(self, rows: pd.DataFrame) -> SampleCounts:
        return SampleCounts.of(rows.loc[rows["status"] != "skipped", "sample"], self.grids)

    def controls(self, methods: Sequence[str]) -> list[str]:
        """Return the controls among methods, in their order."""
        return [m for m in methods if self.is_control(m)]

    def is_control(self, method: str) -> bool:
        """Return whether a method never looks at the model."""
        return self.family(method) == CONTROL

    @cached_property
    def setting_labels(self) -> dict[Key, str]:
        """The shortest texts that distinguish the settings of this run."""
        return {key: " · ".join(self.setting_parts(key)) for key in self.protocols}

    def setting_values(self, key: Key) -> dict[str, str]:
        """Return the settings of a protocol as texts, with the baseline that it uses."""
        settings = self.protocols[key].settings
        values = {name: str(value) for name, value in settings.items() if value is not None}
        return values | ({"baseline": key[2]} if key[2] else {})

    def agreement_matrices(self, by: By = "protocol") -> list[AgreementMatrix]:
        """Return the rank correlations of every model, and of every layer if it has several."""
        values = {key: self.setting_values(key) for key in self.protocols}
        found = (
            agreement_matrix(
                standing, by, self.controls(standing.methods), self.setting_labels, values
            )
            for of_model in self.standings
            for standing in of_model.by_layer
        )
        return [matrix for matrix in found if matrix is not None]

    def setting_parts(self, key: Key) -> list[str]:
        """Return what distinguishes a setting: protocol, settings that differ, baseline."""
        name, _, baseline = key
        settings = self.protocols[key].settings
        others = [p.settings for p in self.protocols.values() if p.id == name]
        differing = [
            f"{setting}={value}"
            for setting, value in settings.items()
            if setting != "baseline"
            and value is not None
            and any(o.get(setting) != value for o in others)
        ]
        several = len({p.id for p in self.protocols.values()}) > 1
        parts = [name if several else "", *differing, baseline]
        return [part for part in parts if part] or [name]

    @cached_property
    def preferred(self) -> list[Key]:
        """The settings, those of fine-tuned networks first: they have seen deleted patches."""

        def is_plain(key: Key) -> bool:
            return not any(self.view_of(model, key).is_fine_tuned for model in self.models)

        return sorted(self.protocols, key=is_plain)

    @cached_property
    def titles(self) -> dict[str, str]:
        """The models' names as texts show them: of those in files, the file's name is left."""
        return {name: name for name in self.models} | short_titles(self.models)

    @cached_property
    def short_names(self) -> dict[str, str]:
        """The models' names without the part before the first slash, if it is the same for all.

        Of those in files, the file's name is left.
        """
        if len({title.partition("/")[0] for title in self.titles.values()}) > 1:
            return self.titles
        return {name: title.partition("/")[2] or title for name, title in self.titles.items()}

    @property
    def any_shape(self) -> bool:
        """Whether the images of a model are not square, so that pictures keep their shape."""
        sizes = (facts.height_and_width for facts in self.provenance.models)
        return any(height != width for height, width in sizes)

    def is_crisp(self, model: str) -> bool:
        """Return whether images of a model are drawn with square pixels."""
        return 0 < max(self.image_size(model)) < CRISP_BELOW_PIXELS

    def difference(
        self,
        a: str,
        b: str,
        *,
        model: str | None = None,
        protocol: str | None = None,
    ) -> pd.DataFrame:
        """Estimate by how much the scores of a method exceed those of another, sample by sample.

        Args:
            a: A method, as it is called in ``scores``.
            b: The method whose scores are subtracted.
            model: A model; by default all.
            protocol: A protocol; by default all.

        Returns:
            One line per model, protocol, setting and baseline: the mean ``difference`` (a minus b),
            ``low`` and ``high`` (95 % interval), and ``n``, the samples that both have a score for.
            The interval is of paired differences, so it can be narrow where those of the two means
            overlap; samples of one grid are drawn together.

        Raises:
            HeatproofError: If there is no such method, model or protocol.
        """
        plan = self.plan
        for method in (a, b):
            if method not in plan.methods:
                raise unknown("method", method, plan.methods)
        rows = _chosen(self.rows, model, protocol)
        rows = with_texts(rows[rows["method"].isin([a, b])])
        return method_differences(rows, a, b, self.aggregate_draws)

    def pairs(self, *, model: str | None = None, protocol: str | None = None) -> pd.DataFrame:
        """Test all pairs of methods, and say how many images would tell them apart.

        Args:
            model: A model; by default all.
            protocol: A protocol; by default all.

        Returns:
            One line per model, protocol, setting, baseline and pair of methods, the better one
            first: ``better``, ``other``, ``ahead`` (the mean paired difference, in the direction of
            better), ``p`` (adjusted for all pairs of the setting), ``significant`` (``p`` of at
            most 0.05), ``n`` (images or grids that all ranked methods have a score for), ``needed``
            (how many would show a difference as large among all pairs, in four of five data sets)
            and ``detectable`` (the difference that ``n`` of them would show); both are nan if ``n``
            is too small for any test. Methods that are not ranked are left out.

        Raises:
            HeatproofError: If there is no such model or protocol.
        """
        for column, name in (("model", model), ("protocol", protocol)):
            _check_name(self.rows, column, name)
        chosen = {
            scores.key: scores.pairs
            for scores in self.settings
            if model in (None, scores.key[0]) and protocol in (None, scores.key[1])
        }
        return pair_lines(chosen)

    def over_networks(self) -> pd.DataFrame:
        """Average the scores of methods over networks, if there are five or more.

        Returns:
            One line per protocol, setting, baseline and method that is ranked on five networks or
            more: ``networks``, their ``mean`` with the 95 % interval ``low`` to ``high`` for these
            networks, and ``new_low`` to ``new_high``, where the mean score of a new network of the
            same kind is in 95 % of cases, if these are drawn from the same kind.
        """
        lines = [
            (*found.key, found.method, found.networks, *found.mean, *found.new[1:])
            for found in over_networks(self.settings)
        ]
        names = ["method", "networks", "mean", "low", "high", "new_low", "new_high"]
        return pd.DataFrame(lines, columns=[*GROUP[1:], *names])

    def needed(self, difference: float) -> pd.DataFrame:
        """Say how many images a difference of two methods takes, by the spread in this run.

        Args:
            difference: The true difference of their mean scores that is to be found.

        Returns:
            One line per model, protocol, setting and baseline: ``methods`` (ranked ones, whose
            pairs are tested together), ``n`` (images or grids of this run), ``typical`` and
            ``largest`` (standard deviations of paired differences: of the median pair, and of the
            one that varies most), and for these ``needed`` and ``needed_for_all``, the images or
            grids that show the difference in four of five data sets.

        Raises:
            HeatproofError: If the difference is not above zero.
        """
        check_difference(difference)
        return needed_images(self.settings, difference)

    @cached_property
    def variance_split(self) -> Shares | None:
        """Which choice moves the ranking, without controls; None if there are too few rankings."""
        return split_variance(self.standings, self.methods, self.controls(list(self.methods)))

    def variance(self) -> pd.DataFrame:
        """Split the variance of ranks over methods and choices: which choice moves the ranking?

        Returns:
            One line per part: ``between``, which is ``method`` (without transforms), ``transform``,
            ``model``, ``protocol``, ``setting``, ``baseline`` or ``rest``, and its ``share`` of the
            variance. Shares have no interval: few images make choices seem to matter more than
            they do. Controls are left out. There are no lines for fewer than two settings or three
            methods, and where methods are ranked within layers.
        """
        found = self.variance_split
        lines = list(found.shares.items()) if found else []
        return pd.DataFrame(lines, columns=["between", "share"])

    def agreement(self, *, by: By = "protocol") -> pd.DataFrame:
        """Correlate the rankings of methods under different protocols, or settings.

        Args:
            by: ``protocol`` for one ranking per protocol, by the mean rank over its settings (where
                protocols have different baselines, over those that all have); ``setting`` for one
                per setting.

        Returns:
            One line per model and pair: ``model``, ``layer`` (where methods are ranked within
            layers), ``a``, ``b``, Spearman's ``correlation`` with its 95 % interval ``low`` to
            ``high``, and the number of ``methods``. Controls are left out. There are no lines for
            fewer than two rankings or three methods.

        Raises:
            HeatproofError: If ``by`` is neither.
        """
        if by not in get_args(By):
            raise unknown("kind of ranking", by, get_args(By))
        return agreement_frame(self.agreement_matrices(by))

    def maps(
        self, method: str, *, model: str | None = None, protocol: str | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Read the stored maps of a method one after another, however many there are.

        A run stores the maps of the first ``keep_maps`` samples, or of all with ``keep_maps: all``,
        in half precision.

        Args:
            method: The method as it is called in ``scores``.
            model: The model, if the run has several.
            protocol: A protocol, such as ``idsds`` or ``gridpg``, whose view of model and data the
                maps are of; by default the first of the run.

        Yields:
            The sample and its map ``(h, w)`` at the resolution of the method's layer. On grids, a
            sample is a grid and the class of one of its cells.

        Raises:
            HeatproofError: If there is no such method, model or protocol, or the model is not
                named.
        """
        self._check_method(method)
        keys = (TensorKey.map(method), TensorKey.map_scale(method))
        for task in self._tasks(model, protocol):
            stored = self.store.tensors(task.name, keys)
            if keys[0] in stored.tensors:
                scaled, scales = (stored.tensors[key] for key in keys)
                for sample, values, scale in zip(stored.samples.ids, scaled, scales, strict=False):
                    yield sample, values.float() * scale

    def map(
        self,
        method: str,
        sample: str,
        *,
        model: str | None = None,
        protocol: str | None = None,
    ) -> Tensor:
        """Read the stored map of one sample.

        Args:
            method: The method as it is called in ``scores``.
            sample: The id of the sample, as in ``scores``.
            model: The model, if the run has several.
            protocol: A protocol whose view of model and data the map is of; see ``maps``.

        Returns:
            The map ``(h, w)`` at the resolution of the method's layer.

        Raises:
            HeatproofError: If there is no such map.
        """
        self._check_method(method)
        keys = (TensorKey.map(method), TensorKey.map_scale(method))
        values, scale = self._stored(sample, keys, f"map of {method}", model, protocol)
        return values.float() * scale

    def image(
        self, sample: str, *, model: str | None = None, protocol: str | None = None
    ) -> Tensor:
        """Read the stored image of one sample.

        Args:
            sample: The id of the sample, as in ``scores``.
            model: The model, if the run has several.
            protocol: A protocol whose view of model and data the image is of; see ``maps``.

        Returns:
            The image ``(C, H, W)`` of 8 bits, as the model sees it.

        Raises:
            HeatproofError: If the image is not stored.
        """
        return self._stored(sample, (IMAGES,), "image", model, protocol)[0]

    def _stored(
        self,
        sample: str,
        keys: Sequence[TensorKey],
        what: str,
        model: str | None,
        protocol: str | None,
    ) -> list[Tensor]:
        """Return the rows of one sample in stored tensors."""
        kept: list[str] = []
        for task in self._tasks(model, protocol):
            stored = self.store.tensors(task.name, keys)
            if keys[0] not in stored.tensors:
                continue
            ids = stored.samples.ids[: len(stored.tensors[keys[0]])]
            if sample in ids:
                return [stored.tensors[key][ids.index(sample)] for key in keys]
            kept += ids
        if (self.rows["sample"] == sample).any():
            raise HeatproofError(
                f"the {what} of {sample} is not stored; a run keeps those of the first samples, "
                f"here {join_limited(kept) or 'none'}. Evaluate again with a larger keep_maps"
            )
        raise unknown("sample", sample, kept)

    def _check_method(self, method: str) -> None:
        methods = self.plan.methods
        if method not in methods:
            raise unknown("method", method, methods)

    def _tasks(self, model: str | None, protocol: str | None) -> list[TaskFacts]:
        """Return the tasks of a model in which a protocol evaluates it."""
        plan = self.plan
        models = list(dict.fromkeys(task.model for task in plan.tasks))
        if model is None and len(models) > 1:
            raise HeatproofError(f"the run has several models; name one: {', '.join(models)}")
        if model is not None and model not in models:
            raise unknown("model", model, models)
        ids = [facts.id for facts in plan.protocols]
        if protocol is not None and protocol not in ids:
            raise unknown("protocol", protocol, ids)
        wanted = next(p.canonical for p in plan.protocols if p.id == (protocol or ids[0]))
        chosen = model or models[0]
        return [task for task in plan.tasks if task.model == chosen and wanted in task.protocols]


def _chosen(rows: pd.DataFrame, model: str | None, protocol: str | None) -> pd.DataFrame:
    """Return the rows of a model and a protocol.

    Raises:
        HeatproofError: If there is no such model or protocol.
    """
    for column, name in (("model", model), ("protocol", protocol)):
        _check_name(rows, column, name)
        rows = rows if name is None else rows[rows[column] == name]
    return rows


def _check_name(rows: pd.DataFrame, column: str, name: str | None) -> None:
    present = rows[column].unique()
    if name is not None and name not in present:
        raise unknown(column, name, list(present))


def with_texts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with texts instead of categories, which take much more memory."""
    categories = rows.columns[rows.dtypes == "category"]
    return rows.astype(dict.fromkeys(categories, "str"))
