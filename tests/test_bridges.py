"""Protocols in training loops, in torchmetrics and in Quantus: the scores of ``evaluate``."""

import numpy as np
import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.models.vision import import_torchvision

CASES = {
    "SDS": {"patches": 4},
    "Deletion": {"steps": 4},
    "Insertion": {"steps": 4, "baseline": "uniform"},
    "IDS": {"steps": 4},
    "SRG": {"steps": 4},
    "ROAD": {},
    "Completeness": {"steps": 4},
}


def module(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(96, 4),
    )


@pytest.fixture(scope="module")
def model() -> hp.Model:
    return hp.Model(module().eval(), size=16, name="net")


@pytest.fixture(scope="module")
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Twelve images in [0, 1] and their labels."""
    images = torch.rand((12, 3, 16, 16), generator=torch.Generator().manual_seed(1))
    return images, torch.arange(12) % 4


@pytest.mark.parametrize("name", CASES)
def test_a_metric_has_the_scores_of_evaluate(name, model, batch):
    images, labels = batch
    cls = getattr(hp.metrics, name)
    result = hp.evaluate(model, batch, ["ixg"], [{"name": cls.id, **CASES[name]}])
    metric = cls(model, "ixg", **CASES[name])
    x = model.normalize(images)
    metric.update(x, labels)
    expected = result.scores["value"].to_numpy()
    assert np.isfinite(expected).any()
    np.testing.assert_array_equal(metric.values.numpy(), expected)
    (line,) = result.summary().to_dict("records")
    assert metric.compute() == pytest.approx(line["mean"], abs=1e-12)
    assert metric.interval() == pytest.approx((line["low"], line["high"]), abs=1e-12)
    metric.reset()
    for begin in range(0, 12, 5):
        metric.update(x[begin : begin + 5], labels[begin : begin + 5])
    np.testing.assert_allclose(metric.values.numpy(), expected, atol=1e-5)


def test_noise_does_not_depend_on_the_batches(model, batch):
    images, labels = batch
    metric = hp.metrics.SDS(model, "random", patches=4, seed=3)
    metric.update(model.normalize(images), labels)
    result = hp.evaluate(model, batch, ["random"], ["sds(patches=4)"], seed=3)
    np.testing.assert_array_equal(metric.values.numpy(), result.scores["value"].to_numpy())


def test_fine_tuned_weights_are_used_where_a_protocol_asks_for_them():
    model = hp.load_model("paperbirds/resnet")
    data = hp.load_data("paperbirds:test", model, limit=3)
    images = torch.stack([data.load(i).image for i in range(3)])
    metric = hp.metrics.IDSDS(model, "ixg")
    metric.update(model.normalize(images), data.labels)
    result = hp.evaluate(model, (images, data.labels), ["ixg"], ["idsds"])
    np.testing.assert_array_equal(metric.values.numpy(), result.scores["value"].to_numpy())


def test_a_training_loop_goes_on_as_without_the_metric(batch):
    """The weights are those of the moment, and training does not notice."""
    images, labels = batch

    def trained(measured: bool) -> tuple[nn.Module, list[float]]:
        network = module()
        metric = hp.metrics.SDS(hp.Model(network, size=16), "ixg")
        x = metric._scorer.model.normalize(images)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
        scores = []
        for _ in range(2):
            network.train()
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), labels).backward()
            if measured:
                metric.reset()
                metric.update(x, labels)
                scores.append(metric.compute())
                assert network.training
            optimizer.step()
        if measured:
            metric.reset()
            metric.update(x, labels)
            scores.append(metric.compute())
        return network, scores

    network, scores = trained(True)
    silent, _ = trained(False)
    for key, value in silent.state_dict().items():
        assert torch.equal(network.state_dict()[key], value), key
    assert len(set(scores)) == 3
    fresh = hp.Model(network.eval(), size=16)
    result = hp.evaluate(fresh, batch, ["ixg"], ["sds"])
    assert scores[-1] == pytest.approx(result.summary()["mean"].item(), abs=1e-9)


def test_samples_without_a_score_are_counted(model, batch):
    metric = hp.metrics.SDS(model, "constant")
    metric.update(model.normalize(batch[0]), batch[1])
    assert np.isnan(metric.compute())
    assert metric.left_out == {"the map is the same everywhere": 12}


def broken(model, x, target, *, rng):
    raise ZeroDivisionError("no luck")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, x: hp.metrics.Metric(m, "ixg"), "name a protocol"),
        (lambda m, x: hp.metrics.Metric(m, "ixg", "soundness"), "no scores of single samples"),
        (lambda m, x: hp.metrics.Metric(m, "ixg", "gridpg"), "grids of images"),
        (lambda m, x: hp.metrics.Metric(m, "ixg", "attr-mass"), "needs the silhouette"),
        (lambda m, x: hp.metrics.SDS(m, "ixgg"), "did you mean ixg"),
        (lambda m, x: hp.metrics.SDS(m, "ixg", patch=4), "no setting 'patch'"),
        (lambda m, x: hp.metrics.SDS(m, "expected-gradients"), "needs reference images|unknown"),
        (lambda m, x: hp.metrics.SDS(m, "ixg").update(x[:, :, 1:]), "takes images of shape"),
        (lambda m, x: hp.metrics.SDS(m, "ixg").update(x, [0]), "12 images, but 1 target$"),
        (lambda m, x: hp.metrics.SDS(m, broken).update(x), "ZeroDivisionError: no luck"),
    ],
)
def test_errors_say_what_to_do(model, batch, make, message):
    with pytest.raises(HeatproofError, match=message):
        make(model, model.normalize(batch[0]))


def test_metrics_join_a_collection_of_torchmetrics(model, batch):
    import_torchvision()
    torchmetrics = pytest.importorskip("torchmetrics")
    x = model.normalize(batch[0])
    labels = batch[1]
    metrics = {
        "sds": hp.metrics.SDS(model, "ixg", patches=4),
        "deletion": hp.metrics.Deletion(model, "ixg", steps=4),
        "random": hp.metrics.SDS(model, "random", patches=4),
    }
    collection = torchmetrics.MetricCollection({k: m.torchmetric() for k, m in metrics.items()})
    first = collection(x[:5], labels[:5])
    collection.update(x[5:], labels[5:])
    found = collection.compute()
    for name, metric in metrics.items():
        metric.update(x[:5], labels[:5])
        assert float(first[name]) == pytest.approx(metric.compute(), abs=1e-9)
        metric.update(x[5:], labels[5:])
        assert float(found[name]) == pytest.approx(metric.compute(), abs=1e-9)
    clone = collection.clone(prefix="val/")
    clone.reset()
    clone.update(x, labels)
    assert float(clone.compute()["val/sds"]) == pytest.approx(metrics["sds"].compute(), abs=1e-6)
    assert clone["sds"].metric._scorer.model is metrics["sds"]._scorer.model


@pytest.fixture(scope="module")
def quantus():
    import_torchvision()
    return pytest.importorskip("quantus")


@pytest.mark.filterwarnings("ignore")
def test_quantus_evaluates_our_protocols_on_given_maps(quantus, model, batch):
    images, labels = batch
    x = model.normalize(images)
    maps = hp.explain(model, x, labels, "ixg").numpy()
    mean, std = (values.flatten().tolist() for values in (model.mean, model.std))
    protocols = {"sds(patches=4)": "sds(patches=4)", "deletion(steps=4)": "deletion(steps=4)"}
    metrics = {
        name: hp.quantus.Metric(text, mean=mean, std=std) for name, text in protocols.items()
    }
    found = quantus.evaluate(
        metrics, {"ixg": maps[:, None]}, model.module, x.numpy(), labels.numpy()
    )
    protocols = ["sds(patches=4)", "deletion(steps=4, of=label)"]
    result = hp.evaluate(model, batch, ["ixg"], protocols)
    for scores, name in zip(found["ixg"].values(), ["sds", "deletion"], strict=True):
        expected = result.scores.loc[result.scores["protocol"] == name, "value"].to_numpy()
        np.testing.assert_allclose(scores, expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_quantus_computes_maps_with_its_own_function(quantus, model, batch):
    """Maps from Quantus' Captum, for a protocol that explains altered images, too."""
    images, labels = batch
    x = model.normalize(images)

    def explain(model, inputs, targets, **kwargs):
        return quantus.explain(model, inputs, targets, method="Saliency", xai_lib="captum")

    plain = hp.Model(model.module, size=16, mean=[0.0] * 3, std=[1.0] * 3)

    def reduced(model, x, target, *, rng):
        maps = explain(plain.module, x.detach().numpy(), target.numpy())
        return torch.from_numpy(maps).sum(1)

    for protocol in ("sds(patches=4)", "ids(steps=4, updated=true)"):
        metric = hp.quantus.Metric(protocol)
        scores = metric(
            model=model.module,
            x_batch=x.numpy(),
            y_batch=labels.numpy(),
            explain_func=explain,
            device="cpu",
        )
        assert metric.all_evaluation_scores == scores
        ours = hp.metrics.Metric(plain, reduced, protocol)
        ours.update(x, labels)
        assert np.isfinite(scores).any()
        np.testing.assert_allclose(scores, ours.values.numpy(), atol=1e-6)


def test_arguments_of_quantus_that_do_not_fit_are_refused(model, batch):
    x = model.normalize(batch[0]).numpy()
    metric = hp.quantus.Metric("sds")
    with pytest.raises(HeatproofError, match="attributions must be"):
        metric(model=model.module, x_batch=x, y_batch=batch[1].numpy(), a_batch=x[:, 0, 1:])
    with pytest.raises(HeatproofError, match="pass explain_func"):
        metric(model=model.module, x_batch=x, y_batch=batch[1].numpy())
    channels_last = np.moveaxis(x, 1, -1)
    found = metric(
        model=model.module,
        x_batch=channels_last,
        y_batch=batch[1].numpy(),
        a_batch=x.sum(1),
        channel_first=False,
    )
    expected = metric(model=model.module, x_batch=x, y_batch=batch[1].numpy(), a_batch=x.sum(1))
    assert found == expected
