"""Objects of other libraries, made of texts: ``captum:GradientShap(n_samples=20)``.

Settings are those of the library. What no text can give, and what it has no default for, is filled
in as its users do: layers, baselines, squares that are removed together, the shape of tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from heatproof.baselines import Baseline
from heatproof.errors import HeatproofError
from heatproof.expressions import parse_call, split
from heatproof.methods.adapters import is_plain
from heatproof.methods.library_tables import Library
from heatproof.models.layer_modules import LayerModule, layer_module
from heatproof.models.model import Model
from heatproof.models.tokens import Grid
from heatproof.tensor.noise import Rng
from heatproof.tensor.resample import nearest

# Arguments that are no settings: what is passed in each call, and what no text can give.
_GIVEN = frozenset(
    (
        "self",
        "model",
        "forward_func",
        "inputs",
        "input_tensor",
        "target",
        "targets",
        "class_idx",
        "scores",
        "attr_output",
        "additional_forward_args",
        "device_ids",
        "return_convergence_delta",
        "custom_attribution_func",
        "show_progress",
        "verbose",
        "enable_hooks",
        "create_graph",
        "retain_graph",
        "layer_map",
        "first_map",
        "module_map",
        "zero_params",
        "grad_kwargs",
        "reshape_transform",
        "input_shape",
        "return_input_shape",
        "interpretable_model",
        "similarity_func",
        "perturb_func",
        "perm_func",
        "occlusion_fn",
        "baseline_fn",
        "score_projection",
        "prefix_tokens",
        "grid_shape",
        "ablation_layer",
        "attr_method",
        "memory_efficient",
    )
)
# Of arguments that the library has no default for, or none that fits images.
_DEFAULTS: dict[str, Any] = {
    "baselines": "zero",
    "layer": "cam",
    "target_layer": "cam",
    "target_layers": "cam",
    "attribution_method": "Saliency",
    "feature_mask": 8,  # as many as `lime` has
    "layer_mask": "positions",
    "sliding_window_shapes": 16,
    "strides": 8,
    "low": "black",
    "high": "white",
}
_LAYERS = {"RefineCAM": ["middle", "cam"]}  # it needs several


@dataclass(frozen=True)
class Request:
    """What an object is made for.

    Attributes:
        library: Its library.
        model: The model.
        network: The network that the object is made with.
        x: The images, ``(B, C, H, W)``.
        rng: The samples' noise.
        baseline_prepared: What a baseline has prepared from reference images.
        layers: The layers that the arguments name.
        inner: Options for the calls of an object that is an argument.
    """

    library: Library
    model: Model
    network: nn.Module
    x: Tensor
    rng: Rng
    baseline_prepared: Mapping[str, Tensor] | None
    layers: dict[str, LayerModule] = field(default_factory=dict)
    inner: dict[str, Any] = field(default_factory=dict)

    def layer(self, name: str) -> LayerModule:
        """Return the module of a layer."""
        if name not in self.layers:
            self.layers[name] = _layer_of(self.model, name)
        return self.layers[name]

    @property
    def grid(self) -> Grid | None:
        """How the activations of the layers form a grid."""
        return next((layer.grid for layer in self.layers.values()), None)


_layers_of: WeakKeyDictionary[nn.Module, dict[str, LayerModule]] = WeakKeyDictionary()


def _layer_of(model: Model, name: str) -> LayerModule:
    known = _layers_of.setdefault(model.module, {})
    key = model.layer_name(name) if name in model.layer_table.aliases else name
    if key not in known:
        known[key] = layer_module(model, name)
    return known[key]


# How arguments are made of what is written


def _one_layer(request: Request, value: Any) -> nn.Module:
    if not isinstance(value, str) and type(value) is not int:  # a path such as 0
        raise HeatproofError(f"a layer is a name such as cam or layer3; got {value!r}")
    return request.layer(str(value)).module


def _names(value: Any) -> Any:
    """Return the names in ``[layer1, layer2]``; anything else as it is."""
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        return [name.strip() for name in split(value[1:-1], ",")]
    return value


def _layers(request: Request, value: Any) -> list[nn.Module]:
    names = _names(value)
    names = names if isinstance(names, list) else [names]
    return [_one_layer(request, name) for name in names]


def _layer_or_layers(request: Request, value: Any) -> Any:
    modules = _layers(request, value)
    return modules if isinstance(_names(value), list) else modules[0]


def _baseline(request: Request, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    x = request.x
    baseline = Baseline.parse(value)
    return baseline.fill(x, request.model, request.rng, prepared=request.baseline_prepared)


def _cells(request: Request, value: Any) -> Any:
    """Return the features of a perturbation: squares of the image, numbered row by row."""
    if value is None:
        return None
    if not isinstance(value, int) or not 2 <= value <= min(request.x.shape[2:]):
        raise HeatproofError(
            f"feature_mask is the number of squares along a side, from 2; got {value!r}"
        )
    rows, columns = (nearest(side, value) for side in request.x.shape[2:])
    return (rows[:, None] * value + columns)[None, None].to(request.x.device)


def _positions(request: Request, value: Any) -> Any:
    """Return the features of a layer: its positions, each with all of its channels."""
    if value is None:
        return None
    if value != "positions":
        raise HeatproofError(f"layer_mask is positions, or None for each value; got {value!r}")
    (layer,) = request.layers.values()
    shape = layer.shape
    ones = torch.arange(shape.numel() // shape[0] if len(shape) == 3 else shape[0])
    if len(shape) == 3 and layer.grid is not None:  # channels last
        positions = torch.arange(shape[0] * shape[1]).reshape(1, *shape[:2], 1)
    else:
        positions = ones.reshape((1, 1, *shape[1:]) if len(shape) == 3 else (1, shape[0], 1))
    return positions.to(request.x.device)


def _window(request: Request, value: Any) -> Any:
    if isinstance(value, int):
        return (request.x.shape[1], value, value)
    return tuple(value) if isinstance(value, list) else value


def _colour(request: Request, value: Any) -> Any:
    black, white = request.model.input_range
    return {"black": black[None], "white": white[None]}.get(value, value)


def _object(request: Request, value: Any) -> Any:
    """Make an object that is an argument of another: a method of Captum, a composite of Zennit."""
    if not isinstance(value, str):
        return value
    call = parse_call(value)
    kind = request.library.method(call.name)
    options = call.bind(parameters_of(request.library, kind), "method")
    thing, left = construct(request, kind, options)
    request.inner.update(left)
    return thing


def _class(request: Request, value: Any) -> Any:
    return request.library.method(value) if isinstance(value, str) else value


def _canonizers(request: Request, value: Any) -> Any:
    if value is None:
        return None
    names = _names(value)
    names = names if isinstance(names, list) else [names]
    return [request.library.part("canonizers", name)() for name in names]


def _chunk(request: Request, value: Any) -> int:
    """Return the images of a pass: without it, all steps of all images are run at once."""
    return int(value) if value else max(len(request.x), request.model.batch_size)


_MAKE: dict[str, Callable[[Request, Any], Any]] = {
    "layer": _one_layer,
    "target_layer": _layer_or_layers,
    "target_layers": _layers,
    "fc_layer": lambda request, value: value and _one_layer(request, value),
    "baselines": _baseline,
    "layer_baselines": lambda request, value: value,
    "feature_mask": _cells,
    "layer_mask": _positions,
    "sliding_window_shapes": _window,
    "strides": _window,
    "low": _colour,
    "high": _colour,
    "attribution_method": _object,
    "composite": _object,
    "base_method": _class,
    "canonizers": _canonizers,
    "internal_batch_size": _chunk,
}


# Classes and their objects


@cache
def parameters_of(library: Library, kind: type) -> dict[str, inspect.Parameter]:
    """Return the settings of a method: those of its class and those of its call."""
    settings: dict[str, inspect.Parameter] = {}
    for name, parameter in {**_parameters(kind), **_call_parameters(library, kind)}.items():
        default = _DEFAULTS.get(name, parameter.default)
        default = (
            default.__name__ if isinstance(default, type) and default is not _EMPTY else default
        )
        if name.startswith("target_layer"):
            default = _LAYERS.get(kind.__name__, default)
        if default is _EMPTY or is_plain(default):
            settings[name] = inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default
            )
    if kind.__name__ == "FullGrad":  # it takes all layers with a bias
        del settings["target_layers"]
    return settings


_EMPTY = inspect.Parameter.empty


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters
    return {n: p for n, p in parameters.items() if p.kind not in variable and n not in _GIVEN}


def _call_parameters(library: Library, kind: Any) -> dict[str, inspect.Parameter]:
    if library.name == "captum":
        return _parameters(kind.attribute)
    if library.name == "zennit":
        return {}
    hands_on = "targets" not in inspect.signature(kind.__call__).parameters
    return _parameters(kind.forward if hands_on and hasattr(kind, "forward") else kind.__call__)


def construct(
    request: Request, kind: Any, options: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Make an object; returns it with the options that are left for its calls."""
    takes = inspect.signature(kind).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    made = {
        name: _MAKE[name](request, options[name]) if name in _MAKE else options[name]
        for name in sorted(options, key=lambda name: "layer" not in name or "mask" in name)
    }
    own: dict[str, Any] = {name: value for name, value in made.items() if name in takes}
    own |= {name: request.network for name in ("model", "forward_func") if name in takes}
    if "input_shape" in takes:
        own["input_shape"] = tuple(request.x.shape[1:])
    if kind.__name__ == "FullGrad":
        own["target_layers"] = []
    reshapes = request.library.name in ("grad-cam", "torchcam")
    if request.grid and reshapes and ("reshape_transform" in takes or open_ended):
        own["reshape_transform"] = request.grid.channels_first
    if request.grid and "ablation_layer" in takes:
        own["ablation_layer"] = request.library.part("ablation_layer", "AblationLayerVit")()
    thing = kind(**own)
    left = {name: value for name, value in made.items() if name not in takes}
    return thing, request.inner | left
