"""DINOv2 as a classifier: an image belongs to the class whose mean embedding is the most similar.

Run it with a folder of images in one subfolder per class, and another with images to explain:

    python examples/dino_class_means.py facebook/dinov2-with-registers-small train/ test/
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import heatproof as hp


class ClassMeans(nn.Module):
    """Maps images to the scaled cosine similarity of their embedding with that of each class.

    Args:
        dino: A ``Dinov2Model`` or ``Dinov2WithRegistersModel`` of transformers.
        means: Mean embeddings of the classes, ``(K, D)``.
        scale: What similarities are multiplied by.
    """

    means: Tensor  # (K, D), of length 1

    def __init__(self, dino: Any, means: Tensor, scale: float = 20.0):
        super().__init__()
        self.dino = dino
        self.scale = scale
        self.register_buffer("means", nn.functional.normalize(means, dim=-1))

    def forward(self, x: Tensor) -> Tensor:  # (B, 3, H, W) -> (B, K)
        embedding = self.dino(pixel_values=x).pooler_output
        return self.scale * nn.functional.normalize(embedding, dim=-1) @ self.means.mT


def class_means(
    dino: Any, processor: Any, images: Sequence[tuple[Any, int]], classes: int
) -> Tensor:
    """Return the mean embedding ``(K, D)`` of the images of each class."""
    found: list[list[Tensor]] = [[] for _ in range(classes)]
    with torch.no_grad():
        for image, label in images:
            x = processor(image, return_tensors="pt")["pixel_values"]
            found[label].append(
                nn.functional.normalize(dino(pixel_values=x).pooler_output[0], dim=0)
            )
    return torch.stack([torch.stack(of_class).mean(0) for of_class in found])


def by_class_means(
    dino: Any, processor: Any, images: Sequence[tuple[Any, int]], classes: Sequence[str]
) -> hp.Model:
    """Return DINOv2 as a classifier by the class means of some labelled images."""
    means = class_means(dino, processor, images, len(classes))
    return hp.Model(ClassMeans(dino, means), name="DINOv2", classes=classes, processor=processor)


def main() -> None:
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModel

    name, train, test = sys.argv[1:]
    folders = sorted(folder for folder in Path(train).iterdir() if folder.is_dir())
    images = [
        (Image.open(path).convert("RGB"), label)
        for label, folder in enumerate(folders)
        for path in sorted(folder.iterdir())[:20]
    ]
    model = by_class_means(
        AutoModel.from_pretrained(name).eval(),
        AutoImageProcessor.from_pretrained(name),
        images,
        [folder.name for folder in folders],
    )
    print(
        hp.evaluate(model, f"folder:{test}", ["ixg", "gradcam", "attnlrp", "random"], ["insertion"])
    )


if __name__ == "__main__":
    main()
