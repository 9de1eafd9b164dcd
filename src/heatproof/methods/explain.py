"""Compute maps from expressions, in the same way for all methods.

The order is: method [→ noise] → channel reduction → transforms at native resolution → bilinear
resizing to the image. Transforms that need the pixels of the image come after the resizing.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heatproof.baselines.base import PreparedBaselines
from heatproof.baselines.base import no_reference as no_reference_for_baseline
from heatproof.data.base import Data, TensorData
from heatproof.data.catalog import load_data
from heatproof.data.reference import Reference
from heatproof.errors import HeatproofError, NotApplicable, join_limited
from heatproof.methods.base import PER_CALL
from heatproof.methods.expression import Expression, baseline_of
from heatproof.methods.map_checks import MapError, as_maps, check_map, finite
from heatproof.methods.noise import noise_scale
from heatproof.methods.notes import MapNotes, kind_of, note_stretch
from heatproof.methods.optimisation_state import Checkpoint
from heatproof.methods.saved_maps import is_map_file
from heatproof.models.batch import LayerBatch, ModelBatch
from heatproof.models.guards import assert_unchanged, restored_settings
from heatproof.models.model import Model
from heatproof.models.targets import Target, choose
from heatproof.models.vit import is_vit
from heatproof.tensor.filters import resize
from heatproof.tensor.noise import Rng, sample_ids
from heatproof.tensor.scores import no_score

NETWORKS_KEPT = 8  # besides the one that is evaluated, with their gradients


def no_reference(expression: Expression) -> Mapping[str, Tensor]:
    """Raise an error, as there are no reference images to prepare a method from.

    Raises:
        HeatproofError: Always.
    """
    raise HeatproofError(f"{expression.label} needs reference images: give some with reference=…")


def prepare(expression: Expression, model: Model, reference: Reference) -> dict[str, Tensor]:
    """Compute what a method prepares from reference images."""
    assert expression.entry.prepare is not None
    return expression.entry.prepare(model.tail(expression.layer), reference.batches(model))


@dataclass
class Explainer:
    """Computes the maps of one batch.

    Attributes:
        batch: The images, their targets, and the passes that methods share.
        rng: The samples' noise.
        silhouette: The object's silhouettes, ``(B, H, W)``, where the data has them.
        prepared: Returns what a method has prepared.
        prepared_baseline: Returns what a method's baseline has prepared.
        checkpoint: Keeps the state of a long optimization.
    """

    batch: ModelBatch
    rng: Rng
    silhouette: Tensor | None = None
    prepared: Callable[[Expression], Mapping[str, Tensor]] = no_reference
    prepared_baseline: PreparedBaselines = no_reference_for_baseline
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    _moments: dict[str, tuple[Tensor, Tensor, list[MapNotes]]] = field(default_factory=dict)
    _networks: dict[Model, ModelBatch] = field(default_factory=dict)

    @property
    def model(self) -> Model:
        """The model of the batch."""
        return self.batch.model

    def native(self, expression: Expression, notes: MapNotes | None = None) -> Tensor:
        """Compute maps at the layer's resolution, before transforms.

        Args:
            expression: The method; its transforms are not applied.
            notes: Where notes on the maps are added; None: they are not of interest.

        Returns:
            Maps of shape ``(B, h, w)`` as float32, which may contain nan (see ``finite``).

        Raises:
            NotApplicable: If the method does not apply to the model.
            MapError: If what the method returned is not a map.
        """
        check_applicable(expression, self.model, self.silhouette is not None)
        count = len(self.batch.x)
        notes = notes or MapNotes(count)
        if expression.images_per_call is not None and count > expression.images_per_call:
            return self._call_by_call(expression, notes, expression.images_per_call)
        batch = self.batch.at(expression.layer, expression.layers_key)
        if expression.noise:
            raw = self._moment(expression, batch.x, notes)
        else:
            raw = self._call(expression, batch, notes, self.checkpoint)
        maps = self._checked(raw, batch.x, expression)
        at_layer = self.model.tail(expression.layer).channels_first(batch.x).shape[2:]
        if maps.shape[1:] != at_layer:
            height, width = self.batch.x.shape[2:]
            note_stretch(notes, maps, (height, width))
        return maps

    def part(self, rows: slice) -> Explainer:
        """Return what computes the maps of a block of the samples."""
        batch = ModelBatch(self.model, self.batch.x[rows], self.batch.target[rows])
        rng = Rng(self.rng.seed, self.rng.ids[rows], self.rng.device)
        silhouette = None if self.silhouette is None else self.silhouette[rows]
        return Explainer(batch, rng, silhouette, self.prepared, self.prepared_baseline)

    def _call_by_call(self, expression: Expression, notes: MapNotes, count: int) -> Tensor:
        """Compute maps of a few samples at a time."""
        maps = []
        for start in range(0, len(self.batch.x), count):
            rows = slice(start, min(start + count, len(self.batch.x)))
            own_notes = MapNotes(rows.stop - rows.start)
            maps.append(self.part(rows).native(expression, own_notes))
            notes.set_rows(rows, own_notes)
        return torch.cat(maps)

    def _checked(self, raw: object, h: Tensor, expression: Expression) -> Tensor:
        """Check what a method returned at a layer; tokens become a grid, channels are reduced."""
        tail = self.model.tail(expression.layer)
        if isinstance(raw, Tensor) and raw.shape == h.shape:
            raw = tail.channels_first(raw)
        return check_map(raw, tail.channels_first(h), expression)

    def _call(
        self,
        expression: Expression,
        batch: LayerBatch,
        notes: MapNotes,
        checkpoint: Checkpoint,
    ) -> Tensor:
        """Call the method on a batch at its layer."""
        entry = expression.entry
        available = {
            "batch": batch,
            "image": self.batch.x,
            "silhouette": self.silhouette,
            "notes": notes,
            "checkpoint": checkpoint,
        }
        arguments: dict[str, Any] = {k: v for k, v in available.items() if entry.takes(k)}
        arguments |= {
            k: v for k, v in expression.arguments.items() if k not in ("reduce", PER_CALL)
        }
        if entry.prepare:
            arguments["prepared"] = self.prepared(expression)
        if entry.takes("baseline_prepared"):
            baseline = baseline_of(arguments)
            prepared = baseline.prepared_by(self.prepared_baseline) if baseline else None
            arguments["baseline_prepared"] = prepared

        def call() -> Tensor:
            return entry.function(
                self.model.tail(expression.layer),
                batch.x,
                batch.target,
                rng=self._rng(expression),
                **arguments,
            )

        if entry.source is None:
            return call()
        with self._guarding(batch.x, expression):
            return as_maps(call(), batch.x)

    def _moment(self, expression: Expression, h: Tensor, notes: MapNotes) -> Tensor:
        """Compute the mean, the mean square or the variance of maps of noisy inputs.

        The first two moments are kept for expressions that differ only in which of them they take.
        """
        noise = expression.noise
        assert noise is not None
        if expression.noise_key not in self._moments:
            tail = self.model.tail(expression.layer)
            width = noise.std * noise_scale(tail, h, noise.unit)
            first = torch.zeros(())
            second = torch.zeros(())
            copies = [MapNotes(len(h)) for _ in range(noise.n)]
            rng = self._rng(expression)
            for i, copy in enumerate(copies):
                noisy = h + width * rng.normal(f"noise {i}", h.shape[1:]).to(h)
                noisy_batch = ModelBatch(tail, noisy, self.batch.target)
                raw = self._call(expression, noisy_batch.at("input"), copy, Checkpoint())
                self._checked(raw, h, expression)
                raw = raw.detach().float()
                first = first.to(raw) + raw / noise.n
                second = second.to(raw) + raw**2 / noise.n
            self._moments[expression.noise_key] = first, second, copies
        first, second, copies = self._moments[expression.noise_key]
        notes.add_of_copies(copies)
        return {"mean": first, "sq": second, "var": (second - first**2).clamp(min=0)}[noise.kind]

    def _rng(self, expression: Expression) -> Rng:
        """Return the noise of a method: that of the samples, or that of another seed."""
        if not expression.seed:
            return self.rng
        return Rng(self.rng.seed + expression.seed, self.rng.ids, self.rng.device)

    @contextmanager
    def _guarding(self, h: Tensor, expression: Expression) -> Iterator[None]:
        """Restore everything after a user's code, and raise if input or network have changed."""
        before = h.clone()
        try:
            with assert_unchanged(self.model.module), restored_settings():
                yield
        finally:
            changed = not torch.equal(h, before)
            if changed:
                h.copy_(before)
        if changed:
            raise MapError(f"{expression.label} changed its input in place; work on x.clone()")

    def recompute(
        self,
        expression: Expression,
        x: Tensor,
        *,
        model: Model | None = None,
        target: Tensor | None = None,
    ) -> Tensor:
        """Compute maps of other images of the same samples.

        Args:
            expression: The method, with its transforms.
            x: The images, ``(B, C, H, W)``.
            model: Another network that is explained, such as one with random weights.
            target: Other classes that are explained, ``(B,)``.

        Returns:
            Maps of shape ``(B, H, W)``, which may contain nan.

        Raises:
            HeatproofError: If the method has no other maps than those that were given.
        """
        if is_map_file(expression.entry.id):
            raise HeatproofError(
                f"{expression.label} has one map of each sample, and this protocol asks for more "
                "of them; give the method itself, such as a function (model, x, target) -> maps"
            )
        if model is not None and expression.entry.prepare is not None:
            raise NotApplicable(
                f"{expression.label} is prepared from reference images for the network itself, "
                "so that it cannot explain one with other weights"
            )
        own = self.batch.x
        same_images = x.data_ptr() == own.data_ptr() and x.shape == own.shape
        batch = None
        if model is not None and target is None and same_images:
            batch = self._batch_on(model)
        if batch is None:
            classes = self.batch.target if target is None else target
            batch = ModelBatch(model or self.model, x, classes, [expression.layer])
        other = replace(self, batch=batch, checkpoint=Checkpoint(), _moments={}, _networks={})
        return other.resized(other.transformed(expression, other.native(expression)))

    def _batch_on(self, model: Model) -> ModelBatch | None:
        """Return the batch on another network, whose gradients methods share; None if too many."""
        if model not in self._networks and len(self._networks) < NETWORKS_KEPT:
            self._networks[model] = self.batch.on(model)
        return self._networks.get(model)

    def transformed(self, expression: Expression, maps: Tensor) -> Tensor:
        """Apply the transforms of an expression to its maps.

        Args:
            expression: The method with its transforms.
            maps: Maps at the layer's resolution, ``(B, h, w)``.

        Returns:
            Maps of the same size, or of the size of the images from the first transform on that
            needs it.
        """
        for transform, arguments in expression.transforms:
            if transform.at == "image":
                maps = self.resized(maps)
            maps = transform.apply(maps, arguments, self._rng(expression))
        return maps

    def resized(self, maps: Tensor) -> Tensor:  # (B, h, w) -> (B, H, W)
        """Resize maps to the images, bilinearly."""
        return resize(maps, *self.batch.x.shape[2:])


