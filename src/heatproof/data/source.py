"""Images as they come from anywhere, and the data set that fits them to a model.

A `Source` reads items by position: an image of any kind, and what is known about it. `SourceData`
chooses and orders them, matches their labels to the model's classes and fits their images. Every
kind of source is a subclass of `Source` of a few lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from PIL import Image
from torch import Tensor

from heatproof.data.base import Sample, UnreadableImage, class_number
from heatproof.data.images import Normalization, WrongImage, fit_any, fit_mask
from heatproof.data.labels import WNID, class_index
from heatproof.errors import HeatproofError, join_limited
from heatproof.files import content_hash, escape_name
from heatproof.models.hashes import known_hashes
from heatproof.models.model import Model
from heatproof.tensor.noise import generator

T = TypeVar("T")
FILES_PER_LOOKUP = 4096
STAMP_DIGITS = 32  # of the SHA-256 of an image file
ITEMS_READ_TWICE = 4  # of a user's object, when it is opened


@dataclass(frozen=True)
class Item:
    """One image as a source gives it.

    Attributes:
        image: A PIL image, a path, the bytes of a file, an array or a tensor; see `fit_any`.
        label: A class index, a class name, or None.
        id: A text that identifies the image, or None.
        mask: The pixels of the object; see `fit_mask`.
    """

    image: object
    label: object = None
    id: str | None = None
    mask: object = None


@dataclass(frozen=True)
class Facts:
    """Label, id and fingerprint of an item that was read, without its image."""

    label: object
    id: str | None
    fingerprint: str


class Source:
    """Items by position. A subclass has `read`, and what it knows without reading images.

    Attributes:
        name: The name in results and reports.
        ids: One id per item, if known without reading images.
        labels: One class index, class name or None per item, if known without reading images.
        class_names: The names of the classes that labels are indices of, if they have names.
        has_masks: Whether items have masks.
        normalized: Mean and std of the normalization that is undone.
        is_stable: Whether an item can be trusted to be the same whenever it is read. If not, a few
            are read twice when the source is opened, and each is compared when it is used.
        is_stream: Whether items can be read in one order only. Their number is not known then.
    """

    name = ""
    ids: Sequence[str] | None = None
    labels: Sequence[object] | None = None
    class_names: Sequence[str] | None = None
    has_masks: bool = False
    normalized: Normalization | None = None
    is_stable = True
    is_stream = False
    was_checked = False  # whether some items were read twice

    def __init__(self) -> None:
        self._facts: dict[int, Facts] = {}

    def __len__(self) -> int:
        raise NotImplementedError

    def read(self, position: int) -> Item:
        """Read one item.

        Raises:
            UnreadableImage: If it cannot be read.
        """
        raise NotImplementedError

    def stamp(self, position: int) -> str | None:
        """Return a text that changes when the image changes, if that needs no reading."""
        return None

    def stamps(self, positions: Sequence[int]) -> list[str | None]:
        """Return the stamps of several items."""
        return [self.stamp(position) for position in positions]

    def count(self, most: int | None = None) -> int:
        """Return the number of items; a stream may stop at ``most`` and read no further."""
        return len(self)

    def use(self, positions: Sequence[int]) -> None:
        """Say which items will be read, before the first of them is."""

    def describe(self, position: int) -> str:
        """Return what an item is called in messages."""
        return f"{self.name}[{position}]"

    def facts(self, position: int) -> Facts:
        """Return what is known about an item; it is read at most once for that."""
        if position not in self._facts:
            self._facts[position] = self._find_facts(position)
        return self._facts[position]

    def _find_facts(self, position: int) -> Facts:
        try:
            item = self.read(position)
        except UnreadableImage as error:  # it is skipped and reported when it is evaluated
            return Facts(None, None, f"unreadable: {error}")
        return Facts(item.label, item.id, fingerprint(item, self.normalized))


def fingerprint(item: Item, normalized: Normalization | None = None) -> str:
    """Return a hash that changes when an image or its mask changes."""
    parts = [repr(normalized) if normalized else "", *_content(item.image)]
    return content_hash(parts + ([] if item.mask is None else _content(item.mask)))


def image_stamps(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return texts that change when the content of image files does; why not, if unreadable."""
    return once(("stamps", *paths), lambda: _image_stamps(paths))


