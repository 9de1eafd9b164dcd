"""Two results beside each other: paired differences, and what changed between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from heatproof.analysis import wording
from heatproof.analysis.families import LEVEL
from heatproof.analysis.intervals import GROUP
from heatproof.analysis.paired_differences import run_differences
from heatproof.analysis.published_tables import PREFIX
from heatproof.errors import HeatproofError, join_limited, unknown
from heatproof.results.result import JSON_SCHEMA, Result
from heatproof.results.tables import TERMINAL_WIDTH, html_table, records, write_json
from heatproof.runs.format import IMAGES, ModelView, Provenance
from heatproof.runs.store import Store
from heatproof.text import counted

MOST_LINES = 20  # of a repr
EVERY_METHOD = "all"
ALWAYS_DIFFERENT = ("started",)  # keys of the provenance that differ between any two runs
# Keys of a spec that change no number, and those that are compared by the plan of a run.
SPEC_DESCRIPTIONS = ("version", "about", "lead")
SPEC_PARTS = ("models", "methods", "protocols")


@dataclass(frozen=True)
class RunComparison:
    """Two results beside each other.

    Attributes:
        differences: One line per model, protocol, setting, baseline and method that both have:
            ``a`` and ``b``, the means over the common samples, ``difference`` (b minus a) with an
            interval ``low`` to ``high`` (those of all lines hold together in 95 % of cases), ``p``
            (adjusted for all lines), and ``n``, the number of common samples.
        changes: What is not the same in both, one line each: ``what``, ``a`` and ``b``; keys of the
            spec, versions, hardware, weights of models, versions of protocols, settings of methods.
        only_in_a: The lines of model, protocol, setting, baseline and method that b does not have.
        only_in_b: Those that a does not have.
        results: Both results.
    """

    differences: pd.DataFrame
    changes: pd.DataFrame
    only_in_a: pd.DataFrame
    only_in_b: pd.DataFrame
    results: tuple[Result, Result]

    def to_frame(self) -> pd.DataFrame:
        """Return the differences as a frame."""
        return self.differences.copy()

    @property
    def significant(self) -> pd.DataFrame:
        """The lines whose difference is significant, by one family of tests over all lines."""
        return self.differences[self.differences["p"] <= LEVEL]

    @property
    def few(self) -> bool:
        """Whether a difference has no interval because it is of too few samples."""
        found = self.differences
        return bool((found["difference"].notna() & found["low"].isna()).any())

    def gate(self, limits: Sequence[tuple[str, float]]) -> pd.DataFrame:
        """Test where the second result is worse than the first by more than is allowed.

        Args:
            limits: Methods, or ``all``, and by how much they may be worse, in units of a score.

        Returns:
            The lines of `differences` that a limit is for, as one family, with ``outcome``:
            ``worse`` and ``kept`` are certain at a joint level of 5 %; the scores of ``same`` lines
            are the same on every image; a ``lost`` line has no score in the second run on more than
            a tenth of the images that have one in the first (``lost`` of them); ``undecided`` lines
            have ``needed``, about how many images would decide them. ``allowed`` is the limit.

        Raises:
            HeatproofError: If the results do not share a method.
        """
        methods = list(dict.fromkeys(self.differences["method"]))
        allowed: dict[str, float] = {}
        for method, tolerance in limits:
            if method != EVERY_METHOD and method not in methods:
                raise unknown("method", method, methods)
            for name in methods if method == EVERY_METHOD else [method]:
                allowed[name] = min(tolerance, allowed.get(name, tolerance))
        lines = _differences(*self.results, not len(self.changes), allowed)
        return lines.assign(allowed=lines["method"].map(allowed))

    def to_json(self, path: str | Path | None = None) -> str:
        """Return everything as JSON, and write it to a file if one is named.

        The keys are ``schema`` (1; raised when a key changes) and the attributes of this class,
        each a list of objects. What is not a number is null.
        """
        return write_json({"schema": JSON_SCHEMA, **self.content()}, path)

    def content(self) -> dict[str, list[dict[str, Any]]]:
        """Return the attributes of this class as lists of objects; what is not a number is None."""
        names = ("differences", "changes", "only_in_a", "only_in_b")
        return {name: records(getattr(self, name)) for name in names}

    @property
    def summary(self) -> str:
        """Numbers of scores that were compared and that differ significantly, as a sentence."""
        alone = [
            f"{len(lines)} only in {name}"
            for name, lines in (("a", self.only_in_a), ("b", self.only_in_b))
            if len(lines)
        ]
        compared = bool(self.differences["n"].any())
        return wording.comparison(len(self.differences), len(self.significant), alone, compared)

    def __repr__(self) -> str:
        lines = [self.summary]
        for title, group in self.groups():
            lines += ["", title[:TERMINAL_WIDTH]]
            width = min(40, max(len(row["method"]) for row in group))
            lines += [_text_line(row, width)[:TERMINAL_WIDTH] for row in group[:MOST_LINES]]
            if len(group) > MOST_LINES:
                lines.append(f"  and {counted(len(group) - MOST_LINES, 'more method')}")
        if len(self.changes):
            lines += ["", "changed:"]
            for row in self.changes.to_dict("records")[:MOST_LINES]:
                line = f"  {row['what']}: {row['a']} → {row['b']}"
                lines.append(
                    line if len(line) <= TERMINAL_WIDTH else line[: TERMINAL_WIDTH - 1] + "…"
                )
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
    interval = "" if pd.isna(row["low"]) else f" ({row['low']:+z.3f} … {row['high']:+z.3f})"
    return (
        f"  {name:<{width}}  {row['a']:.3f} → {row['b']:.3f}  {row['difference']:+z.3f}{interval}"
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
    if isinstance(b, str) and b.startswith(PREFIX):
        raise HeatproofError(f'published numbers are for hp.compare_published(result, "{b}")')
    first, second = (_result(result) for result in (a, b))
    keys = [*GROUP, "method"]
    changes = _changes(first.store, second.store)
    lines = _differences(first, second, not len(changes)).drop(
        columns=["outcome", "needed", "lost"]
    )
    present = [r.scores[keys].drop_duplicates(ignore_index=True) for r in (first, second)]
    if not len(lines):
        raise HeatproofError(
            f"{first.store.name} and {second.store.name} have no scores of the same model, "
            f"protocol, settings and method. {_disjoint(first, second, *present)}".rstrip()
        )
    return RunComparison(
        lines,
        changes,
        _without(present[0], present[1]),
        _without(present[1], present[0]),
        (first, second),
    )


def _differences(
    first: Result, second: Result, identical: bool, allowed: Mapping[str, float] | None = None
) -> pd.DataFrame:
    signs = {facts.id: 1 if facts.higher_is_better else -1 for facts in first.plan.protocols}
    draws = first.aggregate_draws, second.aggregate_draws
    return run_differences(
        first.scores, second.scores, *draws, signs, allowed, first.limits, identical
    )


def _disjoint(first: Result, second: Result, a: pd.DataFrame, b: pd.DataFrame) -> str:
    """Say in what two runs have nothing in common, and how models get the same name."""
    for column in ("model", "protocol", "method"):
        names = [list(dict.fromkeys(lines[column])) for lines in (a, b)]
        if set(names[0]) & set(names[1]):
            continue
        shown = " and of ".join(join_limited(part) for part in names)
        text = f"They are of {shown}."
        if column != "model":
            return text
        same = " These are the same network." if _weights(first) & _weights(second) else ""
        return (
            f"{text}{same} Give the model one name in both: in Python hp.Model(network, "
            'name="mine"), in a spec models: [{name: file:net.py:build, as: mine}]'
        )
    return ""


def _weights(result: Result) -> set[str]:
    return {facts.fingerprint for facts in result.store.provenance().models}


def _result(result: Result | str | Path) -> Result:
    return result if isinstance(result, Result) else Result.load(result)


def _without(lines: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Return the lines that are not among others."""
    known = set(others.itertuples(index=False, name=None))
    chosen = [row not in known for row in lines.itertuples(index=False, name=None)]
    return lines[chosen].reset_index(drop=True)


