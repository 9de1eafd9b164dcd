"""A folder of images with masks or boxes of their objects, in files of their own.

``regions:ANNOTATIONS:folder:/images`` takes COCO's JSON, a folder of XML files of Pascal VOC or
ImageNet, or a folder of PNG masks; ``boxes:…`` takes the boxes also where there are outlines.
Regions are resized and cropped as their images are.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from heatproof.data.annotations import AnnotatedImage, Region, read_annotations
from heatproof.data.base import Sample, UnreadableImage
from heatproof.data.catalog import dataset, default_reference, load_data
from heatproof.data.folder import ImageFolder
from heatproof.data.images import fit, fit_mask, read_image
from heatproof.data.labels import class_index
from heatproof.data.source import image_stamps
from heatproof.errors import HeatproofError, join_limited
from heatproof.files import content_hash, escape_name
from heatproof.models.model import Model

T = TypeVar("T")
DRAWING = 2  # raised when regions are drawn in another way, so that stored scores are not reused


class RegionFolder:
    """Images of a folder with the pixels of their objects.

    An object counts if its class is that of the image; where no class of the annotations is one of
    the model's, all objects do. An image without a label has that of its largest object.

    Args:
        images: The images.
        path: The annotations.
        model: The model whose classes labels are.
        as_boxes: Whether boxes are used where there are outlines.

    Raises:
        HeatproofError: If the annotations are not as they should be, or name none of the images.
    """

    has_silhouettes = True

    def __init__(self, images: ImageFolder, path: Path, model: Model, as_boxes: bool = False):
        self.images = images
        self.as_boxes = as_boxes
        self.name = f"{'boxes' if as_boxes else 'regions'}:{escape_name(str(path))}:{images.name}"
        self.ids = images.ids
        masks = _mask_files(path) if path.is_dir() else {}
        self._masks = _matched(images, masks, path) if masks else {}
        found = {} if masks else _matched(images, read_annotations(path), path)
        self._found: Mapping[str, AnnotatedImage] = found
        self._classes = _class_numbers(self._found, model)
        self.labels: Sequence[int | None] = [
            self._label(sample, label)
            for sample, label in zip(images.ids, images.labels, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def fingerprints(self) -> list[str]:
        named = [self._masks[sample] for sample in self.ids if sample in self._masks]
        stamps = dict(zip(named, image_stamps(named), strict=True))
        own = []
        for sample, label in zip(self.ids, self.labels, strict=True):
            regions = [DRAWING, self.as_boxes, *self._regions(sample, label)]
            own.append(stamps.get(self._masks.get(sample, ""), content_hash(repr(regions))))
        pairs = zip(self.images.fingerprints, own, strict=True)
        return [f"{image} {regions}" for image, regions in pairs]

    def load(self, index: int) -> Sample:
        sample = self.ids[index]
        label = self.labels[index]
        picture = read_image(self.images.files[index], mode=self.images.mode)
        image = fit(picture, self.images.size, self.images.resize)
        mask = self._mask(sample, label, picture.size)
        shape = (image.shape[0], image.shape[1], image.shape[2])
        return Sample(sample, image, label, fit_mask(mask, sample, shape, self.images.resize))

    def _mask(self, sample: str, label: int | None, size: tuple[int, int]) -> Image.Image:
        """Return the pixels of the objects at the size of the original image."""
        mask = Image.new("L", size)
        given: tuple[int, int] = size
        if sample in self._masks:
            mask = _read_mask(Path(self._masks[sample]), sample)
            given = mask.size
        elif sample in self._found:
            given = self._found[sample].size
        if given != size:
            raise UnreadableImage(
                f"{sample}: its annotations are for {given[0]}×{given[1]} px, but the image has "
                f"{size[0]}×{size[1]}; annotate the original, or put the image that was "
                "annotated into the folder"
            )
        for region in self._regions(sample, label):
            region.draw(mask, self.as_boxes)
        return mask

    def _regions(self, sample: str, label: int | None) -> list[Region]:
        if sample not in self._found:
            return []
        regions = self._found[sample].regions
        if label is None or not self._classes:
            return list(regions)
        return [region for region in regions if self._classes.get(region.name) == label]

    def _label(self, sample: str, label: int | None) -> int | None:
        if label is not None or sample not in self._found:
            return label
        known = [r for r in self._found[sample].regions if r.name in self._classes]
        return self._classes[max(known, key=lambda r: r.area).name] if known else None


def _matched(images: ImageFolder, found: Mapping[str, T], path: Path) -> dict[str, T]:
    """Return what was found for each image, by its path or else by the name of its file.

    Raises:
        HeatproofError: If nothing is found for any image, or a name is that of several.
    """
    matched: dict[str, T] = {}
    by_name: dict[str, str] = {}
    for sample, file in zip(images.ids, images.files, strict=True):
        key = file.relative_to(images.root).with_suffix("").as_posix()
        if key not in found and file.stem in found:
            key = file.stem
            if key in by_name:
                raise HeatproofError(
                    f"{by_name[key]} and {sample} are both called {key}; write their paths below "
                    f"{images.root} in {escape_name(path.name)}"
                )
            by_name[key] = sample
        if key in found:
            matched[sample] = found[key]
    if not matched:
        raise HeatproofError(
            f"{escape_name(path.name)} has nothing on any image of {images.root}; it is about "
            f"{join_limited(list(found), 3)}, and the images are {join_limited(images.ids, 3)}"
        )
    return matched


def _class_numbers(found: Mapping[str, AnnotatedImage], model: Model) -> dict[str, int]:
    """Return the class of the model that each name in the annotations stands for, if any does."""
    names = dict.fromkeys(region.name for image in found.values() for region in image.regions)
    numbers: dict[str, int] = {}
    for name in names:
        try:
            numbers |= class_index([name], model.classes, model.n_classes, "")
        except HeatproofError:
            continue
    if names and not numbers:
        warnings.warn(
            f"no class of the annotations is one of {model.name}: {join_limited(list(names))}; all "
            "objects count. Give the model its class names: hp.Model(…, classes=[…])",
            stacklevel=4,
        )
    return numbers


def _mask_files(path: Path) -> dict[str, str]:
    """Return the PNG files of a folder by their path without the suffix."""
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() == ".png")
    return {file.relative_to(path).with_suffix("").as_posix(): str(file) for file in files}


def _read_mask(path: Path, sample: str) -> Image.Image:
    """Read a mask of two values: 0 outside the object, and any other inside."""
    try:
        with Image.open(path, formats=("PNG",)) as opened:
            if opened.width * opened.height > 10**8:
                raise UnreadableImage(f"{sample}: its mask has more than 100 million pixels")
            values = np.asarray(opened)
    except UnreadableImage:
        raise
    except Exception as error:  # a broken file can make a decoder raise anything
        raise UnreadableImage(f"{sample}: its mask {path.name} is broken: {error}") from None
    if values.ndim == 3:
        values = values[..., : min(3, values.shape[2])].max(2)
    levels = np.unique(values)
    if len(levels) > 2 or (len(levels) == 2 and levels[0] != 0):
        shown = ", ".join(map(str, levels[:4]))
        raise UnreadableImage(
            f"{sample}: its mask has the values {shown}{', …' if len(levels) > 4 else ''}; a mask "
            "is 0 outside the object and one other value inside"
        )
    return Image.fromarray(np.uint8(values != 0) * np.uint8(255))


def _open(kind: str, rest: str, model: Model | None, limit: int | None, seed: int) -> RegionFolder:
    annotations, separator, folder = rest.partition(":folder:")
    if not separator:
        raise HeatproofError(
            f"{kind}:{rest}: write the annotations and then the images, such as "
            f"{kind}:/boxes.json:folder:/images"
        )
    if model is None:
        raise HeatproofError(
            f"{kind}:{rest}: an image folder is fitted to a model; call load_data(…, model=model)"
        )
    path = Path(annotations)
    if not path.exists():
        raise HeatproofError(f"there is no file or folder {path.absolute()}")
    images = load_data(f"folder:{folder}", model, limit=limit, seed=seed)
    assert isinstance(images, ImageFolder)
    return RegionFolder(images, path, model, as_boxes=kind == "boxes")


def _register(kind: str, what: str) -> None:
    @dataset(
        kind,
        summary=f"{kind}:ANNOTATIONS:folder:/images, {what}",
        reference=lambda evaluated, model, seed: default_reference(evaluated.images, model, seed),
    )
    def opened(*, rest: str, model: Model | None, limit: int | None, seed: int) -> RegionFolder:
        return _open(kind, rest, model, limit, seed)


_register("regions", "objects in COCO's JSON, a folder of VOC's XML, or a folder of PNG masks")
_register("boxes", "the boxes of the same files")
