"""Curves of all samples of a run, read from the files of its tasks one after the other.

A large run has hundreds of thousands of curves. Reading one by one through a library takes longer
than copying them. Those of a protocol are next to each other in a file, since it is ordered by
name: they are read in one go.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from heatproof.runs.format import TensorKey
from heatproof.runs.task_files import METADATA, SAMPLES_ENTRY

T = TypeVar("T")
Item = TypeVar("Item")
READING_THREADS = 2  # that read and hash files while others are used
FILES_READ_AHEAD = 8  # files that are read before they are asked for
TYPES: dict[str, np.dtype[np.floating]] = {
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}


class TaskCurves(NamedTuple):
    """Some curves of a task: the samples, and ``(N, S)`` by key, which are views of a buffer."""

    samples: list[str]
    curves: dict[TensorKey, np.ndarray]
    buffer: bytearray


class CurveReader:
    """Reads those of some curves that files of tensors have, in any thread.

    Args:
        keys: The curves.
    """

    def __init__(self, keys: Iterable[TensorKey]):
        self._keys = {key.encode(): key for key in keys}
        self._free: list[bytearray] = []  # fresh memory takes longer to get than to fill

    def read(self, path: Path) -> TaskCurves:
        """Read the curves of a file in the format of safetensors.

        Raises:
            ValueError: If the file is damaged.
        """
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
            try:
                samples = json.loads(header[METADATA][SAMPLES_ENTRY])["ids"]
                found = {key: header[name] for name, key in self._keys.items() if name in header}
                offsets = [offset for entry in found.values() for offset in entry["data_offsets"]]
                first = min(offsets, default=0)
                length = max(offsets, default=0) - first
                buffer = self._buffer(length)
                file.seek(8 + size + first)
                if file.readinto(memoryview(buffer)[:length]) < length:
                    raise ValueError("it is shorter than its header says")
                curves = {}
                for key, entry in found.items():
                    begin = entry["data_offsets"][0] - first
                    count = math.prod(entry["shape"])
                    values = np.frombuffer(buffer, TYPES[entry["dtype"]], count, begin)
                    curves[key] = values.reshape(entry["shape"])
            except (KeyError, TypeError, IndexError) as error:
                raise ValueError(f"its header is not that of a task: {error}") from None
        return TaskCurves(samples, curves, buffer)

    def _buffer(self, size: int) -> bytearray:
        """Return memory of at least some bytes."""
        buffer = self._free.pop() if self._free else bytearray()
        return buffer if len(buffer) >= size else bytearray(size)

    def release(self, task: TaskCurves) -> None:
        """Take back the memory of curves that nobody uses any more."""
        self._free.append(task.buffer)


class CurveBuffers:
    """Memory for curves, which is used again: fresh memory takes longer to get than to fill."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []

    def take(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return an array of single precision with any content."""
        size = int(np.prod(shape))
        fitting = (i for i, buffer in enumerate(self._free) if len(buffer) >= size)
        i = next(fitting, None)
        buffer = np.empty(size, np.float32) if i is None else self._free.pop(i)
        return buffer[:size].reshape(shape)

    def give_back(self, arrays: Iterable[np.ndarray]) -> None:
        """Take arrays back that nobody uses any more."""
        self._free += [array.reshape(-1) for array in arrays]


def stack_curves(
    tasks: Iterable[TaskCurves],
    keys: Mapping[str, Sequence[TensorKey]],
    most: int,
    buffers: CurveBuffers,
    done: Callable[[TaskCurves], None] = lambda task: None,
) -> dict[str, tuple[list[str], list[np.ndarray]]]:
    """Put the curves of tasks together.

    Args:
        tasks: The curves of each task.
        keys: The curves of each method.
        most: Number of samples of all tasks.
        buffers: Memory for them.
        done: Is called with each task after its curves were copied.

    Returns:
        For each method the samples of tasks that have all its curves, and these, ``(N, S)`` each.
    """
    ids: dict[str, list[str]] = {method: [] for method in keys}
    stacked: dict[str, list[np.ndarray]] = {method: [] for method in keys}
    for task in tasks:
        for method, each in keys.items():
            found = [task.curves[key] for key in each if key in task.curves]
            if len(found) < len(each):
                continue
            if not stacked[method]:  # filled task by task, so that no file stays open
                stacked[method] = [buffers.take((most, *part.shape[1:])) for part in found]
            begin = len(ids[method])
            for whole, part in zip(stacked[method], found, strict=True):
                whole[begin : begin + len(part)] = part
            ids[method] += task.samples
        done(task)
    return {m: (ids[m], [curve[: len(ids[m])] for curve in stacked[m]]) for m in keys}


def map_ahead(function: Callable[[Item], T], items: Iterable[Item]) -> Iterator[T]:
    """Apply a function to items in threads, a few of them ahead of what is asked for.

    Args:
        function: Reads files: reading, hashing and decoding leave Python's lock alone.
        items: What it is applied to.

    Yields:
        The results in the order of the items.
    """
    with ThreadPoolExecutor(READING_THREADS) as pool:
        waiting: deque[Future[T]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > FILES_READ_AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # whoever stops early does not wait for the rest
            for future in waiting:
                future.cancel()
