"""Tiny networks of transformers, timm and torchvision, with random weights and five classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from heatproof.models.huggingface import import_transformers
from heatproof.models.vision import import_timm, import_torchvision

VIT = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 48,
}
SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 12,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 4,
}
CONVNEXT = {"image_size": 32, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}
PVT = {
    "image_size": 32,
    "patch_sizes": [4, 2],
    "strides": [4, 2],
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "hidden_sizes": [8, 16],
    "num_attention_heads": [1, 2],
    "sequence_reduction_ratios": [2, 1],
    "mlp_ratios": [2, 2],
}
LEVIT = {
    "image_size": 64,
    "hidden_sizes": [16, 24, 32],
    "num_attention_heads": [2, 2, 2],
    "depths": [1, 1, 1],
    "key_dim": [8, 8, 8],
}
POOLFORMER = {
    "depths": [1, 1],
    "hidden_sizes": [8, 16],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "padding": [2, 1],
    "num_encoder_blocks": 2,
}
EFFICIENTNET = {
    "image_size": 32,
    "width_coefficient": 0.05,
    "depth_coefficient": 0.2,
    "in_channels": [8, 8],
    "out_channels": [8, 16],
    "kernel_sizes": [3, 3],
    "strides": [1, 2],
    "num_block_repeats": [1, 1],
    "expand_ratios": [1, 2],
    "depthwise_padding": [],
    "hidden_dim": 64,
}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "ViT": VIT,
    "DeiT": VIT,
    "Beit": VIT,
    "Dinov2": VIT,
    "Swin": SWIN,
    "Swinv2": SWIN,
    "ConvNext": {**CONVNEXT, "patch_size": 2},
    "ConvNextV2": {**CONVNEXT, "patch_size": 2},
    "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "RegNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 8},
    "MobileNetV1": {"image_size": 32, "depth_multiplier": 0.02, "min_depth": 4},
    "EfficientNet": EFFICIENTNET,
    "Pvt": PVT,
    "Levit": LEVIT,
    "PoolFormer": POOLFORMER,
    "FocalNet": {
        "image_size": 32,
        "patch_size": 2,
        "embed_dim": 12,
        "depths": [1, 1],
        "focal_levels": [2, 2],
        "focal_windows": [3, 3],
    },
}
TIMM: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"img_size": 32, "embed_dim": 24, "depth": 3},
    "deit_tiny_distilled_patch16_224": {"img_size": 48, "embed_dim": 24, "depth": 3},
    "swin_tiny_patch4_window7_224": {
        "img_size": 32,
        "patch_size": 2,
        "window_size": 4,
        "embed_dim": 12,
        "depths": (1, 2),
        "num_heads": (2, 2),
    },
    "test_resnet": {},
    "test_efficientnet": {},
    "test_convnext": {},
    "test_byobnet": {},
    "test_nfnet": {},
}
TORCHVISION = ("squeezenet1_1", "swin")
NAMES = [
    *(f"transformers:{name}" for name in TRANSFORMERS),
    *(f"timm:{name}" for name in TIMM),
    *(f"torchvision:{name}" for name in TORCHVISION),
]
SIDES = {
    "timm:deit_tiny_distilled_patch16_224": 48,
    "transformers:Levit": 64,
    "torchvision:squeezenet1_1": 64,
}


def build(name: str, **options: Any) -> nn.Module:
    """Build a network by its name in ``NAMES``, always with the same weights."""
    library, _, net = name.partition(":")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return BUILDERS[library](net, options).eval()


def _transformers(name: str, options: dict[str, Any]) -> nn.Module:
    library = import_transformers()
    config = getattr(library, f"{name}Config")(**{"num_labels": 5, **TRANSFORMERS[name], **options})
    return getattr(library, f"{name}ForImageClassification")(config)


def _timm(name: str, options: dict[str, Any]) -> nn.Module:
    return import_timm().create_model(name, num_classes=5, **{**TIMM[name], **options})


def _torchvision(name: str, options: dict[str, Any]) -> nn.Module:
    models = import_torchvision().models
    if name == "swin":
        return models.swin_transformer.SwinTransformer(
            [4, 4], 12, [1, 1], [2, 2], [4, 4], num_classes=5
        )
    return getattr(models, name)(num_classes=5, **options)


BUILDERS = {"transformers": _transformers, "timm": _timm, "torchvision": _torchvision}
