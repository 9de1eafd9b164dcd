"""From expressions to maps: the order of things, in one place for all methods.

method [→ noise] → channel reduction → *stored* at native resolution → transforms at native resolution → bilinear to the image, last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from heatproof.data.base import Data, TensorData
from heatproof.data.catalog import load_data
from heatproof.data.reference import Reference
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.methods.base import REDUCTIONS, Expression
from heatproof.models.guards import assert_unchanged
from heatproof.models.model import Model
from heatproof.models.vit import is_vit
from heatproof.tensor.filters import resize
from heatproof.tensor.noise import Rng, sample_ids


class MapError(HeatproofError):
    """A method broke the contract of maps."""


def no_reference(expression: Expression) -> Mapping[str, Tensor]:
    raise HeatproofError(f"{expression.label} needs reference images: give some with reference=…")


def prepare(expression: Expression, model: Model, reference: Reference) -> dict[str, Tensor]:
    """What the method needs to know of the model beforehand, from images that are not judged."""
    assert expression.entry.prepare is not None
    return expression.entry.prepare(model.tail(expression.layer), reference.batches(model))


@dataclass
class Explainer:
    """Maps for one batch, each method computed once; passes are shared while `model.sharing` lasts."""

    model: Model
    x: Tensor  # (B, C, H, W)
    target: Tensor  # (B,)
    rng: Rng
    silhouette: Tensor | None = None  # (B, H, W)
    prepared: Callable[[Expression], Mapping[str, Tensor]] = no_reference
    _moments: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def native(self, expression: Expression) -> Tensor:  # (B, h, w) float32
        """What the method says, at the layer's own resolution, channels reduced. It may hold nan: see `finite`."""
        check_applicable(expression, self.model, self.silhouette is not None)
        h = self.model.activation(self.x, expression.layer)
        raw = self._moment(expression, h) if expression.noise else self._call(expression, h)
        return _checked(raw, h, expression)

    def _call(self, expression: Expression, h: Tensor) -> Tensor:
        """The method on that input, alone."""
        entry = expression.entry
        offered = {"silhouette": self.silhouette, "image": self.x}
        given: dict[str, Any] = {
            name: value for name, value in offered.items() if name in entry.needs
        }
        if entry.prepare:
            given["prepared"] = self.prepared(expression)
        arguments = {k: v for k, v in expression.arguments.items() if k != "reduce"}

        def call() -> Tensor:
            return entry.function(
                self.model.tail(expression.layer),
                h,
                self.target,
                rng=self.rng,
                **given,
                **arguments,
            )

        if entry.source is None:
            return call()
        with self._guarding(h, expression):
            return call()

    def _moment(self, expression: Expression, h: Tensor) -> Tensor:
        """Over noisy inputs. First and second moments are kept for the expressions that differ only in what they make of them."""
        noise = expression.noise
        assert noise is not None
        if expression.drawn not in self._moments:
            width = noise.std * (
                (h.flatten(1).amax(1) - h.flatten(1).amin(1)).reshape(-1, 1, 1, 1)
                if noise.relative
                else 1
            )
            first, second = torch.zeros(()), torch.zeros(())
            for i in range(noise.n):
                raw = self._call(
                    expression, h + width * self.rng.normal(f"noise {i}", h.shape[1:]).to(h)
                )
                _checked(raw, h, expression)
                raw = raw.detach().float()
                first, second = first.to(raw) + raw / noise.n, second.to(raw) + raw**2 / noise.n
            self._moments[expression.drawn] = first, second
        first, second = self._moments[expression.drawn]
        return {"mean": first, "sq": second, "var": (second - first**2).clamp(min=0)}[noise.kind]

    @contextmanager
    def _guarding(self, h: Tensor, expression: Expression) -> Iterator[None]:
        """Code of the user's own must not spoil what comes after it: input and network are put back, and the method fails."""
        before = h.clone()
        try:
            with assert_unchanged(self.model.module):
                yield
        finally:
            spoilt = not torch.equal(h, before)
            if spoilt:
                h.copy_(before)
        if spoilt:
            raise MapError(f"{expression.label} changed its input in place; work on x.clone()")

    def again(self, expression: Expression, x: Tensor) -> Tensor:  # (B, C, H, W) -> (B, H, W)
        """Maps of other images of the same samples, for the same targets. They may hold nan."""
        other = replace(self, x=x, _moments={})
        with self.model.sharing(x, self.target, [expression.layer]):
            return other.resized(transformed(expression, other.native(expression), self.rng))

    def resized(self, maps: Tensor) -> Tensor:  # (B, h, w) -> (B, H, W)
        return resize(maps, *self.x.shape[2:])


def transformed(expression: Expression, maps: Tensor, rng: Rng) -> Tensor:  # (B, h, w) -> same
    for transform, arguments in expression.transforms:
        maps = transform.apply(maps, arguments, rng)
    return maps


