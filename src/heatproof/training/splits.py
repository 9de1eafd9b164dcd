"""Which images are trained on, and on which the choice among epochs is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heatproof.data.base import Data, TensorData
from heatproof.data.catalog import load_data
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.tensor.noise import generator


def opened(data: Any, model: Model, limit: int | None, seed: int) -> Data:
    if isinstance(data, tuple):
        return TensorData(*data)
    if not isinstance(data, str):
        if not hasattr(data, "fingerprints"):
            raise HeatproofError(
                f"data is a name, (images, labels), or what load_data gives; got {type(data).__name__}"
            )
        return data
    unnamed = data == "paperbirds" or data.startswith("funnybirds")
    return load_data(data, model, split="train" if unnamed else None, limit=limit, seed=seed)


def split(images: Data, val: Any, model: Model, seed: int) -> tuple[list[int], list[int], Data]:
    """(training indices, validation indices, validation data); nothing is in both, and nothing that is judged is in either."""
    everything = list(range(len(images.ids)))
    if val is None and images.name == "paperbirds:train":
        val = "paperbirds:val"
    if val is None or isinstance(val, float):
        share = 0.1 if val is None else val
        if not 0 < share < 1:
            raise HeatproofError(f"val as a share of the images lies between 0 and 1; got {share}")
        check_labels(images, everything, model)
        chosen = held_out(images, share, seed)
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
                f"{len(both)} images are in the training and in the validation data, such as {min(both)}"
            )
    for data, indices in ((images, parts[0]), (parts[2], parts[1])):
        if data.name == "paperbirds:test":
            raise HeatproofError(
                "paperbirds:test is what methods are judged on; fine-tune on paperbirds:train"
            )
        if not indices:
            raise HeatproofError(
                f"{data.name} has too few images to hold some out for validation; give val=…"
            )
        check_labels(data, indices, model)
    if len({images.labels[i] for i in parts[0]}) < 2:
        raise HeatproofError(
            f"all training images of {images.name} are of one class; fine-tuning needs at least two"
        )
    return parts


def held_out(images: Data, share: float, seed: int) -> set[int]:
    """That share of every class; a class of two images or more gives one at least, and keeps one."""
    members: dict[int | None, list[int]] = {}
    for i in generator(seed, "hold-out").permutation(len(images.ids)).tolist():
        members.setdefault(images.labels[i], []).append(i)
    return {
        i
        for own in members.values()
        for i in own[: min(len(own) - 1, max(1, round(share * len(own))))]
    }


def check_labels(data: Data, indices: Sequence[int], model: Model) -> None:
    without = [data.ids[i] for i in indices if data.labels[i] is None]
    if without:
        raise HeatproofError(
            f"{len(without)} images of {data.name} have no label, such as {without[0]}; put them into one subfolder a class"
        )
    strange = [label for i in indices if not 0 <= (label := data.labels[i] or 0) < model.n_classes]
    if strange:
        raise HeatproofError(
            f"{data.name} has labels such as {strange[0]}, but the classes of {model.name} are 0 to {model.n_classes - 1}"
        )
