"""The preprocessing of ``transformers`` networks, from their image processors and configurations.

Nothing of ``transformers`` is imported: a module's class says where it comes from.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from heatproof.errors import HeatproofError
from heatproof.models.preprocessing import Resize

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_FILTERS_BY_NUMBER = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # of Pillow
_CURE = (
    "give what you want instead, hp.Model(net, size=…, resize=…, mean=…, std=…), or prepared images"
)


class ModelFacts(NamedTuple):
    """Facts that a network states about itself; None where it says nothing."""

    size: int | None = None
    resize: int | str | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    classes: Sequence[str] | None = None


def is_pretrained(module: object) -> bool:
    """Return whether a module is a network of ``transformers``."""
    return any(
        kind.__name__ == "PreTrainedModel" and kind.__module__.startswith("transformers.")
        for kind in type(module).__mro__
    )


def facts_of(module: nn.Module, processor: Any = None) -> ModelFacts:
    """Return the preprocessing and the classes of a network.

    Args:
        module: Any network; only those of ``transformers`` have a configuration to read.
        processor: Its image processor, if there is one.

    Raises:
        HeatproofError: If the processor is not one of images, or makes images that are not square.
    """
    classes = None
    size = None
    if is_pretrained(module):
        config: Any = module.config
        classes = class_names(config)
        size = _side(getattr(config, "image_size", None))
    if processor is None:
        return ModelFacts(size=size, classes=classes)
    return _processed(processor, size)._replace(classes=classes)


def warn_of_defaults(name: str, module: nn.Module) -> None:
    """Warn that the mean and std of a ``transformers`` network are not known."""
    source = getattr(getattr(module, "config", None), "_name_or_path", "") or "…"
    save = ", or save the processor into that directory" if name == f"hf:{source}" else ""
    warnings.warn(
        f"the preprocessing of {name} is not known, so images are normalized with ImageNet's mean "
        "and std; give its image processor: hp.Model(net, processor=AutoImageProcessor."
        f'from_pretrained("{source}")){save}',
        stacklevel=3,
    )


def class_names(config: Any) -> tuple[str, ...] | None:
    """Return the class names of a configuration; None if they are mere numbers (LABEL_0)."""
    labels: Mapping[int, str] = getattr(config, "id2label", None) or {}
    names = tuple(str(labels[i]) for i in sorted(labels))
    if not names or all(re.fullmatch(r"LABEL_\d+", name) for name in names):
        return None
    return names


def _processed(processor: Any, image_size: int | None) -> ModelFacts:
    """Read the settings of an image processor."""
    if not hasattr(processor, "image_mean") and not hasattr(processor, "size"):
        raise HeatproofError(
            "processor is an image processor, such as AutoImageProcessor.from_pretrained(…); got "
            f"{type(processor).__name__}"
        )
    differences = [text for key, text in _UNLIKE.items() if getattr(processor, key, None)]
    side, resize = _resizing(processor, image_size, differences)
    if not resize.square or resize.side > side:
        resize = resize._replace(floor=True)  # how it crops
    mean, std = _normalization(processor)
    if differences:
        warnings.warn(
            f"images are not prepared exactly as {type(processor).__name__} does: "
            f"{'; '.join(differences)}; {_CURE}",
            stacklevel=4,
        )
    return ModelFacts(side, resize.written, mean, std)


_UNLIKE = {
    "do_flip_channel_order": "it turns RGB into BGR, and here colours stay RGB, so let your "
    "network flip them: x.flip(1)",
    "do_pad": "it pads images, and here they are not",
}


def _resizing(processor: Any, image_size: int | None, differences: list[str]) -> tuple[int, Resize]:
    """Return the side of the images that a processor makes, and how it resizes before it crops."""
    size = getattr(processor, "size", None)
    shorter = _entry(size, "shortest_edge") or (size if isinstance(size, int) else None)
    both = _side((_entry(size, "height"), _entry(size, "width")))
    crop = _crop(processor)
    percentage = getattr(processor, "crop_pct", None)
    kind = type(processor).__name__
    interpolation = _FILTERS_BY_NUMBER[int(getattr(processor, "resample", None) or 0)]
    if getattr(processor, "resample", None) is None:
        interpolation = "bilinear"
    if not getattr(processor, "do_resize", True):
        side = crop or image_size or 224
        differences.append(f"it does not resize images, and here they are resized to {side}")
        return side, Resize(side, square=False, interpolation=interpolation)
    if percentage and kind.startswith("ConvNext") and shorter:
        if shorter >= 384:
            return shorter, Resize(shorter, True, interpolation)
        return shorter, Resize(int(shorter / percentage), False, interpolation)
    if percentage:
        side = crop or shorter or both or 224
        return side, Resize(int((shorter or both or side) / percentage), False, interpolation)
    if shorter and kind.startswith("Levit"):
        return crop or shorter, Resize(int(256 / 224 * shorter), False, interpolation)
    if shorter:
        if crop is None:
            differences.append("it does not crop, and here the middle is cropped to a square")
        return crop or shorter, Resize(shorter, False, interpolation)
    if both is None:
        raise HeatproofError(f"{kind} has a size that cannot be read: {size}; {_CURE}")
    return crop or both, Resize(both, True, interpolation)


def _crop(processor: Any) -> int | None:
    if not getattr(processor, "do_center_crop", False):
        return None
    size = getattr(processor, "crop_size", None)
    if isinstance(size, int):
        return size
    return _side((_entry(size, "height"), _entry(size, "width"))) or _entry(size, "shortest_edge")


def _entry(size: Any, key: str) -> int | None:
    value = size.get(key) if isinstance(size, Mapping) else getattr(size, key, None)
    return int(value) if value else None


def _side(size: Any) -> int | None:
    """Return the side of a square, given by one number or two.

    Raises:
        HeatproofError: If it is not a square.
    """
    if size is None or isinstance(size, int):
        return size
    height, width = (*size, *size)[:2]
    if height != width:
        raise HeatproofError(f"the images of this network are not square: {height}×{width}")
    return None if height is None else int(height)


def _normalization(processor: Any) -> tuple[list[float], list[float]]:
    """Return mean and std of images in [0, 1] that amount to what a processor computes.

    It multiplies pixels in [0, 255] by a factor, may subtract 1, then normalizes, some twice.
    """
    scale = 1.0
    if getattr(processor, "do_rescale", True):
        scale = float(getattr(processor, "rescale_factor", None) or 1 / 255)
    scale *= 255
    shift = 1.0 if getattr(processor, "rescale_offset", False) else 0.0
    mean = [0.0] * 3
    std = [1.0] * 3
    if getattr(processor, "do_normalize", True):
        mean = list(getattr(processor, "image_mean", None) or IMAGENET_MEAN)
        std = list(getattr(processor, "image_std", None) or IMAGENET_STD)
    twice = getattr(processor, "include_top", False) and hasattr(processor, "rescale_offset")
    deviations = [s * s if twice else s for s in std]
    return [(m + shift) / scale for m in mean], [s / scale for s in deviations]
