"""Views of a network with random weights in some of its layers (Adebayo et al. 2018).

A layer is a module with parameters of its own. It is initialized as its `reset_parameters` does;
parameters of other modules, such as class tokens, are shuffled. The weights of a layer depend on
the seed and its name alone, so that all views of a network have the same ones, and views share the
tensors of all layers: those of the network and the random ones are in memory once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from heatproof.errors import NotApplicable
from heatproof.models.backends import EAGER
from heatproof.models.model import Model
from heatproof.tensor.noise import generator, seeded

Mode = Literal["cascading", "independent", "all"]
Order = Literal["top-down", "bottom-up"]
Key = tuple[Mode, Order, int | None, int]

_views: WeakKeyDictionary[Model, dict[Key, list[Model]]] = WeakKeyDictionary()


def random_networks(
    model: Model, mode: Mode, order: Order = "top-down", count: int | None = None, seed: int = 0
) -> list[Model]:
    """Return networks with random weights in some layers; they are made once.

    Args:
        model: The network.
        mode: ``cascading``: the k-th network has random weights in the first k groups of layers;
            ``independent``: in the k-th group alone; ``all``: one network, random everywhere.
        order: Whether groups are counted from the logits or from the image.
        count: Number of groups, of as many layers each as possible; None: every layer is one.
        seed: Seed of the weights.

    Raises:
        NotApplicable: If the network has no parameters, or they cannot be replaced.
    """
    key = (mode, order, count, seed)
    known = _views.setdefault(model, {})
    if key not in known:
        groups = _groups(layers_with_parameters(model), mode, order, count)
        weights: dict[str, dict[int, Tensor]] = {}
        chosen: list[str] = []
        views = []
        for number, group in enumerate(groups, 1):
            chosen = group if mode == "independent" else [*chosen, *group]
            for name in group:
                weights[name] = _random_tensors(model, name, seed)
            replaced = {k: v for name in chosen for k, v in weights[name].items()}
            step = f"{mode} {order} {number}/{len(groups)}, seed {seed}"
            views.append(_view(model, replaced, f"random weights {step}"))
        known[key] = views
    for view in known[key]:
        view.batch_size = model.batch_size
        view.pad_batches = model.pad_batches
    return known[key]


def layers_with_parameters(model: Model) -> list[str]:
    """Return the names of the modules with parameters of their own, from the image on.

    Raises:
        NotApplicable: If there are none.
    """
    modules = model.module.named_modules()
    names = [name for name, module in modules if any(True for _ in module.parameters(False))]
    if not names:
        raise NotApplicable(
            f"{model.name} has no parameters, so that there is nothing to randomize; "
            "leave the protocol out for this network"
        )
    return names


def _groups(layers: Sequence[str], mode: Mode, order: Order, count: int | None) -> list[list[str]]:
    """Divide layers into groups of equal sizes, in the order in which they are randomized."""
    ordered = list(layers) if order == "bottom-up" else list(layers)[::-1]
    number = 1 if mode == "all" else min(count or len(ordered), len(ordered))
    ends = [round(k * len(ordered) / number) for k in range(number + 1)]
    return [ordered[ends[k] : ends[k + 1]] for k in range(number)]


def _random_tensors(model: Model, name: str, seed: int) -> dict[int, Tensor]:
    """Return random tensors of a layer by the identity of those that they replace."""
    module = model.module.get_submodule(name)
    fresh = copy.deepcopy(module).cpu()
    numbers = generator(seed, "random weights", name)
    reset = getattr(fresh, "reset_parameters", None)
    with torch.no_grad():
        if callable(reset):
            with seeded(int(numbers.integers(2**31))):
                reset()
        else:
            for parameter in fresh.parameters(False):
                order = torch.from_numpy(numbers.permutation(parameter.numel()))
                parameter.copy_(parameter.flatten()[order].view_as(parameter))
    fresh.to(model.device)
    old = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    return {id(tensor): _own(fresh, part) for part, tensor in old}


def _own(module: nn.Module, name: str) -> Tensor:
    return (module._parameters | module._buffers)[name]  # type: ignore[return-value]


def _view(model: Model, replaced: dict[int, Tensor], name: str) -> Model:
    """Return a copy of the model that shares its tensors, except for those replaced."""
    tensors = [*model.module.parameters(), *model.module.buffers()]
    shared = {id(tensor): replaced.get(id(tensor), tensor) for tensor in tensors}
    counts = {id(model.pass_counts): model.pass_counts}
    view = copy.deepcopy(model, {**shared, **counts})
    found = {id(tensor) for tensor in view.module.parameters()}
    expected = {id(shared[id(tensor)]) for tensor in model.module.parameters()}
    if found != expected:  # a scripted module copies its tensors in C++
        raise NotApplicable(
            f"the weights of {model.name} cannot be replaced one by one; give the torch.nn.Module "
            "that it was scripted from"
        )
    view.root = view
    view.view = name
    view.backend = EAGER
    return view
