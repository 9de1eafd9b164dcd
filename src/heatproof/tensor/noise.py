"""Seeded noise that is keyed by sample, not by position in a batch.

It is the same for every order, batch size, number of workers and device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray
from torch import Tensor


class Rng:
    """Random numbers keyed by (seed, purpose, sample id).

    They come from counter-based generators on the CPU; global generators are never touched.
    """

    def __init__(self, seed: int, ids: Sequence[str], device: torch.device | str = "cpu"):
        """Create the generators of a batch.

        Args:
            seed: Seed of the run.
            ids: Sample ids of the batch, one per row.
            device: Device of the tensors that are returned.
        """
        self.seed = seed
        self.ids = tuple(ids)
        self.device = torch.device(device)

    def normal(self, purpose: str, shape: Sequence[int]) -> Tensor:  # (B, *shape)
        """Draw standard normal numbers for each sample."""
        return self._draw("standard_normal", purpose, self.ids, shape)

    def uniform(self, purpose: str, shape: Sequence[int]) -> Tensor:  # (B, *shape) in [0, 1)
        """Draw uniform numbers for each sample."""
        return self._draw("random", purpose, self.ids, shape)

    def once(self, purpose: str, shape: Sequence[int]) -> Tensor:  # shape, in [0, 1)
        """Draw uniform numbers that all samples share."""
        return self._draw("random", purpose, ("",), shape)[0]

    def _draw(self, kind: str, purpose: str, ids: Sequence[str], shape: Sequence[int]) -> Tensor:
        drawn = np.empty((len(ids), *shape), dtype=np.float32)
        for row, sample in zip(drawn, ids, strict=True):
            getattr(generator(self.seed, purpose, sample), kind)(dtype=np.float32, out=row)
        return torch.from_numpy(drawn).to(self.device)


def sample_ids(ids: Sequence[str] | None, count: int) -> list[str]:
    """Return the ids of samples, which are ``"0"``, ``"1"``, … where none are given."""
    return [str(i) for i in range(count)] if ids is None else list(ids)


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Seed torch's global CPU generator, from which weights are drawn, and restore it on exit."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def generator(*key: object) -> np.random.Generator:
    """Return a counter-based generator for a key of any printable parts."""
    return generator_of(repr(key))


def generator_of(text: str) -> np.random.Generator:
    """Return a counter-based generator for a text."""
    return np.random.Generator(np.random.Philox(_Key(_digest(text)[:16])))  # type: ignore[arg-type]


def chance(*key: object) -> float:  # in [0, 1)
    """Draw one uniform number for a key, ten times as fast as with a generator."""
    return (int.from_bytes(_digest(repr(key))[:8], "little") >> 11) / 2**53


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class _Key(ISeedSequence):
    """The key of a Philox generator.

    ``Philox(key=…)`` also asks the system for entropy that it does not use, which takes most of
    its time.
    """

    def __init__(self, key: bytes):
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[np.uint64]:
        return np.frombuffer(self.key, "<u8")