def check_applicable(expression: Expression, model: Model, has_silhouettes: bool) -> None:
    """Raises NotApplicable, or an error that names the layers there are."""
    try:
        at = model.layer_name(expression.layer)
    except NotApplicable as error:
        instead = (
            "; vit-gradcam and chefer are for vision transformers, ixg works on any model"
            if is_vit(model.module)
            else ""
        )
        raise NotApplicable(f"{expression.label} does not apply: {error}{instead}") from None
    if expression.entry.layers == "input" and at != "input":
        raise NotApplicable(
            f"{expression.label} does not apply: it is defined at the input only; write {expression.entry.id}"
        )
    if expression.entry.applies and (
        reason := expression.entry.applies(model.tail(expression.layer))
    ):
        raise NotApplicable(f"{expression.label} does not apply: {reason}")
    if "silhouette" in expression.entry.needs and not has_silhouettes:
        raise NotApplicable(
            f"{expression.label} needs data with silhouettes of the object, such as paperbirds"
        )


def _checked(raw: object, h: Tensor, expression: Expression) -> Tensor:
    if not isinstance(raw, Tensor):
        raise MapError(
            f"{expression.label} returned {type(raw).__name__}; a method returns a tensor (B, C, h, w) or (B, h, w)"
        )
    batch, height, width = len(h), *h.shape[2:]
    fits = (
        raw.ndim in (3, 4)
        and len(raw) == batch
        and raw.shape[-1] <= width
        and raw.shape[-2] <= height
        and raw.numel()
    )
    if not fits:
        raise MapError(
            f"{expression.label} returned shape {tuple(raw.shape)}; expected ({batch}, C, h, w) or ({batch}, h, w) "
            f"with h ≤ {height} and w ≤ {width}"
        )
    if raw.is_complex():
        raise MapError(f"{expression.label} returned complex numbers; a map is real")
    raw = raw.detach().float()
    return REDUCTIONS[expression.arguments["reduce"]](raw) if raw.ndim == 4 else raw


def finite(maps: Tensor) -> Tensor:  # (B, h, w) -> (B,) bool
    low, high = ends(maps)
    return low.isfinite() & high.isfinite()


def ends(maps: Tensor) -> tuple[Tensor, Tensor]:  # (B, h, w) -> (B,), (B,)
    """The smallest and the largest value; what is not a number is both. In two passes: `aminmax` takes four times as long."""
    flat = maps.flatten(1)
    return flat.amin(1), flat.amax(1)


def explain(
    model: Model,
    images: Tensor,
    targets: Tensor | Sequence[int] | int | None,
    method: str | Expression,
    *,
    ids: Sequence[str] | None = None,
    seed: int = 0,
    silhouette: Tensor | None = None,
    reference: Data | str | Tensor | None = None,
) -> Tensor:
    """Maps (B, H, W) for images in the model's input space (see `model.normalize`).

    targets: class indices; None explains the model's own prediction. ids key the noise (None: row numbers).
    reference: images in [0, 1] or data that are not explained, for methods that need some beforehand (`iba`).
    """
    expression = method if isinstance(method, Expression) else Expression.parse(method)
    if not isinstance(images, Tensor):
        raise HeatproofError(
            f"images must be a tensor in the model's input space; got {type(images).__name__} (see model.normalize)"
        )
    if not images.is_floating_point():
        raise HeatproofError(
            f"images must be floats in the model's input space; got {images.dtype}: model.normalize(images / 255)"
        )
    x = images.detach().to(model.device, model.dtype)
    if x.ndim != 4 or not len(x) or x.shape[1:] != (len(model.mean), model.size, model.size):
        raise HeatproofError(
            f"{model.name} takes images of shape (B, {len(model.mean)}, {model.size}, {model.size}); got {tuple(images.shape)}"
        )
    target = model.logits(x).argmax(1) if targets is None else _indices(targets, len(x), model)
    rng = Rng(seed, sample_ids(ids, len(x)), model.device)
    known = _known(model, reference) if reference is not None else None
    explainer = Explainer(
        model,
        x,
        target,
        rng,
        silhouette,
        partial(prepare, model=model, reference=known) if known else no_reference,
    )
    beforehand = (
        (lambda baseline: baseline.prepare(model, known.batches(model)))
        if known
        else model.prepared
    )
    check_applicable(expression, model, silhouette is not None)
    with model.preparing(beforehand), model.sharing(x, target, [expression.layer]):
        maps = explainer.resized(transformed(expression, explainer.native(expression), rng))
    bad = (~finite(maps)).nonzero().flatten().tolist()
    if bad:
        raise MapError(
            f"{expression.label}: the map of image {', '.join(map(str, bad))} is not finite"
        )
    return maps


def _indices(targets: Tensor | Sequence[int] | int, count: int, model: Model) -> Tensor:  # (count,)
    try:
        target = torch.as_tensor(targets, device=model.device).reshape(-1)
        target = target.expand(count) if len(target) == 1 else target
        fits = (
            not target.is_floating_point()
            and len(target) == count
            and target.min() >= 0
            and target.max() < model.n_classes
        )
    except (TypeError, ValueError, RuntimeError):  # not numbers
        fits = False
    if not fits:
        told = (
            f'"{targets}" (a method is the fourth argument: method="{targets}")'
            if isinstance(targets, str)
            else targets
        )
        raise HeatproofError(
            f"targets must be {count} class indices from 0 to {model.n_classes - 1}; got {told}"
        )
    return target


def _known(model: Model, reference: Data | str | Tensor) -> Reference:
    data = TensorData(reference) if isinstance(reference, Tensor) else load_data(reference, model)
    return Reference(data, range(len(data.ids)))
