"""Passes through a network: in batches of one size and one memory layout, and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn

from heatproof.models import backends
from heatproof.models.guards import eval_mode, own_precision
from heatproof.models.targets import WithDerived
from heatproof.tensor.batching import chunks, pad, rows
from heatproof.tensor.scores import Score

if TYPE_CHECKING:
    from heatproof.models.model import Model


class Pass(NamedTuple):
    """A forward and a backward pass, seen at one layer."""

    logits: Tensor  # (B, K)
    activation: Tensor  # (B, C, h, w)
    gradient: Tensor  # (B, C, h, w): of the target's score with respect to the activation


class Step(NamedTuple):
    """A part of a network, as a function.

    Attributes:
        kind: ``features``, ``pool`` or ``head``, or ``crop`` where what follows is computed from a
            part of the image alone.
        layer: The number of the layer that it leads to, if it leads to one.
        run: The function.
    """

    kind: str
    layer: int | None
    run: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Passes:
    """Runs a model from the layer it starts at; created by ``model.passes``.

    Unless a method says otherwise, passes have ``batch_size`` rows, run in evaluation mode, and are
    counted in ``model.pass_counts``. Layers are given by their numbers (see ``Model.layer_index``).
    The network is left unchanged.
    """

    model: Model

    # Without gradients

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute logits and embeddings, by the model's backend where it starts at the image.

        Args:
            x: Images or activations of shape ``(B, C, h, w)``.

        Returns:
            Logits ``(B, K)`` and the inputs of the last layer with weights ``(B, D)``.
        """
        if self.uses_backend:
            return self._forward_by_backend(x)
        # A tail may start after the embedding; its own input stands for it then.
        layer = max(self.model.layer_table.embedding, self.model.start)
        logits, embedding = self._observe(x, layer)
        return logits, embedding.reshape(len(logits), -1)

    def logits_and_activation(self, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Compute logits and a layer's activation, in one pass unless a backend has the logits."""
        if self.uses_backend:
            return self.forward(x)[0], self.activation(x, layer)
        return self._observe(x, layer)

    def activation(self, x: Tensor, layer: int) -> Tensor:
        """Compute a layer's activation; at the model's first layer that is x itself."""
        model = self.model
        if layer == model.start:
            return x

        def run(part: Tensor) -> tuple[Tensor]:
            return model.body.run(self._pad(part), model.start, layer)[:1]

        with eval_mode(model.module):
            return self._in_batches(x, run)[0]

    def zero_activation(self) -> Tensor:
        """Compute the activation of one zero image where the model starts, as a leaf; not counted.

        Returns:
            A tensor of shape ``(1, C, h, w)`` that requires a gradient.
        """
        root = self.model.root
        image = torch.zeros((1, *root.image_shape), device=root.device, dtype=root.dtype)
        with torch.no_grad():
            return root.passes.run(image, self.model.start).requires_grad_()

    def _observe(self, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Compute logits and a layer's activation in one pass."""
        model = self.model

        def observed(part: Tensor) -> tuple[Tensor, Tensor]:
            logits, seen = model.body.run(self._pad(part), model.start, watch=(layer,))
            return logits, seen[layer]

        with eval_mode(model.module):
            logits, activation = self._in_batches(x, observed)
        return logits, activation

    def heads(
        self,
        x: Tensor,
        cut: int,
        heads: Sequence[Callable[[Tensor, Sequence[int]], tuple[Tensor, object]]],
    ) -> list[Tensor]:
        """Compute the logits of several heads on the same features, which end at a layer."""
        model = self.model

        def run(part: Tensor) -> tuple[Tensor, ...]:
            features = model.body.run(self._pad(part), model.start, cut)[0]
            return tuple(head(features, ())[0] for head in heads)

        with eval_mode(model.module):
            return list(self._in_batches(x, run))

    @property
    def uses_backend(self) -> bool:
        """Whether a backend other than the network itself runs passes without gradients."""
        return backends.used(self.model.backend) != backends.EAGER and self.model.start == 0

    def _forward_by_backend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute logits and embeddings by the backend, always with ``batch_size`` rows."""
        model = self.model
        embedding_layer = model.layer_table.embedding
        derived = model.derived
        body = model.body if derived is None else cast(WithDerived, model.body).inner
        whole = backends.Whole(model.name, model.module, body, embedding_layer)

        def forward(part: Tensor) -> tuple[Tensor, Tensor]:
            layout = model.layout if model.backend in backends.LOWER else torch.channels_last
            batch = pad(part, model.batch_size).contiguous(memory_format=layout)
            run = backends.forward_by(
                model.backend, whole, batch, model.input_range, model.approximate
            )
            return run(batch)

        with own_precision():
            logits, embedding = self._in_batches(x, forward)
        return (logits if derived is None else derived(logits)), embedding

    def _in_batches(
        self, x: Tensor, run: Callable[[Tensor], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Run batches without gradients, drop the results of padding rows, and join the others."""
        self._count("forward", len(x), self.model.start)
        parts = []
        with torch.no_grad():
            for part in rows(x, self.model.batch_size):
                parts.append([out[: len(part)] for out in run(part)])
        return tuple(map(torch.cat, zip(*parts, strict=True)))

    # With gradients

    def run(self, x: Tensor, stop: int | None = None) -> Tensor:
        """Run the network once, with gradients if they are enabled; neither batched nor counted.

        Args:
            x: Images or activations of shape ``(B, C, h, w)``.
            stop: The layer to stop at; None runs to the logits.

        Returns:
            Logits ``(B, K)``, or the activation at ``stop``.
        """
        with eval_mode(self.model.module):
            return self.model.body.run(self.to_layout(x), self.model.start, stop)[0]

    def steps(self) -> list[Step]:
        """Split the network into functions that run one after the other.

        A network that cannot be cut is a single function of no kind.
        """
        model = self.model
        steps = model.body.steps(model.start)
        if steps is None:
            return [Step("", None, model)]
        kind = model.layer_table.kind
        return [
            Step(to, None, run) if isinstance(to, str) else Step(kind(to), to, run)
            for to, run in steps
        ]

    def embed(self, x: Tensor) -> Tensor:
        """Compute embeddings ``(B, D)`` as ``run`` does, with gradients if they are enabled."""
        return self.run(x, self.model.layer_table.embedding).flatten(1)

    def gradients(
        self, h: Tensor, target: Tensor, layers: Sequence[int], score: str | Score = "logit"
    ) -> dict[int, Pass]:
        """Compute the score's gradients at several layers, from one backward pass.

        Args:
            h: The activation of the first of the layers, ``(B, C, h, w)``.
            target: Class indices of shape ``(B,)``.
            layers: The layers, first to last.
            score: The name of a score, or a function from logits and targets to ``(B,)``.

        Returns:
            A pass for each of the layers.
        """
        model = self.model
        first = layers[0]
        score = self.model.score_function(score)
        self._count("backward", len(h), first)
        parts: dict[int, list[Pass]] = {layer: [] for layer in layers}
        with torch.enable_grad(), eval_mode(model.module):
            for part, goal in self._batches(h, target):
                count = len(part)
                leaf = self._pad(part, first).detach().requires_grad_()
                logits, seen = model.body.run(leaf, first, watch=layers)
                total = score(logits[:count], goal).sum()
                gradients = torch.autograd.grad(total, [seen[layer] for layer in layers])
                for layer, gradient in zip(layers, gradients, strict=True):
                    gradient = gradient[:count]
                    if layer == 0:
                        # Channels last is slow for the few channels of images.
                        gradient = gradient.contiguous()
                    activation = seen[layer][:count].detach()
                    parts[layer].append(Pass(logits[:count].detach(), activation, gradient))
        return {layer: _joined(passes) for layer, passes in parts.items()}

    def grad_batches(self, x: Tensor, target: Tensor, kind: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield leaves that require gradients and their targets, for passes that the caller runs.

        In a run the last batch is filled up with padding rows; drop their results.

        Args:
            x: Images or activations of shape ``(B, C, h, w)``.
            target: Class indices of shape ``(B,)``.
            kind: What the images are counted as: ``forward`` or ``backward``.
        """
        self._count(kind, len(x), self.model.start)
        for part, goal in self._batches(x, target):
            yield self._pad(part).detach().requires_grad_(), self._pad(goal)

    def attribute(
        self, x: Tensor, target: Tensor, function: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Call a function that runs the network in its own way, ``batch_size`` rows at a time.

        Args:
            x: Images or activations of shape ``(B, C, h, w)``.
            target: Class indices of shape ``(B,)``.
            function: Takes a leaf that requires a gradient and its targets, and returns one row per
                row of the leaf; inside, the network is as in ``frozen_eval``.

        Returns:
            The rows of all batches; one backward pass per image is counted.
        """
        with self.frozen_eval():
            batches = self.grad_batches(x, target, "backward")
            parts = [function(leaf, goal).detach() for leaf, goal in batches]
        return torch.cat(parts)[: len(x)]

    @contextmanager
    def frozen_eval(self) -> Iterator[None]:
        """Set evaluation mode, and let only what depends on the input require gradients."""
        with torch.enable_grad(), eval_mode(self.model.module), _frozen(self.model.module):
            yield

    # Batches

    @contextmanager
    def batches_of(self, size: int) -> Iterator[None]:
        """Give every pass exactly ``size`` rows, the last one with padding rows.

        In a run this makes the bytes of a sample independent of its neighbours.
        """
        model = self.model
        batch_size = model.batch_size
        pad_batches = model.pad_batches
        model.batch_size = size
        model.pad_batches = True
        try:
            yield
        finally:
            model.batch_size = batch_size
            model.pad_batches = pad_batches

    def chunks(self, samples: int, variants: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (sample, variant) indices over all variants of a batch, in batches."""
        return chunks(samples, variants, self.model.batch_size)

    def to_layout(self, x: Tensor, start: int | None = None) -> Tensor:
        """Lay images out in memory as in every pass: layouts differ in speed and in rounding.

        Args:
            x: Images, or activations, which stay as they are.
            start: The layer that x belongs to; by default the one that the model starts at.
        """
        start = self.model.start if start is None else start
        is_image = start == 0 and x.ndim == 4
        return x.contiguous(memory_format=self.model.layout) if is_image else x

    def _batches(self, x: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        size = self.model.batch_size
        return zip(rows(x, size), rows(target, size), strict=True)

    def _pad(self, part: Tensor, start: int | None = None) -> Tensor:
        """Bring a batch into the form of a pass that starts at that layer."""
        if self.model.pad_batches:
            part = pad(part, self.model.batch_size)
        return self.to_layout(part, start)

    def _count(self, kind: str, images: int, start: int) -> None:
        """Count images; passes that start at a later layer are counted separately."""
        self.model.pass_counts[pass_kind(kind, self.model, start)] += images


def pass_kind(kind: str, model: Model, start: int) -> str:
    """Return what a pass is counted as: ``forward``, or ``forward from layer3``.

    Args:
        kind: ``forward`` or ``backward``.
        model: The model.
        start: The number of the layer that the pass starts at, or that gradients are of.
    """
    return kind if start == 0 else f"{kind} from {model.body.layers[start]}"


def _joined(passes: Sequence[Pass]) -> Pass:
    if len(passes) == 1:
        return passes[0]
    return Pass(*map(torch.cat, zip(*passes, strict=True)))


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """Let no parameter require a gradient, so that what requires one depends on the input."""
    learning = [p for p in module.parameters() if p.requires_grad]
    for p in learning:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in learning:
            p.requires_grad_(True)
