"""Sanity checks: Quantus on the same random networks, slow forms, controls and bad input."""

import numpy as np
import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.models.random_weights import random_networks
from heatproof.models.vision import import_torchvision
from heatproof.protocols.randomization import other_classes
from heatproof.tensor.descriptors import level_entropy
from heatproof.tensor.map_similarity import map_similarity
from heatproof.tensor.noise import Rng
from heatproof.tensor.rank import spearman

import_torchvision()

import quantus  # noqa: E402

NET = "paperbirds/resnet"
LIMIT = 4


def scores(methods, protocols, limit=LIMIT):
    result = hp.evaluate(NET, "paperbirds:test", methods, protocols, limit=limit, keep_maps=0)
    return result.scores.pivot(index="sample", columns=["protocol", "method"], values="value")


@pytest.fixture(scope="module")
def model():
    return hp.load_model(NET)


@pytest.fixture(scope="module")
def batch(model):
    data = hp.load_data("paperbirds:test", model, limit=LIMIT)
    samples = [data.load(i) for i in range(LIMIT)]
    x = model.normalize(torch.stack([s.image for s in samples]))
    return list(data.ids), x, torch.tensor([s.label for s in samples])


def saliency(model: nn.Module, inputs: np.ndarray, targets: np.ndarray, **_) -> np.ndarray:
    """Explain a network of Quantus by the gradient, summed over channels."""
    x = torch.from_numpy(inputs).float().requires_grad_()
    classes = torch.as_tensor(targets)
    (gradient,) = torch.autograd.grad(model(x).gather(1, classes[:, None]).sum(), x)
    return gradient.sum(1, keepdim=True).numpy()


def gradient(model, x, target, *, rng, batch):
    """Return the gradient."""
    return batch.gradient()


def of_quantus(metric, model, batch, **options):
    _, x, target = batch
    call = metric(abs=False, normalise=False, disable_warnings=True, **options)
    return call(
        model.module,
        x.numpy(),
        target.numpy(),
        explain_func=saliency,
        channel_first=True,
        batch_size=LIMIT,
    )


@pytest.mark.parametrize("order", ["top_down", "bottom_up", "independent"])
def test_randomization_is_mprt_of_quantus_on_the_same_random_networks(
    model, batch, order, monkeypatch
):
    mode = "independent" if order == "independent" else "cascading"
    direction = "bottom-up" if order == "bottom_up" else "top-down"
    networks = random_networks(model, mode, direction, 4)

    def given(self, order="top_down", seed=42):
        yield from ((network.view, network.module) for network in networks)

    theirs = quantus.helpers.model.pytorch_model.PyTorchModel
    monkeypatch.setattr(theirs, "get_random_layer_generator", given)
    monkeypatch.setattr(theirs, "random_layer_generator_length", len(networks))
    by_network = of_quantus(quantus.MPRT, model, batch, layer_order=order)
    by_network.pop("original")
    expected = np.mean(list(by_network.values()), 0)
    name = f"randomization(networks=4, mode={mode}, order={direction})"
    ours = scores([gradient], [name])["randomization", "gradient"]
    assert ours[batch[0]].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_emprt_is_that_of_quantus_on_the_same_random_network(model, batch, monkeypatch):
    (network,) = random_networks(model, "all")
    theirs = quantus.helpers.model.pytorch_model.PyTorchModel
    monkeypatch.setattr(
        theirs, "get_random_layer_generator", lambda self, **_: iter([("all", network.module)])
    )
    monkeypatch.setattr(theirs, "random_layer_generator_length", 1)
    expected = of_quantus(quantus.EfficientMPRT, model, batch, compute_extra_scores=False)
    ours = scores([gradient], ["emprt"])["emprt", "gradient"]
    pixels = model.height * model.width  # maps differ by rounding, which may move one to the
    one_pixel = 2 * np.log(pixels) / pixels  # next bin, and the entropy by at most this
    assert ours[batch[0]].tolist() == pytest.approx(list(expected), abs=one_pixel)


def test_random_logit_is_that_of_quantus_for_the_same_classes(model, batch, monkeypatch):
    ids, _, target = batch
    others = other_classes(target, model.n_classes, ids, 0)
    offsets = (others - (others > target).long()).numpy()  # among all classes but the target
    monkeypatch.setattr(np.random, "randint", lambda *_: offsets)
    expected = of_quantus(
        quantus.RandomLogit,
        model,
        batch,
        num_classes=model.n_classes,
        similarity_func=quantus.similarity_func.correlation_spearman,
    )
    ours = scores([gradient], ["random-logit"])["random-logit", "gradient"]
    assert ours[ids].tolist() == pytest.approx(list(expected), abs=1e-5)


