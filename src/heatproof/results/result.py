"""The results of a run: scores, summaries, maps, and how they get out."""

from __future__ import annotations

import shutil
import warnings
import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pandas as pd
from torch import Tensor

import heatproof
from heatproof.analysis.agreement import By, agreement_frame
from heatproof.analysis.compare import method_differences
from heatproof.analysis.counts import SampleCounts
from heatproof.analysis.halves import bootstrap_aggregates
from heatproof.analysis.intervals import GROUP, RESAMPLES
from heatproof.analysis.settings import summarize
from heatproof.analysis.significance import pair_lines, pairs_of
from heatproof.analysis.variance import split_variance
from heatproof.errors import HeatproofError, join_limited, unknown
from heatproof.methods.notes import kind_of
from heatproof.report import build
from heatproof.report.run_data import Run
from heatproof.results import tables
from heatproof.runs.addresses import is_address, remote_of, to_read, to_write
from heatproof.runs.format import IMAGES, TaskFacts, TensorKey
from heatproof.runs.integrity import damage_text
from heatproof.runs.origins import differences
from heatproof.runs.store import Store
from heatproof.text import counted

if TYPE_CHECKING:
    from heatproof.figures.matplotlib.plots import Plots

FEW = 10  # clusters, below which intervals are not reliable
MOST_REASONS = 5  # methods without a score whose reason is shown
JSON_SCHEMA = 1  # raised when a key of ``to_json`` changes its name or meaning


