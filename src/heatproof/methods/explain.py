"""From expressions to maps: the order of things, in one place for all methods.

method → channel reduction → *stored* at native resolution → transforms at native resolution → bilinear to the image, last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from heatproof.errors import HeatproofError, NotApplicable
from heatproof.methods.base import REDUCTIONS, Expression
from heatproof.models.guard import unchanged
from heatproof.models.model import Model
from heatproof.tensor.filters import resize
from heatproof.tensor.noise import Rng


class MapError(HeatproofError):
    """A method broke the contract of maps."""


@dataclass
class Explainer:
    """Maps for one batch, each method computed once; passes are shared while `model.sharing` lasts."""

    model: Model
    x: Tensor  # (B, C, H, W)
    target: Tensor  # (B,)
    rng: Rng
    silhouette: Tensor | None = None  # (B, H, W)

    def native(self, expression: Expression) -> Tensor:  # (B, h, w) float32
        """What the method says, at the layer's own resolution, channels reduced. It may hold nan: see `finite`."""
        check_applicable(expression, self.model, self.silhouette is not None)
        part = self.model.tail(expression.layer)
        h = self.model.activation(self.x, expression.layer)
        given = {"silhouette": self.silhouette} if "silhouette" in expression.entry.needs else {}
        arguments = {k: v for k, v in expression.arguments.items() if k != "reduce"}
        if expression.entry.source is None:
            return _checked(expression.entry.function(part, h, self.target, rng=self.rng, **given, **arguments), h, expression)
        with self._guarding(h, expression):
            raw = expression.entry.function(part, h, self.target, rng=self.rng, **given, **arguments)
        return _checked(raw, h, expression)

    @contextmanager
    def _guarding(self, h: Tensor, expression: Expression) -> Iterator[None]:
        """Code of the user's own must not spoil what comes after it: input and network are put back, and the method fails."""
        before = h.clone()
        try:
            with unchanged(self.model.module):
                yield
        finally:
            spoilt = not torch.equal(h, before)
            if spoilt:
                h.copy_(before)
        if spoilt:
            raise MapError(f"{expression.label} changed its input in place; work on x.clone()")

    def resized(self, maps: Tensor) -> Tensor:  # (B, h, w) -> (B, H, W)
        return resize(maps, *self.x.shape[2:])


def transformed(expression: Expression, maps: Tensor) -> Tensor:  # (B, h, w) -> same
    for function, arguments in expression.transforms:
        maps = function(maps, **arguments)
    return maps


def check_applicable(expression: Expression, model: Model, has_silhouettes: bool) -> None:
    """Raises NotApplicable, or an error that names the layers there are."""
    model.layer_name(expression.layer)
    if expression.entry.applies and (reason := expression.entry.applies(model.tail(expression.layer))):
        raise NotApplicable(f"{expression.label} does not apply: {reason}")
    if "silhouette" in expression.entry.needs and not has_silhouettes:
        raise NotApplicable(f"{expression.label} needs data with silhouettes of the object, such as paperbirds")


def _checked(raw: object, h: Tensor, expression: Expression) -> Tensor:
    if not isinstance(raw, Tensor):
        raise MapError(f"{expression.label} returned {type(raw).__name__}; a method returns a tensor (B, C, h, w) or (B, h, w)")
    batch, height, width = len(h), *h.shape[2:]
    fits = raw.ndim in (3, 4) and len(raw) == batch and raw.shape[-1] <= width and raw.shape[-2] <= height and raw.numel()
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
    return torch.isfinite(maps).flatten(1).all(1)


def explain(
    model: Model,
    images: Tensor,
    targets: Tensor | Sequence[int] | int | None,
    method: str | Expression,
    *,
    ids: Sequence[str] | None = None,
    seed: int = 0,
    silhouette: Tensor | None = None,
) -> Tensor:
    """Maps (B, H, W) for images in the model's input space (see `model.normalize`).

    targets: class indices; None explains the model's own prediction. ids key the noise (None: row numbers).
    """
    expression = method if isinstance(method, Expression) else Expression.parse(method)
    if not isinstance(images, Tensor):
        raise HeatproofError(f"images must be a tensor in the model's input space; got {type(images).__name__} (see model.normalize)")
    x = images.to(model.device, model.dtype)
    if x.ndim != 4 or not len(x) or x.shape[1:] != (len(model.mean), model.size, model.size):
        raise HeatproofError(
            f"{model.name} takes images of shape (B, {len(model.mean)}, {model.size}, {model.size}); got {tuple(images.shape)}"
        )
    target = model.logits(x).argmax(1) if targets is None else torch.as_tensor(targets, device=model.device).reshape(-1).expand(len(x))
    if target.is_floating_point() or len(target) != len(x) or target.min() < 0 or target.max() >= model.n_classes:
        raise HeatproofError(f"targets must be {len(x)} class indices from 0 to {model.n_classes - 1}; got {targets}")
    rng = Rng(seed, ids if ids is not None else [str(i) for i in range(len(x))], model.device)
    explainer = Explainer(model, x, target, rng, silhouette)
    with model.sharing(x, target, [expression.layer]):
        maps = explainer.resized(transformed(expression, explainer.native(expression)))
    bad = (~finite(maps)).nonzero().flatten().tolist()
    if bad:
        raise MapError(f"{expression.label}: the map of image {', '.join(map(str, bad))} is not finite")
    return maps