def _image_stamps(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    stamps = []
    for begin in range(0, len(paths), FILES_PER_LOOKUP):
        for text in known_hashes(paths[begin : begin + FILES_PER_LOOKUP]):
            stamps.append(text[:STAMP_DIGITS] if len(text) == 64 else text)
    return stamps


_SHARED: ContextVar[dict[tuple[Any, ...], Any] | None] = ContextVar("shared", default=None)


@contextmanager
def shared_listings() -> Iterator[None]:
    """Look at the files of a data set once within this context, whatever models it is opened for.

    Tens of thousands of files take a second or more to list and to recognize.
    """
    token = _SHARED.set({})
    try:
        yield
    finally:
        _SHARED.reset(token)


def once(key: tuple[Any, ...], compute: Callable[[], T]) -> T:
    """Return a result, which is kept under its key within `shared_listings`; not to be changed."""
    known = _SHARED.get()
    if known is None:
        return compute()
    if key not in known:
        known[key] = compute()
    return cast(T, known[key])


def file_stamp(path: str | os.PathLike[str]) -> str:
    """Return the size and the time of a file as a text; why not, if it cannot be read."""
    try:
        status = os.stat(path)
    except OSError as error:  # a dangling link: it is reported when the image is read
        return str(error.strerror)
    return f"{status.st_size} {status.st_mtime_ns}"


def files_named(name: str, inside: str) -> list[Path]:
    """Return the files that a path or a pattern stands for.

    Args:
        name: A file, a folder, or a pattern with ``*``, ``?`` or ``[``.
        inside: The pattern of the files in a folder; where it goes into subfolders, ``**`` in the
            name does, too.
    """
    path = Path(name)
    if path.is_dir():
        return sorted(path.glob(inside))
    if any(mark in name for mark in "*?["):
        return [Path(found) for found in sorted(glob(name, recursive="**" in inside))]
    return [path]


def _content(image: object) -> list[str | bytes]:
    if isinstance(image, str | os.PathLike):
        return [*image_stamps([image])]
    if isinstance(image, bytes | bytearray | memoryview):
        return [bytes(image)]
    if isinstance(image, Image.Image):
        facts = (image.mode, image.size, image.info.get("transparency"), image.getpalette())
        return [repr(facts), image.tobytes()]
    if isinstance(image, Tensor):
        image = image.detach().cpu()
        image = (image.float() if image.is_floating_point() else image).numpy()
    if isinstance(image, np.ndarray):
        return [f"{image.dtype} {image.shape}", np.ascontiguousarray(image).tobytes()]
    if isinstance(image, Mapping):
        return _content(image.get("bytes") or image.get("path"))
    return [repr(type(image))]


class SourceData:
    """Items of a source, fitted to a model: a data set.

    Without a model, images and labels are as the source gives them; `hp.evaluate` fits them.

    Args:
        source: Where images come from.
        positions: The positions of the samples in it.
        model: The model that they are fitted to.
        seed: Seed for the order of the images that serve as a reference.

    Raises:
        HeatproofError: If the labels are not classes of the model, or images do not fit.
    """

    def __init__(
        self, source: Source, positions: Sequence[int], model: Model | None = None, seed: int = 0
    ):
        self.source = source
        self.positions = list(positions)
        self.model = model
        self.seed = seed
        self.name = escape_name(source.name)
        if not self.positions:
            raise HeatproofError(f"{self.name} has no images")

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def has_silhouettes(self) -> bool:
        return self.source.has_masks

    @cached_property
    def ids(self) -> list[str]:
        listed = self.source.ids
        if listed is not None:
            return [escape_name(str(listed[i])) for i in self.positions]
        found = [self.source.facts(i).id for i in self.positions]
        return [
            str(position) if name is None else escape_name(name)
            for position, name in zip(self.positions, found, strict=True)
        ]

    @cached_property
    def labels(self) -> list[int | None]:
        listed = self.source.labels
        if listed is not None:
            found = [listed[i] for i in self.positions]
        else:
            found = [self.source.facts(i).label for i in self.positions]
        return self._class_indices(found)

    @cached_property
    def fingerprints(self) -> list[str]:
        stamps = self.source.stamps(self.positions)
        return [
            self.source.facts(i).fingerprint if stamp is None else stamp
            for i, stamp in zip(self.positions, stamps, strict=True)
        ]

    @cached_property
    def _announced(self) -> bool:
        self.source.use(self.positions)
        return True

    def load(self, index: int) -> Sample:
        assert self._announced
        position = self.positions[index]
        item = self.source.read(position)
        name = self.source.describe(position)
        if not self.source.is_stable:
            self._check_unchanged(position, item, name)
        shape, resize = self._fit
        image = fit_any(item.image, name, shape, resize, self.source.normalized)
        mask = None
        if self.has_silhouettes:
            if item.mask is None:
                raise UnreadableImage(f"{name} has no mask, but others have")
            mask = fit_mask(item.mask, name, shape, resize)
            if mask.shape != image.shape[1:]:
                raise UnreadableImage(f"{name} has a mask of another size than the image")
        return Sample(self.ids[index], image, self.labels[index], mask)

    @property
    def _fit(self) -> tuple[tuple[int, int, int] | None, int | str]:
        if self.model is None:
            return None, 0
        return self.model.image_shape, self.model.resize

    def _check_unchanged(self, position: int, item: Item, name: str) -> None:
        facts = self.source.facts(position)
        if fingerprint(item, self.source.normalized) != facts.fingerprint:
            raise UnreadableImage(
                f"{name} is another image than when it was first read; remove random "
                "augmentation from the transform"
            )

    def fitted_to(self, model: Model) -> SourceData:
        """Return the same samples fitted to another model; nothing is read twice."""
        if model is self.model:
            return self
        fitted = SourceData(self.source, self.positions, model, self.seed)
        fitted.check()
        return fitted

    def take(self, indices: Sequence[int]) -> SourceData:
        """Return some of the samples, by their index."""
        return SourceData(self.source, [self.positions[i] for i in indices], self.model, self.seed)

    def reference(self, most: int) -> SourceData:
        """Return images of the source that are not among the samples, in a seeded order.

        Raises:
            HeatproofError: If all are.
        """
        count = self.source.count(max(self.positions) + 1 + most)
        taken = set(self.positions)
        others = [i for i in sample_order(self.source, count, self.seed) if i not in taken][:most]
        if not others:
            raise HeatproofError(
                f"all images of {self.name} are evaluated, and none is left as a reference; lower "
                "the limit or name a reference"
            )
        return SourceData(self.source, others, self.model, self.seed)

    def check(self) -> None:
        """Check the labels, and the images of objects that a user has written.

        Raises:
            HeatproofError: If something is wrong; the message says what to change.
        """
        if not self.source.is_stable:
            self._check_items()
        if self.model is None:
            return
        n_classes = self.model.n_classes
        if self.source.labels is not None or not self.source.is_stable:
            outside = [label for label in self.labels if not 0 <= (label or 0) < n_classes]
            if outside:
                raise HeatproofError(
                    f"{self.name} has labels such as {outside[0]}, but the classes of "
                    f"{self.model.name} are 0 to {n_classes - 1}"
                )

    def _check_items(self) -> None:
        """Read a few items, the first time twice."""
        size = len(self.positions)
        chosen = sorted(
            {size * k // ITEMS_READ_TWICE for k in range(ITEMS_READ_TWICE)} | {size - 1}
        )
        unreadable: list[UnreadableImage] = []
        for index in chosen:
            position = self.positions[index]
            name = self.source.describe(position)
            try:
                item = self.source.read(position)
                fit_any(item.image, name, *self._fit, self.source.normalized)
                again = item if self.source.was_checked else self.source.read(position)
            except WrongImage as error:
                raise HeatproofError(str(error)) from None
            except UnreadableImage as error:
                unreadable.append(error)
                continue
            if fingerprint(item) != fingerprint(again):
                raise HeatproofError(
                    f"{name} is another image every time it is read; remove random augmentation "
                    "from the transform (RandomResizedCrop, RandomHorizontalFlip, ColorJitter, …) "
                    "or pass the data set that you validate with"
                )
        self.source.was_checked = True
        if len(unreadable) == len(chosen):
            raise HeatproofError(f"none of {len(chosen)} images can be read: {unreadable[0]}")

    def _class_indices(self, found: Sequence[object]) -> list[int | None]:
        """Match labels to the model's classes, by name if both have names."""
        labels = [_plain_label(label, self.name) for label in found]
        texts = [label for label in labels if isinstance(label, str)]
        numbers = [label for label in labels if isinstance(label, int)]
        if texts and numbers:
            raise HeatproofError(
                f"{self.name} has labels that are names ({texts[0]}) and others that are numbers "
                f"({numbers[0]}); write one or the other"
            )
        if texts:
            classes, n_classes = self._classes(texts)
            index = class_index(texts, classes, n_classes, f"labels of {self.name}")
            return [index[label] if isinstance(label, str) else None for label in labels]
        names = self.source.class_names
        if names is None or not self._matches_by_name(names):
            return [label if isinstance(label, int) else None for label in labels]
        outside = [label for label in numbers if not 0 <= label < len(names)]
        if outside:
            raise HeatproofError(
                f"{self.name} has labels such as {outside[0]}, but names of {len(names)} classes"
            )
        assert self.model is not None
        used = [names[label] for label in sorted(set(numbers))]
        by_name = class_index(
            used, self.model.classes, self.model.n_classes, f"classes of {self.name}"
        )
        return [by_name[names[label]] if isinstance(label, int) else None for label in labels]

    def _classes(self, texts: Sequence[str]) -> tuple[Sequence[str] | None, int | None]:
        if self.model is not None:
            return self.model.classes, self.model.n_classes
        names = self.source.class_names or sorted(set(texts))
        return names, len(names)

    def _matches_by_name(self, names: Sequence[str]) -> bool:
        if self.model is None:
            return False
        has_wnids = self.model.n_classes == 1000 and any(map(WNID.fullmatch, names))
        return self.model.classes is not None or has_wnids


def _plain_label(label: object, name: str) -> int | str | None:
    """Return a label as a number or a name."""
    if label is None or isinstance(label, str):
        return label
    try:
        return class_number(label)
    except (TypeError, ValueError, RuntimeError):
        size = getattr(label, "shape", ())
        hint = "; of scores per class, take label.argmax()" if len(size) else ""
        raise HeatproofError(
            f"{name} has labels of type {type(label).__name__}, such as {_short(label)}; labels "
            f"are class indices (whole numbers from 0), or class names{hint}"
        ) from None


def _short(value: Any) -> str:
    return join_limited([str(value)[:60]])


def sample_order(source: Source, count: int, seed: int) -> list[int]:
    """Return the positions of a source in a seeded random order; a stream keeps its own."""
    if source.is_stream:
        return list(range(count))
    return generator(seed, "sample order").permutation(count).tolist()


def open_source(source: Source, model: Model | None, limit: int | None, seed: int) -> SourceData:
    """Make a data set of a source.

    The samples are in a seeded random order, so that those of a smaller limit are the first of
    those of a larger one; streams keep their order.

    Args:
        source: Where images come from.
        model: The model that they are fitted to, if it is known.
        limit: The number of samples; all by default.
        seed: Seed for the sample order.

    Raises:
        HeatproofError: If there are no images, or they do not fit the model.
    """
    order = sample_order(source, source.count(limit), seed)[:limit]
    opened = SourceData(source, order, model, seed)
    opened.check()
    return opened
