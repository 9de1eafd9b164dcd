"""Zero-shot classification with CLIP: class names become logits, and heatproof takes it from there.

Run it with the images of a folder:

    python examples/clip_zero_shot.py openai/clip-vit-base-patch32 photos/ dog cat bird
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import heatproof as hp


class ZeroShot(nn.Module):
    """Maps images to the scaled cosine similarity with each class name, as CLIP does.

    Args:
        clip: A ``CLIPModel`` of transformers.
        text: The tokens of one sentence per class: ``input_ids`` and ``attention_mask``.
    """

    text: Tensor  # (K, D), of length 1

    def __init__(self, clip: Any, text: dict[str, Tensor]):
        super().__init__()
        with torch.no_grad():
            features = clip.text_projection(clip.text_model(**text).pooler_output)
        self.vision = clip.vision_model
        self.projection = clip.visual_projection
        self.scale = clip.logit_scale
        self.register_buffer("text", nn.functional.normalize(features, dim=-1))

    def forward(self, x: Tensor) -> Tensor:  # (B, 3, H, W) -> (B, K)
        image = self.projection(self.vision(pixel_values=x).pooler_output)
        return self.scale.exp() * nn.functional.normalize(image, dim=-1) @ self.text.mT


def zero_shot(clip: Any, processor: Any, tokenizer: Any, classes: Sequence[str]) -> hp.Model:
    """Return CLIP as a classifier of images into named classes."""
    sentences = [f"a photo of a {name}" for name in classes]
    text = tokenizer(sentences, padding=True, return_tensors="pt")
    return hp.Model(ZeroShot(clip, dict(text)), name="CLIP", classes=classes, processor=processor)


def main() -> None:
    from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel

    name, folder, *classes = sys.argv[1:]
    model = zero_shot(
        CLIPModel.from_pretrained(name).eval(),
        AutoImageProcessor.from_pretrained(name),
        AutoTokenizer.from_pretrained(name),
        classes,
    )
    print(hp.evaluate(model, f"folder:{folder}", ["ixg", "gradcam", "random"], ["insertion"]))


if __name__ == "__main__":
    main()
