"""Splits into images that a model is trained on, and images held out to choose among epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from heatproof.data.base import Data
from heatproof.data.catalog import DATA, find_entry, is_data, load_data
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.tensor.noise import generator

VALIDATION_FRACTION = 0.1
NO_VALIDATION = "none"


class Split(NamedTuple):
    """Training and validation samples; none is in both if they are held out.

    Attributes:
        train: Positions in the training data.
        val: Positions in `val_data`.
        val_data: The data of the validation samples.
        held_out: Whether the validation samples are not trained on, so that they choose an epoch.
    """

    train: list[int]
    val: list[int]
    val_data: Data
    held_out: bool = True


def parse_val(text: str | None) -> str | float | int | None:
    """Return validation data as it is written in a command: a name, a fraction or a number."""
    for kind in (int, float):
        try:
            return kind(text or "")
        except ValueError:
            continue
    return text


def open_training_data(data: Any, model: Model, limit: int | None, seed: int) -> Data:
    """Open the data to train on.

    Args:
        data: A name, or an object that ``load_data`` takes. A name without a split stands for the
            training split, if the data set has one.
        model: The model that the images are fitted to.
        limit: The number of samples; all by default.
        seed: Seed for the sample order.

    Raises:
        HeatproofError: If it is none of these, or cannot be opened.
    """
    if not isinstance(data, str):
        has_all = isinstance(data, tuple) or is_data(data)  # given as the images to use
        return load_data(data, model, limit=None if has_all else limit, seed=seed)
    entry, rest = find_entry(data)
    part = None if rest in entry.splits.values() else entry.splits.get("train")
    return load_data(data, model, split=part, limit=limit, seed=seed)


def split(images: Data, val: Any, model: Model, seed: int) -> Split:
    """Choose training and validation samples.

    Args:
        images: The data to train on.
        val: Validation data as `open_training_data` takes it, or the fraction or number of
            ``images`` to hold out. By default the data set's validation split, or a tenth of the
            images. ``none`` trains on all images, and validates on a tenth of them.
        model: The model, which labels must fit.
        seed: Seed for the choice.

    Raises:
        HeatproofError: If samples are in both, belong to a test split, or labels do not fit.
    """
    everything = list(range(len(images.ids)))
    if val is None:
        val = _validation_split(images) or VALIDATION_FRACTION
    trains_on_all = isinstance(val, str) and val == NO_VALIDATION
    if trains_on_all:
        val = VALIDATION_FRACTION
    if isinstance(val, float | int):
        limits = (0, 1) if isinstance(val, float) else (0, len(everything))
        if not limits[0] < val < limits[1]:
            raise HeatproofError(
                "val is a fraction of the images, between 0 and 1, or their number, below "
                f"{len(everything):,}; got {val}"
            )
        check_labels(images, everything, model)
        chosen = held_out(images, val, seed)
        train = everything if trains_on_all else [i for i in everything if i not in chosen]
        parts = Split(train, sorted(chosen), images, not trains_on_all)
    else:
        other = open_training_data(val, model, None, seed)
        parts = Split(everything, list(range(len(other.ids))), other)
        both = {*images.ids} & {*other.ids} if other.name == images.name else set()
        if both:
            raise HeatproofError(
                f"{len(both)} images are in both the training and the validation data, "
                f"such as {min(both)}"
            )
    for data, indices in ((images, parts.train), (parts.val_data, parts.val)):
        _refuse_test_split(data)
        if not indices:
            raise HeatproofError(
                f"{data.name} has too few images to hold some out for validation; "
                "pass validation data as val=…"
            )
        check_labels(data, indices, model)
    if len({images.labels[i] for i in parts.train}) < 2:
        raise HeatproofError(
            f"all training images of {images.name} are of one class; fine-tuning needs at least "
            "two classes"
        )
    return parts


def _named_split(data: Data, role: str) -> str | None:
    """Return the name of the split of the data set that has a role, if it has one."""
    kind = data.name.partition(":")[0]
    part = DATA[kind].splits.get(role) if kind in DATA else None
    return f"{kind}:{part}" if part else None


def _validation_split(images: Data) -> str | None:
    if images.name != _named_split(images, "train"):
        return None
    return _named_split(images, "validation")


def _refuse_test_split(data: Data) -> None:
    if data.name == _named_split(data, "test"):
        raise HeatproofError(
            f"methods are evaluated on {data.name}; fine-tune on {_named_split(data, 'train')} "
            "instead"
        )


def held_out(images: Data, part: float, seed: int) -> set[int]:
    """Choose a fraction of every class, or a number of images at random.

    Of a fraction, at least one image of a class is chosen and one is left, if it has two or more.

    Returns:
        Positions of the chosen samples.
    """
    order = generator(seed, "hold-out").permutation(len(images.ids)).tolist()
    if isinstance(part, int):
        return set(order[:part])
    members: dict[int | None, list[int]] = {}
    for i in order:
        members.setdefault(images.labels[i], []).append(i)
    chosen: set[int] = set()
    for indices in members.values():
        count = min(len(indices) - 1, max(1, round(part * len(indices))))
        chosen.update(indices[:count])
    return chosen


def check_labels(data: Data, indices: Sequence[int], model: Model) -> None:
    """Check that samples have labels that are classes of the model.

    Raises:
        HeatproofError: If a sample has no label, or one that is not a class of the model.
    """
    unlabelled = [data.ids[i] for i in indices if data.labels[i] is None]
    if unlabelled:
        raise HeatproofError(
            f"{len(unlabelled)} images of {data.name} have no label, such as {unlabelled[0]}; put "
            "them into one subfolder per class"
        )
    labels = [data.labels[i] or 0 for i in indices]
    outside = [label for label in labels if not 0 <= label < model.n_classes]
    if outside:
        raise HeatproofError(
            f"{data.name} has labels such as {outside[0]}, but the classes of {model.name} are 0 "
            f"to {model.n_classes - 1}"
        )
