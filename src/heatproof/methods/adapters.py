"""Adapters for methods that are not functions: objects such as Captum's, and maps on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import load_file
from torch import Tensor

from heatproof.data.folder import crop_middle
from heatproof.errors import HeatproofError
from heatproof.files import content_hash
from heatproof.methods.notes import MapNotes
from heatproof.userfile import PREFIX

SUFFIXES = (".npy", ".npz", ".safetensors")
PICTURES = (".png", ".PNG")


def method_from_object(explainer: Any) -> Callable[..., Tensor]:
    """Make a method of an object with an ``attribute`` method, such as one of Captum's.

    Args:
        explainer: The object; it explains the network that it was made with.

    Returns:
        A function that can be registered as a method. It raises a HeatproofError when it is called
        for another network.
    """

    def attribute(model: Any, x: Tensor, target: Tensor, *, rng: Any) -> Tensor:
        network = getattr(explainer, "forward_func", None)
        if isinstance(network, torch.nn.Module) and network is not model.root.module:
            raise HeatproofError(
                f"{attribute.__name__} was made with another network than {model.root.name}; "
                "make it with model.module"
            )
        maps = explainer.attribute(x.clone().requires_grad_(), target=target)
        return maps[0] if isinstance(maps, tuple) else maps

    attribute.__name__ = attribute.__qualname__ = type(explainer).__name__
    attribute.__doc__ = f"{type(explainer).__module__}.{type(explainer).__qualname__}"
    return attribute


def is_map_file(name: str) -> bool:
    """Return whether a name is that of a file of maps, or of a folder of them."""
    folder = name.removeprefix(PREFIX)
    # os.path.isdir takes any name; Path.is_dir raises an error for one that is too long.
    is_folder = folder not in ("", name) and os.path.isdir(folder)
    return is_folder or name.endswith(SUFFIXES)


def method_from_folder(folder: Path) -> tuple[Callable[..., Tensor], str]:
    """Make a method that reads maps from 8-bit or 16-bit grey pictures, one per sample.

    The map of the sample ``n01440764/photo.JPEG`` is ``n01440764/photo.png`` in the folder. As a
    picture has no sign, its maps are positive. A picture of the size of the original image is
    resized and cropped like the image, by the nearest pixel; one of the model's size is taken as it
    is.

    Args:
        folder: The folder.

    Returns:
        The method, and a hash of names, sizes and times of the files.

    Raises:
        HeatproofError: If there is no picture in the folder.
    """
    files = sorted(p for p in folder.rglob("*") if p.suffix in PICTURES)
    if not files:
        raise HeatproofError(f"there is no .png file in {folder.absolute()}")
    stats = ((p.relative_to(folder).as_posix(), p.stat()) for p in files)
    digest = content_hash(repr([(name, s.st_size, s.st_mtime_ns) for name, s in stats]))
    by_stem = {p.relative_to(folder).with_suffix("").as_posix(): p for p in files}

    def pictured(model: Any, x: Tensor, target: Tensor, *, rng: Any, notes: MapNotes) -> Tensor:
        maps = torch.zeros(len(x), *x.shape[2:])
        for row, sample in enumerate(rng.ids):
            stem = sample.rpartition(".")[0] or sample
            path = by_stem.get(sample) or by_stem.get(stem)
            if path is None:
                notes.add_missing(row, f"{folder.name} has no {stem}.png")
                continue
            maps[row] = _picture(path, model.root.size, model.root.resize)
            text = f"no class named in {folder.name}: assumed to explain class {int(target[row])}"
            notes.add(row, text)
        return maps.to(x.device)

    pictured.__name__ = pictured.__qualname__ = folder.name
    pictured.__doc__ = f"Maps from the pictures in {folder.name}."
    return pictured, digest


def _picture(path: Path, size: int, resize: int) -> Tensor:  # (size, size)
    """Read a grey picture as a map in [0, 1], fitted to the model like an image."""
    try:
        with Image.open(path, formats=("PNG",)) as image:
            image.load()
            largest = 65535.0 if image.mode.startswith("I") else 255.0
            grey = image if image.mode.startswith("I") else image.convert("L")
            fitted = crop_middle(grey, size, resize, Image.Resampling.NEAREST)
            return torch.from_numpy(np.asarray(fitted).astype(np.float32)) / largest
    except (OSError, ValueError, SyntaxError) as error:
        raise HeatproofError(f"cannot read a map from {path}: {error}") from None


def method_from_maps(path: Path) -> tuple[Callable[..., Tensor], str]:
    """Make a method that looks up maps on disk by sample id.

    Args:
        path: An .npz or .safetensors file with a map per sample id, or an .npy file with the ids in
            a .txt file of the same name, one per line. An id may be followed by a tab and the index
            of the class that the map explains; a sample may have maps for several classes.

    Returns:
        The method, and the hash of the files.

    Raises:
        HeatproofError: If there is no such file, or it cannot be read.
    """
    if not path.is_file():
        raise HeatproofError(f"there is no file {path.absolute()}")
    ids_path = path.with_suffix(".txt")
    parts = [path, ids_path] if path.suffix == ".npy" and ids_path.is_file() else [path]
    digest = content_hash(part.read_bytes() for part in parts)
    maps_by_target = _by_target(path, _read(path, digest))

    def stored(model: Any, x: Tensor, target: Tensor, *, rng: Any, notes: MapNotes) -> Tensor:
        found: list[np.ndarray | None] = []
        for row, (sample, wanted) in enumerate(zip(rng.ids, target.tolist(), strict=True)):
            of_sample = maps_by_target.get(sample, {})
            found.append(of_sample.get(wanted, of_sample.get(None)))
            if found[row] is None:
                notes.add_missing(row, _why_missing(path, maps_by_target, sample, wanted))
            elif wanted not in of_sample:
                notes.add(row, f"no class named in {path.name}: assumed to explain class {wanted}")
        blank = np.zeros_like(next((m for m in found if m is not None), np.zeros((1, 1))))
        maps = [torch.from_numpy(blank if m is None else m).float() for m in found]
        return torch.stack(maps).to(x.device)

    stored.__name__ = stored.__qualname__ = path.stem
    stored.__doc__ = f"Maps from {path.name}."
    return stored, digest


MapsByTarget = dict[str, dict[int | None, np.ndarray]]  # id -> class, or None: not named -> map


def _by_target(path: Path, maps: Mapping[str, np.ndarray]) -> MapsByTarget:
    """Arrange maps by sample id and class; see ``method_from_maps`` for the keys."""
    arranged: MapsByTarget = {}
    for key, values in maps.items():
        sample, tab, target = key.rpartition("\t")
        if tab and not target.isdecimal():
            raise HeatproofError(
                f"{path.name}: after the tab stands the index of a class, such as 3; "
                f"got {target!r} for {sample}"
            )
        of_sample = arranged.setdefault(sample if tab else key, {})
        of_sample[int(target) if tab else None] = values
    return arranged


def _why_missing(path: Path, maps: MapsByTarget, sample: str, wanted: int) -> str:
    if sample not in maps:
        return f"no map was saved for this sample; {path.name} has ids like {next(iter(maps), '–')}"
    classes = ", ".join(str(target) for target in maps[sample])
    return f"the saved map explains class {classes}, not the class {wanted} that is evaluated"


@cache
def _read(path: Path, digest: str) -> Mapping[str, np.ndarray]:
    """Read maps ``(h, w)`` or ``(C, h, w)`` by sample id, once per hash of the file."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        maps = np.load(path, allow_pickle=False)
        if path.suffix == ".npz":
            return dict(maps)
    except (ValueError, OSError, EOFError) as error:
        raise HeatproofError(f"cannot read maps from {path}: {error}") from error
    ids_path = path.with_suffix(".txt")
    if not ids_path.is_file():
        raise HeatproofError(
            f"{path.name} does not say which samples its maps belong to; "
            f"write the sample ids, one per line, to {ids_path.name}"
        )
    ids = ids_path.read_text(encoding="utf-8").split("\n")
    ids = ids[:-1] if ids and not ids[-1] else ids
    if len(ids) != len(maps):
        raise HeatproofError(
            f"{path.name} has {len(maps)} maps, but {ids_path.name} {len(ids)} ids"
        )
    return dict(zip(ids, maps, strict=True))