def check_applicable(expression: Expression, model: Model, has_silhouettes: bool) -> None:
    """Check that a method applies to a model and its data.

    Raises:
        NotApplicable: If it does not.
        HeatproofError: If the model has no such layer; the message lists its layers.
    """
    entry = expression.entry
    try:
        layer = model.layer_name(expression.layer)
    except NotApplicable as error:
        instead = ""
        if is_vit(model.module):
            instead = (
                "; vit-gradcam and chefer are for vision transformers, ixg works on any model, and "
                "CAMs at the first norm of the last block: gradcam"
            )
        raise NotApplicable(f"{expression.label} does not apply: {error}{instead}") from None
    if entry.layers == "input" and layer != "input":
        at_layer = next((name for name in entry.parameters if name.startswith(LAYER_ARGUMENTS)), "")
        instead = f"{entry.id}({at_layer}={layer})" if at_layer else entry.id
        raise NotApplicable(
            f"{expression.label} does not apply: it is defined at the input only; write {instead}"
        )
    if layer != "input":
        _check_positions(expression, model)
    if entry.applies and (reason := entry.applies(model.tail(expression.layer))):
        raise NotApplicable(f"{expression.label} does not apply: {reason}")
    score = str(expression.arguments.get("score", "logit"))
    if model.head == "regression" and score != "logit":
        raise NotApplicable(f"{expression.label} does not apply: {no_score(score)}")
    if "silhouette" in entry.needs and not has_silhouettes:
        raise NotApplicable(
            f"{expression.label} needs data with silhouettes of the object, such as paperbirds"
        )


