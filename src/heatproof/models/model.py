"""The network under inspection: named layers, preprocessing, classes, and the passes that methods and protocols share."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heatproof.errors import HeatproofError, NotApplicable, unknown
from heatproof.files import content_hash
from heatproof.models import backends
from heatproof.models.body import Body, landmarks, make_body
from heatproof.models.convert import as_canonical
from heatproof.models.guards import eval_mode
from heatproof.tensor.batching import chunks, pad, rows
from heatproof.tensor.scores import Score, score_function
from heatproof.userfile import source_of

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LANDMARKS = ("middle", "final", "cam")


class Pass(NamedTuple):
    logits: Tensor  # (B, K)
    activation: Tensor  # (B, C, h, w)
    gradient: Tensor  # (B, C, h, w): of the target's score with respect to the activation


@dataclass
class _Shared:
    """What the methods of one batch have in common."""

    x: Tensor
    target: Tensor
    watch: frozenset[int]
    activations: dict[int, Tensor] = field(default_factory=dict)
    passes: dict[tuple[int, str], Pass] = field(default_factory=dict)


class Model:
    """A network with its preprocessing.

    module: maps normalised images (B, 3, H, W) to logits (B, K). A plain vision transformer of timm or torchvision is turned into ours
        (the same weights in the same memory), so that its attention can be seen; not where `layers` are named.
    layers: module paths to cut at, such as ["layer1", "layer2"]; by default wherever the network is a single chain.
    size, resize: the input is square, `size` px, cut from the middle of the image once its shorter side has `resize` px (by default
        `size` · 256/224); an image that has the size already is taken as it is.
    mean, std: the normalisation per channel of images in [0, 1]; by default ImageNet's.
    classes: names in the order of the logits; an image folder's subfolders are matched with them.
    aliases: other layers for the names `middle`, `final` and `cam`.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        layers: Sequence[str] | None = None,
        name: str | None = None,
        size: int = 224,
        resize: int | None = None,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        classes: Sequence[str] | None = None,
        aliases: dict[str, str] | None = None,
        device: str | torch.device | None = None,
        batch_size: int = 64,
    ):
        if not isinstance(module, nn.Module):
            raise HeatproofError(f"hp.Model takes a torch.nn.Module; got {type(module).__name__}")
        if not isinstance(size, int) or size < 1:
            raise HeatproofError(
                f"size is the side of the square images that the network takes, in pixels, such as 224; got {size!r}"
            )
        if not hasattr(mean, "__len__") or not hasattr(std, "__len__"):
            raise HeatproofError(
                f"mean and std have a number for each channel, such as (0.5, 0.5, 0.5); got mean {mean}, std {std}"
            )
        if isinstance(layers, str):
            raise HeatproofError(f'layers are a list of names: layers=["{layers}"]')
        if max(map(abs, mean), default=0) > 1 or min(std, default=1) <= 0:
            raise HeatproofError(
                f"mean and std are of images in [0, 1]: divide them by 255; got mean {list(mean)}, std {list(std)}"
            )
        self.name = name or type(module).__name__
        module = module if device is None else module.to(device)
        module, self.unconverted = (
            as_canonical(module) if layers is None else (module, "its layers are named")
        )
        self.module = module
        self.size, self.resize = size, resize or round(size * 256 / 224)
        if self.resize < size:
            raise HeatproofError(
                f"resize={resize} is smaller than size={size}; the image is resized first, then its middle is taken"
            )
        first = next((p for p in module.parameters()), torch.zeros(()))
        self.device, self.dtype = first.device, first.dtype
        self.mean = torch.tensor(mean, device=self.device, dtype=self.dtype).reshape(-1, 1, 1)
        self.std = torch.tensor(std, device=self.device, dtype=self.dtype).reshape(-1, 1, 1)
        self.batch_size = batch_size
        self.fill_batches = False  # in a run every call has exactly `batch_size` rows, so that bytes do not depend on neighbours
        self.backend = "eager"
        self.fine_tuned = (
            ""  # the cells and baseline its weights were fine-tuned for, such as 16/zero
        )
        self.fine_tuned_weights: dict[
            str, Path | None
        ] = {}  # weights fine-tuned from these, by what for; None: yet to be made
        self.prepared: Callable[[Any], Mapping[str, Tensor]] = (
            _unprepared  # what a baseline knows of this model and its data beforehand
        )
        self.view = ""  # how a grid of images is seen, such as difull 2×2, cell 3
        self.passes: Counter[str] = Counter()
        self._start = 0
        self._root = self
        self._shared: _Shared | None = None
        example = torch.rand(
            (2, len(self.mean), size, size), generator=torch.Generator().manual_seed(0)
        ).to(self.device, self.dtype)
        example = (example - self.mean) / self.std
        with eval_mode(module):
            try:
                self._layout, logits = _layout_of(module, example)
            except HeatproofError:
                raise
            except Exception as error:
                raise HeatproofError(
                    f"{self.name} does not run on images of shape {tuple(example.shape)}: {error}. Is size={size} right?"
                ) from error
            if not isinstance(logits, Tensor) or logits.ndim != 2:
                raise HeatproofError(
                    f"{self.name} must return logits of shape (B, classes); got {getattr(logits, 'shape', type(logits).__name__)}"
                )
            self.body: Body = make_body(module, layers, example)
            found = landmarks(self.body, example)
        self.n_classes = logits.shape[1]
        if classes is not None and len(classes) != self.n_classes:
            raise HeatproofError(
                f"{self.name} gives {self.n_classes} logits, but {len(classes)} class names were given"
            )
        self.classes = tuple(classes) if classes is not None else None
        self._embedding, self._head, self._units = found.embedding, found.head, found.units
        known = {"middle": found.middle, "final": found.final, "cam": found.cam}
        self._aliases = {
            **self.body.aliases,
            **{name: at for name, at in known.items() if at is not None},
        }
        for alias, layer in (aliases or {}).items():
            self._aliases[alias] = self._index(layer)

    def __repr__(self) -> str:
        return f"Model({self.name}, {self.size} px, {self.n_classes} classes, layers: {', '.join(self.layers)})"

    @property
    def backend(self) -> str:
        """What computes whole passes without gradients: eager, fused, compile or openvino (see models/backends.py)."""
        return self._backend

    @backend.setter
    def backend(self, name: str) -> None:
        if name not in backends.NAMES:
            raise unknown("backend", name, backends.NAMES)
        self._backend = name

    def to(self, device: str | torch.device) -> Model:
        self.module.to(device)
        self.device, self.mean, self.std = (
            torch.device(device),
            self.mean.to(device),
            self.std.to(device),
        )
        return self

    # Layers

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(self.body.layers[self._start :])

    @property
    def start_layer(self) -> str:
        """Where this model begins: `input`, or the layer of a tail."""
        return self.body.layers[self._start]

    def _index(self, layer: str) -> int:
        if layer == "input":
            return self._start
        index = self._aliases.get(
            layer, self.body.layers.index(layer) if layer in self.body.layers else -1
        )
        if index < self._start and layer in LANDMARKS:
            raise NotApplicable(
                f"{self.name} shows no spatial layer behind its input; name some with hp.Model(…, layers=[…])"
            )
        if index < self._start:
            raise unknown(
                "layer",
                layer,
                [*self.layers, *self._aliases],
                f"({self.name}; hp.Model(…, layers=[…]) cuts at paths of modules)",
            )
        return index

    def layer_name(self, layer: str) -> str:
        """The layer's own name, for an alias."""
        return self.body.layers[self._index(layer)]

    @property
    def landmarks(self) -> dict[str, str]:
        """What `middle`, `final` and `cam` mean here, where they mean anything."""
        return {
            name: self.body.layers[self._aliases[name]]
            for name in LANDMARKS
            if name in self._aliases
        }

    @property
    def all_layers(self) -> list[str]:
        """`input`, and behind every convolution with its norm and ReLU, or every block, up to `final`."""
        return [self.start_layer, *(self.body.layers[at] for at in self._units if at > self._start)]

    def kind(self, layer: str) -> str:
        """What the step to that layer belongs to: features (up to `cam`), pool, or head."""
        return self._kind(self._index(layer))

    def _kind(self, index: int) -> str:
        return (
            "features"
            if index <= self._aliases.get("cam", 0)
            else "pool"
            if index <= self._head
            else "head"
        )

    def shape(self, layer: str) -> tuple[int, ...]:
        """Of one image's activation there, such as (channels, height, width)."""
        return tuple(self.tail(layer).zero_activation().shape[1:])

    @property
    def root(self) -> Model:
        """The whole network, for a model that is the tail of one."""
        return self._root

    def steps(self) -> list[tuple[str, Callable[[Tensor], Tensor]]]:
        """The network from here on in (kind, function), one after the other; a single one of no kind where it cannot be cut.

        Besides features, pool and head a kind may be `crop`: what follows is computed from a part of the image alone.
        """
        steps = self.body.steps(self._start)
        return (
            [("", self)]
            if steps is None
            else [(to if isinstance(to, str) else self._kind(to), run) for to, run in steps]
        )

    def tail(self, layer: str) -> Model:
        """The network from that layer on, itself a model: its images are the layer's activations."""
        part = copy.copy(self)
        part._start = self._index(layer)
        return part

    def halved(self) -> Model:
        """The same in batches of half the size, for what keeps more than a gradient does."""
        part = self.tail("input")
        part.batch_size = -(-self.batch_size // 2)
        return part

    def cut(self, layer: str) -> tuple[Callable[[Tensor], Tensor], Model]:
        """(pre, explain) with explain(pre(x)) == model(x), exactly."""
        return (lambda x: self.activation(x, layer)), self.tail(layer)

    def viewed(self, view: str, scale: int, body: Body) -> Model:
        """The same weights behind another body, for images `scale` times as large. Layers that the body does not show are gone."""
        part = copy.copy(self)
        part.view, part.body, part.size, part.resize = (
            view,
            body,
            scale * self.size,
            scale * self.resize,
        )
        part.passes, part._root, part._shared = Counter(), part, None
        part._aliases = {name: at for name, at in self._aliases.items() if at < len(body.layers)}
        return part

    # Passes

    def __call__(self, x: Tensor) -> Tensor:
        """Logits, with gradients if they are enabled."""
        with eval_mode(self.module):
            return self.body.run(self.to_layout(x), self._start)[0]

    def logits(self, x: Tensor) -> Tensor:  # (B, C, H, W) -> (B, K)
        """Without gradients, `batch_size` at a time."""
        return self.forward(x)[0]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (B, C, H, W) -> (B, K), (B, D)
        """Logits and the embedding (the input of the last layer with weights), without gradients."""
        if self._uses_backend:
            return self._forward_backend(x)
        logits, embedding = self._observed(x, self._embedding)
        return logits, embedding.flatten(1)

    def embed(self, x: Tensor) -> Tensor:  # (B, C, H, W) -> (B, D)
        """The embedding, with gradients if they are enabled."""
        with eval_mode(self.module):
            return self.body.run(self.to_layout(x), self._start, self._embedding)[0].flatten(1)

    def logits_and_activation(self, x: Tensor, layer: str) -> tuple[Tensor, Tensor]:
        """Logits and a layer's activation, without gradients; in one pass, unless the logits come from another backend."""
        if self._uses_backend:
            return self.logits(x), self.activation(x, layer)
        return self._observed(x, self._index(layer))

    def _observed(self, x: Tensor, at: int) -> tuple[Tensor, Tensor]:
        self._count("forward", len(x))
        logits, activations = [], []
        with torch.no_grad(), eval_mode(self.module):
            for part in rows(x, self.batch_size):
                out, seen = self.body.run(self._pad(part), self._start, watch=(at,))
                logits.append(out[: len(part)])
                activations.append(seen[at][: len(part)])
        return torch.cat(logits), torch.cat(activations)

    @property
    def _uses_backend(self) -> bool:
        return self.backend != "eager" and self._start == 0

    def _forward_backend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Always with `batch_size` rows."""
        self._count("forward", len(x))
        whole = backends.Whole(self.name, self.module, self.body, self._embedding)
        found = []
        with torch.no_grad():
            for part in rows(x, self.batch_size):
                batch = pad(part, self.batch_size).contiguous(memory_format=torch.channels_last)
                forward = backends.forward_by(self.backend, whole, batch, self.input_range)
                found.append([out[: len(part)] for out in forward(batch)])
        logits, embedding = (torch.cat(parts) for parts in zip(*found, strict=True))
        return logits, embedding

    def chunks(self, samples: int, variants: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(sample, variant) indices over all variants of a batch, at most `batch_size` at a time."""
        return chunks(samples, variants, self.batch_size)

    def grad_batches(self, x: Tensor, target: Tensor, kind: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Images that take gradients and their targets, `batch_size` at a time, for passes of one's own; kind: forward or backward.

        In a run the last piece is filled up with rows that are nobody's: cut them off at the end.
        """
        self._count(kind, len(x))
        for part, goal in zip(rows(x, self.batch_size), rows(target, self.batch_size), strict=True):
            yield self._pad(part).detach().requires_grad_(), self._pad(goal)

    def activation(self, x: Tensor, layer: str) -> Tensor:
        return self._activation_at(x, self._index(layer))

    def _activation_at(self, x: Tensor, at: int) -> Tensor:
        if at == self._start:
            return x
        shared = self._root._shared
        if shared is not None and self._start == 0 and x is shared.x:
            if at not in shared.activations:
                on_the_way = at in shared.watch and at > min(
                    shared.watch
                )  # the backward's own forward passes here
                shared.activations[at] = (
                    self._shared_pass(at, "logit").activation
                    if on_the_way
                    else self._activation(x, at)
                )
            return shared.activations[at]
        return self._activation(x, at)

    def gradient(
        self, x: Tensor, target: Tensor, layer: str = "input", score: str | Score = "logit"
    ) -> Pass:
        """The score's gradient with respect to a layer's activation. One backward serves all methods of a batch (see `sharing`)."""
        at = self._index(layer)
        shared = self._root._shared
        if (
            shared is None
            or not isinstance(score, str)
            or target is not shared.target
            or x is not shared.activations.get(self._start)
        ):
            return self._gradients(x, target, [at], score)[at]
        return self._root._shared_pass(at, score)

    def _shared_pass(self, at: int, score: str) -> Pass:
        shared = self._shared
        assert shared is not None
        if (at, score) not in shared.passes:
            found = self._gradients(shared.x, shared.target, sorted(shared.watch | {at}), score)
            shared.passes.update({(i, score): p for i, p in found.items()})
        return shared.passes[at, score]

    @contextmanager
    def batches_of(self, size: int) -> Iterator[None]:
        """While this lasts, every call has exactly `size` rows."""
        before = self.batch_size, self.fill_batches
        self.batch_size, self.fill_batches = size, True
        try:
            yield
        finally:
            self.batch_size, self.fill_batches = before

    @contextmanager
    def preparing(self, prepared: Callable[[Any], Mapping[str, Tensor]]) -> Iterator[None]:
        """While this lasts, baselines that need to know the model or the data beforehand find what they need here."""
        before, self.prepared = self.prepared, prepared
        try:
            yield
        finally:
            self.prepared = before

    @contextmanager
    def sharing(
        self, x: Tensor, target: Tensor, layers: Sequence[str] = ("input",)
    ) -> Iterator[None]:
        """While this lasts, gradients and activations of this very batch are computed once; `layers`: where gradients will be asked for."""
        before = self._root._shared
        self._root._shared = _Shared(
            x, target, frozenset(self._index(layer) for layer in layers), {0: x}
        )
        try:
            yield
        finally:
            self._root._shared = before

    def _activation(self, x: Tensor, stop: int) -> Tensor:
        self._count("forward", len(x))
        with torch.no_grad(), eval_mode(self.module):
            parts = [
                self.body.run(self._pad(part), self._start, stop)[0][: len(part)]
                for part in rows(x, self.batch_size)
            ]
        return torch.cat(parts)

    def _gradients(
        self, x: Tensor, target: Tensor, at: Sequence[int], score: str | Score
    ) -> dict[int, Pass]:
        """Passes at several layers from one backward, which reaches no further down than the first of them."""
        first = min(at)
        score = score_function(score)
        h = self._activation_at(x, first)
        self._count("backward", len(x), first)
        found: dict[int, list[Pass]] = {i: [] for i in at}
        with torch.enable_grad(), eval_mode(self.module):
            for part, goal in zip(
                rows(h, self.batch_size), rows(target, self.batch_size), strict=True
            ):
                count = len(part)
                leaf = self._pad(part, first).detach().requires_grad_()
                logits, seen = self.body.run(leaf, first, watch=at)
                total = score(logits[:count], goal).sum()
                gradients = torch.autograd.grad(total, [seen[i] for i in at])
                for i, gradient in zip(at, gradients, strict=True):
                    kept = (
                        gradient[:count] if i else gradient[:count].contiguous()
                    )  # few channels are slow to work on where they lie last
                    found[i].append(Pass(logits[:count].detach(), seen[i][:count].detach(), kept))
        return {
            i: parts[0] if len(parts) == 1 else Pass(*map(torch.cat, zip(*parts, strict=True)))
            for i, parts in found.items()
        }

    def attribute(
        self, x: Tensor, target: Tensor, attribute: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """`attribute(x, target)`, which may run the network in a way of its own and ask for gradients of x, `batch_size` rows at a time."""
        self._count("backward", len(x))
        found = []
        with self.frozen_eval():
            for part, goal in zip(
                rows(x, self.batch_size), rows(target, self.batch_size), strict=True
            ):
                leaf = self._pad(part).detach().requires_grad_()
                found.append(attribute(leaf, self._pad(goal))[: len(part)].detach())
        return torch.cat(found)

    @contextmanager
    def frozen_eval(self) -> Iterator[None]:
        """In evaluation mode, nothing in place, and only what depends on the input asks for gradients, while this lasts."""
        with torch.enable_grad(), eval_mode(self.module), _frozen(self.module):
            yield

    def zero_activation(self) -> Tensor:
        """The activation of one image of zeros where this model begins, which asks for gradients. The pass is not counted."""
        image = torch.zeros(
            (1, len(self.mean), self.size, self.size), device=self.device, dtype=self.dtype
        )
        with torch.no_grad(), eval_mode(self.module):
            return self.body.run(self.to_layout(image, 0), 0, self._start)[0].requires_grad_()

    def _pad(self, part: Tensor, at: int | None = None) -> Tensor:
        """As a pass that begins at that layer takes it: in a run as many rows as in every other."""
        return self.to_layout(pad(part, self.batch_size) if self.fill_batches else part, at)

    def to_layout(self, x: Tensor, at: int | None = None) -> Tensor:
        """Images as they lie in memory in every pass: layouts differ in speed, and in how they round. Features stay as they came."""
        return (
            x.contiguous(memory_format=self._layout)
            if (self._start if at is None else at) == 0 and x.ndim == 4
            else x
        )

    def _count(self, kind: str, images: int, start: int | None = None) -> None:
        """Passes are counted in images; those that start at a later layer on their own account."""
        start = self._start if start is None else start
        self._root.passes[kind if start == 0 else f"{kind} from {self.body.layers[start]}"] += (
            images
        )

    # Pixels

    def normalize(self, images: Tensor) -> Tensor:
        """[0, 1] -> the model's input space."""
        return (images.to(self.device, self.dtype) - self.mean) / self.std

    def denormalize(self, x: Tensor) -> Tensor:
        return x * self.std + self.mean

    @property
    def input_range(self) -> tuple[Tensor, Tensor]:
        """(low, high) per channel, (C, 1, 1): black and white in the input space."""
        return (0 - self.mean) / self.std, (1 - self.mean) / self.std

    def fingerprint(self) -> str:
        """Hash of everything that changes a number: structure, weights, preprocessing."""
        told = (
            str(self.module),
            self.size,
            self.resize,
            self.mean.tolist(),
            self.std.tolist(),
            str(self.dtype),
        )

        def chunks() -> Iterator[str | bytes]:
            yield repr(told) + self.view
            kinds = {type(m) for m in self.module.modules()}
            for kind in sorted(kinds, key=lambda t: t.__qualname__):
                if kind.__module__.split(".")[0] != "torch":
                    yield source_of(kind)
            for key, value in sorted(self.module.state_dict().items()):
                yield key
                flat = value.detach().cpu().contiguous().reshape(-1)
                yield flat.view(torch.uint8).numpy().tobytes()

        return content_hash(chunks())


def _layout_of(module: nn.Module, example: Tensor) -> tuple[torch.memory_format, Tensor]:
    """How images lie in memory: channels last is faster, but some networks take no such view of them."""

    def tried(layout: torch.memory_format) -> tuple[torch.memory_format, Tensor]:
        given = example.clone(memory_format=layout)
        with torch.no_grad():
            logits = module(given)
        if not torch.equal(given, example):
            raise HeatproofError(
                "the network writes into its input, which others have yet to see; let it work on a copy: x = x - 0.5"
            )
        return layout, logits

    try:
        return tried(torch.channels_last)
    except RuntimeError:
        return tried(torch.contiguous_format)


def _unprepared(baseline: Any) -> Mapping[str, Tensor]:
    raise HeatproofError(
        f"baseline {baseline.label} needs reference images: give some with reference=…"
    )


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """Parameters ask for no gradients while this lasts: what asks for one depends on the input."""
    learning = [p for p in module.parameters() if p.requires_grad]
    for p in learning:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in learning:
            p.requires_grad_(True)
