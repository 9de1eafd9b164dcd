"""Read images safely, and fit them to a model: files, bytes, PIL images, arrays and tensors.

This is the only place that opens image files. A file never starts another program, needs more
memory than `MOST_PIXELS` allow, or stops a run: what cannot be used is an `UnreadableImage`.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from heatproof.data.base import UnreadableImage
from heatproof.files import escape_name
from heatproof.models.preprocessing import Resize

# Only formats that Pillow decodes by itself: EPS, for example, would start Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"}
)
Size = int | tuple[int, int]  # the side of a square, or height and width
Mode = Literal["L", "RGB", "RGBA"]
MODE_BY_CHANNELS: dict[int, Mode] = {1: "L", 3: "RGB"}
MOST_PIXELS = 100_000_000  # of a file, and of an image after its shorter side is resized
RANGE_TOLERANCE = 1e-3  # beyond [0, 1], when a normalization is undone
BICUBIC_OVERSHOOT = 0.15  # beyond [0, 1]
LARGEST_NORMALIZED = 10  # larger floats are not normalized images

Normalization = tuple[Sequence[float], Sequence[float]]  # mean and std per channel


class WrongImage(UnreadableImage):
    """An item that is not an image as it should be, which is so for all items of a data set."""


def read_image(path: Path, transparency: bool = True, mode: Mode = "RGB") -> Image.Image:
    """Read an image file in a mode, by default as RGB.

    Args:
        path: The file.
        transparency: Whether transparent pixels become white; if not, their colours are used.
        mode: ``RGB``, ``L`` for grey (ITU-R 601 luma), or ``RGBA``, which keeps transparency.

    Raises:
        UnreadableImage: If it is not a regular file, broken, too large or animated, or its values
            have no known range.
    """
    return _decode(path, _regular(path), transparency, mode)


def _regular(path: Path) -> str:
    """Return the name of a regular file, as it is shown; raises UnreadableImage for others."""
    name = escape_name(path.name)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for ever
            raise UnreadableImage(f"{name}: is not a regular file")
    except OSError as error:
        raise UnreadableImage(f"{name}: {error.strerror}") from None
    return name


def image_size(path: Path) -> tuple[int, int]:
    """Return the width and height of an image file by its header; see `read_image`."""
    name = _regular(path)
    try:
        with Image.open(path, formats=FORMATS) as image:
            return image.size
    except Exception as error:
        raise UnreadableImage(f"{name}: {escape_name(str(error))}") from error


def read_bytes(content: bytes, name: str, mode: Mode = "RGB") -> Image.Image:
    """Read the bytes of an image file; see `read_image`."""
    return _decode(io.BytesIO(content), name, True, mode)


def _decode(file: Path | io.BytesIO, name: str, transparency: bool, mode: Mode) -> Image.Image:
    try:
        with Image.open(file, formats=FORMATS) as image:
            frames = getattr(image, "n_frames", 1)
            if frames > 1 and image.format != "MPO":  # phones put a preview behind the photo
                raise UnreadableImage(f"{name}: has {frames} frames; which one is meant?")
            check_pixels(image.size, name)
            image.load()
            return convert(image, name, transparency, mode)
    except UnreadableImage:
        raise
    except Exception as error:  # a broken file can make a decoder raise anything
        reason = escape_name(str(error).replace(str(file), name))
        raise UnreadableImage(f"{name}: {reason}") from error


def convert(
    image: Image.Image, name: str, transparency: bool = True, mode: Mode = "RGB"
) -> Image.Image:
    """Convert a PIL image of any mode; see `read_image`."""
    if image.mode.startswith("I;16"):
        deep = np.asarray(image).astype(np.float32)
        return Image.fromarray(np.uint8(np.round(deep / 257))).convert(mode)
    if image.mode in ("I", "F"):
        raise UnreadableImage(f"{name}: 32-bit pixels have no known range; save it as 8 or 16 bit")
    if transparency and image.has_transparency_data and mode != "RGBA":
        page = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(page, image.convert("RGBA")).convert(mode)
    return image.convert(mode)


def check_pixels(size: tuple[int, int], name: str) -> None:
    """Check the width and height of a picture; raises UnreadableImage if it is too large."""
    width, height = size
    if width * height > MOST_PIXELS:
        raise UnreadableImage(
            f"{name}: {width}×{height} pixels are more than {MOST_PIXELS // 10**6} million"
        )


def fit(image: Image.Image, size: Size, resize: int | str) -> Tensor:
    """Resize an image and crop the middle.

    Where height and width of the result differ, the image is resized until it covers a rectangle of
    the same shape, whose shorter side is `resize`. An image that already has the right size is
    taken as it is.

    Args:
        image: An image of C channels: one (mode L), three or four.
        size: Side of the result in pixels, or height and width.
        resize: Length of the shorter side before cropping, or text such as ``square bicubic`` (see
            `heatproof.models.preprocessing`).

    Returns:
        Pixels ``(C, H, W)`` in [0, 1].

    Raises:
        UnreadableImage: If it is so long and narrow that it would need too much memory.
    """
    return to_tensor(crop_middle(image, size, resize))


def to_tensor(image: Image.Image) -> Tensor:
    """Return the pixels of an 8-bit picture as a tensor ``(C, H, W)`` in [0, 1]."""
    pixels = np.asarray(image)
    channels_last = torch.from_numpy(pixels.copy()).reshape(*pixels.shape[:2], -1)
    return channels_last.permute(2, 0, 1).float() / 255


def crop_middle(
    image: Image.Image, size: Size, resize: int | str, resample: Image.Resampling | None = None
) -> Image.Image:
    """Resize a picture and crop the middle; see `fit`. ``resample`` replaces the interpolation."""
    height, width = (size, size) if isinstance(size, int) else size
    if image.size == (width, height):
        return image
    shorter = min(height, width)
    how = Resize.parse(resize, shorter)
    resample = Image.Resampling[how.interpolation.upper()] if resample is None else resample
    covered = (round(how.side * width / shorter), round(how.side * height / shorter))
    # The side that has to grow most decides; the other one reaches beyond what is covered.
    along = 0 if covered[0] * image.height >= covered[1] * image.width else 1
    scaled = (int(covered[along] * side / image.size[along]) for side in image.size)
    across, down = (max(least, side) for least, side in zip(covered, scaled, strict=True))
    if how.square:
        across, down = covered
    check_pixels((across, down), f"an image of {image.width}×{image.height}, resized")
    left = how.border(across, width)
    top = how.border(down, height)
    resized = image.resize((across, down), resample)
    return resized.crop((left, top, left + width, top + height))


def fit_any(
    image: object,
    name: str,
    shape: tuple[int, int, int] | None = None,
    resize: int | str = 0,
    normalized: Normalization | None = None,
) -> Tensor:
    """Fit any kind of image to a model.

    Pictures are resized and cropped: PIL images, files, bytes, and uint8 arrays or tensors. Floats
    are taken as they are, as a user's own transform has made them.

    Args:
        image: The image.
        name: What it is called in messages.
        shape: Channels, height and width that the model takes; None leaves the image as it is.
        resize: Length that the shorter side of a picture is resized to before it is cropped.
        normalized: Mean and std of the normalization that is undone.

    Returns:
        Pixels ``(C, H, W)`` in [0, 1].

    Raises:
        WrongImage: If it is not an image as it should be; the message says what to change.
        UnreadableImage: If it cannot be decoded.
    """
    try:
        channels = 3 if shape is None else shape[0]
        picture = as_picture(image, name, MODE_BY_CHANNELS.get(channels, "RGB"))
        if isinstance(picture, Image.Image):
            if channels not in MODE_BY_CHANNELS:
                raise WrongImage(
                    f"{name} is a picture, but the model takes {channels} channels; give float "
                    f"tensors ({channels}, H, W) in [0, 1]"
                )
            if normalized is not None:
                raise WrongImage(
                    f"{name} is a picture of 8 bits, which is not normalized; leave out normalized"
                )
            if shape is None:
                return to_tensor(picture)
            return fit(picture, shape[1:], resize)
        floats = picture if normalized is None else _undo(picture, normalized, name)
        _check_range(floats, name)
        _check_shape(floats, shape, name)
        return floats.clamp(0, 1) if normalized is not None else floats
    except UnreadableImage:
        raise
    except Exception as error:  # one image never stops a run
        raise UnreadableImage(f"{name}: {type(error).__name__}: {error}") from error


def as_picture(image: object, name: str, mode: Mode = "RGB") -> Image.Image | Tensor:
    """Return a picture in a mode, or floats as a tensor ``(C, H, W)``."""
    if isinstance(image, Image.Image):
        check_pixels(image.size, name)
        return convert(image, name, mode=mode)
    if isinstance(image, str | os.PathLike):
        return read_image(Path(image), mode=mode)
    if isinstance(image, bytes | bytearray | memoryview):
        return read_bytes(bytes(image), name, mode)
    if isinstance(image, Mapping) and image.keys() & {"bytes", "path"}:  # as Hugging Face stores it
        content = image.get("bytes")
        if content:
            return read_bytes(content, name, mode)
        return read_image(Path(image["path"]), mode=mode)
    if isinstance(image, np.ndarray):
        return _from_array(torch.from_numpy(_plain(image)), name, mode, channels_last=True)
    if isinstance(image, Tensor):
        return _from_array(image.detach().cpu(), name, mode, channels_last=False)
    raise WrongImage(
        f"{name} is of type {type(image).__name__}, which is not an image; images are PIL images, "
        "paths, bytes of image files, uint8 arrays, or float tensors (C, H, W) in [0, 1]"
    )


def _plain(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array that torch can take: in memory, writable, in this machine's byte order."""
    return np.array(array, dtype=array.dtype.newbyteorder("="))


