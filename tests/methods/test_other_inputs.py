"""Networks of one and five channels, images that are not square: all methods and baselines."""

import warnings

import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.baselines import BASELINES, Baseline
from heatproof.data.reference import Reference
from heatproof.errors import NotApplicable
from heatproof.methods.base import METHODS
from heatproof.tensor.noise import Rng

CHEAP = {"masks": 8, "steps": 2, "n": 2, "designs": 2, "copies": 2, "turns": 1}
IMAGES = {
    channels: torch.rand(6, channels, 16, 24, generator=torch.Generator().manual_seed(0))
    for channels in (1, 5)
}
OF_OTHER_NETWORKS = {
    "bagnet",
    "bcos",
    "rollout",
    "chefer",
    "vit-gradcam",
    "legrad",
    "grad-rollout",
}
LIBRARY = [
    "captum:GuidedGradCam",
    "captum:Lime",
    "captum:Occlusion(sliding_window_shapes=8)",
    "captum:LayerGradCam",
    "grad-cam:HiResCAM",
    "grad-cam:ScoreCAM",
    "torchcam:LayerCAM",
    "zennit:EpsilonGammaBox",
    "zennit:EpsilonPlusFlat",
]


def make_model(channels):
    torch.manual_seed(0)
    layers = [nn.Conv2d(channels, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(8, 4)).eval()
    mean = [0.5 + 0.05 * c for c in range(channels)]
    return hp.Model(net, size=(16, 24), mean=mean, std=[0.25] * channels, batch_size=16)


@pytest.fixture(scope="module", params=[1, 5])
def model(request):
    return make_model(request.param)


def cheap(entry):
    options = [
        f"{name}={value}"
        for name, value in CHEAP.items()
        if name in entry.parameters and type(entry.parameters[name].default) is int
    ]
    if entry.id in ("kernelshap", "lime", "hsic", "sobol"):
        options.append("cells=2")
    if entry.id == "occlusion":
        options += ["size=8", "stride=8"]
    return f"{entry.id}({', '.join(options)})" if options else entry.id


@pytest.mark.parametrize("method", [*(cheap(e) for e in METHODS if e.source is None), *LIBRARY])
def test_every_method_explains_any_channels(model, method):
    images = IMAGES[model.image_shape[0]]
    x = model.normalize(images[:2])
    silhouette = torch.zeros(2, 16, 24, dtype=torch.bool)
    silhouette[:, 4:8, 4:12] = True
    given = {"reference": images, "silhouette": silhouette}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            maps = hp.explain(model, x, [0, 1], method, **given)
        except NotApplicable:
            if method not in OF_OTHER_NETWORKS:
                raise
            return
    assert maps.shape == (2, 16, 24)
    assert maps.isfinite().all()


@pytest.mark.parametrize("name", [e.id for e in BASELINES if e.source is None])
def test_every_baseline_fills_any_channels(model, name):
    images = IMAGES[model.image_shape[0]]
    x = model.normalize(images[:2])
    baseline = Baseline.parse(f"{name}(steps=3)" if name == "featurevis" else name)
    prepared = None
    if baseline.entry.prepare:
        reference = Reference(hp.TensorData(images), range(len(images)))
        prepared = baseline.prepare(model, reference.batches(model))
    removed = torch.zeros(2, 16, 24, dtype=torch.bool)
    removed[:, :8] = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fill = baseline.fill(x, model, Rng(0, ["a", "b"]), removed, prepared)
    assert fill.shape == x.shape
    assert fill.isfinite().all()