LAYER_ARGUMENTS = ("layer", "target_layer")  # of methods of other libraries
LEAST_CONTRAST = 0.5  # of a picture, from its darkest to its lightest value
FAMILIES_ON_TOKENS = frozenset({"gradient", "cam", "yours"})  # they need no (B, C, h, w)


def _check_positions(expression: Expression, model: Model) -> None:
    """Check that a layer has positions, and that the method takes them as they are.

    Raises:
        NotApplicable: If it does not.
    """
    try:
        grid = model.grid(expression.layer)
    except NotApplicable as error:
        raise NotApplicable(f"{expression.label} does not apply: {error}") from None
    if grid is not None and expression.entry.family not in FAMILIES_ON_TOKENS:
        raise NotApplicable(
            f"{expression.label} does not apply: {model.layer_name(expression.layer)} has "
            f"{grid.text}, and the method is for features (C, h, w); write "
            f"{expression.entry.id}@input, or gradcam@{expression.layer}"
        )


def explain(
    model: Model,
    images: Tensor,
    targets: Tensor | Sequence[int] | int | str | None,
    method: Any,
    *,
    ids: Sequence[str] | None = None,
    seed: int = 0,
    silhouette: Tensor | None = None,
    reference: Data | str | Tensor | None = None,
    notes: MapNotes | None = None,
) -> Tensor:
    """Compute the maps of one method.

    Args:
        model: The model.
        images: Images in the model's input space (see ``model.normalize``), ``(B, C, H, W)``.
        targets: Class indices, one for all or one per image; or a target such as ``runner-up``,
            ``class NAME`` or ``prediction - runner-up`` (see `Model.with_target`); None explains
            the model's prediction.
        method: An expression such as ``ig(steps=20)@middle|abs``, a function, or an object of
            another library.
        ids: Sample ids, which key the noise; by default row numbers.
        seed: The seed of all noise.
        silhouette: The object's silhouettes, ``(B, H, W)``, for methods that need them.
        reference: Images in [0, 1] or data, for methods and baselines that need images that are not
            explained (``iba``).
        notes: Where notes on single maps are added (``hp.MapNotes(len(images))``), such as that an
            optimization did not converge; by default a warning is issued where a map is in doubt.

    Returns:
        Maps of shape ``(B, H, W)``.

    Raises:
        NotApplicable: If the method does not apply to the model.
        HeatproofError: If an argument does not fit the model, or a map is missing or not finite.
    """
    expression = Expression.parse(method)
    if not isinstance(images, Tensor):
        cure = "write torch.from_numpy(images)" if isinstance(images, np.ndarray) else ""
        raise HeatproofError(
            "images must be a tensor in the model's input space; "
            f"got {type(images).__name__} ({cure or 'see model.normalize'})"
        )
    if not images.is_floating_point():
        raise HeatproofError(
            "images must be floats in the model's input space; "
            f"got {images.dtype}: model.normalize(images / 255)"
        )
    x = images.detach().to(model.device, model.dtype)
    if x.ndim != 4 or not len(x) or x.shape[1:] != model.image_shape:
        raise HeatproofError(_wrong_shape(model, images))
    _warn_of_unnormalized(model, x)
    model, target = explained(model, x, targets)
    rng = Rng(seed, sample_ids(ids, len(x)), model.device)
    check_applicable(expression, model, silhouette is not None)
    explainer = Explainer(ModelBatch(model, x, target, [expression.layer]), rng, silhouette)
    if reference is not None:
        prepared_from = _reference(model, reference)
        explainer.prepared = partial(prepare, model=model, reference=prepared_from)
        explainer.prepared_baseline = lambda b: b.prepare(model, prepared_from.batches(model))
    own_notes = MapNotes(len(x)) if notes is None else notes
    native = explainer.native(expression, own_notes)
    for row, reason in enumerate(own_notes.missing):
        if reason:
            raise MapError(f"{expression.label}: there is no map of image {row}: {reason}")
    if notes is None:
        _warn(expression, own_notes)
    maps = explainer.resized(explainer.transformed(expression, native))
    bad = (~finite(maps)).nonzero().flatten().tolist()
    if bad:
        raise MapError(
            f"{expression.label}: the map of image {', '.join(map(str, bad))} is not finite"
        )
    return maps


