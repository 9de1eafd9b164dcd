"""Explaining image files: one picture with the maps of several methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from heatproof.data.folder import mode_for
from heatproof.data.images import fit, read_image
from heatproof.errors import HeatproofError, format_error
from heatproof.methods import explain, parse_methods
from heatproof.models.model import Model
from heatproof.report.panel import panel

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".pdf")


def draw_maps(
    images: Sequence[Path],
    model: Model,
    methods: Sequence[str],
    out: Path,
    target: int | None = None,
    seed: int = 0,
) -> list[str]:
    """Draw the maps of images side by side.

    Args:
        images: Image files.
        model: The model to explain.
        methods: Method expressions, one column each.
        out: Picture to write.
        target: Class to explain; by default the model's prediction for each image.
        seed: Seed of methods that use noise.

    Returns:
        One caption per image: the explained class and its probability.

    Raises:
        HeatproofError: If an image or expression is invalid, a method fails, or the picture cannot
            be written.
    """
    check_suffix(out)
    expressions = parse_methods(list(methods))
    mode = mode_for(model)
    photos = torch.stack(
        [fit(read_image(path, mode=mode), model.size, model.resize) for path in images]
    )
    x = model.normalize(photos)
    probabilities = model.probabilities(model.logits(x))
    if target is None:
        targets = probabilities.argmax(1)
    else:
        targets = torch.full((len(x),), target, device=model.device)
    ids = [path.name for path in images]
    maps = {}
    for expression in expressions:
        try:
            maps[expression.label] = explain(
                model, x, targets, expression, ids=ids, seed=seed
            ).cpu()
        except HeatproofError:
            raise
        except Exception as error:
            raise HeatproofError(f"{expression.label}: {format_error(error)}") from error
    captions = []
    for row, index in enumerate(targets.tolist()):
        name = model.classes[index] if model.classes else f"class {index}"
        captions.append(f"{name} {probabilities[row, index]:.0%}")
    out.parent.mkdir(parents=True, exist_ok=True)
    picture = panel(list((photos * 255).round().byte()), captions, maps)
    try:
        picture.save(out)
    except (OSError, ValueError) as error:
        raise HeatproofError(
            f"a picture of {picture.width}×{picture.height} px cannot be written to {out} "
            f"({format_error(error)}); give fewer images, or a name that ends in .png"
        ) from error
    return captions


def check_suffix(out: Path) -> None:
    """Raise if a picture cannot be written under this name."""
    if out.suffix.lower() not in SUFFIXES:
        raise HeatproofError(
            f"cannot write a picture to {out}; use a name that ends in .png, .jpg, .webp or .pdf"
        )
