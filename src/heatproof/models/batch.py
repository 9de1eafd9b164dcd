"""A batch of images with its activations and gradients, each computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from heatproof.models.model import Model
from heatproof.models.passes import Pass

Arrived = tuple[Tensor, Tensor]  # logits, and what a backward brings to a layer
# (the model from its first layer on, that layer's activation, layers) -> what arrives at each
OwnPass = Callable[[Model, Tensor, Sequence[int]], Mapping[int, Arrived]]


class ModelBatch:
    """A batch of images with its activations and gradients, which all methods share.

    Results are computed on first use and kept as long as the batch. Do not change them in place.

    Args:
        model: The model that the images are for.
        x: Images in the model's input space, ``(B, C, H, W)``.
        target: Class indices of shape ``(B,)``.
        layers: Layers whose gradients will be needed; one backward pass computes all of them.
        layers_of: By the key of a method with a backward of its own, the layers at which it will be
            needed; see ``LayerBatch.own_pass``.
    """

    def __init__(
        self,
        model: Model,
        x: Tensor,
        target: Tensor,
        layers: Sequence[str] = (),
        layers_of: Mapping[str, Sequence[str]] | None = None,
    ):
        self.model = model
        self.x = x
        self.target = target
        self._announced = frozenset(model.layer_index(layer) for layer in layers)
        self._activations = {model.start: x}
        self._passes: dict[tuple[int, str], Pass] = {}
        self._layers_of = {
            key: {model.layer_index(layer) for layer in layers}
            for key, layers in (layers_of or {}).items()
        }
        self._own_passes: dict[tuple[int, str], Arrived] = {}

    def activation(self, layer: str) -> Tensor:
        """Return the activation ``(B, C, h, w)`` of a layer."""
        return self._activation(self.model.layer_index(layer))

    def gradient(self, layer: str = "input", score: str = "logit") -> Pass:
        """Return the gradient of the target's score with respect to a layer's activation.

        Args:
            layer: The layer, by its name or an alias.
            score: The name of the score: ``logit``, ``softmax`` or ``logprob``.

        Returns:
            The logits, the layer's activation and the gradient.
        """
        return self._pass(self.model.layer_index(layer), score)

    def at(self, layer: str, key: str = "") -> LayerBatch:
        """Return the batch as seen by a method that explains the model from this layer on.

        Args:
            layer: The layer, by its name or an alias.
            key: What identifies the method with its arguments, if it has a backward of its own.
        """
        return LayerBatch(self, layer, key)

    def own_pass(self, layer: str, key: str, compute: OwnPass) -> Arrived:
        """Return what a method's own backward gives at a layer; see ``LayerBatch.own_pass``."""
        number = self.model.layer_index(layer)
        if not key:
            return compute(self.model.tail(layer), self._activation(number), [number])[number]
        for wanted in (sorted(self._layers_of.get(key, {number})), [number]):
            if not {(number, key), (wanted[0], key)} & self._own_passes.keys():
                first = self.model.layer_table.names[wanted[0]]
                found = compute(self.model.tail(first), self._activation(wanted[0]), wanted)
                self._own_passes |= {(at, key): result for at, result in found.items()}
        return self._own_passes[number, key]

    def on(self, model: Model) -> ModelBatch:
        """Return the same images and classes on a network of the same layers."""
        other = ModelBatch(model, self.x, self.target)
        other._announced = self._announced
        return other

    def _activation(self, layer: int) -> Tensor:
        if layer not in self._activations:
            if layer in self._announced and layer > min(self._announced):
                # The shared backward pass computes this activation on its way.
                self._activations[layer] = self._pass(layer, "logit").activation
            else:
                self._activations[layer] = self.model.passes.activation(self.x, layer)
        return self._activations[layer]

    def _pass(self, layer: int, score: str) -> Pass:
        if (layer, score) not in self._passes:
            layers = sorted(self._announced | {layer})
            h = self._activation(layers[0])
            passes = self.model.passes.gradients(h, self.target, layers, score)
            self._passes.update({(number, score): result for number, result in passes.items()})
        return self._passes[layer, score]


@dataclass(frozen=True)
class LayerBatch:
    """A batch at a layer: what a method with a ``batch`` argument is given.

    Attributes:
        whole: The batch at the model's input.
        layer: The layer that the method explains, by its name or an alias.
        key: What identifies the method with its arguments, if it has a backward of its own.
    """

    whole: ModelBatch
    layer: str
    key: str = ""

    @property
    def x(self) -> Tensor:
        """The layer's activation, ``(B, C, h, w)``: the method's input."""
        return self.whole.activation(self.layer)

    @property
    def target(self) -> Tensor:
        """Class indices of shape ``(B,)``."""
        return self.whole.target

    def activation(self, layer: str) -> Tensor:
        """Return the activation ``(B, C, h, w)`` of a later layer."""
        return self.whole.activation(layer)

    def gradient(self, score: str = "logit") -> Tensor:
        """Return the gradient of the target's score with respect to x, of the shape of x."""
        return self.whole.gradient(self.layer, score).gradient

    def own_pass(self, compute: OwnPass) -> Arrived:
        """Return what a backward of the method's own brings to x, from one pass for all its layers.

        Args:
            compute: Runs the model once for several layers, first to last. It may leave out all but
                the first; they get a pass of their own.

        Returns:
            The logits, and what arrives at x, of the shape of x.
        """
        return self.whole.own_pass(self.layer, self.key, compute)
