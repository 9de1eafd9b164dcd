"""Methods of other libraries, used as they are: see ``other_libraries`` for the kinds.

Each is called as its own documentation says, on a copy of the images and with its own random
numbers, and the network is left as it was found.
"""

from __future__ import annotations

import hashlib
import inspect
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heatproof.errors import HeatproofError
from heatproof.files import content_hash
from heatproof.methods.other_libraries import (
    FUNCTIONS,
    OBJECTS,
    Convention,
    Inputs,
    is_native,
    name_of,
    signature_of,
)
from heatproof.models.guards import eval_mode, paused_observers, restored
from heatproof.models.model import Model
from heatproof.models.targets import network_of
from heatproof.tensor.noise import Rng
from heatproof.userfile import source_hash

# Largest deviation of the logits of a network that is the same, as a fraction of the largest.
LOGIT_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4}
HALF_TOLERANCE = 2e-2


@dataclass(frozen=True)
class Adapted:
    """A method of another library as one of ours.

    Attributes:
        thing: The object or function.
        convention: How it is called.
        options: Keyword arguments for each call.
        name: What it is called in messages.
    """

    thing: Any
    convention: Convention
    options: Mapping[str, Any] = field(hash=False)
    name: str

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        kind = self.thing if inspect.isroutine(self.thing) else type(self.thing)
        return f"{kind.__module__}.{kind.__qualname__}"

    @property
    def source(self) -> str:
        """A hash of the code and the options; empty where they cannot be known for certain.

        The settings of an object and the versions of all code that it calls cannot be read from
        it, so that its results are computed again in every run.
        """
        source = source_hash(self.thing) if inspect.isfunction(self.thing) else ""
        if not source or _is_installed(self.thing) or not is_plain(self.options):
            return ""
        return (
            content_hash(repr([source, sorted(self.options.items())])) if self.options else source
        )

    def __call__(self, model: Model, x: Tensor, target: Tensor, *, rng: Rng) -> Tensor:
        """Compute maps of images ``(B, C, H, W)``."""
        if reason := self._difference(model, x[:1]):
            raise HeatproofError(f"{self.name}: {reason}")
        network = self._network(model)
        copy = x.detach().clone().requires_grad_(self.convention.needs_gradient)
        with (
            torch.enable_grad(),
            restored(model.root.module),
            restored(network),
            paused_observers(network, keep=self.thing),
            seeded_by(rng),
        ):
            inputs = Inputs(network, copy, target, self.options)
            return self.convention.call(self.thing, inputs)

    def applies(self, model: Model) -> str:
        """Return why it cannot explain a model; empty if it can."""
        generator = torch.Generator().manual_seed(0)
        noise = torch.rand(1, *model.image_shape, generator=generator)
        return self._difference(model, model.normalize(noise))

    def _network(self, model: Model) -> nn.Module:
        own = self.convention.network(self.thing)
        if isinstance(own, nn.Module):
            return own
        return network_of(model)

    def _difference(self, model: Model, x: Tensor) -> str:
        """Return in what the network that is called differs from the one that is evaluated."""
        if model.root.batch_dependent:
            return f"it runs several images at once, and {model.name} runs one at a time"
        network = self._network(model)
        known = model.head != "binary" and model.derived is None
        if network is model.root.module and not model.view and known:
            return ""
        with torch.no_grad():
            expected = model(x)
            try:
                with eval_mode(network):
                    outputs = network(x)
            except Exception:  # another network may not even run on these images
                outputs = None
        if _agree(outputs, expected):
            return ""
        if model.view:
            return f"it explains the network itself, not the view {model.view} of it"
        if model.fine_tuned:
            return (
                f"it was made with other weights than those fine-tuned for {model.fine_tuned}; "
                "give a function (model, x, target) -> maps instead, which is given the network"
            )
        if model.derived is not None:
            return (
                f"it was made with the network itself, which has no output {model.derived.text}; "
                "give a function (model, x, target) -> maps, or explain a class"
            )
        if model.head == "binary":
            return (
                "it was made with a network of one output, which has no class 0; make it with the "
                f"hp.Model itself, which has two logits: {type(self.thing).__name__}(model)"
            )
        return f"it was made with another network than {model.name}; make it with model.module"


def _agree(outputs: object, expected: Tensor) -> bool:
    """Return whether outputs are the expected logits, up to rounding."""
    if not isinstance(outputs, Tensor) or outputs.shape != expected.shape:
        return False
    scale = expected.double().abs().max().clamp(min=1e-12)
    deviation = (outputs.to(expected.device).double() - expected.double()).abs().max() / scale
    return bool(deviation <= LOGIT_TOLERANCE.get(expected.dtype, HALF_TOLERANCE))


def adapt(thing: Any, options: Mapping[str, Any], name: str = "") -> Adapted | None:
    """Make a method of an object or a function of another library.

    Args:
        thing: The object or function.
        options: Keyword arguments for each call.
        name: Its name; by default that of the function or class.

    Returns:
        The method; None for functions ``(model, x, target, *, rng)``, which need no adapter.

    Raises:
        HeatproofError: If it is of no known kind, or the keyword arguments do not fit.
    """
    known = [c for c in OBJECTS if c.matches(thing)]
    name = name or name_of(thing)
    if not known:
        if not callable(thing):
            raise HeatproofError(
                "a method is an expression, a function such as (model, x, target) -> maps, or an "
                "object of Captum, pytorch-grad-cam, TorchCAM or Zennit; "
                f"got {type(thing).__name__}"
            )
        if is_native(thing):
            return None
        known = [c for c in FUNCTIONS if c.matches(thing)]
    if not known:
        raise HeatproofError(
            f"{name}{signature_of(thing)} must be callable as {name}(model, x, target, rng=…), "
            f"{name}(model, x, target) or {name}(x, target)"
        )
    known[0].check(thing, options)
    return Adapted(thing, known[0], dict(options), name)


def is_plain(value: Any) -> bool:
    """Return whether the ``repr`` of a value identifies it: numbers, texts, and lists of them."""
    if isinstance(value, Mapping):
        return all(map(is_plain, (*value.keys(), *value.values())))
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _is_installed(function: Any) -> bool:
    """Return whether a function belongs to an installed library, whose version is not known."""
    return "site-packages" in function.__code__.co_filename


@contextmanager
def seeded_by(rng: Rng) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python by the samples, and restore them."""
    digest = hashlib.sha256(repr((rng.seed, list(rng.ids))).encode()).digest()
    seed = int.from_bytes(digest[:4], "little")
    numpy_state = np.random.get_state()
    python_state = random.getstate()
    with torch.random.fork_rng(enabled=True):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)
