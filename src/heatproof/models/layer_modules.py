"""The module of a network whose output is one of its layers, for code that hooks modules."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor, nn

from heatproof.errors import NotApplicable, join_limited, unknown
from heatproof.models.cutting import first_tensor
from heatproof.models.guards import eval_mode
from heatproof.models.layers import LANDMARKS
from heatproof.models.model import Model
from heatproof.models.tokens import Grid, find_grid
from heatproof.models.vit import is_vit


class LayerModule(NamedTuple):
    """A module of a network.

    Attributes:
        module: The module.
        shape: The shape of its output for one image.
        grid: How its tokens or channels-last features form a grid; None if it is ``(C, h, w)``.
    """

    module: nn.Module
    shape: torch.Size
    grid: Grid | None


def layer_module(model: Model, layer: str) -> LayerModule:
    """Find the module that computes a layer.

    In a plain ViT ``cam`` is the first norm of the last block, as users of pytorch-grad-cam choose
    it, and ``middle`` that of the block in the middle.

    Args:
        model: The whole network.
        layer: A layer of the model, an alias of one such as ``cam``, or the path of any module.

    Raises:
        NotApplicable: If no module of the network computes the layer.
        HeatproofError: If there is no such layer.
    """
    network = model.module
    modules = dict(network.named_modules())
    path = _vit_paths(network).get(layer, layer)
    known = {*model.layer_table.names, *model.layer_table.aliases, *LANDMARKS}
    if path in known and path not in modules:
        path = model.layer_name(path)
    if path not in modules and path not in known:
        raise unknown("layer", layer, [*filter(None, modules), *known], f"({model.name})")
    outputs = _outputs(model)
    found = modules[path] if path in modules else _by_output(model, path, outputs)
    output = outputs.get(found)
    if output is None:
        raise NotApplicable(f"{layer} of {model.name} does not compute a tensor")
    grid = find_grid(network, output.shape[1:], model.image_shape[1:])
    return LayerModule(found, output.shape[1:], grid)


def _vit_paths(network: nn.Module) -> dict[str, str]:
    """Return the modules that stand for landmarks of a plain ViT, which has no spatial layers."""
    if not is_vit(network):
        return {}
    blocks = [name for name, _ in network.named_children() if name.startswith("block")]
    middle = blocks[(len(blocks) - 1) // 2]
    return {
        "cam": f"{blocks[-1]}.norm1",
        "final": f"{blocks[-1]}.norm1",
        "middle": f"{middle}.norm1",
    }


def _outputs(model: Model) -> dict[nn.Module, Tensor]:
    """Return what each module computes for one image, in the order in which they finish."""
    outputs: dict[nn.Module, Tensor] = {}

    def record(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(tensor := first_tensor(output), Tensor):
            outputs[module] = tensor.detach()

    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(eval_mode(model.module))
        for module in model.module.modules():
            if not isinstance(module, torch.jit.ScriptModule):  # they take no hooks
                stack.enter_context(module.register_forward_hook(record))
        model.module(_example(model))
    return outputs


def _example(model: Model) -> Tensor:  # (1, C, H, W)
    noise = torch.rand(1, *model.image_shape, generator=torch.Generator().manual_seed(0))
    return model.normalize(noise).contiguous(memory_format=model.layout)


def _by_output(model: Model, layer: str, outputs: dict[nn.Module, Tensor]) -> nn.Module:
    """Return the outermost module that computes a layer that is not called like a module."""
    activation = model.activation(_example(model), layer)
    found = [
        module
        for module, output in outputs.items()
        if module is not model.module and output.equal(activation)
    ]
    if found:
        return found[-1]
    names = {id(module): name for name, module in model.module.named_modules()}
    spatial = [names[id(m)] for m, output in outputs.items() if output.ndim == 4 and names[id(m)]]
    raise NotApplicable(
        f"{layer} of {model.name} is the output of no module, and the method needs one; name "
        f"another layer: {join_limited(spatial[-8:], 8)}"
    )
