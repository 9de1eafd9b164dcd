"""Maps on disk as methods: one file for all samples, or a folder with one file per sample."""

from __future__ import annotations

import os
import re
import stat
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from heatproof.data.images import MOST_PIXELS, check_pixels, crop_middle
from heatproof.errors import HeatproofError
from heatproof.files import content_hash
from heatproof.methods.notes import MapNotes
from heatproof.models.hashes import known_hashes
from heatproof.text import counted
from heatproof.userfile import PREFIX

SUFFIXES = (".npy", ".npz", ".safetensors")
PICTURES = (".png", ".PNG")
MOST_BYTES = 8 * MOST_PIXELS  # of a map: one channel of double precision, several of single
_CLASS_IN_FILE_NAME = re.compile(r"(?P<stem>.+)\.class(?P<target>\d+)")

MapsByTarget = dict[str, dict[int | None, Any]]  # id -> class, or None: not named -> map or file


def is_map_file(name: str) -> bool:
    """Return whether a name is that of a file of maps, or of a folder of them."""
    return name.endswith(SUFFIXES) or is_folder(name)


def is_folder(name: str) -> bool:
    """Return whether ``file:path`` names a folder."""
    try:
        path = name.removeprefix(PREFIX).strip()
        return name.startswith(PREFIX) and path != "" and Path(path).is_dir()
    except (OSError, ValueError):  # no path at all, such as a name of 300 letters
        return False


def method_from_folder(folder: Path) -> tuple[Callable[..., Tensor], str]:
    """Make a method that reads maps from a folder, one file per sample.

    The map of the sample ``n01440764/photo.JPEG`` is ``n01440764/photo`` with the suffix .npy, .npz
    (one array), .safetensors (one tensor) or .png; ``photo.class3.npy`` explains class 3. An array
    is a map ``(h, w)`` or ``(C, h, w)``. A picture is grey, of 8 or 16 bits; as it has no sign, its
    maps are positive. A file that cannot be read is a missing map. A picture of the size of the
    original image is resized and cropped like the image, by the nearest pixel; one of the model's
    size is taken as it is.

    Args:
        folder: The folder.

    Returns:
        The method, and a hash of the names and the content of the files.

    Raises:
        HeatproofError: If there is no map in the folder, or a sample has two.
    """
    files = sorted(p for p in folder.rglob("*") if p.suffix in (*SUFFIXES, *PICTURES))
    if not files:
        raise HeatproofError(
            f"there is no .png file in {folder.absolute()}, and no .npy, .npz or .safetensors file"
        )
    names = [path.relative_to(folder).as_posix() for path in files]
    digest = content_hash(repr(list(zip(names, known_hashes(files), strict=True))))
    files_by_target = _files_by_target(folder, files)

    def read(model: Any, x: Tensor, target: Tensor, *, rng: Any, notes: MapNotes) -> Tensor:
        def fitting(path: Path) -> Tensor:
            if path.suffix in PICTURES:
                return _picture(path, model.root.size, model.root.resize)
            return torch.from_numpy(_single(path)).float()

        names = [_without_suffix(i) if i not in files_by_target else i for i in rng.ids]
        maps: list[Tensor | None] = []
        for row, path in enumerate(_look_up(folder, files_by_target, names, target, notes)):
            try:
                maps.append(None if path is None else fitting(path))
            except HeatproofError as error:  # the others of its batch have maps
                maps.append(None)
                notes.add_missing(row, str(error))
        return _stacked(folder, maps).to(x.device)

    read.__name__ = read.__qualname__ = folder.name
    read.__doc__ = f"Maps from the files in {folder.name}."
    return read, digest


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
    try:
        there, is_file = path.exists(), path.is_file()
    except (OSError, ValueError):
        there = is_file = False
    if not is_file:
        absolute = path.absolute()
        what = f"{absolute} is not a regular file" if there else f"there is no file {absolute}"
        raise HeatproofError(what)
    ids_path = path.with_suffix(".txt")
    _check_file(path)
    parts = [path, ids_path] if path.suffix == ".npy" and ids_path.is_file() else [path]
    digest = content_hash(part.read_bytes() for part in parts)
    maps_by_target = _maps_by_target(path, _read(path, digest))

    def stored(model: Any, x: Tensor, target: Tensor, *, rng: Any, notes: MapNotes) -> Tensor:
        found = _look_up(path, maps_by_target, rng.ids, target, notes)
        maps = [None if m is None else torch.from_numpy(m).float() for m in found]
        return _stacked(path, maps).to(x.device)

    stored.__name__ = stored.__qualname__ = path.stem
    stored.__doc__ = f"Maps from {path.name}."
    return stored, digest


