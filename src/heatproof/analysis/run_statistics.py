"""A run with its statistics, which the report, tables and figures share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pandas as pd

from heatproof.analysis.agreement import AgreementMatrix, By, agreement_matrix
from heatproof.analysis.counts import SampleCounts
from heatproof.analysis.halves import bootstrap_aggregates
from heatproof.analysis.intervals import GROUP, AggregateDraws, RankedLayers
from heatproof.analysis.ranks import CONTROL, Key, Standings, ranked_layers, standings_of
from heatproof.analysis.settings import SettingScores, scored_settings, summary
from heatproof.analysis.significance import PairedTests, pairs_of
from heatproof.analysis.tables import groups
from heatproof.runs.run import Run
from heatproof.text import short_titles

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
        draws = self.aggregate_draws
        return scored_settings(self.rows, aggregate_draws=draws, layers=self.ranked_layers)

    def table(self, model: str, key: Key) -> pd.DataFrame:
        """Return the scores of a model under one setting: samples down, methods across."""
        found = (scores.table for scores in self.settings if scores.key == (model, *key))
        table = next(found, None)
        return pd.DataFrame() if table is None else table.frame

    def settings_of(self, standing: Standings) -> list[SettingScores]:
        """Return the scores of a model; of the methods at one layer if standings are of that."""
        of_model = [scores for scores in self.settings if scores.key[0] == standing.model]
        return [s.of(standing.methods) for s in of_model] if standing.layer else of_model

    @cached_property
    def summary_frame(self) -> pd.DataFrame:
        return summary(self.settings)

    def summary_of(self, standing: Standings) -> pd.DataFrame:
        """Return the summary of the methods of standings, which may be those at one layer."""
        return summary(self.settings_of(standing)) if standing.layer else self.summary_frame

    @cached_property
    def standings(self) -> list[Standings]:
        """Standings of each model that has rows."""
        return standings_of(self.settings)

    def pairs_of(self, standing: Standings) -> dict[Key, PairedTests]:
        """Return the tests of all pairs of methods of standings, which may be those at one layer.

        They are by protocol, setting and baseline, with the draws that the ranks are from.
        """
        tests = pairs_of(self.settings_of(standing))
        return {(key[1], key[2], key[3]): found for key, found in tests.items()}

    @cached_property
    def counts(self) -> SampleCounts:
        """How many images, grids and maps were evaluated."""
        return self._count(self.rows)

    @cached_property
    def counts_of(self) -> dict[tuple[str, Key], SampleCounts]:
        """How many images, grids and maps were evaluated, by model and setting."""
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
            if setting != "baseline" and any(o.get(setting) != value for o in others)
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
    def short_names(self) -> dict[str, str]:
        """The models' names without the part before the first slash, if it is the same for all.

        Of those in files, the file's name is left.
        """
        titles = {name: name for name in self.models} | short_titles(self.models)
        if len({title.partition("/")[0] for title in titles.values()}) > 1:
            return titles
        return {name: title.partition("/")[2] or title for name, title in titles.items()}

    @property
    def any_shape(self) -> bool:
        """Whether the images of a model are not square, so that pictures keep their shape."""
        sizes = (facts.height_and_width for facts in self.provenance.models)
        return any(height != width for height, width in sizes)

    def is_crisp(self, model: str) -> bool:
        """Return whether images of a model are drawn with square pixels."""
        return 0 < max(self.image_size(model)) < CRISP_BELOW_PIXELS
