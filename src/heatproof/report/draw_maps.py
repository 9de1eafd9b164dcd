"""Explaining image files: one picture with the maps of several methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from heatproof.data.folder import mode_for
from heatproof.data.images import fit, read_image
from heatproof.errors import HeatproofError, format_error
from heatproof.methods import explain, parse_methods
from heatproof.methods.explain import explained
from heatproof.models.model import Model
from heatproof.models.targets import name_of
from heatproof.report.panel import panel

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".pdf")


def draw_maps(
    images: Sequence[Path],
    model: Model,
    methods: Sequence[str],
    out: Path,
    target: int | str | None = None,
    seed: int = 0,
) -> list[str]:
    """Draw the maps of images side by side.

    Args:
        images: Image files.
        model: The model to explain.
        methods: Method expressions, one column each.
        out: Picture to write.
        target: Class to explain, or a target such as ``runner-up`` or ``prediction - runner-up``;
            by default the model's prediction for each image.
        seed: Seed of methods that use noise.

    Returns:
        One caption per image: what is explained, with its probability, or its value where it has
        none.

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
    if isinstance(target, str) and target.isdigit():
        target = int(target)
    seen, targets = explained(model, x, target)
    ids = [path.name for path in images]
    maps = {}
    for expression in expressions:
        try:
            maps[expression.label] = explain(seen, x, targets, expression, ids=ids, seed=seed).cpu()
        except HeatproofError:
            raise
        except Exception as error:
            raise HeatproofError(f"{expression.label}: {format_error(error)}") from error
    captions = _captions(seen, seen.logits(x), targets)
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


def _captions(model: Model, logits: Tensor, targets: Tensor) -> list[str]:
    """Return what is explained of each image, with its value or its probability."""
    names = [name_of(model, index) for index in targets.tolist()]
    if model.derived is not None or model.head == "regression":
        values = model.score_function("logit")(logits, targets).tolist()
        return [f"{name} {value:+.3g}" for name, value in zip(names, values, strict=True)]
    shares = model.probabilities(logits).gather(1, targets[:, None])[:, 0].tolist()
    return [f"{name} {share:.0%}" for name, share in zip(names, shares, strict=True)]


def check_suffix(out: Path) -> None:
    """Raise if a picture cannot be written under this name."""
    if out.suffix.lower() not in SUFFIXES:
        raise HeatproofError(
            f"cannot write a picture to {out}; use a name that ends in .png, .jpg, .webp or .pdf"
        )
