"""Conventions by which methods of other libraries are recognised and called, one per kind.

Objects of Captum, pytorch-grad-cam, TorchCAM and Zennit are recognised by their classes, without
importing the libraries; functions by their signatures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heatproof.errors import HeatproofError
from heatproof.models.guards import observers_in, packages_of

# Names of a function's first parameter if that is the network.
NETWORK_PARAMETERS = frozenset(("model", "net", "network", "module", "classifier"))


class Inputs(NamedTuple):
    """Arguments for a method of another library.

    Attributes:
        network: The network that is explained.
        x: A copy of the images, ``(B, C, H, W)``.
        target: The classes, ``(B,)``.
        options: Keyword arguments that the user gave.
    """

    network: nn.Module
    x: Tensor
    target: Tensor
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Convention:
    """Recognition and call of methods of one kind.

    Attributes:
        matches: Whether an object is of this kind.
        call: Calls the object; what it returns is converted to maps.
        network: Returns the network that the object was made with; None if it takes any.
        check: Raises an error if the object cannot be called with these keyword arguments.
        needs_gradient: Whether the images are given with ``requires_grad``.
    """

    matches: Callable[[Any], bool]
    call: Callable[[Any, Inputs], Any]
    network: Callable[[Any], Any] = lambda thing: None
    check: Callable[[Any, Mapping[str, Any]], None] = lambda thing, options: None
    needs_gradient: bool = True


# Objects


def _has_base(*names: str) -> Callable[[Any], bool]:
    """Return a function that recognises objects by a class that they inherit from."""

    def matches(thing: Any) -> bool:
        return any(f"{k.__module__}.{k.__qualname__}" in names for k in type(thing).__mro__)

    return matches


_RECORDER = _has_base("pytorch_grad_cam.activations_and_gradients.ActivationsAndGradients")


def _captum(thing: Any, inputs: Inputs) -> Any:
    # LayerActivation has no target, NoiseTunnel hands it on.
    parameters = inspect.signature(thing.attribute).parameters
    takes_target = "target" in parameters or _is_open_ended(parameters)
    target = {"target": inputs.target} if takes_target else {}
    maps = thing.attribute(inputs.x, **target, **inputs.options)
    maps = maps[0] if isinstance(maps, tuple) else maps
    if isinstance(maps, Tensor) and maps.ndim == 3:  # the features of tokens are no pixels
        raise HeatproofError(
            f"{type(thing).__name__} returned shape {tuple(maps.shape)}, which has no height and "
            "width; arrange the tokens in a function (model, x, target) -> maps of your own"
        )
    return maps


def _check_captum(thing: Any, options: Mapping[str, Any]) -> None:
    _check_options(thing.attribute, options, type(thing).__name__, given=("inputs", "target"))


def _is_grad_cam(thing: Any) -> bool:
    return "pytorch_grad_cam" in packages_of(thing) and callable(thing)


def _grad_cam(thing: Any, inputs: Inputs) -> Any:
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    targets = [ClassifierOutputTarget(index) for index in inputs.target.tolist()]
    try:
        return thing(input_tensor=inputs.x, targets=targets, **inputs.options)
    finally:
        for recorder in filter(_RECORDER, observers_in(thing)):  # it holds on to memory
            recorder.activations = []
            recorder.gradients = []


def _check_grad_cam(thing: Any, options: Mapping[str, Any]) -> None:
    name = type(thing).__name__
    forward = getattr(thing, "forward", thing)
    takes_targets = "targets" in inspect.signature(forward).parameters
    if not takes_targets or "target_idx" in inspect.signature(forward).parameters:
        raise HeatproofError(
            f"{name} of pytorch-grad-cam does not take a target for each image; "
            "call it in a function (x, target) -> maps of your own"
        )
    call = thing.__call__ if "targets" in inspect.signature(thing.__call__).parameters else forward
    _check_options(call, options, name, given=("input_tensor", "targets"))
    recorder = getattr(thing, "activations_and_grads", None)
    _check_hooks(name, getattr(recorder, "handles", None))


def _torchcam(thing: Any, inputs: Inputs) -> Any:
    base = getattr(thing, "base_cam", thing)
    enabled = base._hooks_enabled
    thing.enable_hooks()
    try:
        scores = inputs.network(inputs.x)
        cams = thing(inputs.target.tolist(), scores, **inputs.options)
        return cams[0] if len(cams) == 1 else thing.fuse_cams(cams)
    finally:
        base._hooks_enabled = enabled
        thing.reset_hooks()  # what it recorded holds on to memory


def _check_torchcam(thing: Any, options: Mapping[str, Any]) -> None:
    base = getattr(thing, "base_cam", thing)
    _check_hooks(type(thing).__name__, base.hook_handles)


def _check_hooks(name: str, handles: list[Any] | None) -> None:
    if handles is not None and not handles:
        raise HeatproofError(
            f"the hooks of {name} were removed from the network, at the end of its with block; "
            "use it inside the block, or make it without one"
        )


_OCCLUSION = _has_base("zennit.attribution.Occlusion")


def _zennit(thing: Any, inputs: Inputs) -> Any:
    one_hot = partial(_one_hot, target=inputs.target)
    if _OCCLUSION(thing):  # it adds up what the output is turned into: the target's score
        return thing(inputs.x, attr_output=lambda output: output * one_hot(output))[1]
    return thing(inputs.x, attr_output=one_hot, **inputs.options)[1]


def _composite(thing: Any, inputs: Inputs) -> Any:
    with thing.context(inputs.network) as modified:
        output = modified(inputs.x)
        one_hot = _one_hot(output, inputs.target)
        return torch.autograd.grad(output, inputs.x, one_hot)[0]


def _one_hot(output: Tensor, target: Tensor) -> Tensor:  # (B, K)
    return torch.zeros_like(output).scatter(1, target[:, None], 1)


def _check_zennit(thing: Any, options: Mapping[str, Any]) -> None:
    composite = getattr(thing, "composite", thing)
    if getattr(composite, "handles", None):
        raise HeatproofError(
            f"{type(composite).__name__} is registered in the network and would change other "
            "methods; leave its with block: it is registered for each call"
        )


def _check_composite(thing: Any, options: Mapping[str, Any]) -> None:
    if options:
        raise HeatproofError(
            f"{type(thing).__name__} takes no keyword arguments; got {', '.join(options)}"
        )
    _check_zennit(thing, options)


# Functions


def _is_open_ended(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _quantus(function: Any, inputs: Inputs) -> Any:
    x = inputs.x.cpu().numpy()
    targets = inputs.target.cpu().numpy()
    return function(model=inputs.network, inputs=x, targets=targets, **inputs.options)


def _is_quantus(function: Any) -> bool:
    parameters = signature_of(function).parameters
    return _is_open_ended(parameters) and {"model", "inputs", "targets"} <= set(parameters)


def is_native(function: Any) -> bool:
    """Return whether a function has heatproof's convention: it can be given ``rng``."""
    signature = signature_of(function)
    if "rng" in signature.parameters:
        return True
    try:
        signature.bind(None, None, None, rng=None)
    except TypeError:
        return False
    return not _is_quantus(function)