def _warn_of_unnormalized(model: Model, x: Tensor) -> None:
    """Warn of images in [0, 1] where the model takes normalized ones, and of those up to 255.

    Normalized images have values in [0, 1] alone only if they have very little contrast, and none
    that are far above a normalized white.
    """
    takes_pixels = bool((model.mean == 0).all() and (model.std == 1).all())
    white = float(((1 - model.mean) / model.std).max())
    low, high = x.aminmax()
    cure = ""
    if low >= 0 and 2 * white < high <= 255:
        kind, cure = "from 0 to 255", "model.normalize(images / 255)"
    elif not takes_pixels and low >= 0 and high <= 1 and high - low > LEAST_CONTRAST:
        kind, cure = "in [0, 1]", "model.normalize(images)"
    if cure:
        takes = "such in [0, 1]" if takes_pixels else "normalized ones"
        warnings.warn(
            f"the images look like pictures {kind}, but {model.name} takes {takes}: pass {cure}",
            stacklevel=4,
        )


def _wrong_shape(model: Model, images: Tensor) -> str:
    """Return what is wrong with the shape of images, and the line of code that cures it."""
    channels, height, width = model.image_shape
    got = tuple(images.shape)
    text = f"{model.name} takes images of shape (B, {channels}, {height}, {width}); got {got}"
    if got == (channels, height, width):
        return f"{text}: write images[None] for a single image"
    if got == (height, width, channels):
        return f"{text}: write images.permute(2, 0, 1)[None] for a single image"
    if got[1:] == (height, width, channels):
        return f"{text}: write images.permute(0, 3, 1, 2), as channels come before the pixels"
    return text


