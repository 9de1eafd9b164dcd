"""A folder of images: one subfolder a class, or no labels at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from heatproof.data.base import Sample, UnreadableImage
from heatproof.errors import HeatproofError
from heatproof.tensor.noise import generator

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"})


class ImageFolder:
    """Images below `root` in a seeded random order, so that a smaller limit is a part of a larger one.

    Subfolders are classes: matched by name with `classes` where the model has names, else by sorted order. Images that lie in
    `root` itself have no label. An image's id is its path below `root`.
    """

    def __init__(
        self,
        root: Path,
        *,
        size: int,
        resize: int,
        classes: Sequence[str] | None = None,
        n_classes: int | None = None,
        limit: int | None = None,
        seed: int = 0,
    ):
        if not root.is_dir():
            raise HeatproofError(f"there is no folder {root.absolute()}")
        files = sorted(p for p in root.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        if not files:
            raise HeatproofError(f"there are no images in {root} (looked for {', '.join(sorted(SUFFIXES))})")
        self.name, self.root, self.size, self.resize, self.has_silhouettes = f"folder:{root}", root, size, resize, False
        index = _class_index(root, files, classes, n_classes)
        order = generator(seed, "folder order").permutation(len(files))[:limit]
        self.files = [files[i] for i in order]
        self.ids = [f.relative_to(root).as_posix() for f in self.files]
        self.labels = [index.get(f.relative_to(root).parts[0]) for f in self.files]
        self.fingerprints = [f"{s.st_size} {s.st_mtime_ns}" for s in (f.stat() for f in self.files)]

    def __len__(self) -> int:
        return len(self.ids)

    def load(self, index: int) -> Sample:
        image = read_image(self.files[index])
        return Sample(self.ids[index], fit(image, self.size, self.resize), self.labels[index])


def _class_index(root: Path, files: Sequence[Path], classes: Sequence[str] | None, n_classes: int | None) -> dict[str, int]:
    folders = sorted({parts[0] for f in files if len(parts := f.relative_to(root).parts) > 1})
    if not folders:
        return {}
    if classes is not None:
        known = {name: i for i, name in enumerate(classes)}
        strange = [f for f in folders if f not in known]
        if strange:
            raise HeatproofError(
                f"{len(strange)} of {len(folders)} subfolders of {root} are not classes of the model: {', '.join(strange[:5])}…; "
                f"its classes are named like {', '.join(classes[:3])}"
            )
        return {f: known[f] for f in folders}
    if n_classes is not None and len(folders) != n_classes:
        raise HeatproofError(
            f"{root} has {len(folders)} subfolders and the model {n_classes} classes without names, so labels cannot be matched; "
            "give the model its class names: hp.Model(…, classes=[…])"
        )
    return {f: i for i, f in enumerate(folders)}


def read_image(path: Path) -> Image.Image:
    """RGB; grey, palette, CMYK and 16-bit images have one clear meaning, transparency lies on white, an animation has no meaning."""
    try:
        with Image.open(path) as image:
            if (frames := getattr(image, "n_frames", 1)) > 1 and image.format != "MPO":  # phones put a preview behind the photo
                raise UnreadableImage(f"{path.name}: has {frames} frames; which one is meant?")
            image.load()
            if image.mode.startswith("I;16"):
                deep = np.asarray(image).astype(np.float32)
                return Image.fromarray(np.uint8(np.round(deep / 257))).convert("RGB")
            if image.mode in ("I", "F"):
                raise UnreadableImage(f"{path.name}: 32-bit pixels have no known range; save it as 8 or 16 bit")
            if image.has_transparency_data:
                page = Image.new("RGBA", image.size, "white")
                return Image.alpha_composite(page, image.convert("RGBA")).convert("RGB")
            return image.convert("RGB")
    except UnreadableImage:
        raise
    except Exception as error:  # a broken file can make a decoder raise anything
        raise UnreadableImage(f"{path.name}: {str(error).replace(str(path), path.name)}") from error


def fit(image: Image.Image, size: int, resize: int) -> torch.Tensor:  # (3, size, size) in [0, 1]
    """Shorter side to `resize`, then the middle; an image that has the size already is taken as it is."""
    if image.size == (size, size):
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255
    shorter = min(image.size)
    width, height = (max(resize, int(resize * side / shorter)) for side in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size)))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255
