"""The layers ``cam``, ``final`` and ``middle`` of a network, by its structure, and its head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from heatproof.models.cutting import Body

_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_POOL_FUNCTIONS = {"mean", "avg_pool2d", "max_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d"}


class Landmarks(NamedTuple):
    """Layers with a special role; None if the network has no spatial layer."""

    middle: int | None
    final: int | None
    cam: int | None
    embedding: int
    head: int  # the first layer whose next step belongs to the head
    units: tuple[int, ...] = ()  # the ends of convolutions and blocks up to `final`
    last_conv: int | None = None  # the output of the last convolution or block, before a ReLU


def landmarks(
    body: Body, shapes: Sequence[Sequence[int]], known_middle: str | None = None
) -> Landmarks:
    """Find the layers with a special role.

    ``cam`` is the last spatial layer, ``final`` the last before the last pooling, and ``middle``
    comes after half of the convolutions up to ``final``, unless it is known. The last convolution
    counts without the norm and ReLU after it, or as a whole block. The embedding is the
    input of the last layer with weights; the head consists of all layers with weights after
    ``cam``.

    Args:
        body: The network.
        shapes: The shape of one image's activation at each layer.
        known_middle: The layer that is ``middle``; disregarded if it is not a layer of the body,
            or does not come before ``final``.

    Returns:
        The numbers of these layers.
    """
    area = [shape[1] * shape[2] if len(shape) == 3 else 1 for shape in shapes]  # 1: no positions
    modules = [body.module_after(i) for i in range(len(body.layers))]
    has_weights = [m is not None and any(True for _ in m.parameters()) for m in modules]
    embedding = max((i for i, w in enumerate(has_weights) if w), default=len(modules) - 1)
    spatial = [i for i, a in enumerate(area) if a > 1 and i > 0]
    if not spatial:
        return Landmarks(None, None, None, embedding, embedding)
    cam = spatial[-1]
    while (
        cam > 1
        and area[cam] >= area[cam - 1]
        and isinstance(modules[cam - 1], (*_POOLS, nn.Dropout, nn.Identity))
    ):
        cam -= 1  # an adaptive pool that changes nothing, or repeats values, does not count
    weights = [_convolutions(m) for m in modules]
    pools = [i for i in spatial if _pools(body, modules, area, i)]
    final = pools[-1] if pools else cam
    if any(weights[final:cam]):
        final = cam  # the last pooling is part of the head
    done = [sum(weights[:i]) for i in range(len(weights))]
    middle = _layer_number(body, known_middle)
    if not 0 < middle < final:
        middle = min(range(1, final + 1), key=lambda i: (abs(done[i] - done[final] / 2), -i))
        while middle > 1 and area[middle] < area[middle - 1] and not weights[middle - 1]:
            middle -= 1  # before a pool, not after it
    head = next((i for i in range(cam, len(modules)) if has_weights[i]), embedding)
    units = _units(body, modules, weights, shapes[: final + 1])
    last_conv = max((i + 1 for i in range(final) if weights[i]), default=None)
    return Landmarks(middle, final, cam, embedding, head, units, last_conv)


def _layer_number(body: Body, name: str | None) -> int:
    """Return the number of a layer by its name or alias; 0 if there is none."""
    if name in body.layers:
        return body.layers.index(name)
    return body.aliases.get(name or "", 0)


def _units(
    body: Body,
    modules: Sequence[nn.Module | None],
    weights: Sequence[int],
    shapes: Sequence[Sequence[int]],
) -> tuple[int, ...]:
    """Return the ends of convolutions and blocks.

    A convolution ends after its norm and ReLU; of blocks of one shape in a container, the last
    counts (Rao et al. 2024).
    """
    final = len(shapes) - 1
    ends = [i + 1 for i in range(final) if weights[i]]
    if not ends:
        return tuple(range(1, final + 1))  # the network is not cut: the layers that were named
    for k, end in enumerate(ends):
        while (
            end < final
            and not weights[end]
            and shapes[end + 1] == shapes[end]
            and not isinstance(modules[end], _POOLS)
        ):
            end += 1
        ends[k] = end

    def continues(end: int, following: int) -> bool:
        """Return whether the next unit is a block of the same shape in the same container."""
        container = body.layers[end].rpartition(".")[0]
        then = body.layers[following]
        if not container or container not in (then, then.rpartition(".")[0]):
            return False
        is_block = not isinstance(modules[end - 1], nn.ReLU | nn.Conv2d | nn.BatchNorm2d)
        return is_block and shapes[end] == shapes[following]

    return tuple(
        end
        for end, following in zip(ends, [*ends[1:], 0], strict=True)
        if not following or not continues(end, following)
    )


def _pools(
    body: Body, modules: Sequence[nn.Module | None], area: Sequence[int], layer: int
) -> bool:
    """Return whether a pooling follows a layer."""
    after = area[layer + 1] if layer + 1 < len(area) else 1
    name = body.layers[layer + 1] if layer + 1 < len(body.layers) else ""
    pooling = isinstance(modules[layer], _POOLS) or name.rstrip("_0123456789") in _POOL_FUNCTIONS
    return pooling and after < area[layer]


def _convolutions(module: nn.Module | None) -> int:
    """Count the convolutions and linear layers inside a module."""
    if module is None:
        return 0
    return sum(isinstance(m, nn.Conv2d | nn.Linear) for m in module.modules())