def _from_array(pixels: Tensor, name: str, mode: Mode, channels_last: bool) -> Image.Image | Tensor:
    """Return uint8 as a picture, floats as (C, H, W).

    Args:
        pixels: ``(H, W)``, ``(C, H, W)`` or ``(H, W, C)``.
        name: What it is called in messages.
        mode: The mode of the picture.
        channels_last: Whether the last dimension is that of the channels if both could be.
    """
    shape = "×".join(map(str, pixels.shape))
    if pixels.ndim == 4 and len(pixels) == 1:
        raise WrongImage(
            f"{name} has the shape {shape}, a batch of one image; return image[0] (of a processor: "
            'processor(…)["pixel_values"][0])'
        )
    if pixels.ndim not in (2, 3) or 0 in pixels.shape:
        raise WrongImage(f"{name} has the shape {shape}; images are (C, H, W) or (H, W, C)")
    if pixels.ndim == 3 and _is_channels_last(pixels.shape, channels_last):
        if pixels.is_floating_point() and not channels_last:
            raise WrongImage(
                f"{name} is a float tensor of {shape}, channels last; PyTorch has them first: "
                "image.permute(2, 0, 1)"
            )
        pixels = pixels.permute(2, 0, 1)
    if pixels.is_floating_point():
        return (pixels[None] if pixels.ndim == 2 else pixels).float()
    if pixels.dtype != torch.uint8:
        kind = str(pixels.dtype).removeprefix("torch.")
        raise WrongImage(
            f"{name} has pixels of type {kind}, whose range is not known; divide by the largest "
            "value that a pixel can have, to get floats in [0, 1]: image / 65535 for 16 bits"
        )
    if pixels.ndim == 3 and pixels.shape[0] not in (1, 3, 4):
        return pixels.float() / 255  # channels of some other kind
    array = pixels.numpy() if pixels.ndim == 2 else pixels.permute(1, 2, 0).squeeze(2).numpy()
    check_pixels((array.shape[1], array.shape[0]), name)
    return convert(Image.fromarray(np.ascontiguousarray(array)), name, mode=mode)


