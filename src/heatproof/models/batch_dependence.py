"""Networks whose result for an image depends on the other images of the batch.

A batch norm without running statistics does so even in evaluation mode. Maps and scores of such a
network would change with the batch size and the order of the images, so it is refused, or evaluated
one image at a time where the user asks for that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from heatproof.errors import HeatproofError
from heatproof.models.wrapping import HALF_PRECISIONS

if TYPE_CHECKING:
    from heatproof.models.cutting import Body, Steps

# Rounding differs between batch sizes: the logits of 17 networks (torchvision, timm, our own) by
# at most 8e-7 of the largest. Gradients of independent rows are zero, whatever the rounding.
LOGIT_TOLERANCE = 1e-4
HALF_TOLERANCE = 0.05
GRADIENT_TOLERANCE = 1e-6
CONTRAST = 0.1  # of the second image, so that statistics of the batch differ from the first one's

_allowed = ContextVar("batch_dependent", default=False)
_known = ContextVar("rows_known_independent", default=False)


@contextmanager
def allow_batch_dependence(allowed: bool) -> Iterator[None]:
    """Let models that are made in the context run one image at a time."""
    token = _allowed.set(allowed or _allowed.get())
    try:
        yield
    finally:
        _allowed.reset(token)


@contextmanager
def known_independence(known: bool) -> Iterator[None]:
    """Let models that are made in the context go unchecked, which saves a third of their opening.

    Args:
        known: Whether their structure is known, and was checked.
    """
    token = _known.set(known)
    try:
        yield
    finally:
        _known.reset(token)


def one_at_a_time(name: str, module: nn.Module, example: Tensor, wanted: bool) -> bool:
    """Return whether a network is to run one image at a time.

    Args:
        name: The name of the model.
        module: The network, in evaluation mode; it is the same function whenever it is called.
        example: Two images.
        wanted: Whether the user asks for it.

    Raises:
        HeatproofError: If it must, since its rows depend on each other, and the user does not ask.
    """
    if wanted or _allowed.get():
        return True
    if _known.get():
        return False
    found = _difference(module, example)
    if found:
        raise HeatproofError(
            f"{name}: {found} of an image depend on the other images of its batch, also in "
            f"evaluation mode{_cause(module, example)}. Or evaluate it one image at a time: "
            "batch_dependent: true in a spec, hp.Model(net, batch_dependent=True)"
        )
    return False


def _difference(module: nn.Module, example: Tensor) -> str:
    """Return what of one of two images depends on the other; empty if nothing.

    An output that depends on another image has a gradient with respect to it. Both images are
    looked at, since one may depend on those before it alone.
    """
    pair = _pair(example)
    with torch.enable_grad():
        pair.requires_grad_()
        together = module(pair)
        for row, image in enumerate(pair.detach()):
            with torch.no_grad():
                single = module(image[None].clone())
            if together.shape[:1] != (2,) or single.shape != together[:1].shape:
                return "the shape and the values of the outputs"
            if _differ(together[row : row + 1], single, LOGIT_TOLERANCE):
                return "the outputs"
        if not together.requires_grad:
            return ""  # no method needs gradients that there are not
        for row, output in enumerate(together.reshape(2, -1)):
            weights = torch.linspace(1, 2, len(output)).to(output)
            try:
                gradients = torch.autograd.grad(output, pair, weights, retain_graph=row == 0)[0]
            except RuntimeError:  # methods that need gradients say what is wrong with them
                return ""
            own, other = gradients[row].float(), gradients[1 - row].float()
            if other.norm() > GRADIENT_TOLERANCE * own.norm():
                return "the gradients"
    return ""


def _pair(example: Tensor) -> Tensor:
    return torch.stack([example[0], CONTRAST * example[1]])


def _differ(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Return whether two results differ by more than a fraction of their norm."""
    if one.dtype in HALF_PRECISIONS:
        tolerance = HALF_TOLERANCE
    one, other = one.detach().float(), other.detach().float()
    return bool((one - other).norm() > tolerance * other.norm() + 1e-12)


def _cause(module: nn.Module, example: Tensor) -> str:
    """Name the first module whose rows depend on each other, and what to do about it."""
    statistics = [
        name
        for name, part in module.named_modules()
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is None
    ]
    if statistics:
        more = f" and {len(statistics) - 1} more" if len(statistics) > 1 else ""
        return (
            f", since the batch norm {statistics[0] or 'itself'}{more} has no running statistics: "
            "make it with track_running_stats=True and train it, or use a GroupNorm"
        )
    pair = _pair(example)
    together, *singles = (_outputs(module, images) for images in (pair, pair[:1], pair[1:]))
    names = {part: name for name, part in module.named_modules()}
    for part, output in together.items():  # in the order in which they finish
        half = len(output) // 2  # some merge the images with their windows
        rows = (output[:half], output[half:])
        alone = [single.get(part) for single in singles]
        if any(
            other is None or other.shape != own.shape or _differ(own, other, LOGIT_TOLERANCE)
            for own, other in zip(rows, alone, strict=True)
        ):
            where = names[part] or "its forward"
            return f", first in {where} ({type(part).__name__}): compute each row from itself"
    return ": compute each row from itself"


def _outputs(module: nn.Module, images: Tensor) -> dict[nn.Module, Tensor]:
    """Return the outputs of all modules, in the order in which they finish."""
    seen: dict[nn.Module, Tensor] = {}

    def keep(part: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim:
            seen.setdefault(part, output)

    with ExitStack() as hooks, torch.no_grad():
        for part in module.modules():
            if not isinstance(part, torch.jit.ScriptModule):  # they take no hooks
                hooks.enter_context(part.register_forward_hook(keep))
        module(images)
    return seen


class OneAtATime:
    """A body that runs one image after the other.

    Args:
        inner: The body, whose rows depend on each other.
    """

    def __init__(self, inner: Body):
        self.inner = inner
        self.layers = inner.layers
        self.aliases = inner.aliases

    def run(
        self, h: Tensor, start: int, stop: int | None = None, watch: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        if len(h) == 1:
            return self.inner.run(h, start, stop, watch)
        runs = [self.inner.run(row, start, stop, watch) for row in torch.split(h, 1)]
        seen = {layer: torch.cat([each[layer] for _, each in runs]) for layer in runs[0][1]}
        return torch.cat([out for out, _ in runs]), seen

    def steps(self, start: int) -> Steps | None:
        steps = self.inner.steps(start)
        return None if steps is None else [(to, partial(_by_row, step)) for to, step in steps]

    def module_after(self, layer: int) -> nn.Module | None:
        return self.inner.module_after(layer)


def _by_row(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.cat([function(row) for row in torch.split(x, 1)])