def _warn(expression: Expression, notes: MapNotes) -> None:
    """Issue one warning per kind of doubt about maps, with the first note as an example."""
    by_kind: dict[str, list[str]] = {}
    for text in notes.doubts.values():
        by_kind.setdefault(kind_of(text), []).append(text)
    for texts in by_kind.values():
        warnings.warn(
            f"{expression.label}, {len(texts)} of {len(notes.texts)} maps: for example, {texts[0]}",
            stacklevel=4,
        )


def explained(
    model: Model, x: Tensor, targets: Tensor | Sequence[int] | int | str | None
) -> tuple[Model, Tensor]:
    """Find what is explained of images.

    Args:
        model: The model.
        x: Images in its input space, ``(B, C, H, W)``.
        targets: As for `explain`.

    Returns:
        The model, or a view of it with derived logits; and which logits are explained, ``(B,)``.

    Raises:
        HeatproofError: If the model or an image does not have the target.
    """
    if isinstance(targets, str):
        try:
            wanted = Target.parse(targets)
        except HeatproofError as error:
            if re.search(r"\s", targets):
                raise
            raise HeatproofError(
                f"targets must be {len(x)} class indices from 0 to {model.n_classes - 1}, or a "
                f'target by name; got "{targets}" (a method is the fourth argument: '
                f'method="{targets}"): {error}'
            ) from None
        wanted = wanted.of(model)
    elif targets is None:
        wanted = model.target or Target.parse("prediction")
    else:
        return model, _indices(targets, len(x), model)
    if any(term.kind == "label" for term in wanted.terms):
        raise HeatproofError(
            f'target "{wanted.text}": explain has no labels; give the class indices of the images, '
            "such as targets=[3, 5]"
        )
    chosen = choose(model, wanted, model.logits(x), None)
    lacking = [f"image {row}: {reason}" for row, reason in enumerate(chosen.lacking) if reason]
    if lacking:
        raise HeatproofError(f'target "{wanted.text}": {join_limited(lacking)}')
    return chosen.model, chosen.target


def _indices(targets: Tensor | Sequence[int] | int, count: int, model: Model) -> Tensor:  # (count,)
    """Check the targets, and repeat a single one."""
    logits = model.n_classes + (len(model.derived.columns) if model.derived else 0)
    try:
        target = torch.as_tensor(targets, device=model.device).reshape(-1)
        target = target.expand(count) if len(target) == 1 else target
        whole = not target.is_floating_point() or bool((target == target.round()).all())
        fits = whole and len(target) == count and target.min() >= 0 and target.max() < logits
    except (TypeError, ValueError, RuntimeError):  # not numbers
        fits = False
    if not fits:
        raise HeatproofError(
            f"targets must be {count} class indices from 0 to {model.n_classes - 1}; got {targets}"
        )
    return target.long()


def _reference(model: Model, reference: Data | str | Tensor) -> Reference:
    data = TensorData(reference) if isinstance(reference, Tensor) else load_data(reference, model)
    return Reference(data, range(len(data.ids)))