# By sample and class


def _files_by_target(folder: Path, files: list[Path]) -> MapsByTarget:
    """Arrange files by sample and class; see ``method_from_folder`` for their names."""
    arranged: MapsByTarget = {}
    for path in files:
        stem = path.relative_to(folder).with_suffix("").as_posix()
        match = _CLASS_IN_FILE_NAME.fullmatch(stem)
        target = int(match["target"]) if match else None
        of_sample = arranged.setdefault(match["stem"] if match else stem, {})
        if target in of_sample:
            raise HeatproofError(
                f"{folder.name} has two maps of one sample: {of_sample[target].name} and "
                f"{path.name}; remove one"
            )
        of_sample[target] = path
    return arranged


def _maps_by_target(path: Path, maps: Mapping[str, np.ndarray]) -> MapsByTarget:
    """Arrange maps by sample id and class; see ``method_from_maps`` for the keys."""
    arranged: MapsByTarget = {}
    for key, values in maps.items():
        sample, tab, target = key.rpartition("\t")
        if tab and not (target.isascii() and target.isdecimal()):
            raise HeatproofError(
                f"{path.name}: after the tab stands the index of a class, such as 3; "
                f"got {target!r} for {sample}"
            )
        of_sample = arranged.setdefault(sample if tab else key, {})
        of_sample[int(target) if tab else None] = values
    return arranged


def _look_up(
    path: Path, saved: MapsByTarget, samples: Any, target: Tensor, notes: MapNotes
) -> list[Any]:
    """Return the map of each sample and class, or None, with a note on what is missing."""
    found: list[Any] = []
    for row, (sample, wanted) in enumerate(zip(samples, target.tolist(), strict=True)):
        of_sample = saved.get(sample, {})
        found.append(of_sample.get(wanted, of_sample.get(None)))
        if found[row] is None:
            notes.add_missing(row, _why_missing(path, saved, sample, wanted))
        elif wanted not in of_sample:
            notes.add(row, f"no class named in {path.name}: assumed to explain class {wanted}")
    return found


def _why_missing(path: Path, saved: MapsByTarget, sample: str, wanted: int) -> str:
    if sample not in saved:
        known = next(iter(saved), "–")
        return f"no map was saved for this sample; {path.name} has ids like {known}"
    classes = ", ".join(str(target) for target in saved[sample])
    return f"the saved map explains class {classes}, not the class {wanted} that is evaluated"


def _without_suffix(sample: str) -> str:
    return sample.rpartition(".")[0] or sample


def _stacked(path: Path, maps: list[Tensor | None]) -> Tensor:  # (B, h, w) or (B, C, h, w)
    """Stack maps, with zeros in place of those that are missing."""
    shapes = sorted({tuple(m.shape) for m in maps if m is not None})
    if len(shapes) > 1:
        some = " and ".join(str(shape) for shape in shapes[:2])
        raise HeatproofError(
            f"the maps in {path.name} have different shapes, such as {some}; save them in one"
        )
    blank = torch.zeros(shapes[0] if shapes else (1, 1))
    return torch.stack([blank if m is None else m for m in maps])


# Reading


def _picture(path: Path, size: int, resize: int | str) -> Tensor:  # (size, size)
    """Read a grey picture as a map in [0, 1], fitted to the model like an image."""
    try:
        _check_file(path)
        with Image.open(path, formats=("PNG",)) as image:
            check_pixels(image.size, path.name)
            image.load()
            largest = 65535.0 if image.mode.startswith("I") else 255.0
            grey = image if image.mode.startswith("I") else image.convert("L")
            fitted = crop_middle(grey, size, resize, Image.Resampling.NEAREST)
            return torch.from_numpy(np.asarray(fitted).astype(np.float32)) / largest
    except HeatproofError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise HeatproofError(f"cannot read a map from {path}: {error}") from None


