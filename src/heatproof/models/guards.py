"""Context managers that restore a network after other code has used it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from heatproof.errors import HeatproofError

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@contextmanager
def assert_unchanged(module: nn.Module) -> Iterator[None]:
    """Restore weights, gradients, modes and hooks at the end, and raise if any were changed.

    Raises:
        HeatproofError: If the code in the context changed the network.
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    values = {name: t.detach().clone() for name, t in tensors.items()}
    gradients = {name: p.grad for name, p in module.named_parameters()}
    modes = [(m, m.training) for m in module.modules()]
    hooks = [(getattr(m, kind), dict(getattr(m, kind))) for m in module.modules() for kind in HOOKS]
    changed: set[str] = set()
    try:
        yield
    finally:
        with torch.no_grad():
            for name, t in tensors.items():
                if not torch.equal(t, values[name]):
                    t.copy_(values[name])
                    changed.add("weights")
        for name, p in module.named_parameters():
            if p.grad is not gradients[name]:
                p.grad = gradients[name]
                changed.add("gradients")
        for m, training in modes:
            if m.training != training:
                m.training = training
                changed.add("mode")
        for registered, before in hooks:
            if dict(registered) != before:
                registered.clear()
                registered.update(before)
                changed.add("hooks")
    if changed:
        raise HeatproofError(
            f"changed the network ({', '.join(sorted(changed))}), which was restored; "
            "a method must leave it as it found it"
        )


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode and disable in-place operations, for the duration of the context.

    An in-place operation would overwrite the activation of the layer that the network is cut at.
    """
    flags = [
        (m, flag)
        for m in module.modules()
        for flag in ("training", "inplace")
        if getattr(m, flag, False)
    ]
    for m, flag in flags:
        setattr(m, flag, False)
    try:
        yield
    finally:
        for m, flag in flags:
            setattr(m, flag, True)
