"""Data sets of Hugging Face's library datasets, as objects and by name."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from heatproof.data.base import UnreadableImage
from heatproof.data.catalog import source
from heatproof.data.objects import ITEM_KEYS, ItemSource, parse_item
from heatproof.data.source import Item, Source
from heatproof.data.stream import StreamSource
from heatproof.errors import HeatproofError, join_limited


class HuggingFaceSource(Source):
    """Rows of a ``datasets.Dataset`` without a transform; images are read as they are stored.

    Args:
        dataset: The data set.
        name: The name in results and reports.

    Raises:
        HeatproofError: If it has no column of images.
    """

    def __init__(self, dataset: Any, name: str):
        from datasets import Image

        super().__init__()
        self.name = name
        columns = _columns(dataset)
        self._columns = columns
        encoded = dataset.select_columns([c for c in columns.values() if c is not None])
        for part in ("image", "mask"):
            if isinstance(encoded.features.get(columns[part]), Image):
                encoded = encoded.cast_column(columns[part], Image(decode=False))
        self._rows = encoded
        self._lock = threading.Lock()
        self.has_masks = columns["mask"] is not None
        self.class_names = _class_names(dataset, columns["label"])
        self.labels = _values(dataset, columns["label"]) or [None] * len(dataset)
        if self.class_names:  # -1 stands for labels that are not published
            self.labels = [None if label == -1 else label for label in self.labels]
        listed = _values(dataset, columns["id"]) or range(len(dataset))
        self.ids = [str(value) for value in listed]

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, position: int) -> Item:
        try:
            with self._lock:
                row = self._rows[position]
        except Exception as error:  # whatever the library raises for one row
            raise UnreadableImage(f"{self.describe(position)}: {error}") from error
        mask = self._columns["mask"]
        return Item(row[self._columns["image"]], mask=None if mask is None else row[mask])


def from_datasets(thing: Any, name: str = "") -> Source:
    """Return the source for an object of the library.

    Args:
        thing: A ``Dataset``, or an ``IterableDataset``, which is read as a stream.
        name: The name in results and reports; by default that of the object's builder or class.

    Raises:
        HeatproofError: If it is a dictionary of splits, or has no images.
    """
    from datasets import Dataset, IterableDataset

    if isinstance(thing, dict):
        raise HeatproofError(
            f"it has the splits {', '.join(map(str, thing))}; pass one of them: "
            f'dataset["{next(iter(thing), "test")}"]'
        )
    name = name or getattr(thing, "builder_name", None) or type(thing).__name__
    if isinstance(thing, IterableDataset):
        stream = StreamSource(thing, parse_item, name)
        stream.class_names = _class_names(thing, "label")
        return stream
    if not isinstance(thing, Dataset):
        raise HeatproofError(f"data of type {type(thing).__name__} has no rows of images")
    if thing.format["type"] is None:
        return HuggingFaceSource(thing, name)
    formatted = ItemSource(thing, name)
    formatted.class_names = _class_names(thing, _column(thing, "label"))
    return formatted


def _column(dataset: Any, part: str) -> str | None:
    return next((name for name in ITEM_KEYS[part] if name in dataset.column_names), None)


def _columns(dataset: Any) -> dict[str, str | None]:
    from datasets import Image

    columns = {part: _column(dataset, part) for part in ITEM_KEYS}
    if columns["image"] is None:
        images = [n for n, f in dataset.features.items() if isinstance(f, Image)]
        columns["image"] = next((n for n in images if n != columns["mask"]), None)
    if columns["image"] is None:
        raise HeatproofError(
            f"the data set has the columns {join_limited(dataset.column_names)}, none of which is "
            'an image; rename it: dataset.rename_column("…", "image")'
        )
    return columns


def _values(dataset: Any, column: str | None) -> list[Any] | None:
    return None if column is None else list(dataset[column])


def _class_names(dataset: Any, label: str | None) -> list[str] | None:
    names = getattr((dataset.features or {}).get(label), "names", None)
    return list(names) if names else None


def _import_datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise HeatproofError(
            f'hf-dataset needs the library datasets: pip install "heatproof[hf]" ({error})'
        ) from None
    return datasets


@source(
    "hf-dataset",
    summary="hf-dataset:NAME_OR_FOLDER[:split], of Hugging Face's datasets; needs the extra hf",
)
def open_hf_dataset(rest: str, split: str | None) -> Source:
    """Open ``hf-dataset:NAME[:split]``, or a folder of ``save_to_disk``."""
    datasets = _import_datasets()
    where, _, named = rest.rpartition(":")
    if not where or os.path.isdir(rest):
        where = rest
        named = ""
    if split and named and split != named:
        raise HeatproofError(f"hf-dataset:{rest} names a split, and split={split} another")
    split = split or named or None
    try:
        if any((Path(where) / file).is_file() for file in ("state.json", "dataset_dict.json")):
            found = datasets.load_from_disk(where)
        else:
            found = datasets.load_dataset(where)
    except Exception as error:  # the library raises many kinds, and those of the network
        raise HeatproofError(
            f"cannot open the data set {where}: {type(error).__name__}: {error}"
        ) from None
    if isinstance(found, dict):
        found = _choose_split(found, split, where)
        split = split or str(found.split or "")
    elif split and split != str(found.split):
        raise HeatproofError(f"{where} has no splits; leave out :{split}")
    return from_datasets(found, f"hf-dataset:{where}" + (f":{split}" if split else ""))


def _choose_split(found: Any, split: str | None, where: str) -> Any:
    if split is None and len(found) == 1:
        return next(iter(found.values()))
    if split not in found:
        raise HeatproofError(
            f"{where} has the splits {', '.join(found)}; name one: hf-dataset:{where}:"
            f"{next(iter(found))}"
        )
    return found[split]
