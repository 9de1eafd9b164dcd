"""The network under inspection: named layers, preprocessing, classes; ``passes`` runs it."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from heatproof.errors import HeatproofError, NotApplicable, unknown
from heatproof.files import content_hash
from heatproof.models import backends
from heatproof.models.batch_dependence import OneAtATime, one_at_a_time
from heatproof.models.cam_layer import landmarks
from heatproof.models.convert import as_canonical
from heatproof.models.cutting import Body, Staged, layer_shapes, make_body, wrappers
from heatproof.models.families import middle_of
from heatproof.models.guards import eval_mode
from heatproof.models.heads import OneOutput, as_logits, find_head
from heatproof.models.last_norm import WithLastNorm
from heatproof.models.layers import LayerTable
from heatproof.models.network_blocks import grids_of, with_blocks
from heatproof.models.outputs import advice, probabilities
from heatproof.models.passes import Pass, Passes
from heatproof.models.preprocessing import Resize
from heatproof.models.processors import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    facts_of,
    is_pretrained,
    warn_of_defaults,
)
from heatproof.models.targets import Derived, Target
from heatproof.models.tokens import Grid
from heatproof.models.vit import is_vit
from heatproof.models.wrapping import (
    check_half,
    check_numbers,
    half_advice,
    returning_logits,
    scripted_code,
    unwrapped,
)
from heatproof.tensor.scores import HeadName, Score, class_probabilities, score_function
from heatproof.text import counted, printable
from heatproof.userfile import source_of

if TYPE_CHECKING:
    from heatproof.models.variants import Ahead


class Model:
    """A network with its preprocessing, cut into named layers.

    Args:
        module: Maps normalized images ``(B, C, H, W)`` to logits ``(B, K)``, to one output per
            image, ``(B, 1)`` or ``(B,)``, or to an output that has ``logits``. It may be compiled,
            scripted or wrapped. A plain vision transformer of timm, torchvision or transformers is
            converted to ours (the same weights, in the same memory where they can be), so that its
            attention can be read; not where ``layers`` are named.
        layers: Module paths to cut at, such as ``["layer1", "layer2"]``; by default the network is
            cut wherever it is a single chain.
        name: The name in results; by default that of the module's class.
        size: The side of the square input in pixels, or ``(height, width)``; by default 224, or
            what the processor or the configuration of a transformers network says.
        resize: The length that an image's shorter side is resized to before the middle is cropped;
            by default ``size · 256/224``. Text can say more: ``256 bicubic``, or ``square`` where
            both sides are resized to the size and nothing is cropped. An image that already has
            the size is not resized. Where height and width differ, it is that of their shorter one:
            the image is resized to cover a rectangle of the same shape whose shorter side is
            ``resize``.
        mean: The mean per channel of images in [0, 1]; by default the processor's or ImageNet's. A
            network of one channel has one number here.
        std: The standard deviation per channel; by default the processor's or ImageNet's.
        head: What the outputs are: ``softmax`` (logits of classes that exclude each other),
            ``sigmoid`` (logits of labels that do not: multi-label), ``binary`` (one output for two
            classes) or ``regression`` (one output that is a number). By default a single output is
            ``binary``, and several are ``softmax``; `heatproof.models.heads` says what scores and
            predictions mean for each.
        classes: Names in the order of the logits; an image folder's subfolders are matched by them.
            By default those of a transformers network, if it has any.
        aliases: Layers for the names ``middle``, ``final`` and ``cam``, where the defaults are not
            the ones you want.
        device: Where to move the module; by default it stays where it is.
        batch_size: The number of images per pass.
        processor: The image processor of a transformers network, whose preprocessing is used.
        output: Where the logits are in what the module returns: an attribute, a key, or an index.
            By default it is ``logits``, if there is such a part.
        batch_dependent: Whether the network runs one image at a time, since its result for an image
            depends on the others of the batch, as with a batch norm without running statistics.
            Such a network is refused otherwise.

    Raises:
        HeatproofError: If the module does not map images of this size to logits, or an argument
            does not fit it.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        layers: Sequence[str] | None = None,
        name: str | None = None,
        size: int | tuple[int, int] | None = None,
        resize: int | str | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        head: HeadName | None = None,
        classes: Sequence[str] | None = None,
        aliases: Mapping[str, str] | None = None,
        device: str | torch.device | None = None,
        batch_size: int = 64,
        processor: Any = None,
        output: str | int | None = None,
        batch_dependent: bool = False,
    ):
        _check_module(module, layers)
        module = unwrapped(module)
        facts = facts_of(module, processor)
        if is_pretrained(module) and processor is None and mean is None:
            warn_of_defaults(name or type(module).__name__, module)
        if size is None:
            size = facts.size or 224
            resize = facts.resize if resize is None else resize
        self.normalization = "given"  # or whose: that of a processor, or ImageNet's by default
        if mean is None:
            self.normalization = "the processor's" if facts.mean else "assumed: ImageNet's"
        mean = (facts.mean or IMAGENET_MEAN) if mean is None else mean
        std = (facts.std or IMAGENET_STD) if std is None else std
        self.height, self.width = image_size(size)
        _check_preprocessing(self.height, self.width, resize, mean, std)
        if device is not None:
            module = module.to(device)
        self.name = name or type(module).__name__
        self.unconverted = "its layers are named"  # why a transformer is not one of ours
        if layers is None:
            module, self.unconverted = as_canonical(module)
        self.module = module
        parameter = next(module.parameters(), torch.zeros(()))
        self.device = parameter.device
        self.dtype = parameter.dtype

        shorter = min(self.height, self.width)
        self.resize = Resize.parse(resize or _default_resize(shorter), shorter).written
        self.mean = torch.tensor(mean, device=self.device, dtype=self.dtype).reshape(-1, 1, 1)
        self.std = torch.tensor(std, device=self.device, dtype=self.dtype).reshape(-1, 1, 1)

        noise = torch.rand((2, *self.image_shape), generator=torch.Generator().manual_seed(0))
        example = self.normalize(noise)
        with eval_mode(module):
            self.layout, outputs = _first_pass(self.name, module, example)
            self.output = output  # what is taken from the module's outputs
            if output is not None or not isinstance(outputs, Tensor):
                module = self.module = returning_logits(module, outputs, output, self.name)
                self.layout, outputs = _first_pass(self.name, module, example)
            _check_logits(self.name, outputs, example)
            check_half(self.name, module, example)
            self.body: Body = make_body(module, layers, example)
            if is_vit(module) and isinstance(self.body, Staged):
                self.body = WithLastNorm(self.body)
            shapes = layer_shapes(self.body, example)
            roles = landmarks(self.body, shapes, middle_of(module, wrappers(module)))
            if roles.cam is None and layers is None and not is_vit(module):
                self.body, roles = with_blocks(module, self.body, roles, example)
                shapes = layer_shapes(self.body, example)
            grids, flat = grids_of(module, shapes, example.shape[2:])
            if isinstance(self.body, WithLastNorm):
                norm = self.body.norm
                roles = roles._replace(cam=norm)
                grids, flat = {**grids, norm: grids[norm - 1]}, flat - {norm}
            self.layer_table = LayerTable.from_body(self.body, roles, grids, flat)
            kind = probabilities(module, example.contiguous(memory_format=self.layout), outputs)
            apart = one_at_a_time(self.name, module, example, batch_dependent)
        self.head = find_head(self.name, head, outputs)
        if self.head in ("binary", "regression"):
            self.body = OneOutput(self.body, self.head)
        self.output_advice = ""  # what to know about the outputs, if anything
        if kind:
            self.output_advice = advice(self.name, module, kind, outputs[0].numel())
            warnings.warn(self.output_advice, stacklevel=2)
        self.batch_dependent = False
        self.start = 0  # the number of the layer that the model starts at; tails start later
        self.root = self  # the whole network, for a model that is the tail of one
        for alias, layer in (aliases or {}).items():
            self.layer_table = self.layer_table.with_alias(alias, self.layer_index(layer))

        if apart:
            self._run_one_at_a_time()
        self.n_classes = as_logits(outputs, self.head).shape[1]
        if classes is None and len(facts.classes or ()) == self.n_classes:
            classes = facts.classes
        _check_classes(self.name, self.n_classes, classes)
        self.classes = tuple(classes) if classes is not None else None

        self.batch_size = batch_size
        self.pad_batches = False  # True: every pass has exactly batch_size rows (see batches_of)
        self.backend = backends.AUTO
        self.backend_reason = ""  # why a run has chosen it
        self.approximate = False  # whether a lower precision may change the results
        self.pass_counts: Counter[str] = Counter()  # images through the network, by kind of pass
        self.fine_tuned = ""  # what the weights were fine-tuned for, such as 16/zero
        self.weights_metadata: Mapping[str, str] = {}  # of the file, if it has any
        # Weights fine-tuned from these, by what for; None: yet to be made.
        self.fine_tuned_weights: dict[str, Path | None] = {}
        self.view = ""  # how a grid of images is seen, such as difull 2×2, cell 3
        self.ahead: Ahead | None = None  # what the evaluated cells of a grid share
        self.target: Target | None = None  # what is explained; None: what each protocol says
        self.derived: Derived | None = None  # logits that a view of a target has beside the classes

    def _run_one_at_a_time(self) -> None:
        self.batch_dependent = True
        self.body = OneAtATime(self.body)
        note = f"{self.name} runs one image at a time, as its outputs depend on the whole batch"
        self.output_advice = "; ".join(filter(None, (self.output_advice, note)))

    def __repr__(self) -> str:
        layers = ", ".join(self.layers)
        size = str(self.size) if self.height == self.width else f"{self.height}×{self.width}"
        head = "" if self.head == "softmax" else f" ({self.head} head)"
        classes = f"{counted(self.n_classes, 'class', 'classes')}{head}"
        mean, std = (
            ", ".join(f"{v:.3g}" for v in t.flatten().tolist()) for t in (self.mean, self.std)
        )
        normalization = f"mean ({mean}) and std ({std}) {self.normalization}"
        passes = ", one image at a time" if self.batch_dependent else ""
        return printable(
            f"Model({self.name}, {size} px, {classes}, {normalization}{passes}, layers: {layers})"
        )

    @property
    def backend(self) -> str:
        """Name of what computes whole passes without gradients: eager, fused, compile or openvino.

        Where their precision is lower (`with_precision`), it is the name of that: bfloat16.
        Where it is ``auto``, the default, ``hp.evaluate`` and ``hp.run`` choose the fastest for
        their own passes; any others are eager.
        """
        return self._backend

    @backend.setter
    def backend(self, name: str) -> None:
        names = (backends.AUTO, *backends.NAMES)
        if name not in (*names, *backends.LOWER):
            raise unknown("backend", name, names)
        self._backend = name

    @property
    def batch_size(self) -> int:
        """The number of images per pass; 1 for a network whose rows depend on each other."""
        return 1 if self.batch_dependent else self._batch_size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        self._batch_size = size

    def to(self, device: str | torch.device) -> Model:
        """Move the network and its preprocessing to a device; returns the model itself."""
        self.module.to(device)
        self.device = torch.device(device)
        self.mean = self.mean.to(device)
        self.std = self.std.to(device)
        return self

    # Layers

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of all layers that the network can be cut at, in order."""
        return tuple(self.layer_table.names[self.start :])

    @property
    def start_layer(self) -> str:
        """The layer that the model starts at: ``input``, or the layer of a tail."""
        return self.layer_table.names[self.start]

    @property
    def landmarks(self) -> dict[str, str]:
        """The layers that ``middle``, ``final`` and ``cam`` stand for, where they exist."""
        return self.layer_table.landmarks()

    @property
    def all_layers(self) -> list[str]:
        """The first layer and the ends of all convolutions (with norm and ReLU) or blocks.

        They reach up to ``final``; in expressions, ``@all`` stands for them.
        """
        names = self.layer_table.names
        units = [names[i] for i in self.layer_table.units if i > self.start]
        return [self.start_layer, *units]

    def layer_index(self, layer: str) -> int:
        """Return the number of a layer, given by its name or an alias.

        Raises:
            HeatproofError: If there is no such layer; the message lists the layers.
        """
        return self.layer_table.index(layer, self.start, self.name)

    def layer_name(self, layer: str) -> str:
        """Return the name of a layer, given by its name or an alias."""
        return self.layer_table.names[self.layer_index(layer)]

    def shape(self, layer: str) -> tuple[int, ...]:
        """Return the shape of one image's activation, such as (channels, height, width)."""
        return tuple(self.tail(layer).passes.zero_activation().shape[1:])

    def grid(self, layer: str) -> Grid | None:
        """Return how a layer's tokens or channels-last features form a grid.

        Returns:
            The grid; None where activations are ``(B, C, h, w)`` already.

        Raises:
            NotApplicable: If the layer's activation has no positions.
        """
        return self.layer_table.grid(self.layer_index(layer), self.name)

    def channels_first(self, activation: Tensor) -> Tensor:
        """Return activations where the model starts, or gradients there, as ``(B, C, h, w)``.

        Tokens without a position, such as class tokens, are dropped.
        """
        grid = self.grid("input") if self.start else None
        return activation if grid is None else grid.channels_first(activation)

    def tail(self, layer: str) -> Model:
        """Return the network from a layer on: a model whose inputs are its activations."""
        tail = copy.copy(self)
        tail.start = self.layer_index(layer)
        return tail

    def cut(self, layer: str) -> tuple[Callable[[Tensor], Tensor], Model]:
        """Cut the network in two at a layer.

        Returns:
            ``(pre, explain)`` with ``explain(pre(x)) == model(x)``, to the bit.
        """
        return (lambda x: self.activation(x, layer)), self.tail(layer)

    def with_batch_size(self, size: int) -> Model:
        """Return the same model with another number of images per pass."""
        model = copy.copy(self)
        model.batch_size = size
        return model

    def with_backend(self, name: str, reason: str = "") -> Model:
        """Return the same model with another backend.

        Args:
            name: What computes whole passes without gradients.
            reason: Why it was chosen, for the provenance of a run.
        """
        model = copy.copy(self)
        model.backend = name
        model.backend_reason = reason
        return model

    def with_precision(self, name: str, approximate: bool = False) -> Model:
        """Return the same model with whole passes without gradients in another precision.

        Args:
            name: ``float32`` (that of the weights), ``tf32``, ``bfloat16`` or ``float16``.
            approximate: Whether results may differ by more than those of a backend.

        Raises:
            HeatproofError: If there is no such precision, or the model has a backend besides eager.
        """
        model = self.with_backend(backends.at_precision(self.backend, name), self.backend_reason)
        model.approximate = approximate
        return model

    def with_view(self, view: str, scale: int, body: Body) -> Model:
        """Return a model with the same weights and another body, for larger images.

        Args:
            view: The name of the view, such as ``difull 2×2, cell 3``.
            scale: How many times larger the images' sides are.
            body: Runs the view. Layers that it does not have are dropped.
        """
        model = copy.copy(self)
        model.view = view
        model.body = body
        model.height = scale * self.height
        model.width = scale * self.width
        shorter = min(self.height, self.width)
        model.resize = Resize.parse(self.resize, shorter).scaled(scale).written
        model.layer_table = self.layer_table.restricted_to(body)
        model.pass_counts = Counter()
        model.root = model
        model.ahead = None
        return model

    def one_at_a_time(self) -> Model:
        """Return the same network, which runs one image at a time."""
        model = copy.copy(self)
        model._run_one_at_a_time()
        model.root = model
        return model

    def with_head(self, head: HeadName) -> Model:
        """Return the same network with another head.

        Raises:
            HeatproofError: If the network's outputs do not fit it.
        """
        has_one = self.head in ("binary", "regression")
        outputs = torch.empty(1, 1 if has_one else self.n_classes)
        model = copy.copy(self)
        model.head = find_head(self.name, head, outputs)
        model.n_classes = as_logits(outputs, model.head).shape[1]
        if isinstance(self.body, OneOutput):
            model.body = OneOutput(self.body.inner, model.head)
        model.root = model
        return model

    def with_target(self, target: str) -> Model:
        """Return the same network with what is explained of it, which is part of its name.

        Args:
            target: ``label``, ``prediction``, ``runner-up``, ``class NAME``, a group such as
                ``classes dog*`` (the mean of its logits) or ``log-sum-exp of classes dog*``,
                ``value`` of a regression head, or a difference of two such as
                ``prediction - runner-up``.

        Returns:
            A model whose name ends in the target.

        Raises:
            HeatproofError: If the model has no such target.
        """
        model = copy.copy(self)
        model.target = Target.parse(target).of(self)
        model.name = f"{self.name} ({model.target.text})"
        model.root = model
        return model

    # Scores

    def score_function(self, score: str | Score) -> Score:
        """Return a score by name, for the model's head; a function is returned as it is.

        Args:
            score: ``logit``, ``softmax`` (the target's probability), ``logprob`` (its logarithm),
                ``sigmoid`` (of the target's logit) or ``correct``.

        Returns:
            A function from logits ``(B, K)`` and targets ``(B,)`` to scores ``(B,)``.
        """
        if self.derived is not None:
            return self.derived.score(score, self.head)
        return score_function(score, self.head)

    def class_logits(self, logits: Tensor) -> Tensor:
        """Return the logits of the classes alone, without those of a derived target."""
        return logits if self.derived is None else logits[..., : self.n_classes]

    def probabilities(self, logits: Tensor) -> Tensor:
        """Compute the classes' probabilities from logits, ``(…, K)`` each."""
        return class_probabilities(logits, self.head)

    # Passes

    @property
    def passes(self) -> Passes:
        """Further ways to run the network, besides the methods below."""
        return Passes(self)

    def __call__(self, x: Tensor) -> Tensor:
        """Compute logits ``(B, K)`` in one pass, with gradients if they are enabled."""
        return self.passes.run(x)

    def logits(self, x: Tensor) -> Tensor:
        """Compute logits ``(B, K)`` of images ``(B, C, H, W)`` without gradients, in batches."""
        return self.passes.forward(x)[0]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute logits and embeddings without gradients, in batches.

        Args:
            x: Images in the model's input space, ``(B, C, H, W)``.

        Returns:
            Logits ``(B, K)`` and the inputs of the last layer with weights ``(B, D)``.
        """
        return self.passes.forward(x)

    def activation(self, x: Tensor, layer: str) -> Tensor:
        """Compute a layer's activation ``(B, C, h, w)`` without gradients, in batches."""
        return self.passes.activation(x, self.layer_index(layer))

    def gradient(
        self, x: Tensor, target: Tensor, layer: str = "input", score: str | Score = "logit"
    ) -> Pass:
        """Compute the gradient of the target's score with respect to a layer's activation.

        Args:
            x: Images in the model's input space, ``(B, C, H, W)``.
            target: Class indices of shape ``(B,)``.
            layer: The layer, by its name or an alias.
            score: ``logit``, ``softmax``, ``logprob``, or a function from logits and targets to
                one number per image.

        Returns:
            The logits, the layer's activation and the gradient.
        """
        index = self.layer_index(layer)
        h = self.passes.activation(x, index)
        return self.passes.gradients(h, target, [index], score)[index]

    # Pixels

    def normalize(self, images: Tensor) -> Tensor:
        """Convert images ``(…, C, H, W)`` in [0, 1] to the model's input space."""
        if self.device.type not in ("cpu", "mps") and images.device.type == "cpu":
            images = images.pin_memory()  # so that it is copied while the accelerator computes
        return (images.to(self.device, self.dtype, non_blocking=True) - self.mean) / self.std

    def denormalize(self, x: Tensor) -> Tensor:
        """Convert images ``(…, C, H, W)`` from the model's input space to [0, 1]."""
        return x * self.std + self.mean

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """The shape of one image that the network takes: (channels, height, width)."""
        return (len(self.mean), self.height, self.width)

    @property
    def size(self) -> int | tuple[int, int]:
        """The side of square images in pixels; (height, width) of others."""
        return self.height if self.height == self.width else (self.height, self.width)

    def square_side(self, what: str) -> int:
        """Return the side of the images, for what has square images alone.

        Args:
            what: What needs it, for the message.

        Raises:
            NotApplicable: If height and width differ.
        """
        if self.height != self.width:
            raise NotApplicable(
                f"{what} has square images, but {self.name} takes {self.height}×{self.width} px"
            )
        return self.height

    @property
    def input_range(self) -> tuple[Tensor, Tensor]:
        """Black and white in the model's input space, each of shape ``(C, 1, 1)``."""
        return (0 - self.mean) / self.std, (1 - self.mean) / self.std

    def fingerprint(self) -> str:
        """Hash everything that affects results: structure, weights, preprocessing."""
        settings = (
            str(self.module),
            self.size,
            self.resize,
            self.mean.tolist(),
            self.std.tolist(),
            str(self.dtype),
        )

        def chunks() -> Iterator[str | bytes]:
            # Only what differs from the default is added, so that fingerprints stay the same.
            head = "" if self.head == "softmax" else f" head {self.head}"
            one_at_a_time = " batch_dependent" if self.batch_dependent else ""
            target = "" if self.target is None else f" target {self.target}"
            yield repr(settings) + self.view + head + one_at_a_time + target
            if self.output is not None:
                yield repr(self.output)
            if code := scripted_code(self.module):
                yield code
            kinds = {type(m) for m in self.module.modules()}
            for kind in sorted(kinds, key=lambda t: t.__qualname__):
                if kind.__module__.split(".")[0] != "torch":
                    yield source_of(kind)
            for key, value in sorted(self.module.state_dict().items()):
                yield key
                flat = value.detach().cpu().contiguous().reshape(-1)
                yield flat.view(torch.uint8).numpy().tobytes()

        return content_hash(chunks())


