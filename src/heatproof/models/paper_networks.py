"""The networks of the papers: a table of their layers, preprocessing and published weights.

No library is imported here: the table states what its networks are, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from heatproof.models.bagnet import bagnet
from heatproof.models.bcos import bcos
from heatproof.models.norm_free import fixup_resnet, x_vgg
from heatproof.models.processors import IMAGENET_MEAN, IMAGENET_STD

IDSDS = "hesse2024"
GRIDS = "rao2024"
BOTH = "hesse2024, rao2024"
RESNET = {"middle": "layer2", "final": "layer4", "cam": "layer4"}
HALF = (0.5, 0.5, 0.5)
NONE = (0.0, 0.0, 0.0)
ONE = (1.0, 1.0, 1.0)
COLOURS = {NONE: "black", HALF: "mid-grey", IMAGENET_MEAN: "mean colour"}


@dataclass(frozen=True)
class Network:
    """A network of a paper.

    Attributes:
        layers: What ``middle``, ``final`` and ``cam`` stand for, as stated in the docs; a model
            finds them by its structure (``models/families.py``). Empty for transformers, which are
            explained at their input.
        papers: The studies that use the network.
        size: The side of the input, in pixels.
        resize: The length that an image's shorter side is resized to first.
        mean: The mean per channel of images in [0, 1].
        std: The standard deviation per channel.
        classes: The number of logits.
        build: Builds a network of ours; None for a library's.
        options: Arguments of ``build``.
        url: The address of the published weights; a library has its own.
    """

    layers: Mapping[str, str] = field(default_factory=lambda: RESNET)
    papers: str = IDSDS
    size: int = 224
    resize: int = 256
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    classes: int = 1000
    build: Callable[..., nn.Module] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    url: str = ""

    @property
    def zero(self) -> str:
        """The colour of a pixel that is 0 in the model's input space."""
        return COLOURS[self.mean]

    def module(self) -> nn.Module:
        """Build a network of ours, untrained; parameters are drawn by torch's global generator."""
        assert self.build is not None
        return self.build(self.classes, **self.options)


def _vgg(middle: int, final: int, papers: str = IDSDS) -> Network:
    """Describe a VGG.

    Args:
        middle: The ReLU of conv4_1, the first convolution with 512 channels.
        final: The last ReLU; ``cam`` comes after the last pooling.
        papers: The studies that use the network.
    """
    layers = {"middle": f"features.{middle}", "final": f"features.{final}", "cam": "features"}
    return Network(layers, papers)


def _bagnet(kernels: tuple[int, ...], file: str) -> Network:
    url = (
        "https://bitbucket.org/wielandbrendel/bag-of-feature-pretrained-models/raw/"
        f"249e8fa82c0913623a807d9d35eeab9da7dcc2a8/{file}"
    )
    options = {
        "stem": 64,
        "planes": (64, 128, 256, 512),
        "strides": (2, 2, 2, 1),
        "blocks": (3, 4, 6, 3),
        "momentum": 0.001,
    }
    return Network(build=bagnet, options={**options, "kernels": kernels}, url=url)


def _bcos(blocks: tuple[int, ...], bottleneck: bool, file: str) -> Network:
    shape = {
        "widths": (64, 128, 256, 512),
        "strides": (1, 2, 2, 2),
        "blocks": blocks,
        "bottleneck": bottleneck,
    }
    options = {**shape, "kernel": 7, "pool": True, "centred": True}
    url = f"https://github.com/B-cos/B-cos-v2/releases/download/v0.0.1-weights/{file}"
    return Network(mean=NONE, std=ONE, build=bcos, options=options, url=url)


def _hesse2021(build: Callable[..., nn.Module], options: Mapping[str, Any], file: str) -> Network:
    url = (
        "https://download.visinf.tu-darmstadt.de/data/"
        f"2021-neurips-fast-axiomatic-attribution/models/{file}"
    )
    return Network(build=build, options=options, url=url)


