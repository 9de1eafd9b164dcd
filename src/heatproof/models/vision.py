"""Models of timm and torchvision, which are extras: imported when asked for, by the functions here only."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from heatproof.errors import HeatproofError, unknown
from heatproof.models.download import Source
from heatproof.models.model import Model
from heatproof.models.nets import ASSETS
from heatproof.models.papers import NETWORKS
from heatproof.tensor.noise import seeded

RANDOM = "random"  # as weights: an untrained network, always the same one

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_kept: list[torch.library.Library] = []  # what is registered lasts as long as its library


def import_torchvision() -> Any:
    """A torchvision built for CUDA does not find its operators beside a CPU torch, and its import fails for that: the two that it then
    looks for are declared. All but `torchvision.io` and `ops.nms` works."""
    try:
        return _imported("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    if not _kept:
        operators = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            operators.define(name + _SCHEMA)  # type: ignore[no-untyped-call]
        _kept.append(operators)
    return _imported("torchvision")


def import_timm() -> Any:
    import_torchvision()
    return _imported("timm")


def _imported(package: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise HeatproofError(
            f"{package} cannot be imported ({error}). Install it: pip install 'heatproof[vision]'"
        ) from None


class Input(NamedTuple):
    size: int
    resize: int
    mean: Sequence[float]
    std: Sequence[float]
    classes: Sequence[str] | None


class Offer(NamedTuple):
    """A network of a library: how it is built, and the weights that go with it."""

    build: Callable[[], tuple[nn.Module, Input]]
    source: Source


def library_model(name: str, weights: Path | None) -> Model:
    """`torchvision:resnet50`, `timm:vit_base_patch16_224`: built with random weights, into which a file's are yet to be loaded.

    The preprocessing is the library's, but for the interpolation, which is bilinear here.
    """
    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, image = _offer(name, weights).build()
    return Model(
        module.eval(),
        name=name,
        aliases=dict(NETWORKS[name].layers) if name in NETWORKS else None,
        **image._asdict(),
    )


def library_source(name: str) -> Source:
    """The published weights of a library's network: the first that it names."""
    return _offer(name, None).source


def bare(name: str) -> nn.Module | None:
    """A library's network alone; None where the library is not installed, or too old for it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _offer(name, None).build()[0]
    except Exception:  # it is only to be compared with
        return None


@cache
def imagenet_wnids() -> tuple[str, ...]:
    """WordNet's ids of ImageNet's 1000 classes, in their order, which is sorted."""
    return tuple((ASSETS / "imagenet-wnids.txt").read_text().split())


def imagenet_names() -> tuple[str, ...]:
    """Of ImageNet's 1000 classes, as torchvision has them; their ids where it is not installed."""
    try:
        return tuple(import_torchvision().models.ResNet50_Weights.IMAGENET1K_V1.meta["categories"])
    except HeatproofError:
        return imagenet_wnids()


def _offer(name: str, weights: Path | None) -> Offer:
    package, _, net = name.partition(":")
    return OPEN[package](net, weights)


def _torchvision(name: str, weights: Path | None) -> Offer:
    models = import_torchvision().models
    known = models.list_models(module=models)
    if name not in known:
        raise unknown("torchvision model", name, known)
    entry = _entry(models.get_model_weights(name), weights or Path())

    def build() -> tuple[nn.Module, Input]:
        told = entry.transforms()
        image = Input(
            told.crop_size[0], told.resize_size[0], told.mean, told.std, entry.meta["categories"]
        )
        return models.get_model(name, weights=None, **_options(name, image)), image

    return Offer(build, Source.at(entry.url))


def _entry(entries: Any, file: Path) -> Any:
    """The published weights that the file is named after (resnet50-11ad3fa6.pth), else the first of the network."""
    found = [entry for entry in entries if Path(entry.url).stem.rpartition("-")[2] in file.name]
    return found[0] if found else next(iter(entries))


def _options(name: str, image: Input) -> dict[str, Any]:
    """What torchvision sets along with published weights."""
    if name.startswith("vit_"):
        return {"image_size": image.size}
    return (
        {"transform_input": True, "init_weights": False}
        if name in ("googlenet", "inception_v3")
        else {}
    )


def _timm(name: str, weights: Path | None) -> Offer:
    timm = import_timm()
    net, _, tag = name.partition(".")
    known = (
        timm.list_models()
        if not timm.is_model(net)
        else timm.list_pretrained(f"{net}.*")
        if tag
        else [net]
    )
    if name not in known:
        raise unknown("timm model", name, known)

    def build() -> tuple[nn.Module, Input]:
        module = timm.create_model(name, pretrained=False)
        if not module.num_classes:
            raise HeatproofError(
                f"timm:{name} has no classifier; name weights that have one, such as {net}, or use hp.Model"
            )
        told = timm.data.resolve_model_data_config(module)
        size, names = (
            told["input_size"][-1],
            imagenet_names() if module.num_classes == 1000 else None,
        )
        return module, Input(
            size, math.floor(size / told["crop_pct"]), told["mean"], told["std"], names
        )

    place = getattr(timm.get_pretrained_cfg(name), "hf_hub_id", None) or ""
    url = place and f"https://huggingface.co/{place}/resolve/main/model.safetensors"
    return Offer(build, Source(url, place and f"{place.rpartition('/')[2]}.safetensors"))


OPEN: dict[str, Callable[[str, Path | None], Offer]] = {"torchvision": _torchvision, "timm": _timm}
