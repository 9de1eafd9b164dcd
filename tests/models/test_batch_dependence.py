"""Networks whose rows depend on each other: refused with the cause, or run one image at a time."""

import pytest
import torch
import yaml
from torch import Tensor, nn

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.models import batch_dependence
from heatproof.models.batch_dependence import one_at_a_time
from heatproof.plan.spec import make_spec


class Centred(nn.Module):
    """Subtracts the mean of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class CentredGradient(nn.Module):
    """The identity, whose gradient is that of `Centred`."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(0)
        return x - mean + mean.detach()


class Summed(nn.Module):
    """Adds the images before an image, of which the first has none."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(0)


class SummedGradient(nn.Module):
    """The identity, whose gradient is that of `Summed`."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.cumsum(0)
        return x + total - total.detach()


def network(middle: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    head = [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)]
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), middle, nn.ReLU(), *head).eval()


BATCH_NORM = {"track_running_stats": False}


@pytest.mark.parametrize(
    ("middle", "message"),
    [
        (nn.BatchNorm2d(8, **BATCH_NORM), "outputs .* batch norm 1 has .*track_running_stats=True"),
        (Centred(), r"outputs .* first in 1 \(Centred\): compute each row from itself"),
        (CentredGradient(), "gradients .* compute each row from itself"),
        (Summed(), r"outputs .* first in 1 \(Summed\): compute each row from itself"),
        (SummedGradient(), "gradients .* compute each row from itself"),
    ],
)
def test_a_network_whose_rows_depend_on_each_other_is_refused(middle, message):
    with pytest.raises(HeatproofError, match=message):
        hp.Model(network(middle), size=32)


@pytest.mark.parametrize(
    "middle", [nn.BatchNorm2d(8), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8), nn.Dropout(0.9)]
)
def test_others_are_not(middle):
    model = hp.Model(network(middle), size=32)
    assert not model.batch_dependent
    assert model.batch_size == 64


def test_the_check_takes_four_passes_of_two_images():
    images = 0
    net = network(nn.BatchNorm2d(8))

    def count(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        nonlocal images
        images += len(output)
        if output.requires_grad:
            output.register_hook(count_backward)

    def count_backward(gradient: Tensor) -> None:
        nonlocal images
        images += len(gradient)

    net.register_forward_hook(count)
    assert not one_at_a_time("net", net, torch.rand(2, 3, 32, 32), wanted=False)
    assert images == 2 + 2 + 2 * 2  # together, each alone, and two gradients


@pytest.mark.parametrize(
    "name",
    ["torchvision:resnet18", "torchvision:googlenet", "bagnet9", "bcos-resnet18", "fixup-resnet50"],
)
def test_networks_of_the_papers_are_not_checked_whose_rows_are_independent(name, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(batch_dependence, "_difference", lambda *_: pytest.fail("it is checked"))
        model = hp.load_model(name, "random")
    assert not model.batch_dependent
    assert not one_at_a_time(name, model.module, torch.rand(2, 3, 64, 64), wanted=False)


def test_one_image_at_a_time_gives_the_same_in_any_batch():
    net = network(nn.BatchNorm2d(8, **BATCH_NORM))
    model = hp.Model(net, size=32, batch_dependent=True)
    x = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        alone = torch.cat([net(row) for row in x.split(1)])
    torch.testing.assert_close(model.logits(x), alone)
    torch.testing.assert_close(model(x).detach(), alone)
    assert not torch.allclose(net(x), alone, rtol=0.1)
    target = torch.zeros(5, dtype=torch.long)
    gradients = [
        torch.autograd.grad(net(row)[0, 0], row)[0]
        for row in x.clone().requires_grad_().split(1)
        if row.retain_grad() is None
    ]
    torch.testing.assert_close(model.gradient(x, target).gradient, torch.cat(gradients))
    assert model.with_batch_size(8).batch_size == 1
    assert "one image at a time" in repr(model)
    other = hp.Model(network(nn.BatchNorm2d(8)), size=32)
    assert hp.load_model(other, batch_dependent=True).fingerprint() != other.fingerprint()


NET = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, 4, 1), nn.BatchNorm2d(8, track_running_stats=False), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 32)).eval()
"""


def test_a_run_does_not_depend_on_the_batch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    entry = {"name": "file:net.py:build"}
    spec = {
        "data": {"name": "paperbirds", "split": "test", "limit": 3},
        "methods": ["gradcam", "smoothgrad(n=2)", "occlusion(size=112)"],
        "protocols": [{"name": "sds", "patches": 4}],
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump({**spec, "models": [entry]}))
    with pytest.raises(HeatproofError, match="batch_dependent: true in a spec"):
        hp.run(tmp_path / "spec.yaml", tmp_path / "refused")
    entry["batch_dependent"] = True
    results = [
        hp.run(make_spec({**spec, "models": [entry], "batch_size": size}), tmp_path / str(size))
        for size in (1, 16)
    ]
    assert results[0].scores.equals(results[1].scores)
    assert results[0].scores["status"].eq("ok").all()
    assert any("runs one image at a time" in caveat for caveat in results[0].caveats)
    assert results[0].provenance.spec["models"][0]["batch_dependent"] is True
