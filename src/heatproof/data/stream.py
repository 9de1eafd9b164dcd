"""Items that can be read in one order only, such as those of an IterableDataset.

They are written to a temporary file as they are read, so that they can be read again in any order
while only one of them is in memory. The file is deleted with the source.
"""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from heatproof.data.base import UnreadableImage
from heatproof.data.images import WrongImage
from heatproof.data.source import Item, Source
from heatproof.errors import HeatproofError


class Stored(NamedTuple):
    """Position of a value in the file, and the function that restores it from the bytes."""

    start: int
    length: int
    restore: Callable[[bytes], object]


class Spool:
    """Images on disk, written one after the other and read in any order, by any thread."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="heatproof-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()
        self._end = 0

    def write(self, value: object, name: str) -> Stored:
        """Append an image or a mask.

        Raises:
            WrongImage: If it is neither.
        """
        content, restore = _to_bytes(value, name)
        with self._lock:
            start = self._end
            self._file.seek(start)
            self._file.write(content)
            self._end += len(content)
        return Stored(start, len(content), restore)

    def read(self, stored: Stored) -> object:
        """Read what `write` has written."""
        with self._lock:
            self._file.seek(stored.start)
            content = self._file.read(stored.length)
        return stored.restore(content)


def _to_bytes(value: object, name: str) -> tuple[bytes, Callable[[bytes], object]]:
    if isinstance(value, Image.Image):
        if value.mode == "P":  # colours are in a table beside the pixels
            value = value.convert("RGBA" if value.has_transparency_data else "RGB")
        mode = value.mode
        size = value.size
        return value.tobytes(), lambda content: Image.frombytes(mode, size, content)
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        array = (value.float() if value.is_floating_point() else value).numpy()
        content, restore = _array_to_bytes(array)
        return content, lambda content: torch.from_numpy(restore(content).copy())
    if isinstance(value, np.ndarray):
        return _array_to_bytes(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), bytes
    if isinstance(value, Mapping) and value.get("bytes"):
        return bytes(value["bytes"]), bytes
    if isinstance(value, Mapping):
        value = value.get("path")
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape"), _to_path
    raise WrongImage(f"{name} is of type {type(value).__name__}, which is not an image")


def _to_path(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _array_to_bytes(
    array: np.ndarray[Any, Any],
) -> tuple[bytes, Callable[[bytes], np.ndarray[Any, Any]]]:
    shape = array.shape
    dtype = array.dtype
    return array.tobytes(), lambda content: np.frombuffer(content, dtype).reshape(shape)


class StreamSource(Source):
    """Items of an iterable, in its order; no more are taken from it than are asked for.

    Args:
        items: The iterable, which is read once.
        parse: Makes an `Item` of what it yields.
        name: The name in results and reports.
    """

    is_stream = True
    is_stable = False

    def __init__(self, items: Iterable[object], parse: Callable[[object, str], Item], name: str):
        super().__init__()
        self.name = name
        self._iterator: Iterator[object] | None = iter(items)
        self._parse = parse
        self._spool = Spool()
        self._stored: list[tuple[Item, Stored, Stored | None] | UnreadableImage] = []

    def __len__(self) -> int:
        return self.count()

    def count(self, most: int | None = None) -> int:
        while self._iterator is not None and (most is None or len(self._stored) < most):
            self._take()
        return len(self._stored) if most is None else min(most, len(self._stored))

    def _take(self) -> None:
        """Read one more item and write it to the file."""
        assert self._iterator is not None
        position = len(self._stored)
        name = self.describe(position)
        try:
            raw = next(self._iterator)
        except StopIteration:
            self._iterator = None
            return
        except Exception as error:
            raise HeatproofError(
                f"{name}: the iteration stopped with {type(error).__name__}: {error}"
            ) from error
        try:
            item = self._parse(raw, name)
            image = self._spool.write(item.image, name)
            mask = None if item.mask is None else self._spool.write(item.mask, name)
        except WrongImage as error:
            if not position:
                raise HeatproofError(str(error)) from None
            self._stored.append(error)
            return
        if not position:
            self.has_masks = mask is not None
        self._stored.append((replace(item, image=None, mask=None), image, mask))

    def read(self, position: int) -> Item:
        self.count(position + 1)
        stored = self._stored[position]
        if isinstance(stored, UnreadableImage):
            raise stored
        item, image, mask = stored
        return replace(
            item,
            image=self._spool.read(image),
            mask=None if mask is None else self._spool.read(mask),
        )
