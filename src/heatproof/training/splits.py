"""Training and validation images of a fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heatproof.data.base import Data, TensorData
from heatproof.data.catalog import load_data
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.tensor.noise import generator


def opened(data: Any, model: Model, limit: int | None, seed: int) -> Data:
    """Return the data set that a name, a pair (images, labels) or a data set stands for."""
    if isinstance(data, tuple):
        return TensorData(*data)
    if not isinstance(data, str):
        if not hasattr(data, "fingerprints"):
            raise HeatproofError(
                "data must be a name, a pair (images, labels) or a data set from load_data; "
                f"got {type(data).__name__}"
            )
        return data
    unnamed = data == "paperbirds" or data.startswith("funnybirds")
    return load_data(data, model, split="train" if unnamed else None, limit=limit, seed=seed)


def split(images: Data, val: Any, model: Model, seed: int) -> tuple[list[int], list[int], Data]:
    """Divide images into training and validation images that do not overlap.

    Args:
        images: The training data.
        val: Validation data, the fraction of ``images`` to hold out, or None for the default.
        model: The model to fine-tune.
        seed: Seed of the choice of held-out images.

    Returns:
        Training indices into ``images``, validation indices, and the data set these refer to.

    Raises:
        HeatproofError: If the two overlap, lack labels, or contain images that methods are
            evaluated on.
    """
    everything = list(range(len(images.ids)))
    if val is None and images.name == "paperbirds:train":
        val = "paperbirds:val"
    if val is None or isinstance(val, float):
        fraction = 0.1 if val is None else val
        if not 0 < fraction < 1:
            raise HeatproofError(
                f"val, as a fraction of the images, must be between 0 and 1; got {fraction}"
            )
        check_labels(images, everything, model)
        chosen = held_out(images, fraction, seed)
        parts = (
            [i for i in everything if i not in chosen],
            [i for i in everything if i in chosen],
            images,
        )
    else:
        other = opened(val, model, None, seed)
        parts = everything, list(range(len(other.ids))), other
        if other.name == images.name and (both := {*images.ids} & {*other.ids}):
            raise HeatproofError(
                f"{len(both)} images are in both the training and the validation data, "
                f"such as {min(both)}"
            )
    for data, indices in ((images, parts[0]), (parts[2], parts[1])):
        if data.name == "paperbirds:test":
            raise HeatproofError(
                "methods are evaluated on paperbirds:test; fine-tune on paperbirds:train instead"
            )
        if not indices:
            raise HeatproofError(
                f"{data.name} has too few images to hold some out for validation; "
                "pass validation data as val=…"
            )
        check_labels(data, indices, model)
    if len({images.labels[i] for i in parts[0]}) < 2:
        raise HeatproofError(
            f"all training images of {images.name} are of one class; fine-tuning needs at least "
            "two classes"
        )
    return parts


def held_out(images: Data, fraction: float, seed: int) -> set[int]:
    """Choose a fraction of each class; a class of several images gives and keeps at least one."""
    members: dict[int | None, list[int]] = {}
    for i in generator(seed, "hold-out").permutation(len(images.ids)).tolist():
        members.setdefault(images.labels[i], []).append(i)
    chosen: set[int] = set()
    for indices in members.values():
        count = min(len(indices) - 1, max(1, round(fraction * len(indices))))
        chosen.update(indices[:count])
    return chosen


def check_labels(data: Data, indices: Sequence[int], model: Model) -> None:
    """Raise if an image has no label, or one that the model does not have."""
    without = [data.ids[i] for i in indices if data.labels[i] is None]
    if without:
        raise HeatproofError(
            f"{len(without)} images of {data.name} have no label, such as {without[0]}; "
            "put them into one subfolder per class"
        )
    strange = [label for i in indices if not 0 <= (label := data.labels[i] or 0) < model.n_classes]
    if strange:
        raise HeatproofError(
            f"{data.name} has labels such as {strange[0]}, "
            f"but the classes of {model.name} are 0 to {model.n_classes - 1}"
        )
