"""Arrays in a file of numpy: images, and labels, ids and masks if there are any.

Images are mapped into memory, never loaded as a whole. Those of a compressed file are first
written to a temporary file.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from heatproof.data.catalog import source
from heatproof.data.source import Item, Source, file_stamp
from heatproof.errors import HeatproofError, join_limited

Array = np.ndarray[Any, Any]
IMAGE_ARRAYS = ("images", "x", "data", "test_images", "test_x")
LABEL_ARRAYS = ("labels", "y", "targets", "test_labels", "test_y")


@source(
    "numpy",
    summary="numpy:/path/file.npz, arrays images, labels (and ids, masks); or an .npy of images",
)
class NumpySource(Source):
    """Images of an .npz file, or of an .npy file without labels.

    Args:
        rest: The file. An .npz file has ``images``, and optionally ``labels``, ``ids`` and
            ``masks``; names of `IMAGE_ARRAYS` and `LABEL_ARRAYS` are found as well.

    Raises:
        HeatproofError: If it cannot be read, or has no images.
    """

    def __init__(self, rest: str):
        super().__init__()
        path = Path(rest)
        if not path.is_file():
            raise HeatproofError(f"there is no file {path.absolute()}")
        self.name = f"numpy:{path}"
        self._stamp = file_stamp(path)
        try:
            arrays = _open(path)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise HeatproofError(f"cannot read arrays from {path}: {error}") from None
        image_key = next((name for name in IMAGE_ARRAYS if name in arrays), None)
        if image_key is None:
            raise HeatproofError(
                f"{path} has the arrays {join_limited(arrays) or 'none'}; call that of the images "
                "images: np.savez(path, images=…, labels=…)"
            )
        self.images = arrays[image_key]
        if self.images.ndim not in (3, 4):
            raise HeatproofError(
                f"{path} has images of shape {self.images.shape}; they are (N, H, W, C) or "
                "(N, C, H, W)"
            )
        label_key = next((name for name in LABEL_ARRAYS if name in arrays), None)
        if label_key is not None:
            self.labels = arrays[label_key].tolist()
        else:
            self.labels = [None] * len(self.images)
        if "ids" in arrays:
            self.ids = [str(name) for name in arrays["ids"].tolist()]
        else:
            self.ids = [str(i) for i in range(len(self.images))]
        self.masks = arrays.get("masks")
        self.has_masks = self.masks is not None
        for name, values in (("labels", self.labels), ("ids", self.ids), ("masks", self.masks)):
            if values is not None and len(values) != len(self.images):
                raise HeatproofError(
                    f"{path} has {len(self.images)} images, but {len(values)} {name}"
                )

    def __len__(self) -> int:
        return len(self.images)

    def stamp(self, position: int) -> str:
        return f"{self._stamp} {position}"

    def read(self, position: int) -> Item:
        mask = None if self.masks is None else np.array(self.masks[position])
        return Item(np.array(self.images[position]), mask=mask)


def _open(path: Path) -> dict[str, Array]:
    """Map the arrays of a file into memory."""
    if path.suffix.lower() == ".npy":
        return {"images": np.load(path, mmap_mode="r", allow_pickle=False)}
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                continue
            with archive.open(member) as file:
                arrays[member.filename.removesuffix(".npy")] = _map(path, member, file)
    return arrays


def _map(path: Path, member: zipfile.ZipInfo, file: IO[bytes]) -> Array:
    """Map one array of an .npz file, in place if it is not compressed."""
    with tempfile.TemporaryFile(prefix="heatproof-") as copy:
        if member.compress_type == zipfile.ZIP_STORED:
            with path.open("rb") as whole:
                return _map_at(whole, _start(whole, member))
        shutil.copyfileobj(file, copy)
        return _map_at(copy, 0)  # the mapping keeps the deleted file


def _start(file: IO[bytes], member: zipfile.ZipInfo) -> int:
    """Return where the content of a member begins, behind its own header in the archive."""
    file.seek(member.header_offset + 26)
    lengths = file.read(4)
    name_length = int.from_bytes(lengths[:2], "little")
    extra_length = int.from_bytes(lengths[2:], "little")
    return member.header_offset + 30 + name_length + extra_length


def _map_at(file: IO[bytes], start: int) -> Array:
    file.seek(start)
    version = np.lib.format.read_magic(file)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:
        raise ValueError(f"version {version} of the .npy format")
    shape, is_fortran, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("it has Python objects, which are not read; save numbers or texts")
    if 0 in shape:
        return np.empty(shape, dtype)
    order: Literal["F", "C"] = "F" if is_fortran else "C"
    opened: Any = file
    return np.memmap(opened, dtype, "r", file.tell(), shape, order)
