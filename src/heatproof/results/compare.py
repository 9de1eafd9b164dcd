"""Two results beside each other: paired differences, and what changed between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from heatproof.analysis.compare import run_differences
from heatproof.analysis.intervals import GROUP
from heatproof.bench.layout import IMAGES, ModelView, Provenance
from heatproof.bench.store import Store
from heatproof.errors import HeatproofError, join_limited
from heatproof.results.result import Result
from heatproof.results.tables import WIDTH, html_table

MOST_LINES = 20  # of a repr
NOT_A_CHANGE = ("started",)  # keys of the provenance that differ between any two runs


@dataclass(frozen=True)
class RunComparison:
    """Two results beside each other.

    Attributes:
        differences: One line per model, protocol, setting, baseline and method that both have:
            ``a`` and ``b``, the means over the common samples, ``difference`` (b minus a) with its
            95 % interval ``low`` to ``high``, and ``n``, the number of common samples.
        changes: What is not the same in both, one line each: ``what``, ``a`` and ``b``; keys of the
            spec, versions, hardware, weights of models, versions of protocols, settings of methods.
        only_in_a: The lines of model, protocol, setting, baseline and method that b does not have.
        only_in_b: Those that a does not have.
    """

    differences: pd.DataFrame
    changes: pd.DataFrame
    only_in_a: pd.DataFrame
    only_in_b: pd.DataFrame

    def to_frame(self) -> pd.DataFrame:
        """Return the differences as a frame."""
        return self.differences.copy()

    @property
    def significant(self) -> pd.DataFrame:
        """The differences whose 95 % interval does not contain zero."""
        return self.differences[(self.differences["low"] > 0) | (self.differences["high"] < 0)]

    @property
    def summary(self) -> str:
        """How many scores were compared, and how many differ significantly, as a sentence."""
        alone = [
            f"{len(lines)} only in {name}"
            for name, lines in (("a", self.only_in_a), ("b", self.only_in_b))
            if len(lines)
        ]
        text = f"{len(self.differences)} mean scores in both"
        if not self.differences["n"].any():
            return (
                f"{', '.join([text, *alone])}; nothing can be compared, as the runs have no "
                "sample in common (another seed, limit or data set chooses other images)"
            )
        return (
            ", ".join([text, *alone])
            + f"; {len(self.significant)} differ significantly (b minus a)"
        )

    def __repr__(self) -> str:
        lines = [self.summary]
        for title, group in self.groups():
            lines += ["", title[:WIDTH]]
            width = min(40, max(len(row["method"]) for row in group))
            lines += [_text_line(row, width)[:WIDTH] for row in group[:MOST_LINES]]
            if len(group) > MOST_LINES:
                lines.append(f"  and {len(group) - MOST_LINES} more methods")
        if len(self.changes):
            lines += ["", "changed:"]
            for row in self.changes.to_dict("records")[:MOST_LINES]:
                line = f"  {row['what']}: {row['a']} → {row['b']}"
                lines.append(line if len(line) <= WIDTH else line[: WIDTH - 1] + "…")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        shown = self.differences.copy()
        for column in ("a", "b", "difference", "low", "high"):
            shown[column] = shown[column].map("{:.3f}".format)
        return html_table(shown) + html_table(self.changes)

    def groups(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield a title and the lines of every model and setting."""
        for (model, protocol, setting, baseline), group in self.differences.groupby(
            GROUP, sort=False
        ):
            settings = ", ".join(filter(None, (setting, baseline and f"baseline={baseline}")))
            yield f"{model} · {protocol}({settings})", group.to_dict("records")


def _text_line(row: Mapping[str, Any], width: int) -> str:
    name = row["method"] if len(row["method"]) <= width else row["method"][: width - 1] + "…"
    if pd.isna(row["difference"]):
        return f"  {name:<{width}}  no common samples"
    interval = "" if pd.isna(row["low"]) else f" ({row['low']:+.3f} … {row['high']:+.3f})"
    return (
        f"  {name:<{width}}  {row['a']:.3f} → {row['b']:.3f}  {row['difference']:+.3f}{interval}"
        f"  n = {row['n']}"
    )


