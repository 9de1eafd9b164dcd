"""The results of a run: scores, summaries, maps, and how they get out."""

from __future__ import annotations

import json
import shutil
import warnings
import weakref
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

import heatproof
from heatproof.analysis import wording
from heatproof.analysis.costs import cost_frame
from heatproof.analysis.counts import SampleCounts
from heatproof.analysis.doubts import (
    FEWEST_IMAGES_AND_GRIDS,
    inaccurate,
    lost,
    recommendation,
    scarce,
)
from heatproof.analysis.halves import bootstrap_aggregates
from heatproof.analysis.intervals import GROUP, RESAMPLES
from heatproof.analysis.run_statistics import RunStatistics, with_texts
from heatproof.analysis.settings import summarize
from heatproof.errors import HeatproofError, join_limited, unknown
from heatproof.figures.paper_names import names_without_marks
from heatproof.files import content_hash
from heatproof.methods.notes import kind_of
from heatproof.report import build
from heatproof.results import tables
from heatproof.results.curves import curve_frame
from heatproof.runs.addresses import is_address, remote_of, to_read, to_write
from heatproof.runs.integrity import damage_text
from heatproof.runs.origins import differences
from heatproof.runs.store import Store
from heatproof.text import counted, printable

if TYPE_CHECKING:
    from heatproof.results.plots import Plots

MOST_REASONS = 5  # methods, or settings, without a score whose reason is shown
JSON_SCHEMA = 1  # raised when a key of ``to_json`` changes its name or meaning


