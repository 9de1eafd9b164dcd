"""Keeping a network as it was found while somebody else's code has it in hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from heatproof.errors import HeatproofError

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@contextmanager
def assert_unchanged(module: nn.Module) -> Iterator[None]:
    """Whatever is changed while this lasts (weights, gradients, modes, hooks) is put back, and is an error."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    values = {name: t.detach().clone() for name, t in tensors.items()}
    gradients = {name: p.grad for name, p in module.named_parameters()}
    modes = [(m, m.training) for m in module.modules()]
    hooks = [(getattr(m, kind), dict(getattr(m, kind))) for m in module.modules() for kind in HOOKS]
    found: set[str] = set()
    try:
        yield
    finally:
        with torch.no_grad():
            for name, t in tensors.items():
                if not torch.equal(t, values[name]):
                    t.copy_(values[name])
                    found.add("weights")
        for name, p in module.named_parameters():
            if p.grad is not gradients[name]:
                p.grad = gradients[name]
                found.add("gradients")
        for m, training in modes:
            if m.training != training:
                m.training = training
                found.add("mode")
        for there, before in hooks:
            if dict(there) != before:
                there.clear()
                there.update(before)
                found.add("hooks")
    if found:
        raise HeatproofError(
            f"changed the network ({', '.join(sorted(found))}), which was put back; a method leaves it as it found it"
        )


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode and nothing in place (a cut layer's activation must survive the next), while this lasts."""
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
