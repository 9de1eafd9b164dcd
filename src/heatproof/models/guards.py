"""Context managers that restore a network after other code has used it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from heatproof.errors import HeatproofError

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Libraries whose objects keep hooks in a network that only record what passes through it.
OBSERVER_LIBRARIES = frozenset(("pytorch_grad_cam", "torchcam"))


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
def restored_settings() -> Iterator[None]:
    """Restore the settings of the process that decide how torch computes, at the end."""
    threads = torch.get_num_threads()
    dtype = torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn
    flags = (cudnn.benchmark, cudnn.deterministic)
    enabled = torch.is_grad_enabled()
    try:
        with restored_float32():
            yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(deterministic, warn_only=warns)
        cudnn.benchmark, cudnn.deterministic = flags
        torch.set_grad_enabled(enabled)


@contextmanager
def restored_float32() -> Iterator[None]:
    """Restore how operations on float32 may be shortened, such as to TF32, at the end.

    PyTorch has two interfaces, and the older one raises where the newer one was used.
    """
    before = _shortened()
    modes = [mode.fp32_precision for mode in _FLOAT32_MODES]
    try:
        yield
    finally:
        _shorten(before, modes)


def _shorten(older: tuple[str, bool] | None, newer: Sequence[str]) -> None:
    """Set what differs from the given: by the older interface, unless it does not answer."""
    if older is not None and _shortened() is not None:
        if torch.get_float32_matmul_precision() != older[0]:
            torch.set_float32_matmul_precision(older[0])
        if torch.backends.cudnn.allow_tf32 != older[1]:
            torch.backends.cudnn.allow_tf32 = older[1]
        return
    for mode, precision in zip(_FLOAT32_MODES, newer, strict=True):
        if mode.fp32_precision != precision:  # not where it follows the general one already
            mode.fp32_precision = precision


# The newer interface, the general before the particular.
_FLOAT32_MODES: tuple[Any, ...] = (
    torch.backends,
    torch.backends.cudnn,
    torch.backends.cuda.matmul,
    torch.backends.cudnn.conv,  # type: ignore[attr-defined]
    torch.backends.cudnn.rnn,
    torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
    torch.backends.mkldnn.conv,  # type: ignore[attr-defined]
    torch.backends.mkldnn.rnn,  # type: ignore[attr-defined]
)


def _shortened() -> tuple[str, bool] | None:
    """Return what the older interface says; None if it does not answer."""
    try:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


@contextmanager
def float32_as(tf32: bool = False) -> Iterator[None]:
    """Compute float32 in full, or in TF32 where the device has it, whatever the caller has set."""
    older = ("high", True) if tf32 else ("highest", False)
    newer = ["tf32" if tf32 else "ieee"] * len(_FLOAT32_MODES)
    with restored_float32():
        _shorten(older, newer)
        yield


@contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode, and restore everything but the weights at the end.

    Gradients, modes, hooks, what requires gradients, and submodules are as before then. Libraries
    are used as their documentation says, and many leave gradients behind.
    """
    parameters = [(p, p.grad, p.requires_grad) for p in module.parameters()]
    modules = list(module.modules())
    modes = [(m, m.training) for m in modules]
    children = [(m._modules, dict(m._modules)) for m in modules]
    hooks = [(getattr(m, kind), dict(getattr(m, kind))) for m in modules for kind in HOOKS]
    for p, _, _ in parameters:
        p.grad = None  # what accumulates must not change the gradients that are there
    for m in modules:
        m.training = False
    try:
        yield
    finally:
        for p, grad, requires_grad in parameters:
            p.requires_grad_(requires_grad)
            p.grad = grad
        for m, training in modes:
            m.training = training
        for table, before in (*children, *hooks):
            if dict(table) != before:
                table.clear()
                table.update(before)


def packages_of(thing: object) -> set[str]:
    """Return the top-level packages of an object's class and its base classes."""
    return {kind.__module__.partition(".")[0] for kind in type(thing).__mro__}


@contextmanager
def paused_observers(module: nn.Module, keep: object = None) -> Iterator[None]:
    """Take the hooks of other libraries' CAM objects out of a network, and put them back.

    The objects add them when they are made. They do not change what the network computes, but
    record every pass, which takes memory without limit, and they cannot be traced.

    Args:
        module: The network.
        keep: The object whose hooks stay, as it is about to be called.
    """
    kept = observers_in(keep)
    paused: list[tuple[dict[int, Any], dict[int, Any], set[int]]] = []
    for m in module.modules():
        for kind in HOOKS:
            registered = getattr(m, kind)
            if not registered:
                continue
            keys = {key for key, hook in registered.items() if _is_observer(hook, kept)}
            if keys:
                paused.append((registered, dict(registered), keys))
                for key in keys:
                    del registered[key]
    try:
        yield
    finally:
        for registered, before, keys in paused:
            now = dict(registered)
            order = {key: hook for key, hook in before.items() if key in keys or key in now} | now
            registered.clear()
            registered.update(order)


def _is_observer(hook: Callable[..., Any], kept: list[object]) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    owner = getattr(hook, "__self__", None)
    is_kept = any(owner is part for part in kept)
    return owner is not None and not is_kept and bool(packages_of(owner) & OBSERVER_LIBRARIES)


def observers_in(thing: object) -> list[Any]:
    """Return an observer and the observers that it is made of."""
    parts: list[Any] = []
    waiting = [thing]
    while waiting:
        part = waiting.pop()
        is_known = any(part is known for known in parts)
        if is_known or isinstance(part, nn.Module) or not packages_of(part) & OBSERVER_LIBRARIES:
            continue
        parts.append(part)
        for value in getattr(part, "__dict__", {}).values():
            waiting += value if isinstance(value, list | tuple) else [value]
    return parts


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode and disable in-place operations, for the duration of the context.

    An in-place operation would overwrite the activation of the layer that the network is cut at.
    Hooks with which other libraries record passes are paused, and so are autocast and TF32: lower
    precision would change the order of scores.
    """
    with paused_observers(module), _eval_flags(module), own_precision():
        yield


@contextmanager
def own_precision() -> Iterator[None]:
    """Compute in the precision of the weights, whatever the caller has enabled."""
    with ExitStack() as stack:
        stack.enter_context(float32_as())
        accelerator = torch.accelerator.current_accelerator()
        for device in ("cpu", *([accelerator.type] if accelerator else [])):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def _eval_flags(module: nn.Module) -> Iterator[None]:
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
