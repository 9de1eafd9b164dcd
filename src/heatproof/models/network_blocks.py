"""Layers of networks that torch.fx does not cut where positions are: blocks, and their grids.

A network of ``transformers`` is one opaque call to a trace. Its blocks are found by running it, and
are cut by hooks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, fx, nn

from heatproof.errors import HeatproofError
from heatproof.models.cam_layer import Landmarks, landmarks
from heatproof.models.cutting import Body, Hooked, first_tensor, layer_shapes
from heatproof.models.guards import eval_mode
from heatproof.models.tokens import Grid, find_grid

CONTAINERS = (nn.ModuleList, nn.Sequential)


def grids_of(
    module: nn.Module, shapes: Sequence[Sequence[int]], image: Sequence[int]
) -> tuple[dict[int, Grid], frozenset[int]]:
    """Find the layers whose activations are not ``(B, C, h, w)``.

    Args:
        module: The network.
        shapes: The shape of one image's activation at each layer.
        image: Height and width of the image.

    Returns:
        The grids of layers with tokens or with channels last, and the layers without positions.
    """
    found = {i: find_grid(module, shape, image) for i, shape in enumerate(shapes) if i}
    grids = {i: grid for i, grid in found.items() if grid is not None}
    return grids, frozenset(i for i in found if i not in grids and len(shapes[i]) != 3)


def with_blocks(
    module: nn.Module, body: Body, roles: Landmarks, example: Tensor
) -> tuple[Body, Landmarks]:
    """Give a network without spatial layers its blocks as layers, and landmarks among them.

    Args:
        module: The network, in evaluation mode.
        body: Its body, of which no layer is ``(B, C, h, w)``.
        roles: Its landmarks.
        example: Images that it takes, ``(B, C, H, W)``.

    Returns:
        The body, or one that is cut at the blocks; and the landmarks. ``cam`` is the last layer
        with positions that the logits depend on: after the last block of a ViT only its class
        token counts.
    """
    used = _used(module, body, roles, example)
    # A trace may see a transformer as a single step.
    cuts = [*_separating(module, example)] if len(used) < 2 else []
    if cuts:
        hooked = Hooked(module, cuts, example)
        hooked_roles = landmarks(hooked, layer_shapes(hooked, example))
        in_blocks = _used(module, hooked, hooked_roles, example)
        if len(in_blocks) > len(used):
            body, roles, used = hooked, hooked_roles, in_blocks
    if not used:
        return body, roles
    cam = used[-1]
    middle = used[(len(used) - 1) // 2]
    return body, roles._replace(middle=middle, final=cam, cam=cam, units=tuple(used))


def _used(module: nn.Module, body: Body, roles: Landmarks, example: Tensor) -> list[int]:
    """Return the blocks with positions that the logits depend on."""
    with torch.no_grad():
        _, seen = body.run(example[:1], 0, watch=range(len(body.layers)))
    shapes = [seen[i].shape[1:] for i in range(len(body.layers))]
    grids, _ = grids_of(module, shapes, example.shape[2:])
    spatial = [
        i
        for i in range(1, len(body.layers))
        if (i in grids or _is_spatial(seen[i])) and _is_block(body.module_after(i - 1))
    ]
    used: list[int] = []
    for stop in (None, roles.embedding):  # the embedding, where an untrained head is zero
        used = used or [i for i in spatial if _is_used(body, i, stop, grids.get(i), seen[i])]
    return used


def _is_spatial(activation: Tensor) -> bool:
    return activation.ndim == 4 and activation.shape[-1] * activation.shape[-2] > 1


def _is_block(module: nn.Module | None) -> bool:
    """Return whether a stage has parts and weights; what is cut by hooks has no stages."""
    if module is None:
        return True
    if isinstance(module, fx.GraphModule):
        return any(node.op == "call_module" for node in module.graph.nodes)
    return bool([*module.children()]) and next(module.parameters(), None) is not None


def _is_used(body: Body, layer: int, stop: int | None, grid: Grid | None, h: Tensor) -> bool:
    """Return whether the logits, or the activation of a layer, depend on a layer's positions."""
    if stop is not None and layer >= stop:
        return False
    weights = torch.Generator().manual_seed(0)
    with torch.enable_grad():
        leaf = h.detach().requires_grad_()
        out = body.run(leaf, layer, stop)[0]
        noise = torch.randn(out.shape, generator=weights).to(out)
        (gradient,) = torch.autograd.grad((out * noise).sum(), leaf, allow_unused=True)
    if gradient is None:
        return False
    if grid is not None:
        gradient = grid.channels_first(gradient)
    return bool((gradient != 0).any())


def _separating(module: nn.Module, example: Tensor) -> Iterator[str]:
    """Yield the paths of blocks that the network can be cut at, in the order they run in.

    Blocks are in a list or a sequence; of nested ones, such as stages of blocks, the outer ones
    count.
    """
    outputs: dict[str, object] = {}
    repeated = set()

    def record(path: str, out: object) -> None:
        if path in outputs:
            repeated.add(path)
        outputs[path] = first_tensor(out)

    with ExitStack() as hooks, torch.no_grad(), eval_mode(module):
        for path, block in _blocks(module):
            hook = block.register_forward_hook(lambda m, a, out, path=path: record(path, out))
            hooks.enter_context(hook)
        module(example)
    for path, out in outputs.items():
        if path in repeated or not isinstance(out, Tensor):
            continue
        grid = find_grid(module, out.shape[1:], example.shape[2:])
        if (grid is not None or _is_spatial(out)) and _separates(module, path, example):
            yield path


def _blocks(
    module: nn.Module, path: str = "", nested: bool = False
) -> Iterator[tuple[str, nn.Module]]:
    """Yield the members of the outermost lists and sequences; lists of lists are looked into."""
    for name, child in module.named_children():
        below = f"{path}.{name}" if path else name
        if not isinstance(child, CONTAINERS) or not (nested or len(child) > 1):
            yield from _blocks(child, below)
        elif any(isinstance(member, nn.ModuleList) for member in child):
            yield from _blocks(child, below, nested=True)
        else:
            members = child.named_children()
            yield from ((f"{below}.{i}", block) for i, block in members if [*block.children()])


def _separates(module: nn.Module, path: str, example: Tensor) -> bool:
    """Return whether all that comes after a block depends on its output alone."""
    try:
        Hooked(module, [path], example)
    except (HeatproofError, RuntimeError, TypeError, ValueError):
        return False
    return True
