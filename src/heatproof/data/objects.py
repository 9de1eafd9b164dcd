"""Objects that PyTorch users have at hand, as sources of images.

Data sets, loaders, arrays, lists and iterables. What an item means is the same for all of them:

* an image: a PIL image, a path, bytes, a uint8 array or a float tensor in [0, 1];
* a tuple ``(image, label)`` or ``(image, label, mask)``;
* a mapping with the keys of `ITEM_KEYS`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    Subset,
)

from heatproof.data.base import Data, TensorData, UnreadableImage
from heatproof.data.images import Normalization, WrongImage, as_picture
from heatproof.data.source import Item, Source, SourceData, open_source
from heatproof.data.stream import StreamSource
from heatproof.errors import HeatproofError, join_limited
from heatproof.models.model import Model
from heatproof.text import counted

# keys of an item that is a mapping, in the order in which they are looked for
ITEM_KEYS = {
    "image": ("image", "pixel_values", "img", "images", "picture", "jpg", "png"),
    "label": ("label", "labels", "target", "targets", "class", "cls", "fine_label"),
    "id": ("id", "image_id", "key", "__key__"),
    "mask": ("mask", "masks", "segmentation_mask", "silhouette"),
}
LABEL_ATTRIBUTES = ("targets", "labels")
Parse = Callable[[object, str], Item]


class ItemSource(Source):
    """Items of anything that has ``len`` and ``[]``.

    Items are read one at a time: not every data set can be read by several threads.

    Args:
        items: The data set, list or array.
        name: The name in results and reports.
        parse: Makes an `Item` of what it returns.
    """

    is_stable = False

    def __init__(self, items: Any, name: str, parse: Parse | None = None):
        super().__init__()
        self.name = name
        self.items = items
        self.masks: Sequence[object] | None = None
        self._parse = parse or parse_item
        self._count = len(items)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    @cached_property
    def has_masks(self) -> bool:  # type: ignore[override]
        if self.masks is not None:
            return True
        try:
            return self.read(0).mask is not None
        except UnreadableImage:
            return False

    def read(self, position: int) -> Item:
        name = self.describe(position)
        if len(self.items) != self._count:
            raise HeatproofError(
                f"{self.name} had {self._count} items and now has {len(self.items)}; its length "
                "must not change while it is evaluated"
            )
        with self._lock:
            item = self._parse(self._get(position), name)
            if isinstance(item.image, Image.Image):
                self._decode(item.image, name)
        mask = item.mask if self.masks is None else self.masks[position]
        return Item(item.image, item.label, item.id, mask)

    def _get(self, position: int) -> object:
        try:
            return self.items[position]
        except HeatproofError:
            raise
        except Exception as error:  # the user's code may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise UnreadableImage(f"{self.describe(position)}: {reason}") from error

    def _decode(self, image: Image.Image, name: str) -> None:
        try:
            image.load()
        except Exception as error:
            raise UnreadableImage(f"{name}: {error}") from error


def parse_item(raw: object, name: str) -> Item:
    """Find image, label, id and mask in what a data set returns.

    Raises:
        WrongImage: If they cannot be found.
    """
    if isinstance(raw, Mapping) and not raw.keys() & {"bytes", "path"}:
        return _parse_mapping(raw, name)
    if isinstance(raw, str | os.PathLike):
        return Item(raw, id=os.fspath(raw))
    if not isinstance(raw, tuple | list):
        return Item(raw)
    if not 1 <= len(raw) <= 3:
        raise WrongImage(
            f"{name} has {len(raw)} parts; items are (image, label) or (image, label, mask), or "
            'a dict: {"image": …, "label": …, "id": …}'
        )
    image, label, mask = (*raw, None, None)[:3]
    if not isinstance(mask, Tensor | np.ndarray | Image.Image | None):
        raise WrongImage(
            f"{name} has a third part of type {type(mask).__name__}, which is not a mask; return "
            '(image, label), or a dict: {"image": …, "label": …, "id": …}'
        )
    return Item(image, label, None, mask)


def _parse_mapping(raw: Mapping[Any, Any], name: str) -> Item:
    keys = {part: next((k for k in names if k in raw), None) for part, names in ITEM_KEYS.items()}
    if keys["image"] is None:
        raise WrongImage(
            f"{name} has the keys {join_limited(map(str, raw))}, none of which is an image; call "
            f"it {', '.join(ITEM_KEYS['image'][:3])}"
        )
    found = {part: None if key is None else raw[key] for part, key in keys.items()}
    sample_id = None if found["id"] is None else _text(found["id"])
    return Item(found["image"], found["label"], sample_id, found["mask"])


def _text(value: object) -> str:
    return str(value.item() if isinstance(value, Tensor | np.generic) else value)


def open_object(
    thing: Any,
    model: Model | None = None,
    *,
    limit: int | None = None,
    seed: int = 0,
    ids: Sequence[object] | None = None,
    labels: Any = None,
    masks: Sequence[object] | None = None,
    normalized: Normalization | None = None,
    name: str | None = None,
) -> Data | None:
    """Make a data set of an object.

    Args:
        thing: A data set, loader, array, list or iterable; see `heatproof.data.catalog.load_data`.
        model: The model that images are fitted to, if it is known.
        limit: The number of samples; all by default.
        seed: Seed for the sample order.
        ids: One id per item.
        labels: One label per item.
        masks: One mask per item.
        normalized: Mean and std of the normalization that is undone.
        name: The name in results and reports.

    Returns:
        The data set; None for an object of another kind.

    Raises:
        HeatproofError: If it cannot be used; the message says what to change.
    """
    if isinstance(thing, tuple):
        thing, labels = _pair(thing, labels)
    plain = normalized is None and masks is None and not _are_names(labels)
    if _is_float_batch(thing) and plain:
        texts = None if ids is None else [_text(i) for i in ids]
        return TensorData(thing, labels, texts, *([] if name is None else [name]))
    source = _source_of(thing)
    if source is None:
        return None
    if not source.is_stream and not len(source):
        raise HeatproofError(f"{source.name} has no images")
    source.name = name or source.name
    source.normalized = _check_normalized(normalized)
    for part, values in (("ids", ids), ("labels", labels), ("masks", masks)):
        if values is not None:
            _set_listed(source, part, values)
    return open_source(source, model, limit, seed)


def _pair(pair: tuple[Any, ...], labels: Any) -> tuple[Any, Any]:
    if len(pair) != 2 or labels is not None:
        raise HeatproofError(
            f"data is a pair (images, labels); got a tuple of {len(pair)}. Write "
            "hp.load_data(images, labels=…, ids=…, masks=…)"
        )
    return pair


def _are_names(labels: Any) -> bool:
    """Return whether labels are names of classes instead of their indices."""
    return isinstance(labels, list | tuple) and any(isinstance(label, str) for label in labels)


def _is_float_batch(thing: object) -> bool:
    return isinstance(thing, Tensor) and (thing.is_floating_point() or thing.ndim != 4)


def _check_normalized(normalized: Normalization | None) -> Normalization | None:
    if normalized is None:
        return None
    try:
        mean, std = ([float(v) for v in np.atleast_1d(part)] for part in normalized)
    except (TypeError, ValueError):
        raise HeatproofError(
            "normalized is the mean and the std of the transform, such as "
            f"([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]); got {normalized!r}"
        ) from None
    if len(mean) != len(std) or min(std) <= 0:
        raise HeatproofError(
            "normalized is a mean and a positive std for each channel; got "
            f"mean {mean} and std {std}"
        )
    return mean, std


def _set_listed(source: Source, part: str, values: Any) -> None:
    """Set ids, labels or masks that the user gives beside the images."""
    if source.is_stream:
        raise HeatproofError(
            f"{source.name} is read as a stream, which {part}=… cannot follow; yield them with the "
            'images: {"image": …, "label": …, "id": …, "mask": …}'
        )
    if len(values) != len(source):
        raise HeatproofError(f"{counted(len(source), 'image')}, but {len(values)} {part}")
    if part == "ids":
        values = [_text(value) for value in values]
    elif part == "labels":
        values = _label_list(values)
    elif not isinstance(source, ItemSource):
        raise HeatproofError(f"masks go with arrays, lists and data sets, not with {source.name}")
    setattr(source, part, values)


def _label_list(values: Any) -> list[object]:
    return values.tolist() if isinstance(values, Tensor | np.ndarray) else list(values)


def _source_of(thing: Any) -> Source | None:
    """Return the source for an object, or None if it is none of the known kinds."""
    if isinstance(thing, DataLoader):
        return _from_loader(thing)
    if isinstance(thing, os.PathLike) and os.path.isdir(thing):
        raise HeatproofError(f'a folder of images is named with its kind: "folder:{thing}"')
    if type(thing).__name__ == "DataFrame":
        raise HeatproofError(
            "a DataFrame is not a data set; give its columns: "
            'hp.load_data(list(frame["path"]), labels=list(frame["label"])), or save it and name '
            "it csv:list.csv"
        )
    if type(thing).__module__.partition(".")[0] == "datasets":
        from heatproof.data.huggingface import from_datasets

        return from_datasets(thing)
    if isinstance(thing, IterableDataset):
        return StreamSource(thing, parse_item, type(thing).__name__)
    if isinstance(thing, str | bytes | os.PathLike | Mapping | torch.nn.Module | type):
        return None
    if isinstance(thing, Tensor | np.ndarray):
        return _from_array(thing)
    if hasattr(thing, "__getitem__") and hasattr(thing, "__len__"):
        return _from_items(thing)
    if isinstance(thing, Iterable):
        return StreamSource(thing, parse_item, type(thing).__name__)
    return None


def _from_array(array: Tensor | np.ndarray[Any, Any]) -> ItemSource:
    if array.ndim not in (3, 4):
        shape = "×".join(map(str, array.shape))
        raise HeatproofError(
            f"an array of images has the shape (N, H, W, C) or (N, C, H, W); got {shape}"
            + ("; one image is image[None]" if array.ndim == 2 else "")
        )
    return ItemSource(array, "arrays" if isinstance(array, np.ndarray) else "tensors")


def _from_items(items: Any, parse: Parse | None = None) -> ItemSource:
    name = "images" if isinstance(items, list | tuple) else type(_innermost(items)).__name__
    source = ItemSource(items, name, parse)
    if isinstance(items, list | tuple) or not len(source):
        return source
    source.class_names = _class_names(_innermost(items))
    source.ids = _follow(items, _path_ids)
    labels = _follow(items, _listed_labels)
    if labels is not None and _agree(source, labels):
        source.labels = labels
    return source


def _innermost(items: Any) -> Any:
    return _innermost(items.dataset) if isinstance(items, Subset) else items


def _follow(items: Any, find: Callable[[Any], list[Any] | None]) -> list[Any] | None:
    """Find a list with one entry per item, through ``torch.utils.data.Subset``."""
    if not isinstance(items, Subset):
        return find(items)
    inside = _follow(items.dataset, find)
    return None if inside is None else [inside[i] for i in items.indices]


def _listed_labels(items: Any) -> list[object] | None:
    """Return the labels in an attribute of a data set, such as ``targets`` of torchvision's."""
    if getattr(items, "target_transform", None) is not None:
        return None
    for attribute in LABEL_ATTRIBUTES:
        values = getattr(items, attribute, None)
        if isinstance(values, list | tuple | Tensor | np.ndarray) and len(values) == len(items):
            labels = _label_list(values)
            if all(isinstance(label, int | str) for label in labels):
                return labels
    return None


