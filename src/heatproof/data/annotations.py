"""Objects of images in files of annotations: COCO's JSON, and the XML of Pascal VOC and ImageNet.

A file from strangers is checked when it is opened: what is wrong with it is named at once.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

import numpy as np
from PIL import Image, ImageDraw

from heatproof.errors import HeatproofError
from heatproof.files import escape_name
from heatproof.text import counted, show

MOST_BYTES = 100 * 10**6
EDGES_AT_ONCE = 256  # of a polygon, in each row of the image
MOST_BYTES_OF_IMAGE = 10**6  # in the XML file of an image
SLACK = 1.0  # pixels by which a box may reach beyond its image: tools round differently
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Region:
    """One object, or a crowd of them.

    Attributes:
        name: The name of its class.
        box: Its box in pixels of the original image.
        outline: Polygons as flat lists of coordinates, or COCO's run lengths; empty: the box.
    """

    name: str
    box: Box
    outline: Sequence[Sequence[float]] | Mapping[str, Any] = ()

    def draw(self, canvas: Image.Image, as_box: bool = False) -> None:
        """Paint the pixels of the object white on a picture of the size of the image."""
        if as_box or not self.outline:
            left, top, right, bottom = map(round, self.box)
            corner = max(left, right - 1), max(top, bottom - 1)
            ImageDraw.Draw(canvas).rectangle(((left, top), corner), fill=255)
        elif isinstance(self.outline, Mapping):
            _paste(_run_lengths(self.outline, canvas.size), canvas)
        else:
            for polygon in self.outline:
                _paste(_inside_polygon(polygon, canvas.size), canvas)

    @property
    def area(self) -> float:
        """The area of its box."""
        return (self.box[2] - self.box[0]) * (self.box[3] - self.box[1])


@dataclass(frozen=True)
class AnnotatedImage:
    """Size of an image, (width, height), and its objects."""

    size: tuple[int, int]
    regions: tuple[Region, ...]


def read_annotations(path: Path) -> dict[str, AnnotatedImage]:
    """Read the objects of images, by the image's path without its suffix.

    Args:
        path: A JSON file of COCO, an XML file of Pascal VOC, or a folder of XML files.

    Raises:
        HeatproofError: If something in it is not as it should be; empty boxes are left out with a
            warning.
    """
    files = sorted(path.rglob("*.xml")) if path.is_dir() else [path]
    if not files:
        raise HeatproofError(f"there is no .xml file in {path}; masks are .png files")
    read = _coco if path.suffix.lower() == ".json" else _voc
    empty = [0]
    found: dict[str, AnnotatedImage] = {}
    for file in files:
        where = escape_name(file.name)
        for name, image in read(_content(file, where), file, path, where, empty):
            if name in found:
                raise HeatproofError(f"{where}: {show(name)} has two entries; remove one")
            found[name] = image
    if empty[0]:
        boxes = counted(empty[0], "box", "boxes")
        warnings.warn(f"{escape_name(str(path))}: {boxes} without area left out", stacklevel=4)
    return found


def _content(file: Path, where: str) -> bytes:
    try:
        size = file.stat().st_size
        most = MOST_BYTES if file.suffix.lower() == ".json" else MOST_BYTES_OF_IMAGE
        if size > most:
            raise HeatproofError(
                f"{where} has {size / 1e6:.0f} MB of annotations, and at most {most / 1e6:.0f} MB "
                "are read; keep the entries of the images that are evaluated"
            )
        return file.read_bytes()
    except OSError as error:
        raise HeatproofError(f"{escape_name(str(file))}: {error.strerror}") from None


def _coco(
    content: bytes, file: Path, root: Path, where: str, empty: list[int]
) -> Iterator[tuple[str, AnnotatedImage]]:
    try:
        tables = json.loads(content)
        images = {entry["id"]: entry for entry in tables["images"]}
        names = {entry["id"]: str(entry["name"]) for entry in tables["categories"]}
        annotations = list(tables["annotations"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise HeatproofError(
            f"{where} is not a file of COCO annotations, JSON with images, annotations and "
            f"categories: {type(error).__name__}: {error}"
        ) from None
    regions: dict[Any, list[Region]] = {key: [] for key in images}
    sizes = {key: _size(image, f"{where}, image {show(key)}") for key, image in images.items()}
    for number, entry in enumerate(annotations):
        here = f"{where}, annotation {number}"
        if not isinstance(entry, dict) or entry.get("image_id") not in regions:
            raise HeatproofError(f"{here}: image_id is not that of an image of the file")
        if entry.get("category_id") not in names:
            raise HeatproofError(
                f"{here}: its class {show(entry.get('category_id'))} is not in categories; add it"
            )
        key = entry["image_id"]
        outline = _outline(entry.get("segmentation") or (), sizes[key], here)
        left, top, width, height = _numbers(entry.get("bbox"), here, "bbox: [x, y, width, height]")
        box = left, top, left + width, top + height
        checked = _checked(box, sizes[key], here, "a box is [x, y, width, height]", empty)
        if checked is not None:
            regions[key].append(Region(names[entry["category_id"]], checked, outline))
    for key, image in images.items():
        name = Path(str(image.get("file_name", key))).with_suffix("").as_posix()
        yield name, AnnotatedImage(sizes[key], tuple(regions[key]))


def _voc(
    content: bytes, file: Path, root: Path, where: str, empty: list[int]
) -> Iterator[tuple[str, AnnotatedImage]]:
    tree = _xml(content, where)
    sides = {name: tree.findtext(f"size/{name}") for name in ("width", "height")}
    size = _size(sides, where)
    regions = []
    for number, entry in enumerate(tree.iter("object")):
        here = f"{where}, object {number}"
        name = entry.findtext("name")
        if not name:
            raise HeatproofError(f"{here} has no class; write it as <name>…</name>")
        corners = [entry.findtext(f"bndbox/{end}") for end in ("xmin", "ymin", "xmax", "ymax")]
        left, top, right, bottom = _numbers(corners, here, "bndbox: xmin, ymin, xmax and ymax")
        box = left - 1, top - 1, right, bottom  # pixels are counted from 1
        checked = _checked(box, size, here, "xmin ≤ xmax and ymin ≤ ymax", empty)
        if checked is not None:
            regions.append(Region(name.strip(), checked))
    relative = file.relative_to(root) if file != root else Path(file.name)
    yield relative.with_suffix("").as_posix(), AnnotatedImage(size, tuple(regions))


def _xml(content: bytes, where: str) -> ElementTree.Element:
    """Parse XML without a document type, which could define entities that fill the memory."""

    def refuse(*_: object) -> None:
        raise HeatproofError(
            f"{where} declares a document type, which annotations do not need and which can fill "
            "the memory; remove the line <!DOCTYPE …>"
        )

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(content, True)
        return ElementTree.fromstring(content)
    except (expat.ExpatError, ElementTree.ParseError, ValueError, RecursionError) as error:
        raise HeatproofError(f"{where} is not XML: {error}") from None


def _size(entry: Any, where: str) -> tuple[int, int]:
    try:
        width, height = (int(entry[side]) for side in ("width", "height"))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise HeatproofError(f"{where}: width and height of the image are missing") from None
    if not 0 < width * height <= 10**8 or width < 0:
        raise HeatproofError(f"{where}: an image of {width}×{height} px cannot be")
    return width, height


def _numbers(values: Any, where: str, form: str) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        numbers = []
    if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
        raise HeatproofError(f"{where}: four numbers are expected in {form}; got {show(values)}")
    return numbers


def _checked(
    box: Box, size: tuple[int, int], where: str, form: str, empty: list[int]
) -> Box | None:
    """Return a box within its image; None if it has no area.

    Raises:
        HeatproofError: If its ends are reversed, or it lies outside the image.
    """
    left, top, right, bottom = box
    shown = f"{left:g}, {top:g} to {right:g}, {bottom:g}"
    if right < left or bottom < top:
        raise HeatproofError(f"{where}: the box {shown} is reversed; {form}")
    beyond = max(-left, -top, right - size[0], bottom - size[1])
    if beyond > SLACK:
        raise HeatproofError(
            f"{where}: the box {shown} lies outside its image of {size[0]}×{size[1]} px; boxes are "
            "in pixels of the original image"
        )
    if right == left or bottom == top:
        empty[0] += 1
        return None
    return max(0, left), max(0, top), min(size[0], right), min(size[1], bottom)


def _outline(found: Any, size: tuple[int, int], where: str) -> Any:
    """Check polygons or run lengths."""
    if isinstance(found, dict):
        _run_lengths(found, size, where)
        return found
    for polygon in found:
        numbers = isinstance(polygon, list) and all(isinstance(v, int | float) for v in polygon)
        if (
            not numbers
            or len(polygon) < 6
            or len(polygon) % 2
            or not all(map(math.isfinite, polygon))
        ):
            raise HeatproofError(
                f"{where}: a polygon is a list [x, y, x, y, …] of three points or more"
            )
    return found


def _run_lengths(found: Mapping[str, Any], size: tuple[int, int], where: str = "") -> np.ndarray:
    """Decode COCO's run lengths, column by column, to booleans ``(H, W)``."""
    width, height = size
    counts = found.get("counts")
    try:
        runs = _decompressed(counts) if isinstance(counts, str) else [int(c) for c in counts]  # type: ignore[union-attr]
    except (TypeError, ValueError, IndexError):
        runs = []
    if list(found.get("size", ())) != [height, width] or min(runs, default=-1) < 0:
        runs = []
    if sum(runs) != width * height:
        raise HeatproofError(
            f"{where}: its run lengths do not add up to an image of {width}×{height} px; write "
            'them as {"counts": […], "size": [height, width]}'
        )
    values = np.arange(len(runs)) % 2 == 1
    return np.repeat(values, runs).reshape(width, height).T