def model_score(model: object, score: str | Score) -> Score:
    """Return a score of a model by name; that of a softmax for any function to logits."""
    return model.score_function(score) if isinstance(model, Model) else score_function(score)


def _check_module(module: object, layers: object) -> None:
    if not isinstance(module, nn.Module):
        raise HeatproofError(f"hp.Model takes a torch.nn.Module; got {type(module).__name__}")
    if isinstance(layers, str):
        raise HeatproofError(f'layers is a list of names: layers=["{layers}"]')


def image_size(size: object) -> tuple[int, int]:
    """Return height and width, from the side of a square or the two of them.

    Raises:
        HeatproofError: If it is neither.
    """
    sides: Sequence[object] = ()
    if isinstance(size, int):
        sides = (size, size)
    elif isinstance(size, list | tuple) and len(size) == 2:
        sides = size
    values = [side for side in sides if isinstance(side, int) and side >= 1]
    if len(values) != 2:
        raise HeatproofError(
            "size is the side of the square images that the network takes, in pixels, such as 224, "
            f"or their height and width, such as (96, 160); got {size!r}"
        )
    return values[0], values[1]


def _default_resize(side: int) -> int:
    return round(side * 256 / 224)


def _check_preprocessing(
    height: int,
    width: int,
    resize: int | str | None,
    mean: Sequence[float],
    std: Sequence[float],
) -> None:
    shorter = min(height, width)
    Resize.parse(resize or _default_resize(shorter), shorter)
    if not hasattr(mean, "__len__") or not hasattr(std, "__len__"):
        raise HeatproofError(
            "mean and std have a number for each channel, such as (0.5, 0.5, 0.5); "
            f"got mean {mean}, std {std}"
        )
    if not len(mean) or len(mean) != len(std):
        raise HeatproofError(
            "mean and std have a number for each channel, so for one channel hp.Model(net, "
            f"mean=[0.5], std=[0.5]); got mean {list(mean)}, std {list(std)}"
        )
    if max(map(abs, mean), default=0) > 1 or min(std, default=1) <= 0:
        raise HeatproofError(
            "mean and std are those of images in [0, 1]: divide them by 255; "
            f"got mean {list(mean)}, std {list(std)}"
        )