def compare(a: Result | str | Path, b: Result | str | Path) -> RunComparison:
    """Set two results beside each other.

    Scores of the same model, protocol, setting, baseline and method are compared over the samples
    that both have, in pairs; samples of one grid are drawn together for the intervals.

    Args:
        a: A result or a run directory.
        b: The result that it is compared with; differences are b minus a.

    Returns:
        The differences, and what changed in spec, versions and weights.

    Raises:
        HeatproofError: If they have no model, protocol and method in common.
    """
    first, second = (_result(result) for result in (a, b))
    keys = [*GROUP, "method"]
    lines = run_differences(
        first.scores, second.scores, first._run.aggregate_draws, second._run.aggregate_draws
    )
    present = [r.scores[keys].drop_duplicates(ignore_index=True) for r in (first, second)]
    if not len(lines):
        raise HeatproofError(
            f"{first.store.root} and {second.store.root} have no scores of the same model, "
            "protocol, settings and method"
        )
    return RunComparison(
        lines,
        _changes(first.store, second.store),
        _without(present[0], present[1]),
        _without(present[1], present[0]),
    )


def _result(result: Result | str | Path) -> Result:
    return result if isinstance(result, Result) else Result.load(result)


def _without(lines: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Return the lines that are not among others."""
    known = set(others.itertuples(index=False, name=None))
    chosen = [row not in known for row in lines.itertuples(index=False, name=None)]
    return lines[chosen].reset_index(drop=True)


def _changes(a: Store, b: Store) -> pd.DataFrame:
    """Return what is on record about two runs and not the same in both."""
    of_a, of_b = dict(_settings(a)), dict(_settings(b))
    lines = [
        (key, *_shown(of_a.get(key), of_b.get(key)))
        for key in dict.fromkeys([*of_a, *of_b])
        if of_a.get(key) != of_b.get(key)
    ]
    of_a, of_b = dict(_parts(a)), dict(_parts(b))
    common = [key for key in of_a if key in of_b]  # the others are in the spec
    lines += [(key, of_a[key], of_b[key]) for key in common if of_a[key] != of_b[key]]
    if other := _other_images(a, b):
        lines.append(("images", f"those of {join_limited(other)}", "others under the same ids"))
    return pd.DataFrame(lines, columns=["what", "a", "b"])


def _shown(a: Any, b: Any) -> tuple[str, str]:
    """Return two values as text; of two lists, what the other does not have."""
    if isinstance(a, list) and isinstance(b, list):
        only = [[str(x) for x in x_list if x not in y_list] for x_list, y_list in ((a, b), (b, a))]
        if any(only):
            return ", ".join(only[0]) or "–", ", ".join(only[1]) or "–"
    return "–" if a is None else str(a), "–" if b is None else str(b)


def _other_images(a: Store, b: Store) -> list[str]:
    """Return the samples whose stored images are not the same, for the same view of a model."""
    first, second = _images(a), _images(b)
    common = [key for key in first if key in second]
    differing = [key for key in common if not torch.equal(first[key], second[key])]
    return list(dict.fromkeys(sample for _, sample in differing))


def _images(store: Store) -> dict[tuple[ModelView, str], Tensor]:
    images = {}
    for task in store.plan().tasks:
        kept = store.tensors(task.name, (IMAGES,))
        for sample, image in zip(kept.samples.ids, kept.tensors.get(IMAGES, ()), strict=False):
            images[task.subject, sample] = image
    return images


def _settings(store: Store) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a run's spec, versions and hardware."""
    provenance = store.provenance()
    yield from _flat("spec", provenance.spec)
    yield from _flat("", _machine(provenance))


def _parts(store: Store) -> Iterator[tuple[str, Any]]:
    """Yield what identifies the models, protocols and methods of a run."""
    for facts in store.provenance().models:
        yield f"weights of {facts.subject.title}", facts.fingerprint
        yield f"backend of {facts.subject.title}", facts.backend
    plan = store.plan()
    for protocol in plan.protocols:
        settings = f"{protocol.id}({protocol.setting}, baseline={protocol.baseline})"
        yield f"version of {settings}", protocol.canonical.partition("(")[0]
    for label, method in plan.methods.items():
        yield f"method {label}", method.canonical


def _machine(provenance: Provenance) -> dict[str, Any]:
    return provenance.model_dump(mode="json", exclude={"spec", "models", *NOT_A_CHANGE})


def _flat(prefix: str, content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping):
            yield from _flat(name, value)
        else:
            yield name, value
