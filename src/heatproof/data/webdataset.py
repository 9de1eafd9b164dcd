"""WebDataset shards: tar files in which the files of a sample follow each other.

``key.jpg`` and ``key.cls`` belong together, or ``key.json`` with a label. The tar files are not
unpacked: an index has the position of every image.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from heatproof.data.base import UnreadableImage
from heatproof.data.catalog import source
from heatproof.data.images import SUFFIXES
from heatproof.data.objects import ITEM_KEYS
from heatproof.data.source import Item, Source, file_stamp, files_named
from heatproof.errors import HeatproofError

RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
MOST_LABEL_BYTES = 1_000_000


class Member(NamedTuple):
    """Position of a file in a shard."""

    shard: Path
    start: int
    length: int

    def read(self) -> bytes:
        """Read its content."""
        with self.shard.open("rb") as file:
            file.seek(self.start)
            return file.read(self.length)


@source(
    "webdataset",
    summary="webdataset:/path/shard-{000..003}.tar, with key.jpg and key.cls or key.json",
)
class WebDatasetSource(Source):
    """The images of tar files.

    Args:
        rest: The tar files, such as ``/path/shard-{000..003}.tar``, or a folder of them.

    Raises:
        HeatproofError: If they are missing, broken, or have no images.
    """

    def __init__(self, rest: str):
        super().__init__()
        self.name = f"webdataset:{rest}"
        shards = expand(rest)
        self.images: list[Member] = []
        self.masks: list[Member | None] = []
        labels: list[object] = []
        keys: list[tuple[Path, str]] = []
        for shard in shards:
            for key, files in _index(shard).items():
                image = next((f for e, f in files.items() if f".{e}" in SUFFIXES), None)
                if image is None:
                    continue
                mask = next((f for e, f in files.items() if re.match(r"(mask|seg)\.", e)), None)
                self.images.append(image)
                self.masks.append(mask)
                labels.append(_label(files, f"{shard}: {key}"))
                keys.append((shard, key))
        if not self.images:
            raise HeatproofError(
                f"{self.name} has no images; a sample is key.jpg (or .png, .webp) and key.cls"
            )
        self.labels = labels
        self.has_masks = all(mask is not None for mask in self.masks)
        repeated = {key for key, count in Counter(key for _, key in keys).items() if count > 1}
        self.ids = [f"{s.name}/{key}" if key in repeated else key for s, key in keys]
        self._stamps = {shard: file_stamp(shard) for shard in shards}

    def __len__(self) -> int:
        return len(self.images)

    def describe(self, position: int) -> str:
        assert self.ids is not None
        return self.ids[position]

    def stamp(self, position: int) -> str:
        image = self.images[position]
        return f"{self._stamps[image.shard]} {image.start}"

    def read(self, position: int) -> Item:
        try:
            mask = self.masks[position] if self.has_masks else None
            content = self.images[position].read()
            return Item(content, mask=None if mask is None else mask.read())
        except OSError as error:
            raise UnreadableImage(f"{self.describe(position)}: {error.strerror}") from None


def _index(shard: Path) -> dict[str, dict[str, Member]]:
    """Return the files of a tar file by key and extension; their content is not read."""
    samples: dict[str, dict[str, Member]] = {}
    if not shard.is_file():
        raise HeatproofError(f"there is no file {shard.absolute()}")
    try:
        with tarfile.open(shard, "r:") as archive:
            for info in archive:
                folder, slash, file = info.name.rpartition("/")
                stem, _, extension = file.partition(".")
                if not info.isreg() or info.issparse() or not stem:
                    continue
                files = samples.setdefault(folder + slash + stem, {})
                files[extension.lower()] = Member(shard, info.offset_data, info.size)
                archive.members = []  # type: ignore[attr-defined]  # tarfile would keep them all
    except (tarfile.TarError, OSError) as error:
        raise HeatproofError(
            f"cannot read {shard} as a tar file: {error}. A compressed one is unpacked first: "
            f"gunzip {shard.name}"
        ) from None
    return samples


def _label(files: dict[str, Member], where: str) -> object:
    """Return the label in ``key.cls``, ``key.json`` or, without one, None."""
    if "cls" in files:
        text = _text(files["cls"], where).strip()
        return int(text) if text.isascii() and text.isdigit() else text
    if "json" not in files:
        return None
    try:
        content: Any = json.loads(_text(files["json"], where))
    except ValueError:
        raise HeatproofError(f"{where}.json is not valid JSON") from None
    if not isinstance(content, dict):
        return content
    return next((content[key] for key in ITEM_KEYS["label"] if key in content), None)


def _text(member: Member, where: str) -> str:
    if member.length > MOST_LABEL_BYTES:
        raise HeatproofError(f"{where} has a label file of {member.length} bytes")
    try:
        return member.read().decode()
    except UnicodeDecodeError:
        raise HeatproofError(f"{where} has a label file that is not text") from None


def expand(pattern: str) -> list[Path]:
    """Return the files that ``shard-{000..003}.tar`` or ``shard-*.tar`` stands for."""
    paths = [path for name in _without_ranges(pattern) for path in files_named(name, "*.tar")]
    if not paths:
        raise HeatproofError(f"there are no files {pattern}")
    return paths


def _without_ranges(pattern: str) -> Iterator[str]:
    """Yield a text with every number in place of each ``{000..003}``."""
    found = RANGE.search(pattern)
    if found is None:
        yield pattern
        return
    first, last = found.groups()
    for number in range(int(first), int(last) + 1):
        before = pattern[: found.start()] + str(number).zfill(len(first))
        for after in _without_ranges(pattern[found.end() :]):
            yield before + after