def _changes(a: Store, b: Store) -> pd.DataFrame:
    """Return what is on record about two runs and not the same in both."""
    of_a, of_b = (dict(_settings(store)) for store in (a, b))
    names = list(dict.fromkeys([*of_a, *of_b]))
    if _from_python(a) != _from_python(b):  # they record other keys of the same settings
        names = [name for name in names if name in of_a and name in of_b]
        names = [name for name in names if name.removeprefix("spec.") not in SPEC_PARTS]
    lines = [
        (name, *_shown(of_a.get(name), of_b.get(name)))
        for name in names
        if of_a.get(name) != of_b.get(name)
    ]
    of_a, of_b = dict(_parts(a)), dict(_parts(b))
    common = [key for key in of_a if key in of_b]  # the others are in the spec
    lines += [(key, of_a[key], of_b[key]) for key in common if of_a[key] != of_b[key]]
    if other := _other_images(a, b):
        lines.append(("images", f"those of {join_limited(other)}", "others under the same ids"))
    return pd.DataFrame(lines, columns=["what", "a", "b"])


def _from_python(store: Store) -> bool:
    """Return whether a run was made of objects in Python, so that its spec has fewer keys."""
    return "version" not in store.provenance().spec


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
    spec = {key: v for key, v in provenance.spec.items() if key not in SPEC_DESCRIPTIONS}
    yield from _flat("spec", spec)
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
    return provenance.model_dump(mode="json", exclude={"spec", "models", *ALWAYS_DIFFERENT})


def _flat(prefix: str, content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping):
            yield from _flat(name, value)
        else:
            yield name, value