def _check_classes(name: str, n_classes: int, classes: Sequence[str] | None) -> None:
    if classes is not None and len(classes) == 1 and n_classes == 2:
        raise HeatproofError(
            f"{name} has one output, which stands for two classes; name both, such as "
            f'classes=["not {classes[0]}", "{classes[0]}"]'
        )
    if classes is not None and len(classes) != n_classes:
        raise HeatproofError(
            f"{name} returns {n_classes} logits, but {len(classes)} class names were given"
        )


def _first_pass(name: str, module: nn.Module, example: Tensor) -> tuple[torch.memory_format, Any]:
    """Run the network on two images; return the memory layout that it takes, and its outputs.

    Channels last is faster, but some networks cannot view such features as rows.
    """
    shape = tuple(example.shape)
    try:
        try:
            layout = torch.channels_last
            logits = _logits(module, example.clone(memory_format=layout))
        except RuntimeError:
            layout = torch.contiguous_format
            logits = _logits(module, example.clone(memory_format=layout))
    except HeatproofError:
        raise
    except Exception as error:
        raise HeatproofError(
            f"{name} does not run on images of shape {shape}: {error}. {_cure(module, example)}"
        ) from error
    return layout, logits


def _check_logits(name: str, logits: object, example: Tensor) -> None:
    is_row = isinstance(logits, Tensor) and logits.shape == example.shape[:1]
    if not isinstance(logits, Tensor) or (logits.ndim != 2 and not is_row):
        got = getattr(logits, "shape", type(logits).__name__)
        raise HeatproofError(
            f"{name} must return logits of shape (B, classes), or one per image; got {got}"
        )
    check_numbers(name, logits, example)


def _cure(module: nn.Module, example: Tensor) -> str:
    """Say how to call hp.Model for a network that does not run: with other channels or sizes."""
    half = half_advice(example)
    if half:
        return f"It is {half}"
    channels, height, width = example.shape[1:]
    first = (m.in_channels for m in module.modules() if isinstance(m, nn.Conv2d))
    for count in {1, next(first, channels)} - {channels}:
        try:
            _logits(module, example[:, :1].repeat(1, count, 1, 1))
        except Exception:  # a network can raise anything on images that it does not take
            continue
        mean = f"[{', '.join(['0.5'] * count)}]"
        return (
            f"It takes {count} {'channel' if count == 1 else 'channels'}, but mean and std are of "
            f"{channels}: hp.Model(net, mean={mean}, std={mean})"
        )
    size = height if height == width else (height, width)
    return f"Is size={size} correct?"


def _logits(module: nn.Module, example: Tensor) -> Any:
    before = example.clone()
    with torch.no_grad():
        logits = module(example)
    if not torch.equal(example, before):
        raise HeatproofError(
            "the network writes into its input, which other passes need; "
            "let it work on a copy: x = x - 0.5"
        )
    return logits