def _takes(count: int) -> Callable[[Any], bool]:
    """Return a function that recognises functions of a network or not, of two or three tensors."""

    def matches(function: Any) -> bool:
        parameters = list(signature_of(function).parameters.values())
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, _EITHER)]
        if len(positional) < count:
            return False
        if positional[0].name in NETWORK_PARAMETERS:
            return count == 3
        return sum(p.default is p.empty for p in positional) == count

    return matches


_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD


def signature_of(function: Any) -> inspect.Signature:
    """Return the signature of a callable; that of ``forward`` for a module.

    Raises:
        HeatproofError: If it has none, such as some built-in functions.
    """
    try:
        return inspect.signature(function.forward if isinstance(function, nn.Module) else function)
    except (TypeError, ValueError) as error:
        raise HeatproofError(f"the signature of {function!r} cannot be read: {error}") from None


def _check_function(function: Any, options: Mapping[str, Any]) -> None:
    count = 3 if _takes(3)(function) else 2
    given = list(signature_of(function).parameters)[:count]
    _check_options(function, options, name_of(function), given)


def _check_options(
    function: Callable[..., Any], options: Mapping[str, Any], name: str, given: Collection[str]
) -> None:
    """Check that a function has all it needs, and takes what it is given.

    Args:
        function: The function.
        options: The user's keyword arguments.
        name: The name of the method, for messages.
        given: The parameters that the library passes.
    """
    parameters = signature_of(function).parameters
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    own = {n: p for n, p in parameters.items() if n not in given and p.kind not in variable}
    lacking = [n for n, p in own.items() if p.default is p.empty and n not in options]
    if lacking:
        cure = ", ".join(f"{n}=…" for n in lacking)
        raise HeatproofError(
            f'{name} needs {", ".join(lacking)}; give it as hp.named("{name}", method, {cure})'
        )
    extra = [n for n in options if n not in own]
    if extra and not _is_open_ended(parameters):
        takes = ", ".join(own) or "no keyword arguments"
        raise HeatproofError(f"{name} does not take {', '.join(extra)}; it takes: {takes}")


OBJECTS = (
    Convention(_is_grad_cam, _grad_cam, lambda cam: _find(cam, "model"), _check_grad_cam),
    Convention(
        _has_base("torchcam.methods.core._CAM", "torchcam.methods.gradient._CAMWrapper"),
        _torchcam,
        lambda cam: cam.model,
        _check_torchcam,
    ),
    Convention(
        _has_base("zennit.attribution.Attributor"), _zennit, lambda a: a.model, _check_zennit
    ),
    Convention(_has_base("zennit.core.Composite"), _composite, check=_check_composite),
    Convention(
        lambda thing: callable(getattr(thing, "attribute", None)),
        _captum,
        lambda thing: getattr(thing, "forward_func", None),
        _check_captum,
    ),
)
FUNCTIONS = (
    Convention(_is_quantus, _quantus, needs_gradient=False),
    Convention(
        _takes(3),
        lambda f, i: f(i.network, i.x, i.target, **i.options),
        check=_check_function,
        needs_gradient=False,
    ),
    Convention(
        _takes(2),
        lambda f, i: f(i.x, i.target, **i.options),
        check=_check_function,
        needs_gradient=False,
    ),
)


def _find(cam: Any, attribute: str) -> Any:
    """Return an attribute of an object, or of the first object that it wraps."""
    if hasattr(cam, attribute):
        return getattr(cam, attribute)
    wrapped = getattr(cam, "base_cam", None) or (getattr(cam, "base_cam_per_layer", None) or [None])
    wrapped = wrapped[0] if isinstance(wrapped, list) else wrapped
    return getattr(wrapped, attribute, None)


def name_of(thing: Any) -> str:
    """Return the name of a function, or of the class of an object."""
    while isinstance(thing, partial):
        thing = thing.func
    return getattr(thing, "__name__", type(thing).__name__)