def _single(path: Path) -> np.ndarray:  # (h, w) or (C, h, w)
    """Read the only map of a file."""
    content = _content(path)
    if isinstance(content, np.ndarray):
        return _checked(path, path.stem, content)
    if len(content) != 1:
        raise HeatproofError(
            f"a file in a folder of maps has one map; {path} has {len(content)}: {list(content)}"
        )
    ((name, values),) = content.items()
    return _checked(path, name, values)


@cache
def _read(path: Path, digest: str) -> Mapping[str, np.ndarray]:
    """Read maps ``(h, w)`` or ``(C, h, w)`` by sample id, once per hash of the file."""
    content = _content(path)
    if not isinstance(content, np.ndarray):
        return {key: _checked(path, key, values) for key, values in content.items()}
    ids_path = path.with_suffix(".txt")
    if not ids_path.is_file():
        raise HeatproofError(
            f"{path.name} does not say which samples its maps belong to; "
            f"write the sample ids, one per line, to {ids_path.name}"
        )
    try:
        ids = ids_path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise HeatproofError(f"{ids_path.name} is not a text in UTF-8: {error}") from None
    ids = ids[:-1] if ids and not ids[-1] else ids
    if not content.ndim or len(ids) != len(content):
        count = len(content) if content.ndim else 0
        raise HeatproofError(
            f"{path.name} has {counted(count, 'map')}, but {ids_path.name} "
            f"{counted(len(ids), 'id')}"
        )
    return {key: _checked(path, key, m) for key, m in zip(ids, content, strict=True)}


def _check_file(path: Path) -> None:
    """Check that a path is that of a file: opening a pipe would wait for ever."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise HeatproofError(f"cannot read maps from {path}: it is not a regular file")


def _content(path: Path) -> np.ndarray | dict[str, np.ndarray]:
    """Read an array, or arrays by name. Pickled objects are not read, as they can run code."""
    try:
        _check_file(path)
        if path.suffix == ".npz":
            _check_archive(path)
        if path.suffix == ".safetensors":
            tensors = load_file(path)
            exotic = (torch.bfloat16,)  # what NumPy does not have
            return {k: (t.float() if t.dtype in exotic else t).numpy() for k, t in tensors.items()}
        if path.suffix == ".npy":
            return np.load(path, mmap_mode="r", allow_pickle=False)  # read when it has been checked
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            return content if isinstance(content, np.ndarray) else dict(content)
    except HeatproofError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise HeatproofError(
            f"cannot read maps from {path}: {error or type(error).__name__}"
        ) from error


def _check_archive(path: Path) -> None:
    """Check what the arrays of an archive unpack to: a few bytes can become gigabytes."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.file_size > MOST_BYTES:
                raise HeatproofError(
                    f"cannot read maps from {path}: {member.filename!r} unpacks to "
                    f"{member.file_size:,} bytes, more than a map has"
                )


def _checked(path: Path, name: str, values: Any) -> np.ndarray:
    """Check that something read from a file is a map.

    Raises:
        HeatproofError: If it is not.
    """
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiub":
        kind = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise HeatproofError(f"cannot read maps from {path}: {name!r} has no numbers but {kind}")
    if values.ndim not in (2, 3) or not values.size:
        raise HeatproofError(
            f"cannot read maps from {path}: {name!r} has shape {values.shape}; "
            "a map is (h, w) or (C, h, w)"
        )
    height, width = values.shape[-2:]
    if height * width > MOST_PIXELS or values.nbytes > MOST_BYTES:
        raise HeatproofError(
            f"cannot read maps from {path}: {name!r} of {height}×{width} pixels has more than "
            f"{MOST_PIXELS // 10**6} million, or {MOST_BYTES:,} bytes"
        )
    own = np.array(values) if isinstance(values, np.memmap) else values
    return own.astype(own.dtype.newbyteorder("="), copy=False)  # torch has no other order
