"""Score a batch in memory: clean logits, shared results, maps, scores and failures.

`score_batch` is a function of its arguments. It computes a batch in steps, in the order of their
dependence: the clean pass; for each set of explained classes what protocols share; for each method
its maps, and the scores of these maps. How a step is computed is left to `Steps`, by default at
once. A run gives steps that compute slow ones in blocks of samples, time them and write them down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heatproof.data.catalog import Batch
from heatproof.errors import StorageError, format_error
from heatproof.methods import Explainer
from heatproof.methods.notes import MapNotes
from heatproof.methods.optimisation_state import Checkpoint
from heatproof.models.batch import ModelBatch
from heatproof.models.model import Model
from heatproof.models.targets import Chosen, choose
from heatproof.protocols import EvalBatch, Protocol, ViewKey
from heatproof.protocols.base import Shared
from heatproof.scoring.block import Block
from heatproof.scoring.evaluation import Evaluation
from heatproof.scoring.out_of_memory import is_out_of_memory
from heatproof.scoring.outcomes import CheckedMaps, Failure, Outcomes
from heatproof.scoring.prepared import PreparedTensors
from heatproof.tensor.noise import Rng


class CleanPass(NamedTuple):
    """Logits ``(B, K)`` of images, and activations ``(B, C, h, w)`` of the CAM layer, if any."""

    logits: Tensor
    features: Tensor | None


class NativeMaps(NamedTuple):
    """Maps ``(B, h, w)`` at the resolution of their layer, before transforms."""

    values: Tensor
    notes: MapNotes


class Steps:
    """The steps of a batch, computed at once, with results that are kept nowhere."""

    def clean(self, compute: Callable[[], CleanPass]) -> CleanPass:
        """Compute the pass of the intact images."""
        return compute()

    def shared(
        self, protocol: Protocol, block: Block, compute: Callable[[Block], Shared | Failure]
    ) -> Shared | Failure:
        """Compute what a protocol shares between all methods."""
        return compute(block)

    def maps(
        self,
        evaluation: Evaluation,
        block: Block,
        compute: Callable[[Block, Checkpoint], NativeMaps | Failure],
    ) -> NativeMaps | Failure:
        """Compute the maps of a method; the checkpoint keeps the state of an optimisation."""
        return compute(block, Checkpoint())

    def scores(
        self, evaluation: Evaluation, block: Block, compute: Callable[[Block], Outcomes]
    ) -> None:
        """Compute the scores of a method under a protocol."""
        self.add_outcomes(evaluation, block, compute(block))

    def add_maps(self, label: str, block: Block, maps: Tensor) -> None:
        """Take the maps of a method after its transforms, ``(B, h, w)``."""

    def add_outcomes(self, evaluation: Evaluation, block: Block, outcomes: Outcomes) -> None:
        """Take the outcome of each sample."""


@dataclass
class BatchScores:
    """The results of a batch.

    Attributes:
        outcomes: Scores, notes and failures of each evaluation, by sample.
        maps: Maps ``(B, h, w)`` by the method's label; of several classes that are explained, those
            of the first.
    """

    outcomes: dict[Evaluation, Outcomes] = field(default_factory=dict)
    maps: dict[str, Tensor] = field(default_factory=dict)


class _InMemory(Steps):
    """Keeps all results."""

    def __init__(self) -> None:
        self.results = BatchScores()

    def add_maps(self, label: str, block: Block, maps: Tensor) -> None:
        self.results.maps.setdefault(label, maps)

    def add_outcomes(self, evaluation: Evaluation, block: Block, outcomes: Outcomes) -> None:
        self.results.outcomes[evaluation] = outcomes


def score_batch(
    model: Model,
    batch: Batch,
    evaluations: Iterable[Evaluation],
    *,
    seed: int = 0,
    view: ViewKey = ViewKey(),  # noqa: B008 (frozen)
    prepared: PreparedTensors | None = None,
) -> BatchScores:
    """Evaluate methods on a batch of images.

    Args:
        model: The model.
        batch: The images.
        evaluations: Methods, each with the protocol that scores it.
        seed: Seed for all noise, which is keyed by the ids of the samples.
        view: What is evaluated in place of the model as it was given.
        prepared: Tensors from reference images, where a method or protocol needs them.

    Returns:
        Scores, notes and failures of each evaluation, and the maps.
    """
    steps = _InMemory()
    prepared = prepared or PreparedTensors(model, None)
    compute_steps(model, batch, list(evaluations), steps, seed, view, prepared)
    return steps.results


def compute_steps(
    model: Model,
    batch: Batch,
    evaluations: Sequence[Evaluation],
    steps: Steps,
    seed: int,
    view: ViewKey,
    prepared: PreparedTensors,
) -> None:
    """Compute the steps of a batch in order; takes what `score_batch` does."""
    clean = steps.clean(partial(clean_pass, model, batch.x)).logits
    rng = Rng(seed, batch.ids, model.device)
    labelled = [label is not None for label in batch.labels]
    for chosen, same in _by_target(model, evaluations, batch, clean):
        target = chosen.target
        seen = chosen.model
        applicable = [e for e in same if not e.not_applicable]
        gradients = {e.expression.layer for e in applicable if e.expression.shares_gradient}
        layers_of: dict[str, list[str]] = {}
        for e in applicable:
            if e.expression.layers_key:
                layers_of.setdefault(e.expression.layers_key, []).append(e.expression.layer)
        block = Block(
            EvalBatch(
                batch.ids,
                batch.x,
                target,
                clean if seen.derived is None else seen.derived(clean),
                rng,
                batch.parts,
                batch.silhouette,
                view=view,
                prepared_baseline=prepared.for_baseline,
            ),
            Explainer(
                ModelBatch(seen, batch.x, target, sorted(gradients), layers_of),
                rng,
                batch.silhouette,
                prepared.for_method,
                prepared.for_baseline,
            ),
            labelled,
            slice(0, len(batch.ids)),
            chosen.classes,
            chosen.lacking,
        )
        for evaluation in same:
            if evaluation.not_applicable:
                messages = [evaluation.not_applicable] * len(block)
                steps.add_outcomes(evaluation, block, Outcomes.without_scores("n/a", messages))
        scorer = _BlockScorer(seen, block, steps, prepared)
        protocols = {e.protocol.canonical: e.protocol for e in applicable}
        by_map: dict[str, list[Evaluation]] = {}
        for evaluation in applicable:
            by_map.setdefault(evaluation.expression.map_key, []).append(evaluation)
        shared = {
            name: steps.shared(protocol, block, partial(scorer.compute_shared, protocol))
            for name, protocol in protocols.items()
        }
        for same_map in by_map.values():  # only one method's maps are in memory at a time
            scorer.score_method(same_map, shared)


def clean_pass(model: Model, x: Tensor) -> CleanPass:
    """Compute the logits of images, and the activations of the CAM layer if there is one."""
    if "cam" not in model.landmarks:
        logits, _ = model.passes.logits_and_activation(x, model.layer_index("input"))
        return CleanPass(logits, None)
    logits, features = model.passes.logits_and_activation(x, model.layer_index("cam"))
    return CleanPass(logits, model.tail("cam").channels_first(features))


def _by_target(
    model: Model, evaluations: Sequence[Evaluation], batch: Batch, clean: Tensor
) -> list[tuple[Chosen, list[Evaluation]]]:
    """Group evaluations by what they explain, since those with the same classes share maps.

    That is the model's target if it has one. Else it is what the protocol says: the labels, where
    there are any, or the model's predictions.
    """
    if model.target is not None:
        return [(choose(model, model.target, clean, batch.labels), list(evaluations))]
    predicted = clean.argmax(1).tolist()
    labels = [
        prediction if label is None else label
        for prediction, label in zip(predicted, batch.labels, strict=True)
    ]
    groups: dict[tuple[int, ...], list[Evaluation]] = {}
    for evaluation in evaluations:
        explains_labels = evaluation.protocol.target_policy == "label"
        groups.setdefault(tuple(labels if explains_labels else predicted), []).append(evaluation)
    nothing = [""] * len(labels)
    return [
        (Chosen(model, torch.tensor(of, device=clean.device), list(of), nothing), same)
        for of, same in groups.items()
    ]


def _without(outcomes: Outcomes, lacking: Sequence[str]) -> Outcomes:
    """Take away the scores of images that do not have the target."""
    rows = [row for row, reason in enumerate(lacking) if reason]
    if not rows:
        return outcomes
    curves = {name: curve.clone() for name, curve in outcomes.curves.items()}
    for curve in curves.values():
        curve[rows] = torch.nan
    return replace(
        outcomes,
        statuses=[
            "undefined" if lack else s for s, lack in zip(outcomes.statuses, lacking, strict=True)
        ],
        messages=[lack or m for m, lack in zip(outcomes.messages, lacking, strict=True)],
        values=[math.nan if lack else v for v, lack in zip(outcomes.values, lacking, strict=True)],
        curves=curves,
    )


class _BlockScorer:
    """Scores methods on samples that explain the same classes."""

    def __init__(self, model: Model, block: Block, steps: Steps, prepared: PreparedTensors):
        self._model = model
        self._block = block
        self._steps = steps
        self._prepared = prepared

    def compute_shared(self, protocol: Protocol, block: Block) -> Shared | Failure:
        """Compute what a protocol shares between all methods."""
        batch = self._seen_by(protocol, block)
        with self._caught() as caught:
            return protocol.compute_shared(self._model, batch)
        return caught[0]

    def _seen_by(self, protocol: Protocol, block: Block) -> EvalBatch:
        """Return the samples of a block, with what the protocol has prepared."""
        prepared = self._prepared.for_protocol(protocol)
        return replace(block.batch, prepared=prepared) if prepared else block.batch

    def score_method(
        self, evaluations: Sequence[Evaluation], shared: dict[str, Shared | Failure]
    ) -> None:
        """Score the maps of one method, which differ in their transforms and protocols."""
        first = evaluations[0]
        native = self._steps.maps(first, self._block, partial(self._compute_maps, first))
        if isinstance(native, Failure):
            self._fail(evaluations, native)
            return
        missing = [row for row, reason in enumerate(native.notes.missing) if reason]
        if missing:
            native.values[missing] = torch.nan
        explainer = self._block.explainer
        for label in dict.fromkeys(e.expression.label for e in evaluations):
            same = [e for e in evaluations if e.expression.label == label]
            with self._caught() as caught:
                maps = explainer.transformed(same[0].expression, native.values)
            if caught:
                self._fail(same, caught[0])
                continue
            self._steps.add_maps(label, self._block, maps)
            checked = CheckedMaps.of(maps, native.values, native.notes)
            resized = explainer.resized(checked.maps)
            caches: dict[tuple[int, int], dict[Hashable, Any]] = {}
            for evaluation in same:
                of_protocol = shared[evaluation.protocol.canonical]
                if isinstance(of_protocol, Failure):
                    self._fail([evaluation], of_protocol)
                    continue
                compute = partial(
                    self._compute_scores, evaluation, of_protocol, resized, checked, caches
                )
                self._steps.scores(evaluation, self._block, compute)

    def _compute_maps(
        self, evaluation: Evaluation, block: Block, checkpoint: Checkpoint
    ) -> NativeMaps | Failure:
        explainer = replace(block.explainer, checkpoint=checkpoint)
        notes = MapNotes(len(block))
        with self._caught() as caught:
            return NativeMaps(explainer.native(evaluation.expression, notes), notes)
        return caught[0]

    def _compute_scores(
        self,
        evaluation: Evaluation,
        shared: Shared,
        maps: Tensor,
        checked: CheckedMaps,
        caches: dict[tuple[int, int], dict[Hashable, Any]],
        block: Block,
    ) -> Outcomes:
        """Score the maps of a block; protocols of the same maps share a cache."""
        rows = block.rows
        batch = replace(
            self._seen_by(evaluation.protocol, block),
            map_cache=caches.setdefault((rows.start, rows.stop), {}),
            explain=partial(block.explainer.recompute, evaluation.expression),
        )
        if block is not self._block:
            shared = {name: values[rows] for name, values in shared.items()}
        with self._caught() as caught:
            scores = evaluation.protocol.score_maps(self._model, batch, shared, maps[rows])
        if caught:
            return Outcomes.without_scores("failed", [caught[0].message] * len(block))
        return _without(checked.outcomes(evaluation, scores, rows, batch.clean), block.lacking)

    def _fail(self, evaluations: Sequence[Evaluation], failure: Failure) -> None:
        outcomes = Outcomes.without_scores("failed", [failure.message] * len(self._block))
        for evaluation in evaluations:
            self._steps.add_outcomes(evaluation, self._block, outcomes)

    @contextmanager
    def _caught(self) -> Iterator[list[Failure]]:
        """Catch an error, so that other evaluations can continue."""
        caught: list[Failure] = []
        try:
            yield caught
        except StorageError:  # of prepared tensors: no fault of the method
            raise
        except Exception as error:
            if is_out_of_memory(error) and self._model.batch_size > 1:
                raise  # with fewer images in a pass it may go well
            caught.append(Failure(format_error(error)))
