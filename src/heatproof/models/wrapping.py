"""Networks as users have them: compiled, wrapped, scripted, or with outputs that contain logits."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from heatproof.errors import HeatproofError
from heatproof.models.processors import is_pretrained

# Where a class that wraps a network keeps it.
WRAPPED_ATTRIBUTES = ("_orig_mod", "module", "model", "net", "network", "backbone")
# Packages whose base class has a ``forward`` that only raises.
_BASES_WITHOUT_FORWARD = ("torch.nn.modules.module", "lightning", "pytorch_lightning")
HALF_PRECISIONS = (torch.float16, torch.bfloat16)


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the network inside of wrappers that hide it.

    These are ``torch.compile``, modules without a ``forward`` of their own, such as a Lightning
    module that only trains its ``model``, and ``DataParallel`` around one of those or around a
    network of transformers. ``DataParallel`` around others hides nothing, and stays: it is part of
    the names of layers.
    """
    if isinstance(module, torch.jit.ScriptModule):
        return module
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = unwrapped(module.module)
        hidden = inner is not module.module or is_pretrained(inner)
        return inner if hidden else module
    if "_orig_mod" in module._modules or not _has_forward(module):
        for attribute in WRAPPED_ATTRIBUTES:
            inside = module._modules.get(attribute)
            if inside is not None:
                return unwrapped(inside)
    return module


def _has_forward(module: nn.Module) -> bool:
    defined_in = getattr(type(module).forward, "__module__", "") or ""
    return not defined_in.startswith(_BASES_WITHOUT_FORWARD)


def returning_logits(
    module: nn.Module, outputs: object, output: str | int | None, name: str
) -> nn.Module:
    """Return a network that returns one part of what the given one returns.

    The new network is a shallow copy with a forward hook: it has the same weights in the same
    memory under the same names, and the given one stays as it is.

    Args:
        module: The network.
        outputs: What it returns.
        output: The attribute, key or index of the logits; None finds ``logits`` by itself.
        name: The model's name, for messages.

    Raises:
        HeatproofError: If the outputs have no such part.
    """
    read = _reader(outputs, _key(outputs, output, name), name)

    def select(_module: nn.Module, _inputs: object, outputs: Any) -> Any:
        return read(outputs)

    if isinstance(module, torch.jit.ScriptModule):
        chosen: nn.Module = nn.Sequential(OrderedDict(net=module))  # it cannot be copied
    else:
        chosen = copy.copy(module)
        chosen._forward_hooks = OrderedDict(module._forward_hooks)
        for flags in ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"):
            setattr(chosen, flags, OrderedDict(getattr(module, flags)))
    chosen.register_forward_hook(select)
    return chosen


def _key(outputs: object, output: str | int | None, name: str) -> str | int:
    if output is not None:
        if isinstance(outputs, Tensor):
            raise HeatproofError(
                f"{name} returns a tensor, which has no output {output!r}: leave output= out"
            )
        return output
    if "logits" in _parts(outputs) or hasattr(outputs, "logits"):
        return "logits"
    if "last_hidden_state" in _parts(outputs):
        raise HeatproofError(
            f"{name} has no classification head: it returns features (last_hidden_state). Load the "
            "network with its head: transformers.AutoModelForImageClassification.from_pretrained(…)"
        )
    parts = _parts(outputs)
    if not parts:
        raise HeatproofError(
            f"{name} must return logits of shape (B, classes); got {type(outputs).__name__}"
        )
    listed = ", ".join(f"{key!r} {shape}" for key, shape in parts.items())
    rows = [key for key, shape in parts.items() if shape.count(",") == 1]
    key = (rows or [*parts])[0]
    example = f'"{key}"' if isinstance(key, str) else key
    raise HeatproofError(
        f"{name} returns a {type(outputs).__name__} of {listed}; say which of them has the logits "
        f"of shape (B, classes), for example hp.Model(net, output={example})"
    )


def _reader(outputs: Any, key: str | int, name: str) -> Callable[[Any], Any]:
    """Return the function that takes one part of outputs like these.

    Raises:
        HeatproofError: If there is no such part.
    """
    by_item = isinstance(key, int) or isinstance(outputs, Mapping)
    read: Callable[[Any], Any] = itemgetter(key) if by_item else attrgetter(str(key))
    try:
        part = read(outputs)
    except (KeyError, IndexError, TypeError, AttributeError):
        part = None
    if isinstance(part, Tensor):
        return read
    listed = ", ".join(f"{key!r} {shape}" for key, shape in _parts(outputs).items())
    raise HeatproofError(
        f"{name} returns a {type(outputs).__name__} without {key!r}; it has: {listed or 'nothing'}"
    )


def _parts(outputs: object) -> dict[str | int, str]:
    """Return the shapes of the tensors in a network's outputs, by key, attribute or index."""
    found: Mapping[Any, object] = {}
    if isinstance(outputs, Mapping):
        found = outputs
    elif isinstance(outputs, tuple | list):
        found = dict(zip(getattr(outputs, "_fields", range(len(outputs))), outputs, strict=True))
    elif hasattr(outputs, "__dict__"):
        found = vars(outputs)
    return {key: str(tuple(v.shape)) for key, v in found.items() if isinstance(v, Tensor)}


def check_half(name: str, module: nn.Module, example: Tensor) -> None:
    """Check that a network of half precision has gradients on its device, before others need them.

    Raises:
        HeatproofError: If an operation has no gradient in half precision.
    """
    if example.dtype not in HALF_PRECISIONS:
        return
    try:
        with torch.enable_grad():
            x = example.detach().clone().requires_grad_()
            torch.autograd.grad(module(x).sum(), x)
    except RuntimeError as error:
        raise HeatproofError(f"{name} has no gradients {half_advice(example)}: {error}") from error


def half_advice(example: Tensor) -> str:
    """Say what to do about a network of half precision; empty for others."""
    if example.dtype not in HALF_PRECISIONS:
        return ""
    return (
        f"in {str(example.dtype).removeprefix('torch.')} on {example.device.type}; "
        "convert it to single precision: net.float()"
    )


def check_numbers(name: str, outputs: Tensor, example: Tensor) -> None:
    """Check that logits are numbers.

    Raises:
        HeatproofError: If any is NaN.
    """
    if not outputs.isnan().any():
        return
    count = int(outputs.isnan().any(1).sum())
    advice = f"; {half_advice(example)}" if half_advice(example) else ""
    raise HeatproofError(
        f"{name} returns NaN for {count} of {len(outputs)} images of noise in [0, 1], normalized: "
        "check its weights (any(p.isnan().any() for p in net.parameters())) and its mean, std and "
        f"size{advice}"
    )


def scripted_code(module: nn.Module) -> str:
    """Return the code of a scripted or traced network; empty for others."""
    if not isinstance(module, torch.jit.ScriptModule):
        return ""
    return str(module.inlined_graph)
