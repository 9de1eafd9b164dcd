"""Models of timm and torchvision, which are extras: imported only here, and only on demand."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from heatproof.errors import HeatproofError, unknown
from heatproof.models.download import Source
from heatproof.models.model import Model
from heatproof.models.nets import ASSETS
from heatproof.models.paper_networks import NETWORKS
from heatproof.models.preprocessing import Resize
from heatproof.tensor.noise import seeded

RANDOM_WEIGHTS = "random"  # an untrained network, always the same

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_operators: list[torch.library.Library] = []  # what is registered lasts as long as its library


def import_torchvision() -> Any:
    """Import torchvision, even one that was built for CUDA beside a torch for CPUs.

    Such a torchvision does not find its operators, and its import fails. The two that it looks for
    are declared then; all but ``torchvision.io`` and ``ops.nms`` works.

    Raises:
        HeatproofError: If it is not installed.
    """
    try:
        return _imported("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    if not _operators:
        operators = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            operators.define(name + _SCHEMA)  # type: ignore[no-untyped-call]
        _operators.append(operators)
    return _imported("torchvision")


def import_timm() -> Any:
    """Import timm, and torchvision before it.

    Raises:
        HeatproofError: If either is not installed.
    """
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


class Preprocessing(NamedTuple):
    """The preprocessing and the classes of a network, as ``Model`` takes them."""

    size: int
    resize: int | str
    mean: Sequence[float]
    std: Sequence[float]
    classes: Sequence[str] | None


class LibraryNetwork(NamedTuple):
    """A network of a library: how it is built, and where its weights are published."""

    build: Callable[[], tuple[nn.Module, Preprocessing]]
    source: Source


def library_model(name: str, weights: Path | None) -> Model:
    """Build a library's network with random weights, for a file's weights to be loaded into.

    The preprocessing is the library's; that of the networks of papers
    (``models/paper_networks.py``) is the papers', with bilinear interpolation.

    Args:
        name: Such as ``torchvision:resnet50`` or ``timm:vit_base_patch16_224``.
        weights: The file that will be loaded; torchvision's preprocessing depends on it.

    Raises:
        HeatproofError: If the library is not installed, or has no such network.
    """
    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, preprocessing = _library_network(name, weights).build()
    return Model(module.eval(), name=name, **preprocessing._asdict())


def library_source(name: str) -> Source:
    """Return the published weights of a library's network: the first that the library lists."""
    return _library_network(name, None).source


def library_module(name: str) -> nn.Module | None:
    """Build a library's network; None if the library is missing or too old for it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _library_network(name, None).build()[0]
    except Exception:  # it is only used for a comparison
        return None


@cache
def imagenet_wnids() -> tuple[str, ...]:
    """Return WordNet's ids of ImageNet's 1000 classes, in the order of the logits (sorted)."""
    return tuple((ASSETS / "imagenet-wnids.txt").read_text().split())


def imagenet_names() -> tuple[str, ...]:
    """Return torchvision's names of ImageNet's 1000 classes; their ids if it is not installed."""
    try:
        return tuple(import_torchvision().models.ResNet50_Weights.IMAGENET1K_V1.meta["categories"])
    except HeatproofError:
        return imagenet_wnids()


def _library_network(name: str, weights: Path | None) -> LibraryNetwork:
    package, _, net = name.partition(":")
    return LIBRARIES[package](net, weights)


def _torchvision(name: str, weights: Path | None) -> LibraryNetwork:
    models = import_torchvision().models
    names = models.list_models(module=models)
    if name not in names:
        raise unknown("torchvision model", name, names)
    entry = _entry(models.get_model_weights(name), weights or Path())

    def build() -> tuple[nn.Module, Preprocessing]:
        preset = entry.transforms()
        listed = f"torchvision:{name}" in NETWORKS
        preprocessing = Preprocessing(
            size=preset.crop_size[0],
            resize=preset.resize_size[0] if listed else _torchvision_resize(preset),
            mean=preset.mean,
            std=preset.std,
            classes=entry.meta["categories"],
        )
        return models.get_model(name, weights=None, **_options(name, preprocessing)), preprocessing

    return LibraryNetwork(build, Source.at(entry.url))


def _torchvision_resize(preset: Any) -> int | str:
    """Return how torchvision resizes images for a network."""
    return Resize(preset.resize_size[0], interpolation=preset.interpolation.value).written


def _timm_resize(name: str, size: int, config: Mapping[str, Any]) -> int | str:
    """Return how timm resizes images: by the network's crop_pct, crop_mode and interpolation."""
    interpolation = config["interpolation"]
    if interpolation == "random":  # timm's evaluation takes bilinear then
        interpolation = "bilinear"
    side = math.floor(size / config["crop_pct"])
    mode = config.get("crop_mode", "center")
    if mode == "border":
        warnings.warn(
            f"{name}: timm resizes the longer side to {side} and pads the image; here the shorter "
            "side is resized and the middle is cropped. To do as timm, give prepared images",
            stacklevel=6,
        )
    return Resize(side, mode == "squash", interpolation).written


def _check_square(name: str, shape: Sequence[int]) -> None:
    if shape[-1] != shape[-2]:
        raise HeatproofError(
            f"{name} takes images of {shape[-2]}×{shape[-1]}, and images are square here; build it "
            "for squares: hp.Model(timm.create_model(…, img_size=224), size=224)"
        )


def _entry(entries: Any, file: Path) -> Any:
    """Return the published weights that the file is named after, such as resnet50-11ad3fa6.pth.

    By default they are the first of the network.
    """
    for entry in entries:
        if Path(entry.url).stem.rpartition("-")[2] in file.name:
            return entry
    return next(iter(entries))


def _options(name: str, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the arguments that torchvision sets along with published weights."""
    if name.startswith("vit_"):
        return {"image_size": preprocessing.size}
    if name in ("googlenet", "inception_v3"):
        return {"transform_input": True, "init_weights": False}
    return {}


def _timm(name: str, weights: Path | None) -> LibraryNetwork:
    timm = import_timm()
    net, _, tag = name.partition(".")
    names = [net]
    if not timm.is_model(net):
        names = timm.list_models()
    elif tag:
        names = timm.list_pretrained(f"{net}.*")
    if name not in names:
        raise unknown("timm model", name, names)

    def build() -> tuple[nn.Module, Preprocessing]:
        module = timm.create_model(name, pretrained=False)
        if not module.num_classes:
            raise HeatproofError(
                f"timm:{name} has no classifier; name weights that have one, such as {net}, "
                "or use hp.Model"
            )
        config = timm.data.resolve_model_data_config(module)
        size = config["input_size"][-1]
        listed = NETWORKS.get(f"timm:{name}")
        _check_square(f"timm:{name}", config["input_size"])
        preprocessing = Preprocessing(
            size=size,
            resize=listed.resize if listed else _timm_resize(f"timm:{name}", size, config),
            mean=config["mean"],
            std=config["std"],
            classes=imagenet_names() if module.num_classes == 1000 else None,
        )
        return module, preprocessing

    repository = getattr(timm.get_pretrained_cfg(name), "hf_hub_id", None)
    if not repository:
        return LibraryNetwork(build, Source("", ""))
    url = f"https://huggingface.co/{repository}/resolve/main/model.safetensors"
    return LibraryNetwork(build, Source(url, f"{repository.rpartition('/')[2]}.safetensors"))


LIBRARIES: dict[str, Callable[[str, Path | None], LibraryNetwork]] = {
    "torchvision": _torchvision,
    "timm": _timm,
}