def _agree(source: ItemSource, labels: Sequence[object]) -> bool:
    """Return whether listed labels are those of the items, as far as some items show."""
    last = len(source) - 1
    for position in sorted({0, last // 3, 2 * last // 3, last}):
        try:
            label = source.read(position).label
        except UnreadableImage:
            continue
        if label is not None and _text(label) != _text(labels[position]):
            return False
    return True


def _class_names(items: Any) -> list[str] | None:
    for attribute in ("classes", "wnids"):  # torchvision's ImageNet has synonyms as classes
        names = getattr(items, attribute, None)
        if isinstance(names, list | tuple) and names and all(isinstance(n, str) for n in names):
            return list(names)
    return None


def _path_ids(items: Any) -> list[str] | None:
    """Return paths below the folder of torchvision's ImageFolder, and the like."""
    samples = getattr(items, "samples", None)
    root = getattr(items, "root", None)
    if not isinstance(samples, list) or not isinstance(root, str | os.PathLike):
        return None
    if len(samples) != len(items) or not all(isinstance(s, tuple) and s for s in samples):
        return None
    paths = [sample[0] for sample in samples]
    if not all(isinstance(path, str) for path in paths):
        return None
    return [os.path.relpath(path, root).replace(os.sep, "/") for path in paths]


def _from_loader(loader: DataLoader[Any]) -> Source:
    """Return the data set of a loader, and what its collate function makes of single items."""
    dataset: Any = loader.dataset
    collate = loader.collate_fn

    def parse_collated(raw: object, name: str) -> Item:
        return parse_item(_first_of_batch(collate([raw])), name)

    if isinstance(dataset, IterableDataset):
        return StreamSource(dataset, _try_both(parse_collated), type(dataset).__name__)
    sampler: Any = loader.sampler
    batches: Any = loader.batch_sampler
    ordered = isinstance(sampler, SequentialSampler)
    if batches is not None:
        ordered = type(batches) is BatchSampler and isinstance(batches.sampler, SequentialSampler)
        sampler = getattr(batches, "sampler", batches)
    if not ordered:
        raise HeatproofError(
            f"the DataLoader takes its images in the order of a {type(sampler).__name__}, so that "
            "they cannot be identified by their number; write DataLoader(…, shuffle=False), or "
            "pass loader.dataset"
        )
    source = _source_of(dataset)
    if isinstance(source, ItemSource) and len(source) and not _gives_images(source):
        return _from_items(dataset, parse_collated)
    if source is None:
        raise HeatproofError(f"the DataLoader has a data set of type {type(dataset).__name__}")
    return source


def _try_both(parse_collated: Parse) -> Parse:
    """Return a function that uses the collate function for items that are not images."""

    def parse(raw: object, name: str) -> Item:
        try:
            item = parse_item(raw, name)
            as_picture(item.image, name)
            return item
        except WrongImage:
            return parse_collated(raw, name)

    return parse


def _gives_images(source: ItemSource) -> bool:
    try:
        as_picture(source.read(0).image, source.name)
    except WrongImage:
        return False
    except UnreadableImage:
        pass
    return True


def _first_of_batch(batch: object) -> object:
    if isinstance(batch, Mapping):
        return {key: value[0] for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(None if part is None else part[0] for part in batch)
    return batch[0]  # type: ignore[index]


def refit(data: SourceData, model: Model | None, limit: int | None) -> SourceData:
    """Return a data set of `open_object` for another model, or its first samples."""
    fewer = data if limit is None else data.take(range(min(limit, len(data))))
    return fewer if model is None else fewer.fitted_to(model)
