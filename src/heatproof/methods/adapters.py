"""What users bring besides functions: objects with an `attribute` method, as Captum's, and maps that are on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import Tensor

from heatproof.errors import HeatproofError
from heatproof.files import content_hash

SUFFIXES = (".npy", ".npz", ".safetensors")


def attribution(thing: Any) -> Callable[..., Tensor]:
    """A Captum `Attribution` as a method. It explains the network it was made with."""

    def attribute(model: Any, x: Tensor, target: Tensor, *, rng: Any) -> Tensor:
        own = getattr(thing, "forward_func", None)
        if isinstance(own, torch.nn.Module) and own is not model.root.module:
            raise HeatproofError(
                f"{attribute.__name__} was made with another network than {model.root.name}; make it with model.module"
            )
        found = thing.attribute(x.clone().requires_grad_(), target=target)
        return found[0] if isinstance(found, tuple) else found

    attribute.__name__ = attribute.__qualname__ = type(thing).__name__
    attribute.__doc__ = f"{type(thing).__module__}.{type(thing).__qualname__}"
    return attribute


def is_map_file(name: str) -> bool:
    return name.endswith(SUFFIXES)


def maps_of(path: Path) -> tuple[Callable[..., Tensor], str]:
    """A method that looks its maps up by sample id, and the hash of what it reads."""
    if not path.is_file():
        raise HeatproofError(f"there is no file {path.absolute()}")
    beside = path.with_suffix(".txt")
    parts = [path, beside] if path.suffix == ".npy" and beside.is_file() else [path]
    code = content_hash(part.read_bytes() for part in parts)
    content = _read(path, code)

    def stored(model: Any, x: Tensor, target: Tensor, *, rng: Any) -> Tensor:
        if not any(sample in content for sample in rng.ids):
            raise HeatproofError(
                f"{path.name} has no map for {rng.ids[0]} and its neighbours; it has ids like {next(iter(content), '–')}"
            )
        shape = next(content[s] for s in rng.ids if s in content).shape
        found = [
            torch.from_numpy(content[s]) if s in content else torch.full(shape, torch.nan)
            for s in rng.ids
        ]
        return torch.stack([f.float() for f in found]).to(x.device)

    stored.__name__ = stored.__qualname__ = path.stem
    stored.__doc__ = f"Maps from {path.name}."
    return stored, code


@cache
def _read(path: Path, code: str) -> Mapping[str, np.ndarray]:
    """Sample id -> map (h, w) or (C, h, w). An .npy file has its ids beside it, one a line, in a .txt of the same name.

    Once for each content of the file, for which `code` stands.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = np.load(path, allow_pickle=False)
        if path.suffix == ".npz":
            return dict(found)
    except (ValueError, OSError, EOFError) as error:
        raise HeatproofError(f"cannot read maps from {path}: {error}") from error
    beside = path.with_suffix(".txt")
    if not beside.is_file():
        raise HeatproofError(
            f"{path.name} does not say whose maps it has; write the sample ids, one a line, to {beside.name}"
        )
    ids = beside.read_text(encoding="utf-8").split("\n")
    ids = ids[:-1] if ids and not ids[-1] else ids
    if len(ids) != len(found):
        raise HeatproofError(f"{path.name} has {len(found)} maps, but {beside.name} {len(ids)} ids")
    return dict(zip(ids, found, strict=True))