class Result(RunStatistics):
    """The results of a run: its files, its statistics, and ways to show them.

    Attributes:
        scores: A frame with one row per model, protocol setting, method and sample. Its columns:

            * ``model``: the model's name.
            * ``method``: the method as it was given, such as ``ig(steps=20)|abs``.
            * ``layer``: the layer it explains; ``input`` for the image.
            * ``protocol``: the protocol's name, such as ``sds``.
            * ``setting``: its settings except the baseline, such as ``patches=16, score=logit``.
            * ``baseline``: its baseline; empty if it has none.
            * ``sample``: the sample's id.
            * ``target``: the index of the class that is explained, or of the first of several;
              empty for skipped samples.
            * ``target_is``: ``label``, or ``prediction`` where that is what was explained; or the
              target that the model was given.
            * ``value``: the score; nan unless the status is ``ok``.
            * ``status``: ``ok``; ``undefined``, if there is a map but it has no score; ``failed``,
              if the method or the protocol raised an error or the map is not finite; ``missing``,
              if saved maps have none for the sample and its target; ``n/a``, if the method is not
              defined for the model or data; ``skipped``, if the image could not be read.
            * ``message``: the reason for any status other than ``ok``.
            * ``note``: what the method says about the map, such as that its optimization did not
              converge; empty if there is nothing to say.
            * ``cluster``: the grid that the sample belongs to, otherwise the sample's id. Samples
              of a cluster are not independent; intervals draw them together.
        store: The run directory.
    """

    def __init__(self, store: Store, temporary: bool = False):
        super().__init__(store)
        _ = self.rows  # so that damage is known
        self._temporary = temporary
        self._summaries: dict[int, pd.DataFrame] = {}
        if store.damage:
            warnings.warn(damage_text(store), stacklevel=3)
        if temporary:
            weakref.finalize(self, shutil.rmtree, store.root, ignore_errors=True)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """The rows, with texts instead of categories (see the attributes of the class)."""
        return with_texts(self.rows)

    def __repr__(self) -> str:
        text = tables.to_text(
            self._heading, self.summary(), self.caveats, self.verdicts, self.race_story
        )
        return printable(text)

    def _repr_html_(self) -> str:
        return tables.to_html(
            self._heading, self.summary(), self.caveats, self.verdicts, self.race_story
        )

    @property
    def _heading(self) -> str:
        statuses = self.rows["status"].value_counts()
        statuses = statuses[statuses > 0]
        counts = ", ".join(f"{count} {status}" for status, count in statuses.items())
        models = self.rows["model"].nunique()
        methods = self.rows["method"].nunique()
        evaluated = self.rows.loc[self.rows["status"] != "skipped", "sample"]
        samples = SampleCounts.of(evaluated, self.grids)
        of_models = f" on {models} models" if models > 1 else ""
        return f"Result({counted(methods, 'method')}{of_models}, {samples}: {counts})"

    @property
    def verdicts(self) -> list[str]:
        """Which method to use on each model, or why none can be recommended, in sentences.

        With five models or more, one sentence is about other networks of their kind.
        """
        of_each = [recommendation(self, evidence) for evidence in self.evidence]
        of_kind = wording.of_networks(self.evidence_of_networks)
        return [of_kind, *of_each] if of_kind else of_each

    @property
    def caveats(self) -> list[str]:
        """Caveats to know before the numbers are used, in sentences; empty if there are none.

        Methods that are not ranked because scores are missing, a run that is not finished, files
        that are damaged, models that are wrong on most images or not shown to classify better than
        guessing, images that hardly fit the normalization, outputs that are not logits, few
        samples, images that could not be read, scores that failed or are missing, parts that were
        computed with other versions or hardware, methods and settings without any score, and
        methods that were run before and are not shown.
        """
        files = [damage_text(self.store)] if self.store.damage else []
        if self.unfinished:
            files.append(wording.unfinished(len(self.unfinished), len(self.plan.tasks)))
        models = [*inaccurate(self), *self.input_advice, *self._output_advice]
        samples = [*self._few_samples, *self._skipped, *lost(self)]
        unscored = [*self._empty_settings, *self._unscored]
        origin = [*differences(self.store), *unscored, *self._hidden]
        return [*self.not_ranked, *files, *models, *samples, *origin]

    @property
    def _output_advice(self) -> list[str]:
        advice = (facts.output_advice for facts in self.provenance.models)
        return list(dict.fromkeys(text for text in advice if text))

    @property
    def _few_samples(self) -> list[str]:
        few = scarce(self)
        return [wording.few(few, FEWEST_IMAGES_AND_GRIDS)] if few else []

    @property
    def _skipped(self) -> list[str]:
        skipped = self.rows.loc[self.rows["status"] == "skipped", "sample"].nunique()
        if not skipped:
            return []
        return [
            f"{counted(skipped, 'image')} could not be read and "
            f"{'was' if skipped == 1 else 'were'} left out"
        ]

    @property
    def _empty_settings(self) -> list[str]:
        """Settings without a score on a model that has some under others, with the reason."""
        counts = self.summary_frame.groupby(GROUP, sort=False, observed=True)["n"].sum()
        scored = {key[0] for key, n in counts.items() if n}
        sentences = []
        for model, *setting in (key for key, n in counts.items() if not n and key[0] in scored):
            lost = self.rows[self.rows["message"] != ""]
            for column, value in zip(GROUP, (model, *setting), strict=True):
                lost = lost[lost[column] == value]
            reason = lost["message"].iloc[0].removeprefix(f"{setting[0]}: ") if len(lost) else ""
            why = f": {reason}" if reason else ""
            label = self.setting_labels[tuple(setting)]
            sentences.append(f"{label} has no score on {self.titles[model]}{why}")
        return _first(sentences, "settings")

    @property
    def _unscored(self) -> list[str]:
        """Methods without a score under any setting, with the reason, one sentence each.

        A control without one, such as a constant map, which ranks nothing, is no surprise.
        """
        has_score = self.rows.loc[self.rows["status"] == "ok", "method"].unique()
        lost = self.rows[~self.rows["method"].isin(has_score)]
        expected = lost["method"].isin(self.controls(list(self.methods)))
        lost = lost[~(expected & (lost["status"] == "undefined"))]
        first = lost[lost["message"] != ""].drop_duplicates("method")
        reasons = zip(first["method"], first["status"], first["message"], strict=True)
        return _first(
            [f"{m} has no score ({status}): {why}" for m, status, why in reasons], "methods"
        )

    @property
    def _hidden(self) -> list[str]:
        hidden = self.hidden_methods
        if not hidden:
            return []
        return [
            f"results of {join_limited(hidden)} are kept in {self.store.name}, and not shown, "
            "ranked or compared, as the latest call did not ask for them: --add-methods adds to a "
            "run instead"
        ]

    @classmethod
    def load(cls, directory: str | Path) -> Result:
        """Load the results of a run directory.

        Args:
            directory: Written by ``heatproof run``, ``run`` or ``evaluate(…, out=…)``; a directory
                or an address such as ``s3://bucket/run``.

        Raises:
            HeatproofError: If the directory is not a run, or damaged.
        """
        return cls(Store(to_read(directory)))

    def summary(self, resamples: int = RESAMPLES) -> pd.DataFrame:
        """Summarize the scores over the samples.

        Args:
            resamples: Number of bootstrap draws for the intervals.

        Returns:
            One line per model, protocol, setting, baseline and method, with its layer and the
            columns ``mean``, ``low`` and ``high`` (95 % interval), ``rank``, ``rank_low`` and
            ``rank_high``, ``n`` (the images, or maps of grids, that the mean is over:
            those that all ranked methods have a score for, or a method's own if it is
            not ranked, which a ``rank`` of nan says), and the number of rows that are
            ``undefined``, ``failed``, ``missing``, ``n/a`` and ``skipped``; ``noted``
            is the number of scores whose map has a note. Where a method was run at several layers,
            ranks are among the methods of the same layer and the controls.
        """
        if resamples == RESAMPLES:
            return self.summary_frame.copy()
        if resamples not in self._summaries:
            draws = bootstrap_aggregates(self, resamples)
            self._summaries[resamples] = summarize(
                self.rows,
                resamples,
                aggregate_draws=draws,
                layers=self.ranked_layers,
                limits=self.limits,
                raced=self.raced,
            )
        return self._summaries[resamples].copy()

    def costs(self) -> pd.DataFrame:
        """Return what a map of each method costs alone, whatever else was run.

        Returns:
            One line per model and method: ``model``, ``layer`` (where methods are ranked within
            layers), ``method``, ``mean_rank``, ``forwards`` and ``backwards`` (passes), ``ms`` (one
            map of a single image, timed alone), ``ms_in_batch`` (one map, with ``batch_size``
            images at a time), ``peak_mb`` (memory that such a batch needs beyond the model),
            ``machine``, ``time_note`` (why a method was not timed alone) and ``on_front`` (no other
            method has a better mean rank at a lower cost).
        """
        return cost_frame(self)

    @property
    def plot(self) -> Plots:
        """Figures of the results, such as ``result.plot.ranking()``; see ``Plots``.

        Raises:
            HeatproofError: If matplotlib is not installed.
        """
        from heatproof.results.plots import Plots

        return Plots(self)

    @property
    def failures(self) -> pd.DataFrame:
        """The rows whose status is ``failed``."""
        return with_texts(self.rows[self.rows["status"] == "failed"])

    @property
    def left_out(self) -> pd.DataFrame:
        """Reasons why rows have no score, one line each, with the number of samples."""
        lost = with_texts(self.rows[self.rows["status"] != "ok"])
        reasons = lost.groupby(["model", "protocol", "method", "status", "message"], sort=False)
        return reasons.size().rename("samples").reset_index()

    @property
    def notes(self) -> pd.DataFrame:
        """Notes of methods on their maps: one line per kind, with an example."""
        noted = with_texts(self.rows[self.rows["note"] != ""])
        kinds = noted["note"].map(kind_of).rename("kind")
        groups = noted.groupby(["model", "method", kinds], sort=False)
        counted = groups.agg(samples=("sample", "nunique"), example=("note", "first"))
        return counted.reset_index()

    def to_frame(self, *, samples: bool = False) -> pd.DataFrame:
        """Return the summary as a tidy frame, or the scores of all samples.

        Args:
            samples: True for the rows of ``scores``, False for the lines of ``summary``.
        """
        return self.scores.copy() if samples else self.summary()

    def curves(self, *, samples: bool = False) -> pd.DataFrame:
        """Return the curves that protocols store, such as the score of a deletion at every step.

        Args:
            samples: True for the curves of all samples, False for their means.

        Returns:
            One line per step, in the order of the rows of ``scores``, for the maps that have a
            score. Its columns are ``model``, ``method``, ``protocol``, ``setting`` and
            ``baseline``; ``curve``, what was measured (``score``; with ``ood: true`` also the
            distances ``ood`` and ``ood-raw``, and measures of the information left); ``step``, from
            0; ``position``, such as the fraction of the pixels that are removed or inserted, nan
            where the protocol has no such axis; and ``mean`` and ``n``, or ``sample`` and
            ``value``.
        """
        return curve_frame(self, samples)

    def to_csv(self, path: str | Path, *, samples: bool = False) -> Path:
        """Write what ``to_frame`` returns to a CSV file.

        Args:
            path: The file.
            samples: True for the scores of all samples, False for the summary.

        Returns:
            Its path.
        """
        self.to_frame(samples=samples).to_csv(path, index=False)
        return Path(path)

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the summary as JSON, and write it to a file if one is named.

        The keys are ``schema`` (1; raised when a key changes), ``heatproof`` (the version),
        ``data`` (the name of the data), ``samples`` (how many were evaluated, as text) and
        ``summary``: a list of objects with the columns of ``summary``. What is not a number is
        null.

        Args:
            path: A file; None writes none.
        """
        content = {
            "schema": JSON_SCHEMA,
            "heatproof": heatproof.__version__,
            "data": self.provenance.spec.get("data", {}).get("name"),
            "samples": str(self.counts),
            "summary": tables.records(self.summary()),
        }
        return tables.write_json(content, path)

    def to_markdown(self, **layout: Any) -> str:
        """Return a table in Markdown: methods down, settings across, possible winners in bold.

        Args:
            **layout: As in ``to_latex``.
        """
        return tables.to_markdown(self._grid(), self.layout(**layout))

    def to_latex(self, **layout: Any) -> str:
        r"""Return a table in LaTeX, for ``\usepackage{booktabs}``.

        Methods stand in rows and settings in columns; the methods of each column that may be the
        best are bold, those that are not ranked have a dagger, names are escaped, and a comment
        says what made the table.

        Args:
            **layout: ``digits`` after the point (3); ``columns``, what stands behind each mean, of
                ``interval`` (95 %; the default), ``rank`` (with its interval), ``letters`` (methods
                that share one do not differ) and ``n``; ``transpose=True`` for methods across;
                ``names``, a mapping from labels of methods to what stands for them, by default
                the names of the paper if the run is of its group.

        Raises:
            HeatproofError: If there is no such layout or column.
        """
        return tables.to_latex(self._grid(), self.layout(**layout))

    def layout(self, **layout: Any) -> tables.Layout:
        """Return the layout of a table; see `to_latex`."""
        known = [field.name for field in fields(tables.Layout) if field.name != "source"]
        for name in layout:
            if name not in known:
                raise unknown("layout", name, known)
        columns = layout.get("columns", ("interval",))
        columns = (columns,) if isinstance(columns, str) else tuple(columns)
        for name in columns:
            if name not in tables.COLUMNS:
                raise unknown("column", name, tables.COLUMNS)
        names = names_without_marks(self.provenance.spec)
        return tables.Layout(**{"names": names, **layout, "columns": columns}, source=self.source)

    @property
    def source(self) -> str:
        """Origin of this result, in one line: version, run, hash of the spec, and date."""
        facts = self.provenance
        return (
            f"heatproof {facts.heatproof}, run {printable(self.name)}, spec {self.spec_hash}, "
            f"{facts.started[:10]}"
        )

    @property
    def spec_hash(self) -> str:
        """Twelve hexadecimal digits that identify the spec."""
        spec = json.dumps(self.provenance.spec, sort_keys=True, default=str)
        return content_hash(spec, length=12)

    def _grid(self) -> tables.Grid:
        return tables.grid(self.summary(), self.setting_labels, self.settings)

    def report(self, directory: str | Path | None = None) -> Path:
        """Build the report.

        Args:
            directory: Where the site is written; inside the run directory by default.

        Returns:
            The path of its first page.

        Raises:
            HeatproofError: If the result has no directory and none is given, or if the directory
                holds anything other than a report, or is an address.
        """
        if directory is None and self._temporary:
            raise HeatproofError(
                'this result was not given a directory; name one: result.report("out/")'
            )
        if directory is not None and is_address(directory):
            raise HeatproofError(
                "a report is written to this machine; name a directory, and copy it afterwards"
            )
        known = len(self.store.damage)
        out = Path(directory) if directory else self.store.paths.report
        page = build(self, out)
        if len(self.store.damage) > known:
            warnings.warn(damage_text(self.store), stacklevel=2)
        return page

    def save(self, directory: str | Path) -> Path:
        """Copy the run directory of a result, such as one that was not given a directory.

        Args:
            directory: The new directory or address; it must be empty or not exist.

        Returns:
            Its path.

        Raises:
            HeatproofError: If the directory is not empty.
        """
        target = to_write(directory)
        if target.exists() and any(target.iterdir()):
            raise HeatproofError(f"{Store(target).name} is not empty; choose another directory")
        lock = shutil.ignore_patterns(self.store.paths.lock.name)
        shutil.copytree(self.store.root, target, dirs_exist_ok=True, ignore=lock)
        if remote := remote_of(target):
            remote.push()
        return target


def _first(sentences: list[str], what: str) -> list[str]:
    """Return the first sentences, and how many more there are."""
    more = [f"{len(sentences) - MOST_REASONS} more {what} have no score; see result.left_out"]
    return sentences[:MOST_REASONS] + (more if len(sentences) > MOST_REASONS else [])