class Result:
    """The results of a run.

    Attributes:
        scores: A frame with one row per model, protocol setting, method and sample. Its columns:

            * ``model``: the model's name.
            * ``method``: the method as it was given, such as ``ig(steps=20)|abs``.
            * ``layer``: the layer it explains; ``input`` for the image.
            * ``protocol``: the protocol's name, such as ``sds``.
            * ``setting``: its settings except the baseline, such as ``patches=16, score=logit``.
            * ``baseline``: its baseline; empty if it has none.
            * ``sample``: the sample's id.
            * ``target``: the index of the class that is explained; empty for skipped samples.
            * ``target_is``: ``label``, or ``prediction`` where that is what was explained.
            * ``value``: the score; nan unless the status is ``ok``.
            * ``status``: ``ok``; ``undefined``, if there is a map but it has no score; ``failed``,
              if the method or the protocol raised an error or the map is not finite; ``missing``,
              if saved maps have none for the sample and its target; ``n/a``, if the method is not
              defined for the model or data; ``skipped``, if the image could not be read.
            * ``message``: the reason for any status other than ``ok``.
            * ``note``: what the method says about the map, such as that its optimisation did not
              converge; empty if there is nothing to say.
            * ``cluster``: the grid that the sample belongs to, otherwise the sample's id. Samples
              of a cluster are not independent; intervals draw them together.
        store: The run directory.
    """

    def __init__(self, store: Store, temporary: bool = False):
        self.store = store
        self._rows = store.rows()
        self._temporary = temporary
        self._summaries: dict[int, pd.DataFrame] = {}
        if store.damage:
            warnings.warn(damage_text(store), stacklevel=3)
        if temporary:
            weakref.finalize(self, shutil.rmtree, store.root, ignore_errors=True)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """The rows, with texts instead of categories (see the attributes of the class)."""
        return _with_texts(self._rows)

    def __repr__(self) -> str:
        return tables.to_text(self._heading, self.summary(), self.caveats)

    def _repr_html_(self) -> str:
        return tables.to_html(self._heading, self.summary(), self.caveats)

    @property
    def _heading(self) -> str:
        statuses = self._rows["status"].value_counts()
        statuses = statuses[statuses > 0]
        counts = ", ".join(f"{count} {status}" for status, count in statuses.items())
        models = self._rows["model"].nunique()
        methods = self._rows["method"].nunique()
        evaluated = self._rows.loc[self._rows["status"] != "skipped", "sample"]
        samples = SampleCounts.of(evaluated, self.store.grids())
        of_models = f" on {models} models" if models > 1 else ""
        return f"Result({counted(methods, 'method')}{of_models}, {samples}: {counts})"

    @property
    def caveats(self) -> list[str]:
        """What to know before the numbers are used, in sentences; empty if there is nothing.

        Files that are damaged, so that their results are missing, parts that were computed with
        other versions, on other hardware or with another batch size than the rest, too few samples
        for intervals, methods on different samples, and why methods have no score at all.
        """
        damage = [damage_text(self.store)] if self.store.damage else []
        few = self._few_samples
        return [*damage, *differences(self.store), *few, *self._other_samples, *self._unscored]

    @property
    def _few_samples(self) -> list[str]:
        clusters = self._rows.loc[self._rows["status"] == "ok", "cluster"].nunique()
        if not 0 < clusters < FEW:
            return []
        verb = "is" if clusters == 1 else "are"
        images = counted(clusters, "image")
        return [f"there {verb} only {images}, too few for reliable intervals and ranks"]

    @property
    def _other_samples(self) -> list[str]:
        """Whether methods of one ranking were evaluated on different samples."""
        samples = self._rows.groupby([*GROUP, "method"], sort=False, observed=True)["sample"]
        by_method = samples.nunique()
        in_all = self._rows.groupby(GROUP, sort=False, observed=True)["sample"].nunique()
        unequal = by_method.groupby(GROUP, sort=False, observed=True).min() < in_all
        if not unequal.any():
            return []
        ranking = unequal[unequal].index[0]
        model, protocol, *_ = ranking
        counts = by_method.loc[ranking]
        named = join_limited(f"{method} ({count})" for method, count in counts.items())
        return [
            f"methods were evaluated on different samples ({model}, {protocol}: {named}), so that "
            "their means and ranks do not compare; result.difference compares the samples that two "
            "methods have in common"
        ]

    @property
    def _unscored(self) -> list[str]:
        """Why methods have no score under any setting, one sentence each."""
        has_score = set(self._rows.loc[self._rows["status"] == "ok", "method"])
        lost = self._rows[~self._rows["method"].isin(has_score)]
        first = lost[lost["message"] != ""].drop_duplicates("method")
        reasons = zip(first["method"], first["status"], first["message"], strict=True)
        sentences = [f"{method} has no score ({status}): {why}" for method, status, why in reasons]
        more = [f"{len(sentences) - MOST_REASONS} more methods have no score; see result.left_out"]
        return sentences[:MOST_REASONS] + (more if len(sentences) > MOST_REASONS else [])

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
            ``rank_high``, ``n`` (samples with a score: images, or maps of grids), and the number of
            rows that are ``undefined``, ``failed``, ``missing``, ``n/a`` and ``skipped``; ``noted``
            is the number of scores whose map has a note. Where a method was run at several layers,
            ranks are among the methods of the same layer and the controls.
        """
        if resamples == RESAMPLES:
            return self._run.summary.copy()
        if resamples not in self._summaries:
            draws = bootstrap_aggregates(self.store, self._rows, resamples)
            self._summaries[resamples] = summarize(
                self._rows, resamples, aggregate_draws=draws, layers=self._run.ranked_layers
            )
        return self._summaries[resamples].copy()

    @cached_property
    def _run(self) -> Run:
        return Run(self.store, self._rows)

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
        plan = self.store.plan()
        for method in (a, b):
            if method not in plan.methods:
                raise unknown("method", method, plan.methods)
        rows = _chosen(self._rows, model, protocol)
        rows = _with_texts(rows[rows["method"].isin([a, b])])
        return method_differences(rows, a, b, self._run.aggregate_draws)

    def pairs(self, *, model: str | None = None, protocol: str | None = None) -> pd.DataFrame:
        """Test all pairs of methods, and say how many images would tell them apart.

        Args:
            model: A model; by default all.
            protocol: A protocol; by default all.

        Returns:
            One line per model, protocol, setting, baseline and pair of methods, the better one
            first: ``better``, ``other``, ``ahead`` (the mean paired difference, in the direction of
            better), ``p`` (of a paired t-test, by Holm's procedure adjusted for all pairs of the
            setting), ``significant`` (``p`` below 0.05), ``n`` (images or grids that both methods
            have a score for), ``needed`` (how many would show a difference as large in four of five
            data sets) and ``detectable`` (the difference that ``n`` of them would show).

        Raises:
            HeatproofError: If there is no such model or protocol.
        """
        for column, name in (("model", model), ("protocol", protocol)):
            _check_name(self._rows, column, name)
        chosen = [
            scores
            for scores in self._run.settings
            if model in (None, scores.key[0]) and protocol in (None, scores.key[1])
        ]
        return pair_lines(pairs_of(chosen))

    def variance(self) -> pd.DataFrame:
        """Split the variance of ranks over methods and choices: which choice moves the ranking?

        Returns:
            One line per part: ``between``, which is ``method`` (without transforms), ``transform``,
            ``model``, ``protocol``, ``setting``, ``baseline`` or ``rest``; its ``share`` of the
            variance, and ``low`` and ``high`` (95 % interval). Controls are left out. There are no
            lines for fewer than two settings or three methods, and where methods are ranked within
            layers.
        """
        run = self._run
        found = split_variance(run.standings, run.methods, run.controls(list(run.methods)))
        lines = [(name, *share) for name, share in (found.shares.items() if found else ())]
        return pd.DataFrame(lines, columns=["between", "share", "low", "high"])

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
        return agreement_frame(self._run.agreement_matrices(by))

    @property
    def plot(self) -> Plots:
        """Figures of the results, such as ``result.plot.ranking()``; see ``Plots``.

        Raises:
            HeatproofError: If matplotlib is not installed.
        """
        from heatproof.figures.matplotlib.plots import Plots

        return Plots(self)

    @property
    def failures(self) -> pd.DataFrame:
        """The rows whose status is ``failed``."""
        return _with_texts(self._rows[self._rows["status"] == "failed"])

    @property
    def left_out(self) -> pd.DataFrame:
        """Why rows have no score: one line per reason, with the number of its samples."""
        lost = _with_texts(self._rows[self._rows["status"] != "ok"])
        reasons = lost.groupby(["model", "protocol", "method", "status", "message"], sort=False)
        return reasons.size().rename("samples").reset_index()

    @property
    def notes(self) -> pd.DataFrame:
        """What methods say about their maps: one line per kind of note, with an example."""
        noted = _with_texts(self._rows[self._rows["note"] != ""])
        kinds = noted["note"].map(kind_of).rename("kind")
        groups = noted.groupby(["model", "method", kinds], sort=False)
        counted = groups.agg(samples=("sample", "nunique"), example=("note", "first"))
        return counted.reset_index()

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
        if (self._rows["sample"] == sample).any():
            raise HeatproofError(
                f"the {what} of {sample} is not stored; a run keeps those of the first samples, "
                f"here {join_limited(kept) or 'none'}. Evaluate again with a larger keep_maps"
            )
        raise unknown("sample", sample, kept)

    def _check_method(self, method: str) -> None:
        methods = self.store.plan().methods
        if method not in methods:
            raise unknown("method", method, methods)

    def _tasks(self, model: str | None, protocol: str | None) -> list[TaskFacts]:
        """Return the tasks of a model in which a protocol evaluates it."""
        plan = self.store.plan()
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

    def to_frame(self, *, samples: bool = False) -> pd.DataFrame:
        """Return the summary as a tidy frame, or the scores of all samples.

        Args:
            samples: True for the rows of ``scores``, False for the lines of ``summary``.
        """
        return self.scores.copy() if samples else self.summary()

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
            "data": self._run.provenance.spec.get("data", {}).get("name"),
            "samples": str(self._run.counts),
            "summary": tables.records(self.summary()),
        }
        return tables.write_json(content, path)

    def to_markdown(self, *, digits: int = 3, intervals: bool = True) -> str:
        """Return a table in Markdown: methods down, settings across, the best in bold.

        Args:
            digits: Digits after the point.
            intervals: Whether 95 % intervals follow the means.
        """
        return tables.to_markdown(self._grid(), digits, intervals)

    def to_latex(self, *, digits: int = 3, intervals: bool = False) -> str:
        r"""Return a table in LaTeX, for ``\usepackage{booktabs}``.

        Methods stand in rows and settings in columns; the best of each column is bold, and names
        are escaped.

        Args:
            digits: Digits after the point.
            intervals: Whether 95 % intervals follow the means.
        """
        return tables.to_latex(self._grid(), digits, intervals)

    def _grid(self) -> tables.Grid:
        return tables.grid(self.summary(), self._run.setting_labels)

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
        page = build(self.store, out, self._run)
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


def _with_texts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with texts instead of categories, which take much more memory."""
    categories = rows.columns[rows.dtypes == "category"]
    return rows.astype(dict.fromkeys(categories, "str"))