def _is_channels_last(shape: Sequence[int], by_default: bool) -> bool:
    first = shape[0] in (1, 3, 4)
    last = shape[-1] in (1, 3, 4)
    return last and (by_default or not first)


def _undo(floats: Tensor, normalized: Normalization, name: str) -> Tensor:
    mean, std = (torch.tensor(part, dtype=torch.float32).reshape(-1, 1, 1) for part in normalized)
    if len(mean) not in (1, len(floats)):
        raise WrongImage(f"{name} has {len(floats)} channels, and normalized a mean of {len(mean)}")
    image = floats * std + mean
    if image.min() < -RANGE_TOLERANCE or image.max() > 1 + RANGE_TOLERANCE:
        raise WrongImage(
            f"{name} has values from {image.min():.3g} to {image.max():.3g} after the "
            f"normalization is undone; normalized=(mean, std) are those of your "
            "transform's Normalize"
        )
    return image.clamp(0, 1)


def _check_range(floats: Tensor, name: str) -> None:
    low = float(floats.min())
    high = float(floats.max())
    if not np.isfinite(low + high):
        raise UnreadableImage(f"{name} has values that are not finite")
    if low >= 0 and high <= 1:
        return
    found = f"{name} has values from {low:.3g} to {high:.3g}"
    if low >= -BICUBIC_OVERSHOOT and high <= 1 + BICUBIC_OVERSHOOT:
        cure = "interpolation has left [0, 1] a little: add .clamp(0, 1) to the transform"
    elif low >= 0 and LARGEST_NORMALIZED < high <= 255:
        cure = "floats are in [0, 1]: divide them by 255, or return uint8"
    elif high <= LARGEST_NORMALIZED and low >= -LARGEST_NORMALIZED:
        cure = (
            "it looks normalized, which the model does itself: remove Normalize from the "
            "transform, or write hp.load_data(dataset, normalized=(mean, std)) with its numbers"
        )
    else:
        cure = "floats are in [0, 1], before any normalization"
    raise WrongImage(f"{found}; {cure}")


