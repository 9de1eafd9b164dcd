"""Libraries whose methods can be named, as in ``captum:Saliency``: their classes, and what is not.

Which methods a library has is read from its classes. The tables say what cannot be read: which
classes need something that no text can give, and which arguments are filled in.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from heatproof.errors import HeatproofError, format_error, unknown
from heatproof.models.vision import import_torchvision


@dataclass(frozen=True)
class Library:
    """A library with attribution methods for images.

    Attributes:
        name: What stands before the colon in names; also the extra that installs it.
        title: What it is called in messages.
        distribution: Its name on PyPI.
        modules: The modules whose classes are looked at.
        bases: The classes that attribution methods inherit from.
        refused: Why classes cannot be used by name, by patterns of their names.
        parts: Modules with classes that arguments can name, by the argument.
        alone: Further methods, which inherit from none of the bases.
    """

    name: str
    title: str
    distribution: str
    modules: tuple[str, ...]
    bases: frozenset[str]
    refused: Mapping[str, str] = field(hash=False)
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    alone: frozenset[str] = frozenset()

    @property
    def version(self) -> str:
        """The installed version; empty if it is not installed. Nothing is imported."""
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            return ""

    @property
    def revision(self) -> str:
        """The library with its version, as a part of keys."""
        return f"{self.distribution} {self.version}"

    def classes(self) -> dict[str, type]:
        """Return the library's attribution methods by name, those that are refused included.

        Raises:
            HeatproofError: If it is not installed, or cannot be imported.
        """
        return _classes(self)

    def methods(self) -> dict[str, type]:
        """Return the methods that can be used by name."""
        return {name: kind for name, kind in self.classes().items() if not self.refusal(name)}

    def refusal(self, name: str) -> str:
        """Return why a class cannot be used by name; empty if it can."""
        reasons = (reason for pattern, reason in self.refused.items() if fnmatchcase(name, pattern))
        return next(reasons, "")

    def method(self, name: str) -> type:
        """Return the class of a method.

        Raises:
            HeatproofError: If there is none of that name, or it is no attribution method.
        """
        known = self.classes()
        if reason := self.refusal(name):
            raise HeatproofError(f"{self.name}:{name} cannot be used by name: it {reason}")
        if name in known:
            return known[name]
        if any(hasattr(import_module(module), name) for module in self.modules):
            raise HeatproofError(
                f"{self.name}:{name} is no attribution method; list them with: "
                f"heatproof list methods --from {self.name}"
            )
        raise unknown(f"method of {self.title}", name, self.methods())

    def part(self, argument: str, name: str) -> type:
        """Return a class that an argument names, such as a canonizer of Zennit."""
        modules = map(import_module, self.parts.get(argument, self.modules))
        known = {
            n: kind
            for module in modules
            for n, kind in vars(module).items()
            if inspect.isclass(kind) and not n.startswith("_")
        }
        if name not in known:
            raise unknown(f"{argument} of {self.title}", name, known)
        return known[name]


@cache
def _classes(library: Library) -> dict[str, type]:
    if not library.version:
        raise HeatproofError(
            f"{library.name}:… needs {library.title}, which is not installed: "
            f'pip install "heatproof[{library.name}]"'
        )
    try:
        if library.name != "captum":
            import_torchvision()  # they import it themselves, and not every one can be
        modules = [import_module(module) for module in library.modules]
    except HeatproofError:
        raise
    except Exception as error:  # importing a package can raise anything
        raise HeatproofError(
            f"{library.title} {library.version} cannot be imported: {format_error(error)}"
        ) from error
    found = {}
    for module in modules:
        for name, kind in vars(module).items():
            if inspect.isclass(kind) and kind.__name__ == name and _is_method(library, kind):
                found[name] = kind
    return dict(sorted(found.items()))


def _is_method(library: Library, kind: type) -> bool:
    """Return whether a class is one of the methods, and not what they have in common."""
    if kind.__name__ in library.alone:
        return True
    is_base = _path(kind) in library.bases or kind.__name__.startswith("_")
    return not is_base and any(_path(base) in library.bases for base in kind.__mro__)


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_NEURON = "explains a neuron, not a class"
_TEXT = "explains language models"
_RULES = "needs a map of rules; give an object of it"

LIBRARIES = {
    library.name: library
    for library in (
        Library(
            "captum",
            "Captum",
            "captum",
            ("captum.attr",),
            frozenset(
                f"captum.attr._utils.attribution.{base}"
                for base in (
                    "Attribution",
                    "GradientAttribution",
                    "PerturbationAttribution",
                    "InternalAttribution",
                    "LayerAttribution",
                    "NeuronAttribution",
                )
            ),
            {
                "Neuron*": _NEURON,
                "*LLM*": _TEXT,
                "DataLoaderAttribution": "explains a whole data set at once",
                "LimeBase": "needs functions of yours; give an object of it",
                "*FeaturePermutation": "permutes pixels between the images of a batch, so that "
                "the map of an image would depend on the others",
                "ShapleyValues": "takes every order of the features, 8! at 8 of them; use "
                "ShapleyValueSampling",
            },
        ),
        Library(
            "grad-cam",
            "pytorch-grad-cam",
            "grad-cam",
            ("pytorch_grad_cam",),
            frozenset(("pytorch_grad_cam.base_cam.BaseCAM",)),
            {
                "FinerCAM": "does not take a target for each image; use torchcam:FinerCAM",
                "DeepFeatureFactorization": "finds concepts, and has no map of a class",
                "GuidedBackpropReLUModel": "takes a single image; use captum:GuidedBackprop",
            },
            alone=frozenset(
                (
                    "RefineCAM",
                    "SESS",
                    "FinerCAM",
                    "DeepFeatureFactorization",
                    "GuidedBackpropReLUModel",
                )
            ),
        ),
        Library(
            "torchcam",
            "TorchCAM",
            "torchcam",
            ("torchcam.methods",),
            frozenset(("torchcam.methods.core._CAM", "torchcam.methods.gradient._CAMWrapper")),
            {},
        ),
        Library(
            "zennit",
            "Zennit",
            "zennit",
            ("zennit.composites", "zennit.attribution"),
            frozenset(("zennit.core.Composite", "zennit.attribution.Attributor")),
            {"*MapComposite": _RULES, "MixedComposite": _RULES},
            {"canonizers": ("zennit.canonizers", "zennit.torchvision")},
        ),
    )
}


def library_of(name: Any) -> Library | None:
    """Return the library that a name such as ``captum:Saliency`` begins with."""
    before, colon, _ = name.partition(":") if isinstance(name, str) else ("", "", "")
    return LIBRARIES.get(before) if colon else None
