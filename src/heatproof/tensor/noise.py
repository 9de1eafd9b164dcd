"""Seeded noise that belongs to a sample, not to a position in a batch: the same for any order, batch size, worker and device."""

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
    """Draws keyed by (seed, purpose, sample id), counter-based, on the CPU; the caller's global generators are never touched."""

    def __init__(self, seed: int, ids: Sequence[str], device: torch.device | str = "cpu"):
        self.seed, self.ids, self.device = seed, tuple(ids), torch.device(device)

    def normal(self, purpose: str, shape: Sequence[int]) -> Tensor:  # (B, *shape)
        return self._draw("standard_normal", purpose, self.ids, shape)

    def uniform(self, purpose: str, shape: Sequence[int]) -> Tensor:  # (B, *shape) in [0, 1)
        return self._draw("random", purpose, self.ids, shape)

    def once(self, purpose: str, shape: Sequence[int], kind: str = "uniform") -> Tensor:  # shape
        """One draw for all samples, where a paper shares it."""
        return self._draw(
            {"uniform": "random", "normal": "standard_normal"}[kind], purpose, ("",), shape
        )[0]

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
    """torch's own generator on the CPU begins at this seed, and is afterwards as it was: what draws weights knows no other."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def generator(*key: object) -> np.random.Generator:
    """A counter-based generator for a key of any printable parts."""
    return generator_of(repr(key))


def generator_of(text: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(_Key(_digest(text)[:16])))  # type: ignore[arg-type]


def chance(*key: object) -> float:  # in [0, 1)
    """A single draw for such a key, at a tenth of a generator's price."""
    return (int.from_bytes(_digest(repr(key))[:8], "little") >> 11) / 2**53


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class _Key(ISeedSequence):
    """`Philox(key=…)`, without the entropy that numpy asks the machine for beside it: that is most of its time."""

    def __init__(self, key: bytes):
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[np.uint64]:
        return np.frombuffer(self.key, "<u8")
