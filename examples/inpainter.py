"""A generative fill as a baseline: a small inpainter, trained on paperbirds in minutes.

    python examples/inpainter.py train              # writes inpainter.safetensors
    python examples/inpainter.py draw docs/img/inpainting.png

In a spec the baseline is ``file:examples/inpainter.py:inpaint``. A diffusion model or LaMa takes
the place of ``network``: all that heatproof needs is the function ``inpaint``.
"""

from __future__ import annotations

import sys
import time
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import heatproof as hp

WEIGHTS = "inpainter.safetensors"
STEPS = 800
BATCH = 16
IMAGES = 2000


class Inpainter(nn.Module):
    """A U-Net of five colours: an image in [0, 1] with a hole, where the hole is, and ones."""

    def __init__(self, width: int = 16):
        super().__init__()
        sizes = [5, width, 2 * width, 4 * width, 4 * width]
        self.down = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(a, b, 3, 1 if i == 0 else 2, 1),
                nn.GELU(),
                nn.Conv2d(b, b, 3, padding=1),
                nn.GELU(),
            )
            for i, (a, b) in enumerate(pairwise(sizes))
        )
        self.up = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a + b, b, 3, padding=1), nn.GELU())
            for a, b in zip(sizes[:1:-1], sizes[-2:0:-1], strict=True)
        )
        self.out = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: Tensor, hole: Tensor) -> Tensor:
        """Complete images ``(B, 3, H, W)`` in [0, 1] where ``hole``, ``(B, 1, H, W)``, is 1."""
        h = torch.cat([image * (1 - hole), hole, torch.ones_like(hole)], 1)
        seen = []
        for stage in self.down:
            h = stage(h)
            seen.append(h)
        for stage, skip in zip(self.up, seen[-2::-1], strict=True):
            h = nn.functional.interpolate(h, skip.shape[2:], mode="nearest")
            h = stage(torch.cat([h, skip], 1))
        return self.out(h).sigmoid()


def holes(count: int, size: int, generator: torch.Generator) -> Tensor:  # (count, 1, size, size)
    """Draw what is missing: smooth blobs, rectangles or single pixels, 10 to 90 % of an image."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    kinds = []
    for _ in range(count):
        cells = [4, 8, 16, size][int(4 * uniform(1))]
        field = nn.functional.interpolate(uniform(1, 1, cells, cells), size, mode="bicubic")
        kinds.append(field < field.flatten().quantile(0.1 + 0.8 * uniform(1).item()))
    return torch.cat(kinds).float()


def train(weights: Path) -> None:
    """Train on images of the training split whose pixels are removed at random."""
    torch.manual_seed(0)
    model = hp.load_model("paperbirds/resnet")
    data = hp.load_data("paperbirds:train", model, limit=IMAGES)
    images = torch.stack([data.load(i).image for i in range(IMAGES)])
    network = Inpainter()
    optimizer = torch.optim.AdamW(network.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, STEPS)
    generator = torch.Generator().manual_seed(0)
    begin = time.perf_counter()
    for step in range(STEPS):
        image = images[torch.randint(IMAGES, (BATCH,), generator=generator)]
        hole = holes(BATCH, image.shape[-1], generator)
        error = ((network(image, hole) - image).abs() * hole).sum() / (3 * hole.sum())
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            spent = time.perf_counter() - begin
            print(f"step {step + 1}: error {error:.4f}, {spent:.0f} s", flush=True)
    save_file(network.state_dict(), weights)


@cache
def network(weights: str) -> Inpainter:
    """Load the inpainter, once."""
    inpainter = Inpainter()
    inpainter.load_state_dict(load_file(weights))
    return inpainter.eval()


@hp.baseline("inpaint", imputes=True, cached=True, group="imputed")
def inpaint(x, removed, *, model, rng, weights: str = WEIGHTS):
    """Removed pixels as an inpainter completes them."""
    image = x * model.std + model.mean
    completed = network(weights)(image, removed[:, None].to(x))
    return (completed - model.mean) / model.std


# Figs 6 and 12 of Picard et al. (2024)

SCALE = 3
FRACTION = 0.5


def draw(path: Path) -> None:
    """Draw images without half of their pixels, and how they are completed.

    The pixels are the most relevant ones of Grad-CAM and of `ixg`, and random ones. Below stands
    the probability that the network gives to the label.
    """
    from heatproof.baselines import Baseline
    from heatproof.protocols.removal import removal_order
    from heatproof.tensor.noise import Rng

    model = hp.load_model("paperbirds/resnet")
    data = hp.load_data("paperbirds:test", model, limit=4)
    x = model.normalize(torch.stack([data.load(i).image for i in range(4)]))
    target = torch.tensor(data.labels[:4])
    columns = [("image", x)]
    baseline = Baseline.parse("inpaint")
    rng = Rng(0, list(data.ids[:4]))
    for method in ("gradcam", "ixg", "random"):
        maps = hp.explain(model, x, target, method, ids=list(data.ids[:4]))
        ranks = removal_order(maps, list(data.ids[:4]), 0)
        removed = ranks < int(FRACTION * ranks[0].numel())
        grey = (0.5 - model.mean) / model.std
        columns.append((f"without {method}", torch.where(removed[:, None], grey, x)))
        columns.append(("completed", baseline.remover(x, model, rng)(torch.arange(4), removed)))
    probability = {
        number: model.probabilities(model.logits(images)).gather(1, target[:, None])[:, 0]
        for number, (_, images) in enumerate(columns)
    }
    side = SCALE * model.size
    picture = Image.new("RGB", (len(columns) * (side + 6), 4 * (side + 18) + 16), "white")
    pen = ImageDraw.Draw(picture)
    for number, (title, images) in enumerate(columns):
        pen.text((number * (side + 6) + 2, 2), title, "black")
        for row in range(4):
            pixels = (images[row] * model.std + model.mean).clamp(0, 1)
            tile = Image.fromarray((pixels.permute(1, 2, 0) * 255).byte().numpy())
            place = (number * (side + 6), 16 + row * (side + 18))
            picture.paste(tile.resize((side, side), Image.Resampling.NEAREST), place)
            text = f"p = {probability[number][row]:.2f}"
            pen.text((place[0] + 2, place[1] + side + 2), text, "black")
    picture.save(path, optimize=True)


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(Path(WEIGHTS))
    else:
        draw(Path(sys.argv[2]))