def test_methods_share_the_gradients_of_random_networks():
    passes = {}
    for methods in (["saliency"], ["saliency", "ixg", "gradcam"]):
        model = hp.load_model(NET)
        rows = hp.evaluate(model, "paperbirds:test", methods, ["randomization"], limit=2).scores
        passes[len(methods)] = model.pass_counts["backward"]
        values = rows.set_index(["method", "sample"])["value"]
        for method in methods:
            alone = hp.evaluate(NET, "paperbirds:test", [method], ["randomization"], limit=2).scores
            assert values[method].tolist() == pytest.approx(alone["value"].tolist(), abs=1e-5)
    assert passes[1] == passes[3] > 0


def test_other_classes_are_all_but_the_target_and_alike_frequent():
    ids = [str(i) for i in range(3000)]
    others = other_classes(torch.full((3000,), 2), 5, ids, 0)
    counts = torch.bincount(others, minlength=5)
    assert counts[2] == 0 and (counts[[0, 1, 3, 4]] - 750).abs().max() < 100


def test_denoised_maps_are_averages_over_noisy_images(model, batch):
    ids, x, target = batch
    rng = Rng(0, ids)
    noisy = [x + 0.2 / model.std * rng.normal(f"denoising {i}", x.shape[1:]) for i in range(3)]

    def averaged(network):
        return sum(hp.explain(network, images, target, "ixg") for images in noisy) / 3

    (network,) = random_networks(model, "all")
    expected = spearman(averaged(model).flatten(1), averaged(network).flatten(1))
    ours = scores(["ixg"], ["randomization(mode=all, denoise=3, noise=0.2)"])
    assert ours["randomization", "ixg"][ids].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_what_does_not_look_at_the_network_stays_as_it_is():
    protocols = ["randomization", "emprt", "random-logit"]
    values = scores(["edges", "random", "center"], protocols)
    assert np.allclose(values["randomization"], 1) and np.allclose(values["random-logit"], 1)
    assert not values["emprt"].any(axis=None)


def test_similarity_and_normalisation_are_settings(model, batch):
    ids, x, target = batch
    (network,) = random_networks(model, "all")
    own, other = (hp.explain(m, x, target, "ixg") for m in (model, network))
    for by in ("max", "moment"):
        expected = map_similarity(own, other, "ssim", by).tolist()
        name = f"randomization(mode=all, similarity=ssim, normalization={by})"
        ours = scores(["ixg"], [name])["randomization", "ixg"]
        assert ours[ids].tolist() == pytest.approx(expected, abs=1e-5)
    expected = level_entropy(other, 20) / level_entropy(own, 20) - 1
    ours = scores(["ixg"], ["emprt(bins=20)"])["emprt", "ixg"]
    assert ours[ids].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_constant_map_of_a_random_network_has_kept_nothing():
    def dead(model, x, target, *, rng):
        return x[:, 0] if not model.root.view else torch.zeros_like(x[:, 0])

    values = scores([dead], ["randomization"])
    assert not values.any(axis=None)


def test_saved_maps_and_prepared_methods_are_named(tmp_path, batch):
    ids, x, _ = batch
    np.savez(
        tmp_path / "maps.npz", **{i: image[0].numpy() for i, image in zip(ids, x, strict=True)}
    )
    for protocol in ("randomization", "random-logit", "sensitivity"):
        result = hp.evaluate(
            NET, "paperbirds:test", [f"file:{tmp_path}/maps.npz"], [protocol], limit=2
        )
        assert result.scores["message"].str.contains("has one map of each sample").all()
    few = hp.load_data("paperbirds:train", limit=4)
    result = hp.evaluate(
        NET, "paperbirds:test", ["iba(steps=1)"], ["randomization"], limit=2, reference=few
    )
    assert result.scores["message"].str.contains("is prepared from reference images").all()


def test_as_a_metric_of_quantus_it_explains_the_random_networks_too(model, batch):
    _, x, target = batch
    metric = hp.quantus.Metric("randomization(networks=2)")
    found = metric(model.module, x.numpy(), target.numpy(), explain_func=saliency)
    networks = random_networks(model, "cascading", "top-down", 2)
    maps = [
        torch.from_numpy(saliency(m.module, x.numpy(), target)).flatten(1)
        for m in (model, *networks)
    ]
    expected = sum(spearman(maps[0], other) for other in maps[1:]) / 2
    assert found == pytest.approx(expected.tolist(), abs=1e-5)


def test_protocols_of_one_run_share_maps_and_no_others():
    """Orders and seeds have networks of their own; similarities of the same networks share maps."""
    calls = []

    def counted(model, x, target, *, rng, batch):
        calls.append(model.root.view)
        return batch.gradient()

    names = [
        "randomization(networks=2)",
        "randomization(networks=2, similarity=ssim)",
        "randomization(networks=2, order=bottom-up)",
        "randomization(networks=2, seed=1)",
    ]
    result = hp.evaluate(NET, "paperbirds:test", [counted], names, limit=2)
    assert len(calls) == 1 + 3 * 2 and len(set(calls)) == len(calls)
    together = result.summary().set_index("setting")["mean"]
    assert together.nunique() == 4
    for name in names[2:]:
        alone = hp.evaluate(NET, "paperbirds:test", [counted], [name], limit=2).summary()
        assert alone["mean"].item() == together[alone["setting"].item()]
