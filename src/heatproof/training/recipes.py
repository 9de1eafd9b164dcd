"""How each embedded model is trained, as data."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Recipe:
    net: str
    steps: int = 2400
    batch: int = 64
    images: int = 24_000  # of the training split, each drawn once
    deletion: float = 0.5  # share of images with n ~ U{0…5} parts taken off, as in FunnyBirds
    mosaic: float = 0.0  # share of each batch seen through a window that straddles four pictures
    rate: float = 3e-3  # the highest learning rate
    warmup: float = 0.15  # share of the steps
    decay: float = 1e-2
    clip: float = 1.0  # largest norm of a gradient
    loss: str = "cross_entropy"  # or binary_cross_entropy: every class for itself
    minutes: float = field(default=3.0, compare=False)  # about, of the steps on two cores


RECIPES: dict[str, Recipe] = {
    "resnet": Recipe("resnet", minutes=4.3),
    "vgg": Recipe("vgg", steps=3000, mosaic=0.5, minutes=3.9),
    "vgg-bn": Recipe("vgg-bn", steps=2000, mosaic=0.5, minutes=2.4),
    "resnet-nobn": Recipe("resnet-nobn", steps=1800, minutes=2.7),
    "vgg-nobias": Recipe("vgg-nobias", steps=3000, mosaic=0.5, minutes=2.9),
    "resnet-nobias": Recipe("resnet-nobias", steps=1800, minutes=2.5),
    "bagnet": Recipe("bagnet", steps=750, batch=32, rate=0.004, minutes=1.9),
    "bcos": Recipe(
        "bcos", steps=1600, batch=32, decay=0.0, loss="binary_cross_entropy", minutes=2.5
    ),
    "vit": Recipe("vit", steps=6000, images=48_000, rate=1e-3, minutes=7),
    "resnet18": Recipe("resnet18", steps=1800, minutes=4.9),
    "resnet26": Recipe("resnet26", steps=1800, minutes=7.6),
    "resnet-narrow": Recipe("resnet-narrow", minutes=1.6),
    "vgg7": Recipe("vgg7", steps=3000, mosaic=0.5, minutes=2.4),
    "vgg11": Recipe("vgg11", steps=3000, mosaic=0.5, minutes=5.5),
}