def _paste(inside: np.ndarray, canvas: Image.Image) -> None:
    canvas.paste(255, mask=Image.fromarray(np.uint8(inside) * np.uint8(255)))


def _inside_polygon(polygon: Sequence[float], size: tuple[int, int]) -> np.ndarray:
    """Return which pixels, ``(H, W)`` of bool, have their centre inside a polygon (even-odd)."""
    width, height = size
    x, y = np.asarray(polygon, dtype=float).reshape(-1, 2).T
    ends = np.stack([x, y, np.roll(x, -1), np.roll(y, -1)], 1)
    rows = np.arange(height)[:, None] + 0.5
    turns = np.zeros((height, width + 1), dtype=np.int64)  # edges that the row crosses there
    for start in range(0, len(ends), EDGES_AT_ONCE):
        x, y, next_x, next_y = ends[start : start + EDGES_AT_ONCE].T
        row, edge = np.nonzero((y <= rows) != (next_y <= rows))
        part = (row + 0.5 - y[edge]) / (next_y[edge] - y[edge])
        crossing = x[edge] + part * (next_x[edge] - x[edge])
        first = np.ceil(crossing - 0.5).clip(0, width).astype(np.int64)
        np.add.at(turns, (row, first), 1)
    return turns.cumsum(1)[:, :width] % 2 == 1


def _decompressed(text: str) -> list[int]:
    """Decode run lengths in text: 5 bits per letter, and differences from the third number on."""
    runs: list[int] = []
    position = 0
    while position < len(text):
        value = shift = 0
        while True:
            bits = ord(text[position]) - 48
            position += 1
            value |= (bits & 31) << shift
            shift += 5
            if not bits & 32:
                break
        if bits & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
    return runs
