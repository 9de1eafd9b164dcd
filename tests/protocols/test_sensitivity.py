"""Robustness: Quantus with the same noise, linear networks, and noise that changes predictions."""

import numpy as np
import pytest
import torch
from tests.protocols.test_randomization import LIMIT, batch, gradient, model, saliency, scores
from torch import nn

import heatproof as hp
from heatproof.models.vision import import_torchvision
from heatproof.tensor.noise import Rng

import_torchvision()

import quantus  # noqa: E402

__all__ = ["batch", "model"]  # fixtures

RADIUS = 0.05
COPIES = 3


def noise(model: hp.Model, ids, shape, copy: int) -> torch.Tensor:
    uniform = Rng(0, ids).uniform(f"sensitivity {copy}", shape)
    return RADIUS / model.std * (2 * uniform - 1)


@pytest.mark.parametrize("statistic", ["max", "mean", "lipschitz"])
def test_sensitivity_is_that_of_quantus_for_the_same_noise(model, batch, statistic):
    ids, x, target = batch
    copies = iter(range(COPIES))

    def perturbed(arr, indices, **_):
        return arr + noise(model, ids, x.shape[1:], next(copies)).reshape(arr.shape).numpy()

    metrics = {
        "max": quantus.MaxSensitivity,
        "mean": quantus.AvgSensitivity,
        "lipschitz": quantus.LocalLipschitzEstimate,
    }
    options = {}
    if statistic == "lipschitz":
        options = {"norm_numerator": euclidean, "norm_denominator": euclidean}
    metric = metrics[statistic](
        nr_samples=COPIES,
        perturb_func=perturbed,
        abs=False,
        normalise=False,
        return_nan_when_prediction_changes=True,
        disable_warnings=True,
        **options,
    )
    expected = metric(
        model.module,
        x.numpy(),
        target.numpy(),
        explain_func=saliency,
        channel_first=True,
        batch_size=LIMIT,
    )
    name = f"sensitivity(statistic={statistic}, copies={COPIES}, radius={RADIUS})"
    ours = scores([gradient], [name])["sensitivity", "gradient"]
    assert ours[ids].tolist() == pytest.approx(list(expected), rel=1e-4, abs=1e-5)


def euclidean(a, b, **_):
    return np.linalg.norm(np.asarray(a) - np.asarray(b), axis=-1)


class Linear(nn.Module):
    """A linear network; its gradient is the same for every image."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.flatten = nn.Flatten()
        self.linear = nn.Linear(3 * 8 * 8, 2, bias=False)
        with torch.no_grad():
            self.linear.weight.mul_(scale)

    def forward(self, x):
        return self.linear(self.flatten(x))


def test_the_gradient_of_a_linear_network_never_changes():
    torch.manual_seed(0)
    data = hp.TensorData(torch.rand(4, 3, 8, 8), labels=[0, 1, 0, 1])
    protocols = [f"sensitivity(statistic={s})" for s in ("max", "mean", "lipschitz")]
    rows = hp.evaluate(hp.Model(Linear(), size=8), data, ["saliency"], protocols).scores
    assert rows["status"].eq("ok").all() and not rows["value"].any()


def test_noise_that_changes_the_prediction_does_not_count():
    torch.manual_seed(0)
    net = hp.Model(Linear(), size=8, mean=[0.5] * 3, std=[1] * 3)
    x = torch.rand(1, 3, 8, 8)
    w = net.module.linear.weight[0] - net.module.linear.weight[1]
    w = w.detach()
    flat = 0.2 * (x.flatten() - 0.5)
    x = (flat - (w @ flat) / (w @ w) * w + 1e-4 * w).reshape(x.shape) + 0.5  # at the boundary
    data = hp.TensorData(x, labels=[0])
    result = hp.evaluate(net, data, ["ixg"], ["sensitivity(copies=20, radius=0.02)"])
    (row,) = result.scores.itertuples()
    kept = []
    for i in range(20):
        uniform = Rng(0, data.ids).uniform(f"sensitivity {i}", x.shape[1:])
        change = 0.02 * (2 * uniform - 1)
        if (net.logits(x - 0.5 + change) @ torch.tensor([1.0, -1.0])).item() > 0:
            maps = [
                (image * net.module.linear.weight[0].view_as(x)).sum(1)
                for image in (x - 0.5, x - 0.5 + change)
            ]
            kept.append(((maps[1] - maps[0]).norm() / maps[0].norm()).item())
    assert 0 < len(kept) < 20
    assert row.value == pytest.approx(max(kept), rel=1e-4)


def test_a_control_with_noise_of_its_own_is_stable_and_one_without_an_image_too():
    values = scores(["random", "center"], ["sensitivity(copies=2)"])
    assert not values.any(axis=None)
