"""Data sets by name, and batches of their samples fitted to a model.

Every module of this package registers the data sets it defines with the `dataset` decorator;
nothing here knows any of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heatproof.data.base import Data, PartData, PartViews, Sample, TensorData, UnreadableImage
from heatproof.data.images import Normalization
from heatproof.data.objects import open_object, refit
from heatproof.data.source import Source, SourceData, open_source
from heatproof.data.subset import balanced, take
from heatproof.errors import HeatproofError, unknown
from heatproof.models.model import Model
from heatproof.registry import Registry
from heatproof.userfile import PREFIX, source_hash

Open = Callable[..., Data]
DEFAULT_REFERENCE_IMAGES = 512


@dataclass(frozen=True)
class DataEntry:
    """A registered data set; see `dataset`."""

    id: str
    function: Open
    summary: str
    source: str | None = None  # hash of a user's code; None for what ships with heatproof
    training_split: Callable[[str], str] | None = None
    reference: Callable[[Any, Model, int], Data] | None = None
    splits: Mapping[str, str] = field(default_factory=dict)

    def open(
        self, rest: str, *, model: Model | None, split: str | None, limit: int | None, seed: int
    ) -> Data:
        """Open the data set with those arguments that its function takes.

        Args:
            rest: What follows ``id:`` in the name.
            model: The model that images are fitted to.
            split: The split, if it is not part of the name.
            limit: The number of samples, if not all.
            seed: Seed for the sample order.

        Raises:
            HeatproofError: If an argument is given that the function does not take, or it does
                not return a data set.
        """
        arguments = {"rest": rest, "model": model, "split": split, "limit": limit, "seed": seed}
        parameters = inspect.signature(self.function).parameters
        for name, value in (("split", split), ("limit", limit)):
            if value is not None and name not in parameters:
                raise HeatproofError(
                    f"data {self.id} takes no {name}; add a parameter {name} to its function, or "
                    f"leave out {name}={value}"
                )
        if rest and "rest" not in parameters:
            raise HeatproofError(
                f'data {self.id}: nothing is expected after its name; got "{rest}"'
            )
        accepted = {name: value for name, value in arguments.items() if name in parameters}
        opened = self.function(**accepted)
        if not is_data(opened):
            raise HeatproofError(
                f"data {self.id} must return a data set, such as hp.TensorData(images, labels); it "
                f"returned {type(opened).__name__}"
            )
        return opened


def dataset(
    id: str,
    *,
    summary: str = "",
    training_split: Callable[[str], str] | None = None,
    reference: Callable[[Any, Model, int], Data] | None = None,
    splits: Mapping[str, str] | None = None,
) -> Callable[[Open], Open]:
    """Register a function that opens a data set.

    The function takes any of the keyword arguments ``rest`` (what follows ``id:`` in the name),
    ``model`` (which images are fitted to, may be None), ``split``, ``limit`` and ``seed``. It
    returns a data set: `TensorData`, or an object with the attributes of
    `heatproof.data.base.Data`. For the hooks below to be found, its ``name`` begins with ``id``.

    Example::

        @hp.dataset("noise")
        def noise(*, model, limit=None, seed=0):
            \\"\\"\\"Images of uniform noise, without labels.\\"\\"\\"
            generator = torch.Generator().manual_seed(seed)
            images = torch.rand(limit or 64, *model.image_shape, generator=generator)
            return hp.TensorData(images, name="noise")

    Args:
        id: The name in specs, or the part of it before the first colon.
        summary: One line for ``heatproof list data``; by default the first of the docstring.
        training_split: A function from ``rest`` to the name of the split that models are trained
            on when a spec says ``trained_on``.
        reference: A function ``(data, model, seed) -> Data`` that opens the images to use where a
            method, baseline or protocol needs reference images and none are named. By default
            they are the first of the training split, if there is one.
        splits: The names of the splits with a role in fine-tuning: ``train`` is used for a name
            without a split, ``validation`` goes with it, and ``test`` is refused.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        HeatproofError: If there is already a data set of that name.
    """

    def register(function: Open) -> Open:
        text = summary or (inspect.getdoc(function) or "").partition("\n")[0]
        entry = DataEntry(
            id, function, text, source_hash(function), training_split, reference, splits or {}
        )
        DATA.add(entry, function)
        return function

    return register


def source(id: str, *, summary: str) -> Callable[[Callable[..., Source]], Callable[..., Source]]:
    """Register a function or class that opens a `Source` from ``rest``, and maybe a ``split``.

    Its images are fitted to the model, ordered and limited as `open_source` does it.
    """

    def register(function: Callable[..., Source]) -> Callable[..., Source]:
        takes_split = "split" in inspect.signature(function).parameters

        @dataset(id, summary=summary)
        def opened(
            *, rest: str, model: Model | None, split: str | None, limit: int | None, seed: int
        ) -> SourceData:
            if not rest:
                raise HeatproofError(f"{id} needs a path: {summary}")
            if split is not None and not takes_split:
                raise HeatproofError(f"data {id} takes no split; leave out split={split}")
            found = function(rest, split=split) if takes_split else function(rest)
            return open_source(found, model, limit, seed)

        return function

    return register


def is_data(thing: object) -> bool:
    """Return whether an object can be used as a data set."""
    return all(hasattr(thing, name) for name in ("load", "ids", "labels", "fingerprints"))


def _entry_of(thing: Any, name: str) -> DataEntry:
    """Return the entry for a plain function that opens a data set, or for a data set."""
    if is_data(thing) and not isinstance(thing, type):
        return DataEntry(name or thing.name, lambda: thing, "")
    if not callable(thing):
        raise HeatproofError(
            f"data is a function that returns a data set, or a data set; got {type(thing).__name__}"
        )
    name = name or getattr(thing, "__name__", type(thing).__name__)
    return DataEntry(name, thing, "", source_hash(thing))


DATA: Registry[DataEntry] = Registry("data set", _entry_of, group="heatproof.data")


def find_entry(name: str) -> tuple[DataEntry, str]:
    """Return the entry that a data set's name belongs to, and the rest of the name.

    Args:
        name: A name such as ``folder:/images``, or ``file:mine.py:my_data``.

    Raises:
        HeatproofError: If there is no such data set.
    """
    if name.startswith(PREFIX):
        return DATA.resolve(name), ""
    kind, _, rest = name.partition(":")
    if kind in DATA:
        return DATA[kind], rest
    if Path(name).is_dir():
        raise HeatproofError(
            f'"{name}" is a directory, which is named with its kind: folder:{name}'
        )
    raise unknown("data", name, [entry.id for entry in DATA])


def load_data(
    name: Any,
    model: Model | None = None,
    *,
    split: str | None = None,
    limit: int | None = None,
    per_class: int | None = None,
    seed: int = 0,
    ids: Sequence[object] | None = None,
    labels: Any = None,
    masks: Sequence[object] | None = None,
    normalized: Normalization | None = None,
) -> Data:
    """Open a data set by name, or make one of images that are at hand.

    Objects are read one image at a time, once to identify every image by its content (and to find
    its label, unless the object lists labels), and again when it is evaluated.

    Args:
        name: A name such as ``paperbirds:test``, ``folder:/path/to/images``,
            ``folder:/path/to/images:labels.csv``, ``parquet:/path/to/file.parquet`` or
            ``file:mine.py:my_data``; a ``Dataset`` or ``DataLoader`` of PyTorch, a data set of
            torchvision or Hugging Face, an array or tensor of images or a pair (images, labels), a
            list of PIL images or paths, or any iterable of images. Items are images,
            ``(image, label)``, ``(image, label, mask)``, or mappings with such keys as ``image``,
            ``label``, ``id`` and ``mask``. A data set of heatproof is fitted to the model.
        model: The model whose image size and classes the data is fitted to. For objects it may be
            left out; ``evaluate`` fits them.
        split: The split, if the name does not include it.
        limit: The number of samples to use; all by default.
        per_class: The number of samples of each class to use; all by default.
        seed: Seed for the sample order, and for changed images.
        ids: For objects: one id per image, by default what items say, or their number.
        labels: For objects: one class index or class name per image.
        masks: For objects: the pixels of the object, one mask ``(H, W)`` per image.
        normalized: For objects: mean and std of a normalization in the transform, which is undone.

    Raises:
        HeatproofError: If there is no such data set, or it cannot be opened.
    """
    for number, value in (("limit", limit), ("per_class", per_class)):
        if value is not None and value < 1:
            raise HeatproofError(f"{number} must be at least 1; got {value}")
    given = {"ids": ids, "labels": labels, "masks": masks, "normalized": normalized}
    given = {key: value for key, value in given.items() if value is not None}
    if given and (isinstance(name, str) or is_data(name)):
        raise HeatproofError(
            f"{', '.join(given)} go with a Dataset, an array or a list of images, not with "
            f"{name if isinstance(name, str) else name.name}"
        )
    if not isinstance(name, str):
        if split is not None:
            raise HeatproofError(f"an object has no splits, so split={split} has no meaning")
        return _load_object(name, model, limit, per_class, seed, given)
    entry, rest = find_entry(name)
    if per_class is None:
        return entry.open(rest, model=model, split=split, limit=limit, seed=seed)
    everything = entry.open(rest, model=model, split=split, limit=None, seed=seed)
    return balanced(everything, per_class, limit)


def _load_object(
    thing: Any,
    model: Model | None,
    limit: int | None,
    per_class: int | None,
    seed: int,
    given: Mapping[str, Any],
) -> Data:
    """Open an object; see `load_data`."""
    at_once = limit if per_class is None else None
    opened: Data | None
    if isinstance(thing, SourceData):
        opened = refit(thing, model, at_once)
    elif is_data(thing):
        opened = thing
        if at_once is not None and at_once < len(thing.ids):
            opened = take(thing, range(at_once))
    else:
        opened = open_object(thing, model, limit=at_once, seed=seed, **given)
        if isinstance(opened, TensorData) and at_once is not None:
            opened = take(opened, range(min(at_once, len(opened))))
    if opened is None:
        raise HeatproofError(
            "data is a name, such as paperbirds:test or folder:/path/to/images, or a data set, "
            f"such as a Dataset, a list of images or a pair (images, labels); got {thing!r}"
        )
    return opened if per_class is None else balanced(opened, per_class, limit)


def training_split(name: str) -> str:
    """Return the name of the split that models are trained on if they are evaluated on another.

    Raises:
        HeatproofError: If the data set has no such split.
    """
    entry, rest = find_entry(name)
    if entry.training_split is None:
        trainable = [e.id for e in DATA if e.training_split is not None]
        raise HeatproofError(
            f"{name} has no split to train on; data that has one: {', '.join(trainable)}"
        )
    return entry.training_split(rest)


def default_reference(
    evaluated: Data, model: Model, seed: int, most: int = DEFAULT_REFERENCE_IMAGES
) -> Data:
    """Open the data that serves a data set as its reference.

    It is what the data set's hook ``reference`` opens, or the first images of its training split.

    Args:
        evaluated: The data set that maps are evaluated on.
        model: The model that the images are fitted to.
        seed: Seed for the sample order.
        most: How many images are needed; there may be more or fewer.

    Raises:
        HeatproofError: If the data set has neither.
    """
    if isinstance(evaluated, SourceData):
        return evaluated.fitted_to(model).reference(most)
    kind, _, rest = evaluated.name.partition(":")
    if kind in DATA:
        entry = DATA[kind]
        if entry.reference is not None:
            return entry.reference(evaluated, model, seed)
        limit = most + len(evaluated.ids)  # enough where the training split is evaluated
        if entry.training_split is not None:
            return load_data(entry.training_split(rest), model, limit=limit, seed=seed)
        if "train" in entry.splits:
            split = entry.splits["train"]
            return entry.open(rest, model=model, split=split, limit=limit, seed=seed)
    raise HeatproofError(
        f"{evaluated.name} has no images besides those that are evaluated; name a reference"
    )


@dataclass
class Batch:
    """Samples ready for a model, and the samples that could not be read."""

    ids: list[str]
    x: Tensor  # (B, C, H, W) in the model's input space
    labels: list[int | None]
    silhouette: Tensor | None  # (B, H, W) bool
    unreadable: dict[str, str]  # id -> reason
    parts: PartViews | None = None  # (B, P, C, H, W) and (B, P, K, H, W), if a protocol needs them

    def part(self, rows: slice) -> Batch:
        """Return the samples of some rows, without those that could not be read."""
        silhouette = None if self.silhouette is None else self.silhouette[rows]
        parts = None
        if self.parts is not None:
            parts = PartViews(self.parts.without[rows], self.parts.masks[rows])
        return Batch(self.ids[rows], self.x[rows], self.labels[rows], silhouette, {}, parts)


def load_batch(data: Data, indices: Sequence[int], model: Model, with_parts: bool = False) -> Batch:
    """Load samples in threads and normalize them for a model, in the order of the indices.

    Args:
        data: The data set.
        indices: Positions of the samples in it.
        model: The model that the images are normalized for.
        with_parts: Whether to load the parts of the objects as well, if the data has parts.

    Raises:
        HeatproofError: If an image does not have the model's size.
    """

    def load(i: int) -> tuple[Sample, PartViews | None] | UnreadableImage:
        try:
            parts = data.parts(i) if with_parts and isinstance(data, PartData) else None
            return data.load(i), parts
        except UnreadableImage as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(load, indices))
    pairs = [pair for pair in loaded if not isinstance(pair, UnreadableImage)]
    samples = [sample for sample, _ in pairs]
    unreadable = {
        data.ids[i]: str(error)
        for i, error in zip(indices, loaded, strict=True)
        if isinstance(error, UnreadableImage)
    }
    for sample in samples:
        check_size(data, sample.image, model)
    masks = [s.silhouette for s in samples if s.silhouette is not None]
    return Batch(
        ids=[s.id for s in samples],
        x=_normalize(samples, model),
        labels=[s.label for s in samples],
        silhouette=torch.stack(masks) if samples and len(masks) == len(samples) else None,
        unreadable=unreadable,
        parts=_stack_parts([parts for _, parts in pairs if parts is not None]),
    )


def check_colour(name: str, model: Model) -> None:
    """Check that a model takes colour images, for data that has no others.

    Raises:
        HeatproofError: If it has another number of channels.
    """
    channels = len(model.mean)
    if channels != 3:
        noun = "channel" if channels == 1 else "channels"
        raise HeatproofError(
            f"{name} has colour images, but {model.name} takes {channels} {noun}; give images of "
            "your own: hp.TensorData(images, labels)"
        )


def check_size(data: Data, image: Tensor, model: Model) -> None:
    """Check that an image of a data set has the size that a model takes.

    Raises:
        HeatproofError: If it has another one.
    """
    if image.shape != model.image_shape:
        shape, takes = ("×".join(map(str, s)) for s in (image.shape, model.image_shape))
        height, width = image.shape[-2:]
        size = height if height == width else (height, width)
        raise HeatproofError(
            f"{data.name} gives images of {shape}, but {model.name} takes {takes}. If the network "
            f"takes images of that size, say so: hp.Model(net, size={size})"
        )


def _normalize(samples: Sequence[Sample], model: Model) -> Tensor:  # (B, C, H, W)
    if not samples:
        return torch.empty(0, *model.image_shape)
    return model.normalize(torch.stack([s.image for s in samples]))


def _stack_parts(parts: Sequence[PartViews]) -> PartViews | None:
    if not parts:
        return None
    return PartViews(torch.stack([p.without for p in parts]), torch.stack([p.masks for p in parts]))