def _check_shape(image: Tensor, shape: tuple[int, int, int] | None, name: str) -> None:
    if shape is None or tuple(image.shape) == shape:
        return
    found, takes = ("×".join(map(str, s)) for s in (image.shape, shape))
    if image.shape[1:] == shape[1:]:
        cure = (
            "return image.expand(3, -1, -1)"
            if (len(image), shape[0]) == (1, 3)
            else f"return {shape[0]} channels"
        )
    else:
        cure = (
            f"add Resize and CenterCrop({tuple(shape[1:])}) to the transform, or remove it: "
            "PIL and uint8 images are resized and cropped to fit"
        )
    raise WrongImage(f"{name} is a float image of {found}, but the model takes {takes}; {cure}")


def fit_mask(
    mask: object, name: str, shape: tuple[int, int, int] | None = None, resize: int | str = 0
) -> Tensor:
    """Fit a mask to a model as `fit_any` does its image; pixels other than 0 are the object.

    Args:
        mask: A PIL image, a file, or an array or tensor ``(H, W)`` or ``(1, H, W)``.
        name: What it is called in messages.
        shape: Channels, height and width that the model takes; None leaves the mask as it is.
        resize: See `fit_any`.

    Returns:
        Booleans ``(H, W)``.

    Raises:
        UnreadableImage: If it is not such a mask.
    """
    try:
        if isinstance(mask, Tensor | np.ndarray):
            array = np.asarray(mask.detach().cpu()) if isinstance(mask, Tensor) else mask
            array = array[0] if array.ndim == 3 and len(array) == 1 else array
            if array.ndim != 2:
                found = "×".join(map(str, array.shape))
                raise WrongImage(f"{name} has a mask of {found}; masks are (H, W)")
            picture = Image.fromarray(np.uint8(array != 0) * np.uint8(255))
        elif isinstance(mask, Image.Image):
            picture = Image.fromarray(np.uint8(np.asarray(mask) != 0) * np.uint8(255))
        elif isinstance(mask, str | os.PathLike | bytes | Mapping):
            opened = as_picture(mask, name)
            assert isinstance(opened, Image.Image)
            picture = opened.convert("L")
        else:
            raise WrongImage(
                f"{name} has a mask of type {type(mask).__name__}; masks are PIL images, paths, or "
                "arrays (H, W)"
            )
        if shape is not None:
            picture = crop_middle(picture, shape[1:], resize, Image.Resampling.NEAREST)
        return torch.from_numpy(np.asarray(picture.convert("L")) > 0)
    except UnreadableImage:
        raise
    except Exception as error:
        raise UnreadableImage(f"{name}: mask: {type(error).__name__}: {error}") from error
