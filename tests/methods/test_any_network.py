"""Every gradient, CAM and perturbation method gives finite maps on any network, or a reason."""

import re
import warnings

import pytest
import tiny_networks as tiny
import torch

import heatproof as hp
from heatproof.errors import NotApplicable
from heatproof.methods.base import METHODS

FAMILIES = ("gradient", "cam", "perturbation", "attention", "relevance")
CHEAP = {"masks": 8, "steps": 2, "n": 2, "designs": 2, "copies": 2, "turns": 1}
COARSE = ("kernelshap", "lime", "hsic", "sobol")  # over 2×2 cells


def cheap(entry):
    """Return the method with as few passes as it takes."""
    options = [
        f"{name}={value}"
        for name, value in CHEAP.items()
        if name in entry.parameters and type(entry.parameters[name].default) is int
    ]
    if entry.id in COARSE:
        options.append("cells=2")
    if entry.id == "occlusion":
        options += ["size=8", "stride=8"]
    return f"{entry.id}({', '.join(options)})" if options else entry.id


ENTRIES = [e for e in METHODS if e.source is None and e.family in FAMILIES]


@pytest.mark.parametrize("name", tiny.NAMES)
def test_every_method_gives_finite_maps_or_a_reason(name):
    pytest.importorskip("transformers" if name.startswith("transformers") else "torchvision")
    side = tiny.SIDES.get(name, 32)
    model = hp.Model(tiny.build(name), size=side, mean=(0.5,) * 3, std=(0.5,) * 3, batch_size=32)
    assert not [layer for layer in model.layers if re.search("getattr|getitem", layer)]
    images = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    x = model.normalize(images)
    done = set()
    for entry in ENTRIES:
        methods = [cheap(entry)]
        if "cam" in model.landmarks and entry.family == "gradient":
            methods.append(f"{cheap(entry)}@cam")
        for method in methods:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    maps = hp.explain(model, x, 1, method, reference=images)
            except NotApplicable:
                continue  # the reason is its message
            assert maps.shape == (1, side, side)
            assert maps.isfinite().all(), method
            done.add(entry.family)
    assert {"gradient", "perturbation"} <= done
    assert "cam" in done or "ViT" in name or "vit_tiny" in name  # a plain ViT: name a block


@pytest.mark.parametrize("name", ["transformers:ViT", "timm:vit_tiny_patch16_224"])
def test_cams_at_a_block_of_a_plain_vit(name):
    model = hp.Model(tiny.build(name), size=32, mean=(0.5,) * 3, std=(0.5,) * 3)
    x = torch.randn(1, 3, 32, 32)
    for entry in ENTRIES:
        if entry.family == "cam":
            assert hp.explain(model, x, 1, f"{cheap(entry)}@block2").isfinite().all()