# The checkpoints that Hesse et al. publish: fine-tuned for 16 patches and the baseline zero.
FINE_TUNED_FOR = "16/zero"
FINE_TUNED_ADDRESS = (
    "https://download.visinf.tu-darmstadt.de/data/2024-neurips-hesse-idsds/models_finetuned/"
)
FINE_TUNED_NAMES = {
    "torchvision:resnet18": "resnet18",
    "torchvision:resnet50": "resnet50",
    "torchvision:resnet101": "resnet101",
    "torchvision:resnet152": "resnet152",
    "torchvision:wide_resnet50_2": "wide_resnet50_2",
    "fixup-resnet50": "fixup_resnet50",
    "x-resnet50": "xresnet50",
    "torchvision:vgg11": "vgg11",
    "torchvision:vgg13": "vgg13",
    "torchvision:vgg16": "vgg16",
    "torchvision:vgg19": "vgg19",
    "torchvision:vgg16_bn": "vgg16_bn",
    "x-vgg16": "xvgg16",
    "timm:vit_base_patch16_224": "vit_base_patch16_224",
    "bcos-resnet50": "bcos_resnet50",
    "bagnet33": "bagnet33",
}


def fine_tuned_url(name: str, fine_tuning: str = FINE_TUNED_FOR) -> str:
    """Return where the fine-tuned weights of a network are published; empty if they are not."""
    stem = FINE_TUNED_NAMES.get(name)
    if stem is None or fine_tuning != FINE_TUNED_FOR:
        return ""
    return (
        f"{FINE_TUNED_ADDRESS}{stem}_imagenet1000_lr0.001_epochs30_step10_checkpoint_best.pth.tar"
    )


TIMM_VIT = Network({}, papers="", resize=248, mean=HALF, std=HALF)

NETWORKS: dict[str, Network] = {
    "torchvision:resnet18": Network(papers=BOTH),
    "torchvision:resnet34": Network(papers=""),
    "torchvision:resnet50": Network(),
    "torchvision:resnet101": Network(),
    "torchvision:resnet152": Network(papers=BOTH),
    "torchvision:wide_resnet50_2": Network(papers=BOTH),
    "torchvision:resnext50_32x4d": Network(papers=GRIDS),
    "torchvision:vgg11": _vgg(12, 19, BOTH),
    "torchvision:vgg13": _vgg(16, 23),
    "torchvision:vgg16": _vgg(18, 29, "hesse2024, li2024"),
    "torchvision:vgg19": _vgg(20, 35, BOTH),
    "torchvision:vgg11_bn": _vgg(17, 27, ""),
    "torchvision:vgg13_bn": _vgg(23, 33, ""),
    "torchvision:vgg16_bn": _vgg(26, 42),
    "torchvision:vgg19_bn": _vgg(29, 51, GRIDS),
    "torchvision:googlenet": Network(
        {"middle": "inception4a", "final": "inception5b", "cam": "inception5b"}, GRIDS
    ),
    "torchvision:vit_b_16": Network({}, papers=""),
    "torchvision:vit_b_32": Network({}, papers=""),
    "timm:vit_base_patch16_224": replace(
        TIMM_VIT, papers=IDSDS, resize=256
    ),  # the paper's; timm's is 248
    "timm:vit_small_patch16_224": TIMM_VIT,
    "timm:vit_tiny_patch16_224": TIMM_VIT,
    "timm:deit_base_patch16_224": replace(TIMM_VIT, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "fixup-resnet50": _hesse2021(fixup_resnet, {}, "fixup_resnet50_model_best.pth.tar"),
    "x-resnet50": _hesse2021(
        fixup_resnet, {"scalars": False}, "xfixup_resnet50_model_best.pth.tar"
    ),
    "x-vgg16": replace(
        _hesse2021(x_vgg, {}, "xvgg16_model_best.pth.tar"), layers=_vgg(18, 29).layers
    ),
    "bagnet9": _bagnet((3, 3, 1, 1), "bagnet8-34f4ccd2.pth.tar"),
    "bagnet17": _bagnet((3, 3, 3, 1), "bagnet16-105524de.pth.tar"),
    "bagnet33": _bagnet((3, 3, 3, 3), "bagnet32-2ddd53ed.pth.tar"),
    "bcos-resnet18": _bcos((2, 2, 2, 2), False, "resnet_18-68b4160fff.pth"),
    "bcos-resnet50": _bcos((3, 4, 6, 3), True, "resnet_50-ead259efe4.pth"),
}
OURS = tuple(name for name, network in NETWORKS.items() if network.build)
