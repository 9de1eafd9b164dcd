"""Models of timm and torchvision, which are extras: imported when asked for, by the functions here only. Nothing is downloaded."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from heatproof.errors import HeatproofError, unknown
from heatproof.models.model import Model

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
        raise HeatproofError(f"{package} cannot be imported ({error}). Install it: pip install 'heatproof[vision]'") from None


RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d", "wide_resnet50_2")
MIDDLE = {  # of torchvision's networks, as Rao et al. 2024 have it; else it is half of the weight layers
    "vgg11": "features.12",
    "vgg11_bn": "features.17",
    "vgg19": "features.20",
    "vgg19_bn": "features.29",
    **dict.fromkeys(RESNETS, "layer2"),
    "googlenet": "inception4a",
}


class Input(NamedTuple):
    size: int
    resize: int
    mean: Sequence[float]
    std: Sequence[float]


def library_model(name: str, weights: str | Path | None) -> Model:
    """`torchvision:resnet50`, `timm:vit_base_patch16_224`: built with random weights, into which a file's are yet to be loaded.

    The preprocessing is the library's, but for the interpolation, which is bilinear here.
    """
    package, _, net = name.partition(":")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(0)
        build = OPEN[package](net, weights)
        if weights is None:
            raise HeatproofError(
                f"{name} needs weights, and nothing is downloaded: give a local .safetensors or .pth file, "
                f"or weights={RANDOM} for an untrained network"
            )
        module, image = build()
    middle = {"middle": MIDDLE[net]} if package == "torchvision" and net in MIDDLE else None
    return Model(module.eval(), name=name, aliases=middle, **image._asdict())


Build = Callable[[], tuple[nn.Module, Input]]


def _torchvision(name: str, weights: str | Path | None) -> Build:
    models = import_torchvision().models
    known = models.list_models(module=models)
    if name not in known:
        raise unknown("torchvision model", name, known)

    def build() -> tuple[nn.Module, Input]:
        told = _entry(models.get_model_weights(name), Path(weights or "")).transforms()
        image = Input(told.crop_size[0], told.resize_size[0], told.mean, told.std)
        return models.get_model(name, weights=None, **_options(name, image)), image

    return build


def _entry(entries: Any, file: Path) -> Any:
    """The published weights that the file is named after (resnet50-11ad3fa6.pth), else the first of the network."""
    found = [entry for entry in entries if Path(entry.url).stem.rpartition("-")[2] in file.name]
    return found[0] if found else next(iter(entries))


def _options(name: str, image: Input) -> dict[str, Any]:
    """What torchvision sets along with published weights."""
    if name.startswith("vit_"):
        return {"image_size": image.size}
    return {"transform_input": True, "init_weights": False} if name in ("googlenet", "inception_v3") else {}


def _timm(name: str, weights: str | Path | None) -> Build:
    timm = import_timm()
    net, _, tag = name.partition(".")
    known = timm.list_models() if not timm.is_model(net) else timm.list_pretrained(f"{net}.*") if tag else [net]
    if name not in known:
        raise unknown("timm model", name, known)

    def build() -> tuple[nn.Module, Input]:
        module = timm.create_model(name, pretrained=False)
        if not module.num_classes:
            raise HeatproofError(f"timm:{name} has no classifier; name weights that have one, such as {net}, or use hp.Model")
        told = timm.data.resolve_model_data_config(module)
        size = told["input_size"][-1]
        return module, Input(size, math.floor(size / told["crop_pct"]), told["mean"], told["std"])

    return build


OPEN: dict[str, Callable[[str, str | Path | None], Build]] = {"torchvision": _torchvision, "timm": _timm}
