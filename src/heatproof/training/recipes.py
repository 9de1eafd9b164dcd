"""Training recipes of the embedded models."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Recipe:
    """Settings of the training of one embedded model on paperbirds.

    Attributes:
        net: Name of the network.
        steps: Number of training steps.
        batch: Images per step.
        images: Training images, each rendered once.
        deletion: Fraction of images with n ~ U{0…5} parts of the bird removed, as in FunnyBirds.
        mosaic: Fraction of each batch that shows a window onto a 2×2 mosaic of images.
        rate: Peak learning rate.
        warmup: Fraction of the steps over which the learning rate rises.
        decay: Weight decay.
        clip: Maximum norm of the gradient.
        loss: ``cross_entropy``, or ``binary_cross_entropy`` for independent classes.
        minutes: Approximate training time on two cores.
    """

    net: str
    steps: int = 2400
    batch: int = 64
    images: int = 24_000
    deletion: float = 0.5
    mosaic: float = 0.0
    rate: float = 3e-3
    warmup: float = 0.15
    decay: float = 1e-2
    clip: float = 1.0
    loss: str = "cross_entropy"
    minutes: float = field(default=3.0, compare=False)


# Networks that are compared with each other, such as ResNets with and without batch norm, take the
# same number of steps.
RECIPES: dict[str, Recipe] = {
    "resnet": Recipe("resnet", minutes=4.3),
    "vgg": Recipe("vgg", steps=3000, mosaic=0.5, minutes=3.9),
    "vgg-bn": Recipe("vgg-bn", steps=3000, mosaic=0.5, minutes=3.6),
    "resnet-nobn": Recipe("resnet-nobn", minutes=3.6),
    "vgg-nobias": Recipe("vgg-nobias", steps=3000, mosaic=0.5, minutes=2.9),
    "resnet-nobias": Recipe("resnet-nobias", minutes=3.3),
    "bagnet": Recipe("bagnet", steps=750, batch=32, rate=0.004, minutes=1.9),
    "bcos": Recipe(
        "bcos", steps=1600, batch=32, decay=0.0, loss="binary_cross_entropy", minutes=2.5
    ),
    "vit": Recipe("vit", steps=6000, images=48_000, rate=1e-3, minutes=7),
    "resnet18": Recipe("resnet18", minutes=6.5),
    "resnet26": Recipe("resnet26", minutes=10.1),
    "resnet-narrow": Recipe("resnet-narrow", minutes=1.6),
    "vgg7": Recipe("vgg7", steps=3000, mosaic=0.5, minutes=2.4),
    "vgg11": Recipe("vgg11", steps=3000, mosaic=0.5, minutes=5.5),
}
