"""Methods of other libraries by name, such as ``captum:Saliency``.

A name stands for an object of the library, which is made for the network that is evaluated, and is
used as an object of the user's is. Whether a network allows it is found before a run.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from heatproof.errors import HeatproofError, NotApplicable, format_error
from heatproof.methods.adapters import Adapted, adapt
from heatproof.methods.library_objects import Request, construct, parameters_of
from heatproof.methods.library_tables import Library, library_of
from heatproof.models.guards import restored
from heatproof.models.model import Model
from heatproof.models.targets import network_of
from heatproof.models.tokens import Grid
from heatproof.tensor.noise import Rng

# Arguments with which a call takes a few passes: it shows whether a method runs at all.
_FEW = {
    "n_steps": 2,
    "n_samples": 2,
    "num_samples": 2,
    "nt_samples": 2,
    "n_iter": 1,
    "num_scales": 1,
    "feature_mask": 2,
}
# They take a pass per channel or window, and run wherever an object of them can be made.
_UNTRIED = frozenset(("AblationCAM", "ScoreCAM", "SSCAM", "ISCAM", "Occlusion"))
# They draw from all baselines that they are given, whichever image these belong to.
_POOLED = frozenset(("GradientShap", "DeepLiftShap", "LayerGradientShap", "LayerDeepLiftShap"))
# They take the second dimension of an activation as channels.
_NEED_CHANNELS = frozenset(("LayerGradCam", "GuidedGradCam"))
_NEED_RELUS = frozenset(
    (
        "captum:GuidedBackprop",
        "captum:Deconvolution",
        "captum:GuidedGradCam",
        "zennit:GuidedBackprop",
        "zennit:DeconvNet",
    )
)


class _OnGrid:
    """An attribution of Captum whose tokens, or channels-last features, become ``(B, C, h, w)``."""

    def __init__(self, attribution: Any, grid: Grid):
        self.attribution = attribution
        self.forward_func = attribution.forward_func
        self._grid = grid

    def attribute(self, inputs: Tensor, target: Tensor, **options: Any) -> Any:
        takes_target = "target" in inspect.signature(self.attribution.attribute).parameters
        given = {"target": target} if takes_target else {}
        maps = self.attribution.attribute(inputs, **given, **options)
        return self._grid.channels_first(maps[0] if isinstance(maps, tuple) else maps)


class LibraryMethod:
    """A method of another library as one of ours.

    Args:
        library: The library.
        name: The name of the method's class.
    """

    def __init__(self, library: Library, name: str):
        self.library = library
        self.kind = library.method(name)
        self.name = f"{library.name}:{name}"
        self.__doc__ = inspect.getdoc(self.kind)
        given = ("model", "x", "target", "rng")
        own = self.settings = parameters_of(library, self.kind)
        passed = (*given, "baseline_prepared") if "baselines" in own else given
        either = inspect.Parameter.POSITIONAL_OR_KEYWORD
        first = [inspect.Parameter(n, either) for n in passed[:3]]
        then = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in passed[3:]]
        self.__signature__ = inspect.Signature([*first, *then, *own.values()])
        self._reasons: WeakKeyDictionary[nn.Module, dict[str, str]] = WeakKeyDictionary()

    def __call__(
        self,
        model: Model,
        x: Tensor,
        target: Tensor,
        *,
        rng: Rng,
        baseline_prepared: Mapping[str, Tensor] | None = None,
        **options: Any,
    ) -> Any:
        """Compute maps of images ``(B, C, H, W)``."""
        with restored(model.root.module):  # the hooks of the object go with it
            network = network_of(model)
            request = Request(self.library, model.root, network, x, rng, baseline_prepared)
            thing, left = construct(request, self.kind, options)
            if request.grid and self.library.name == "captum":
                thing = _OnGrid(thing, request.grid)
            baselines = left.get("baselines")
            if self.kind.__name__ not in _POOLED or not isinstance(baselines, Tensor):
                return _adapted(thing, left, self.name)(model, x, target, rng=rng)
            maps = []
            same = bool((baselines == baselines[:1]).all())
            size = len(x) if same else 1
            # DeepLiftShap takes no single baseline; two equal ones have the same mean.
            copies = 2 if self.kind.__name__.endswith("DeepLiftShap") else 1
            for start in range(0, len(x), size):
                rows = slice(start, start + size)
                left["baselines"] = baselines[start : start + 1].repeat(copies, 1, 1, 1)
                own_rng = Rng(rng.seed, rng.ids[rows], rng.device)
                adapted = _adapted(thing, left, self.name)
                maps.append(adapted(model, x[rows], target[rows], rng=own_rng))
            return torch.cat(maps)

    def reason(self, model: Model, options: Mapping[str, Any]) -> str:
        """Return why it does not apply to a model; empty if it does.

        It is found by making the object, and by a call on one image if that takes few passes.

        Raises:
            HeatproofError: If an argument is wrong for any network, such as a layer's name.
        """
        if isinstance(options.get("baselines"), str):  # it says nothing about the network
            options = {**options, "baselines": "zero"}
        reasons = self._reasons.setdefault(model.root.module, {})
        key = repr((sorted(options.items()), model.head, model.view, model.batch_dependent))
        if key not in reasons:
            reasons[key] = self._find_reason(model, options)
        return reasons[key]

    def _find_reason(self, model: Model, options: Mapping[str, Any]) -> str:
        noise = torch.rand(1, *model.image_shape, generator=torch.Generator().manual_seed(0))
        x = model.normalize(noise)
        target = torch.zeros(1, dtype=torch.long, device=x.device)
        few: dict[str, Any] = {
            name: _FEW[name] if name in _FEW and value else value for name, value in options.items()
        }
        try:
            if reason := self._unsuitable(model, x, options):
                return reason
            if self.kind.__name__ in _UNTRIED:
                return ""
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                maps = self(model, x, target, rng=Rng(0, [""]), **few)
        except NotApplicable as error:
            return str(error)
        except (HeatproofError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a library can raise anything
            text = re.sub(r"<class '([\w.]+)'>", r"\1", format_error(error))
            return f"{self.library.title} {self.library.version} fails: {text}"
        shape = tuple(maps.shape)
        fits = len(shape) in (3, 4) and all(
            1 < side <= whole for side, whole in zip(shape[-2:], x.shape[-2:], strict=True)
        )
        return "" if fits else f"it returns shape {shape}, which is no map of the image"

    def _unsuitable(self, model: Model, x: Tensor, options: Mapping[str, Any]) -> str:
        """Return what is known to be wrong about a network without a call."""
        network = network_of(model)
        request = Request(self.library, model.root, network, x, Rng(0, [""]), None)
        with restored(model.root.module):
            thing, left = construct(request, self.kind, options)
            if getattr(thing, "target_layers", None) == []:  # of FullGrad, which finds them itself
                return "the network has no convolutions or batch norms with a bias"
            if reason := _adapted(thing, left, self.name).applies(model):
                return reason
        if request.grid and self.kind.__name__ in _NEED_CHANNELS:
            return "it takes the second dimension of features as channels, and here they are tokens"
        if self.name in _NEED_RELUS:
            modules, everywhere = _count_relus(model, x)
            if not everywhere:
                return "it changes the gradients of ReLUs, and the network has none"
            if modules < everywhere:
                return (
                    f"it finds ReLUs that are modules, {modules} of {everywhere}; guided-backprop "
                    "and deconvnet find all"
                )
        return ""


def _adapted(thing: Any, options: Mapping[str, Any], name: str) -> Adapted:
    adapted = adapt(thing, options, name)
    assert adapted is not None  # it is one of the kinds that have an adapter
    return adapted


def _count_relus(model: Model, x: Tensor) -> tuple[int, int]:
    """Count the ReLUs in a pass: those that are modules, and all."""
    from heatproof.methods.guided import relus  # which registers methods, in an order of its own

    network = model.root.module
    calls: list[nn.Module] = []
    with restored(network), torch.enable_grad():
        for module in network.modules():
            if isinstance(module, nn.ReLU):
                module.register_forward_hook(lambda m, *_: calls.append(m))
        output = network(x.clone().requires_grad_())
        return len(calls), len(relus(output))


@cache
def library_method(name: str) -> LibraryMethod:
    """Return the method that a name such as ``captum:Saliency`` stands for.

    Raises:
        HeatproofError: If there is none, or the library is not installed.
    """
    library = library_of(name)
    assert library is not None
    return LibraryMethod(library, name.partition(":")[2])


@dataclass(frozen=True)
class ReasonFor:
    """Why a method with these arguments does not apply to a model."""

    method: LibraryMethod
    arguments: Mapping[str, Any] = field(hash=False)

    def __call__(self, model: Model) -> str:
        """Return the reason; empty if it applies."""
        return self.method.reason(model, self.arguments)
