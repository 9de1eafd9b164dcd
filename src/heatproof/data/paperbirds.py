"""Paperbirds: birds cut from paper, drawn by code, with five parts that can be removed one by one.

A picture is a pure function of (seed, split, index, parts present, size). View, light, background
and body are drawn before any part, so that removing a part changes the picture only where the part
or its shadow was visible. Classes are tuples of part variants and come in pairs that differ in one
part alone, so a model has to look at every part. (After FunnyBirds: Hesse et al., ICCV 2023.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import cos, pi, sin

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from heatproof.data.base import PartViews, Sample
from heatproof.data.catalog import check_colour, dataset
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.tensor.noise import generator_of

Points = NDArray[np.float64]  # (N, 2): x to the right, y down
Pixels = NDArray[np.uint8]
Colour = tuple[int, int, int]
Piece = tuple[Colour, Points]

PARTS = ("beak", "eye", "foot", "tail", "wing")
SPLITS = {"train": 24_000, "val": 2_000, "test": 2_000}
SMALLEST_SIDE = 32
LARGEST_SIDE = 1024
# of the pixels of the training split, per channel
MEAN = (0.579, 0.561, 0.570)
STD = (0.201, 0.200, 0.195)


# Shapes: everything is a polygon in bird units, facing right, the body about one unit long.


def outline(*points: float) -> Points:
    """Return a polygon, given as x, y, x, y, …"""
    return np.array(points, dtype=np.float64).reshape(-1, 2)


def moved(points: Points, x: float, y: float) -> Points:
    return points + np.array([x, y])


def turned(points: Points, degrees: float, about: tuple[float, float] = (0.0, 0.0)) -> Points:
    c = cos(degrees * pi / 180)
    s = sin(degrees * pi / 180)
    return (points - about) @ np.array([[c, s], [-s, c]]) + about


def ellipse(
    x: float, y: float, rx: float, ry: float, degrees: float = 0.0, corners: int = 24
) -> Points:
    t = np.arange(corners) * (2 * pi / corners)
    return moved(turned(np.stack([rx * np.cos(t), ry * np.sin(t)], axis=1), degrees), x, y)


def smooth(*points: float, steps: int = 5) -> Points:
    """Return the closed Catmull–Rom curve through points, given as x, y, x, y, …"""
    corners = outline(*points)
    p0, p1, p2, p3 = (np.roll(corners, shift, 0)[:, None] for shift in (1, 0, -1, -2))
    t = (np.arange(steps) / steps)[None, :, None]
    curve = (
        2 * p1
        + (p2 - p0) * t
        + (2 * p0 - 5 * p1 + 4 * p2 - p3) * t**2
        + (3 * p1 - p0 - 3 * p2 + p3) * t**3
    )
    return np.asarray(curve.reshape(-1, 2) / 2)


def feather(
    x: float, y: float, length: float, width: float, degrees: float, tip: float = 0.7
) -> Points:
    """Return a leaf that starts at (x, y) and is widest at the fraction `tip` of its length."""
    half = width / 2
    shape = smooth(
        0, -0.3 * half, tip * length, -half, length, 0, tip * length, half, 0, 0.3 * half, steps=6
    )
    return moved(turned(shape, degrees), x, y)


def star(x: float, y: float, outer: float, inner: float, tips: int) -> Points:
    radius = np.where(np.arange(2 * tips) % 2, inner, outer)
    t = np.arange(2 * tips) * (pi / tips) - pi / 2
    return np.stack([x + radius * np.cos(t), y + radius * np.sin(t)], axis=1)


def hexes(*codes: str) -> tuple[Colour, ...]:
    return tuple((int(code[0:2], 16), int(code[2:4], 16), int(code[4:6], 16)) for code in codes)


WHITE, INK = hexes("fdfaf0", "1d1b26")
ORANGE, RED, SLATE, LEMON = hexes("ff8a14", "e01b24", "343a4f", "ffd21f")
COBALT, SKY_BLUE, MAGENTA, PURPLE = hexes("1648d8", "33a7ff", "e0129a", "6a1fc0")
GREEN, LIME = hexes("0f9a3c", "8fe01e")

# Papers that are not parts: muted tones, far from every part colour.
DISTRACTORS = hexes(
    "b0715f",
    "7fa387",
    "6d8fb0",
    "9a7fae",
    "cbb287",
    "5f9194",
    "c48a98",
    "8f9560",
    "8c7a6b",
    "7b7394",
    "a8b8b0",
    "6b7a5e",
)


# Parts: variants as data. Each variant is a stack of paper pieces, from the lowest to the topmost.

EYE = (0.39, -0.36)
BEAK = (0.58, -0.30)
TAIL = (-0.42, 0.10)
SHOULDER = (0.16, -0.02)
HIP = (0.02, 0.36)


def _eye(*rings: tuple[Colour, float]) -> list[Piece]:
    return [(colour, ellipse(*EYE, radius, radius)) for colour, radius in rings]


def _legs(colour: Colour, *shapes: Points) -> list[Piece]:
    return [(colour, moved(shape, HIP[0] + dx, HIP[1])) for dx in (-0.14, 0.16) for shape in shapes]


def _fan(
    colours: Sequence[Colour],
    angles: Iterable[float],
    length: float,
    width: float,
    tip: float = 0.8,
) -> list[Piece]:
    return [
        (colours[i % len(colours)], feather(*TAIL, length, width, a, tip))
        for i, a in enumerate(angles)
    ]


FAN = range(150, 236, 17)
SPOTS = ((0.10, -0.01), (-0.12, -0.07), (-0.10, 0.11), (-0.33, 0.05))

VARIANTS: dict[str, dict[str, list[Piece]]] = {
    "beak": {
        "cone": [
            (ORANGE, outline(0.50, -0.47, 0.64, -0.46, 0.98, -0.24, 0.62, -0.10, 0.50, -0.13)),
            (INK, outline(0.56, -0.285, 0.98, -0.25, 0.56, -0.255)),
        ],
        "spear": [(RED, outline(0.50, -0.40, 1.16, -0.29, 1.16, -0.26, 0.50, -0.19))],
        "hook": [
            (
                SLATE,
                smooth(
                    0.50,
                    -0.48,
                    0.68,
                    -0.49,
                    0.86,
                    -0.36,
                    0.88,
                    -0.04,
                    0.76,
                    -0.16,
                    0.64,
                    -0.14,
                    0.50,
                    -0.14,
                ),
            )
        ],
        "toucan": [
            (
                LIME,
                smooth(
                    0.50,
                    -0.48,
                    0.76,
                    -0.55,
                    1.02,
                    -0.44,
                    1.13,
                    -0.14,
                    1.00,
                    -0.22,
                    0.76,
                    -0.18,
                    0.50,
                    -0.14,
                ),
            ),
            (MAGENTA, smooth(0.93, -0.50, 1.03, -0.43, 1.13, -0.14, 1.00, -0.22, 0.92, -0.22)),
        ],
    },
    "eye": {
        "gold": _eye((LEMON, 0.19), (INK, 0.10)),
        "ruby": _eye((RED, 0.19), (WHITE, 0.075)),
        "moon": _eye((WHITE, 0.20), (COBALT, 0.12)),
        "jade": _eye((INK, 0.19), (LIME, 0.12)),
    },
    "foot": {
        "webbed": _legs(
            ORANGE, outline(-0.04, 0, 0.04, 0, 0.06, 0.24, 0.21, 0.36, -0.12, 0.36, -0.04, 0.22)
        ),
        "stilt": _legs(
            MAGENTA,
            outline(-0.030, 0, 0.030, 0, 0.032, 0.40, -0.032, 0.40),
            outline(-0.12, 0.47, 0.0, 0.36, 0.19, 0.47),
            ellipse(0, 0.18, 0.062, 0.062),
        ),
        "boots": _legs(
            COBALT,
            outline(-0.075, 0.02, 0.075, 0.02, 0.085, 0.18, 0.22, 0.24, 0.22, 0.34, -0.085, 0.34),
        ),
    },
    "tail": {
        "fan": [
            *_fan((COBALT,), FAN, 0.60, 0.24),
            *(
                (
                    LEMON,
                    turned(ellipse(TAIL[0] + 0.47, TAIL[1], 0.06, 0.06, corners=12), angle, TAIL),
                )
                for angle in FAN
            ),
        ],
        "fork": _fan((INK, WHITE, INK), (164, 186, 208), 0.72, 0.19, 0.85),
        "ribbon": [
            (
                MAGENTA,
                smooth(
                    -0.34,
                    0.0,
                    -0.62,
                    -0.14,
                    -0.84,
                    -0.40,
                    -1.06,
                    -0.34,
                    -0.98,
                    -0.16,
                    -0.74,
                    0.06,
                    -0.36,
                    0.22,
                ),
            ),
            (
                PURPLE,
                smooth(
                    -0.34,
                    0.10,
                    -0.66,
                    0.08,
                    -0.90,
                    0.24,
                    -1.08,
                    0.18,
                    -1.02,
                    0.36,
                    -0.76,
                    0.38,
                    -0.36,
                    0.24,
                ),
            ),
        ],
    },
    "wing": {
        "flame": [
            (RED, feather(*SHOULDER, 0.58, 0.26, 205)),
            (ORANGE, feather(*SHOULDER, 0.58, 0.26, 178)),
            (LEMON, feather(*SHOULDER, 0.52, 0.26, 150)),
        ],
        "wave": [
            (
                COBALT,
                smooth(
                    0.22,
                    -0.10,
                    0.0,
                    -0.20,
                    -0.30,
                    -0.12,
                    -0.52,
                    0.06,
                    -0.24,
                    0.24,
                    0.08,
                    0.22,
                    0.24,
                    0.08,
                ),
            ),
            (WHITE, smooth(0.14, 0.00, -0.08, -0.08, -0.36, 0.02, -0.10, 0.02, 0.10, 0.09)),
            (SKY_BLUE, smooth(0.10, 0.12, -0.10, 0.07, -0.34, 0.09, -0.12, 0.16, 0.06, 0.18)),
        ],
        "leaf": [
            (GREEN, feather(*SHOULDER, 0.74, 0.44, 172, 0.5)),
            (LIME, feather(*SHOULDER, 0.62, 0.11, 172, 0.5)),
        ],
        "spots": [
            (PURPLE, ellipse(-0.12, 0.02, 0.38, 0.22, -8)),
            *((WHITE, ellipse(x, y, 0.065, 0.065, corners=12)) for x, y in SPOTS),
        ],
    },
}

# Two families of sixteen classes. In each, four parts vary freely, so that every class has a twin
# in each of these four.
FAMILIES: tuple[dict[str, tuple[str, ...]], ...] = (
    {
        "beak": ("cone", "spear"),
        "eye": ("gold", "ruby"),
        "foot": ("webbed",),
        "tail": ("fan", "fork"),
        "wing": ("flame", "wave"),
    },
    {
        "beak": ("hook", "toucan"),
        "eye": ("moon", "jade"),
        "foot": ("stilt", "boots"),
        "tail": ("ribbon",),
        "wing": ("leaf", "spots"),
    },
)
CLASSES: tuple[tuple[str, ...], ...] = tuple(
    variants for family in FAMILIES for variants in product(*(family[part] for part in PARTS))
)
NAMES = (
    "ember finch",
    "harbour finch",
    "candle swallow",
    "puddle swallow",
    "bonfire bunting",
    "brook bunting",
    "cinder wagtail",
    "drizzle wagtail",
    "torch heron",
    "lagoon heron",
    "spark martin",
    "fjord martin",
    "furnace kingfisher",
    "tide kingfisher",
    "lantern tern",
    "rain tern",
    "fern parrot",
    "plum parrot",
    "clover macaw",
    "domino macaw",
    "moss lory",
    "velvet lory",
    "ivy cockatoo",
    "dotted cockatoo",
    "meadow toucan",
    "dusk toucan",
    "garden aracari",
    "twilight aracari",
    "basil hornbill",
    "confetti hornbill",
    "mint toucanet",
    "polka toucanet",
)


def compatible(label: int, parts: Collection[str]) -> tuple[int, ...]:
    """Return the classes that look like ``label`` when only ``parts`` are visible."""
    visible = [i for i, part in enumerate(PARTS) if part in parts]
    return tuple(
        c
        for c, variants in enumerate(CLASSES)
        if all(variants[i] == CLASSES[label][i] for i in visible)
    )


# The stage: what is in a picture besides the parts.

ANCHORS = {"beak": BEAK, "eye": EYE, "foot": HIP, "tail": TAIL, "wing": SHOULDER}
SWING_DEGREES = {"beak": 5.0, "eye": 0.0, "foot": 5.0, "tail": 9.0, "wing": 9.0}  # either way
TORSO = smooth(
    -0.50,
    0.04,
    -0.28,
    -0.14,
    0.06,
    -0.20,
    0.44,
    -0.12,
    0.50,
    0.12,
    0.32,
    0.36,
    0.0,
    0.43,
    -0.30,
    0.30,
)
HEAD = ellipse(0.34, -0.34, 0.29, 0.27)
BREAST = smooth(
    0.30, -0.06, 0.46, 0.06, 0.40, 0.24, 0.18, 0.39, -0.06, 0.38, 0.10, 0.26, 0.24, 0.12
)
BIRD_CENTRE = (0.04, 0.04)
BIRD_HALF_EXTENT = (1.02, 0.72)
SHAPES = (
    ellipse(0, 0, 1, 1),
    ellipse(0, 0, 1, 0.5),
    feather(-1, 0, 2, 0.8, 0, 0.5),
    star(0, 0, 1, 0.45, 5),
    star(0, 0, 1, 0.72, 8),
    outline(0, -1, 0.9, 0.7, -0.9, 0.7),
    outline(-0.8, -0.8, 0.8, -0.8, 0.8, 0.8, -0.8, 0.8),
    smooth(-1, 0.3, -0.6, -0.2, -0.1, -0.5, 0.4, -0.3, 0.9, 0.0, 0.9, 0.35),
)
HILLS = 2
MOST_DISTRACTORS = 10
OVERSAMPLING = 4

# Paint numbers grow from the lowest paper to the topmost: 0 sky, hills, distractors, the bird.
HILL = 1
DISTRACTOR = HILL + HILLS
BIRD = DISTRACTOR + MOST_DISTRACTORS
STACK = ("tail", "foot", "body", "wing", "beak", "eye")
PAINTS_EACH = 4
PAINT = {name: BIRD + PAINTS_EACH * i for i, name in enumerate(STACK)}
LIGHT_BY_SHADOW_STEPS = (1.0, 0.87, 0.75, 0.64)
SHADOW_LENGTH = 0.034  # of the picture's side
MOST_PAINTS = 256 // len(LIGHT_BY_SHADOW_STEPS)

HEIGHT_OF_PAINT = np.zeros(MOST_PAINTS, np.uint8)  # higher paint casts a shadow on lower paint
PART_OF_PAINT = np.zeros(MOST_PAINTS, np.uint8)  # 0 background, 1 body, 2… the parts
HEIGHT_OF_PAINT[HILL:BIRD] = [1, 2] + [3] * MOST_DISTRACTORS
for _name, _height in zip(STACK, (4, 4, 5, 6, 6, 6), strict=True):
    _paints = slice(PAINT[_name], PAINT[_name] + PAINTS_EACH)
    HEIGHT_OF_PAINT[_paints] = _height
    PART_OF_PAINT[_paints] = 1 if _name == "body" else 2 + PARTS.index(_name)

# the colours of a variant; its pieces as (colour number, outline)
Cut = tuple[tuple[Colour, ...], list[tuple[int, Points]]]


def _cut(pieces: list[Piece]) -> Cut:
    colours = tuple(dict.fromkeys(colour for colour, _ in pieces))
    return colours, [(colours.index(colour), points) for colour, points in pieces]


CUTS = {
    (part, name): _cut(pieces)
    for part, variants in VARIANTS.items()
    for name, pieces in variants.items()
}
BODY = ((0, TORSO), (0, HEAD), (1, BREAST))


@dataclass(frozen=True)
class Scene:
    """A picture, and what is visible in it."""

    image: Pixels  # (H, W, 3)
    label: int
    part_map: Pixels  # (H, W): 0 background and distractors, 1 body, 2… the parts as in PARTS
    visible: dict[str, int]  # part -> number of its pixels that are visible


def render(
    seed: int, split: str, index: int, *, size: int = 64, parts: Collection[str] = PARTS
) -> Scene:
    """Draw one picture.

    Args:
        seed: Seed of the data set.
        split: ``train``, ``val`` or ``test``.
        index: Number of the picture in the split. With the seed and the split it decides everything
            but the parts that are drawn.
        size: Side of the picture in pixels.
        parts: The parts that are drawn; all others are left out.

    Raises:
        HeatproofError: If the split, the index, the size or a part does not exist.
    """
    _check(split, index, size, parts)
    label = label_of(index)
    stage = Stage(Chance(seed, split, index))
    paints = paste(stage, label, size * OVERSAMPLING, parts)
    half = OVERSAMPLING // 2
    part_map = PART_OF_PAINT[paints[half::OVERSAMPLING, half::OVERSAMPLING]]
    counts = np.bincount(part_map.ravel(), minlength=2 + len(PARTS))
    visible = {part: int(counts[2 + i]) for i, part in enumerate(PARTS)}
    return Scene(lit(stage, label, paints), label, part_map, visible)


def label_of(index: int) -> int:
    """Return the class of a picture."""
    return index % len(CLASSES)


def _check(split: str, index: int, size: int, parts: Collection[str]) -> None:
    if split not in SPLITS:
        raise HeatproofError(f'paperbirds has no split "{split}"; it has: {", ".join(SPLITS)}')
    if index < 0:
        raise HeatproofError(f"the index of a paperbird is 0 or more; got {index}")
    if not SMALLEST_SIDE <= size <= LARGEST_SIDE:
        raise HeatproofError(
            f"paperbirds are drawn at {SMALLEST_SIDE} to {LARGEST_SIDE} pixels per side; got {size}"
        )
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise HeatproofError(
            f'paperbirds have no part "{unknown[0]}"; they have: {", ".join(PARTS)}'
        )


class Chance:
    """The random numbers of one picture, all drawn at once."""

    def __init__(self, seed: int, split: str, index: int) -> None:
        self._left = iter(generator_of(f"paperbirds/{seed}/{split}/{index}").random(128).tolist())

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * next(self._left)

    def below(self, stop: int) -> int:
        return int(self.between(0, stop))


class Stage:
    """All random choices about a picture, which do not depend on the parts that are drawn.

    Lengths are in units of the picture's side.
    """

    def __init__(self, chance: Chance) -> None:
        between = chance.between
        unit = between(0.355, 0.445)
        stretch = between(0.94, 1.06)
        facing = (-1, 1)[chance.below(2)]
        self.pose = turned(np.diag([unit * stretch * facing, unit / stretch]), between(-14, 14))
        room = [max(0.03, 0.5 - reach * unit) for reach in BIRD_HALF_EXTENT]
        self.position = np.array(
            [0.5 + room[0] * between(-1, 1), 0.5 + room[1] * between(-0.9, 0.9)]
        )
        self.swing = {part: SWING_DEGREES[part] * between(-1, 1) for part in PARTS}

        hue = between(0, 1)
        saturation = between(0.16, 0.48)
        value = between(0.72, 0.95)
        breast = hsv(hue + between(-0.08, 0.08), 0.45 * saturation, min(1.0, value + 0.12))
        self.body = (hsv(hue, saturation, value), breast)
        self.sky = hsv(between(0, 1), between(0.12, 0.42), between(0.55, 0.95))
        hue = between(0, 1)
        self.hills = [
            (
                hsv(hue + 0.07 * i, between(0.15, 0.40), between(0.45, 0.85)),
                hill(0.66 + 0.14 * i, chance),
            )
            for i in range(HILLS)
        ]
        angle = between(0.2, 0.8) * pi
        self.shadow = np.array([cos(angle), sin(angle)])
        self.brightness = between(0.86, 1.02)
        self.ramp = between(0.08, 0.28)
        self.distractors = [
            (
                DISTRACTORS[chance.below(len(DISTRACTORS))],
                scattered(SHAPES[chance.below(len(SHAPES))], chance),
            )
            for _ in range(chance.below(MOST_DISTRACTORS + 1))
        ]

    def placed(self, points: Points) -> Points:
        return (points - BIRD_CENTRE) @ self.pose + self.position


def hill(highest: float, chance: Chance) -> Points:
    between = chance.between
    x = np.linspace(-0.05, 1.05, 14)
    wave = between(0.01, 0.07) * np.sin(between(3, 8) * x + between(0, 2 * pi))
    wave = wave + between(-0.1, 0.1) * (x - 0.5)
    return np.concatenate(
        [np.stack([x, between(highest, 1.15) + wave], axis=1), outline(1.05, 1.5, -0.05, 1.5)]
    )


def scattered(shape: Points, chance: Chance) -> Points:
    between = chance.between
    return turned(shape, between(0, 360)) * between(0.025, 0.10) + np.array(
        [between(0, 1), between(0, 1)]
    )


def hsv(hue: float, saturation: float, value: float) -> Colour:
    distances = ((6 * hue + corner) % 6 for corner in (5, 3, 1))
    r, g, b = (
        round(255 * value * (1 - saturation * max(0.0, min(d, 4 - d, 1.0)))) for d in distances
    )
    return r, g, b


def paste(stage: Stage, label: int, side: int, parts: Collection[str]) -> Pixels:
    """Return the paint that is visible at each point of a (side, side) canvas."""
    canvas = Image.new("L", (side, side))
    draw = ImageDraw.Draw(canvas)

    def glue(paint: int, points: Points) -> None:  # points in sides of the picture
        draw.polygon((points * side).ravel().tolist(), fill=paint)

    for i, (_, points) in enumerate(stage.hills):
        glue(HILL + i, points)
    for i, (_, points) in enumerate(stage.distractors):
        glue(DISTRACTOR + i, points)
    variants = dict(zip(PARTS, CLASSES[label], strict=True))
    for name in STACK:
        if name == "body":
            for offset, points in BODY:
                glue(PAINT[name] + offset, stage.placed(points))
        elif name in parts:
            for offset, points in CUTS[name, variants[name]][1]:
                glue(
                    PAINT[name] + offset,
                    stage.placed(turned(points, stage.swing[name], ANCHORS[name])),
                )
    return np.asarray(canvas)


def lit(stage: Stage, label: int, paints: Pixels) -> Pixels:
    """Add colours, shadows and light: (size · OVERSAMPLING)² paints to (size, size, 3)."""
    side = len(paints)
    height = HEIGHT_OF_PAINT[paints]
    steps = np.zeros_like(paints)
    for k in range(1, len(LIGHT_BY_SHADOW_STEPS)):
        dx, dy = (
            np.rint(stage.shadow * (SHADOW_LENGTH * side * k / (len(LIGHT_BY_SHADOW_STEPS) - 1)))
            .astype(int)
            .tolist()
        )
        left = max(dx, 0)
        right = side + min(dx, 0)
        steps[dy:, left:right] += (
            height[: side - dy, left - dx : right - dx] > height[dy:, left:right]
        )
    painted = Image.frombytes("P", (side, side), (paints + MOST_PAINTS * steps).tobytes())
    painted.putpalette(_palette(stage, label).tobytes())
    flat = np.asarray(painted.convert("RGB").reduce(OVERSAMPLING), dtype=np.float32)
    across = np.linspace(-1, 1, len(flat), dtype=np.float32)
    x, y = stage.shadow.tolist()
    light = stage.brightness - stage.ramp * (x * across[None, :] + y * across[:, None])
    return np.minimum(flat * light[..., None] + 0.5, 255).astype(np.uint8)


def _palette(stage: Stage, label: int) -> Pixels:
    colours = np.zeros((MOST_PAINTS, 3))
    colours[0] = stage.sky
    for first, shapes in ((HILL, stage.hills), (DISTRACTOR, stage.distractors)):
        for i, (colour, _) in enumerate(shapes):
            colours[first + i] = colour
    colours[PAINT["body"] : PAINT["body"] + 2] = stage.body
    for part, variant in zip(PARTS, CLASSES[label], strict=True):
        papers = CUTS[part, variant][0]
        colours[PAINT[part] : PAINT[part] + len(papers)] = papers
    return np.concatenate([colours * shade for shade in LIGHT_BY_SHADOW_STEPS]).astype(np.uint8)


# All embedded models, and all views of a grid, load the same pictures of this size.
CACHED_SIZE = 64


@lru_cache(2048)  # of 16 KB
def _cached_scene(seed: int, split: str, index: int) -> Scene:
    return render(seed, split, index, size=CACHED_SIZE)


VERSION = 1  # raised when scenes are drawn differently, so that old results are not reused


class Paperbirds:
    """A split of the data set; pictures are drawn when they are loaded.

    Args:
        split: ``train``, ``val`` or ``test``.
        size: Side of the pictures in pixels.
        limit: The number of samples; all by default.
        seed: Seed of the data set.
    """

    classes = NAMES
    part_names = PARTS
    has_silhouettes = True

    def __init__(
        self, split: str = "test", size: int = 64, limit: int | None = None, seed: int = 0
    ) -> None:
        _check(split, 0, size, PARTS)
        if limit is not None and limit < 1:
            raise HeatproofError(f"limit must be at least 1; got {limit}")
        count = min(SPLITS[split], limit or SPLITS[split])
        self.name = f"paperbirds:{split}"
        self.split = split
        self.size = size
        self.seed = seed
        prefix = split if seed == 0 else f"{split}.{seed}"
        self.ids: Sequence[str] = [f"{prefix}-{index:05d}" for index in range(count)]
        self.labels: Sequence[int | None] = [label_of(index) for index in range(count)]
        self.fingerprints: Sequence[str] = [f"{seed} {size} v{VERSION}"] * count

    def __len__(self) -> int:
        return len(self.ids)

    def scene(self, index: int, parts: Collection[str] = PARTS) -> Scene:
        """Draw a picture with some of its parts."""
        return render(self.seed, self.split, range(len(self))[index], size=self.size, parts=parts)

    def load(self, index: int) -> Sample:
        if self.size == CACHED_SIZE:
            scene = _cached_scene(self.seed, self.split, range(len(self))[index])
        else:
            scene = self.scene(index)
        image = torch.from_numpy(scene.image).permute(2, 0, 1).float() / 255
        return Sample(
            self.ids[index], image.contiguous(), scene.label, torch.from_numpy(scene.part_map > 0)
        )

    def parts(self, index: int) -> PartViews:
        part_map = torch.from_numpy(self.scene(index).part_map)
        without = [self._without(index, part) for part in PARTS]
        masks = [part_map == number for number in range(2, 2 + len(PARTS))]
        return PartViews(torch.stack(without), torch.stack(masks)[:, None])

    def _without(self, index: int, part: str) -> torch.Tensor:  # (3, H, W) uint8
        others = [p for p in PARTS if p != part]
        return torch.from_numpy(self.scene(index, others).image).permute(2, 0, 1)


@dataset(
    "paperbirds",
    summary=f"paper-cut birds, drawn by code; splits {', '.join(SPLITS)}",
    training_split=lambda rest: "paperbirds:train",
    splits={"train": "train", "validation": "val", "test": "test"},
)
def open_paperbirds(
    *, rest: str, model: Model | None, split: str | None, limit: int | None
) -> Paperbirds:
    """Open ``paperbirds``, ``paperbirds:train``, ``paperbirds:val`` or ``paperbirds:test``."""
    if rest and split and rest != split:
        raise HeatproofError(f"paperbirds:{rest} names a split, and split={split} another")
    size = 64
    if model is not None:
        check_colour("paperbirds", model)
        size = model.square_side("paperbirds")
    return Paperbirds(split or rest or "test", size=size, limit=limit)
