"""Sanity, robustness, descriptors and localization beside Quantus: values and times, in one run.

Both explain the same network by the same gradient, for the same random networks, noise and classes.
Prints the largest difference of a score and the processor times in turn, ours and theirs. With
--ten, `randomization` of ten methods: ours in one call beside one call of Quantus for each method,
whose maps are ours, and beside the bare passes that ours made.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from timing import random_images

import heatproof as hp
from heatproof.data.catalog import Batch
from heatproof.methods import Expression
from heatproof.models.nets import resnet
from heatproof.models.random_weights import random_networks
from heatproof.models.vision import import_torchvision
from heatproof.plan.spec import parse_protocols
from heatproof.protocols.randomization import other_classes
from heatproof.scoring.evaluation import Evaluation
from heatproof.scoring.score_batch import score_batch
from heatproof.tensor.noise import Rng

import_torchvision()

import quantus  # noqa: E402
from quantus.helpers import asserts  # noqa: E402
from quantus.helpers.model.pytorch_model import PyTorchModel  # noqa: E402

COPIES = 10
RADIUS = 0.02
NETWORKS = 5
SHARING = """saliency ixg ixg|abs saliency|smooth(9) gradcam gradcam++ xgradcam layercam
    gradcam@middle layercam@middle"""
MIXED = """saliency ixg ig(steps=16) smoothgrad(n=10) guided-backprop deconvnet gradcam layercam
    lrp-focus occlusion(size=16,stride=8)"""
TEN = {"gradients": SHARING.split(), "mixed": MIXED.split()}  # share a gradient; of study sanity


def saliency(model: Any, inputs: np.ndarray, targets: np.ndarray, **_: Any) -> np.ndarray:
    """Explain a network by the gradient, summed over channels, of absolute values."""
    x = torch.from_numpy(inputs).float().requires_grad_()
    classes = torch.as_tensor(targets)
    (gradient,) = torch.autograd.grad(model(x).gather(1, classes[:, None]).sum(), x)
    return gradient.sum(1, keepdim=True).abs().numpy()


def opened(size: int) -> hp.Model:
    """Return the embedded network, or one as large as a ResNet-18."""
    if size == 64:
        return hp.load_model("paperbirds/resnet")
    torch.manual_seed(0)
    shape = {"widths": (64, 128, 256, 512), "blocks": (2, 2, 2, 2), "strides": (2, 2, 2, 2)}
    return hp.Model(resnet(100, **shape).eval(), size=size, name="resnet18-sized")


class Comparison:
    """The images, and what both libraries are given."""

    def __init__(self, size: int, count: int):
        self.model = opened(size)
        self.ids = [str(i) for i in range(count)]
        self.x = self.model.normalize(random_images(count, size))
        self.target = self.model.logits(self.x).argmax(1)
        rng = np.random.default_rng(0)
        self.masks = torch.zeros(count, size, size, dtype=torch.bool)
        for mask, corner in zip(self.masks, rng.integers(0, size // 2, (count, 2)), strict=True):
            mask[corner[0] : corner[0] + size // 3, corner[1] : corner[1] + size // 3] = True

    def ours(self, name: str) -> list[float]:
        (protocol,) = parse_protocols([name])
        batch = Batch(self.ids, self.x, self.target.tolist(), self.masks, {})
        evaluation = Evaluation(protocol, Expression.parse(gradient))
        return list(score_batch(self.model, batch, [evaluation]).outcomes[evaluation].values)

    def theirs(self, metric: type, **options: Any) -> list[float]:
        call = metric(abs=False, normalise=False, disable_warnings=True, **options)
        found = call(
            self.model.module,
            self.x.numpy(),
            self.target.numpy(),
            s_batch=self.masks[:, None].numpy(),
            explain_func=saliency,
            channel_first=True,
            batch_size=len(self.x),
        )
        if isinstance(found, dict):
            found.pop("original")
            return list(np.mean(list(found.values()), 0))
        return [float(value) for value in found]

    @contextmanager
    def given_networks(self, mode: str, count: int):
        """Give Quantus the networks with random weights that are ours, one after the other."""
        views = random_networks(self.model, mode, "top-down", count)
        before = PyTorchModel.get_random_layer_generator
        length = PyTorchModel.random_layer_generator_length
        PyTorchModel.get_random_layer_generator = lambda *_, **__: iter(
            [(view.view, view.module) for view in views]
        )
        PyTorchModel.random_layer_generator_length = count
        try:
            yield
        finally:
            PyTorchModel.get_random_layer_generator = before
            PyTorchModel.random_layer_generator_length = length

    def noise(self) -> Callable[..., np.ndarray]:
        """Return a function that adds our noise, copy by copy."""
        number = iter(range(COPIES))

        def perturbed(arr: np.ndarray, indices: object, **_: object) -> np.ndarray:
            uniform = Rng(0, self.ids).uniform(f"sensitivity {next(number)}", self.x.shape[1:])
            change = RADIUS / self.model.std * (2 * uniform - 1)
            return arr + change.reshape(arr.shape).numpy()

        return perturbed

    def cases(self) -> dict[str, tuple[str, Callable[[], list[float]]]]:
        noisy = {"nr_samples": COPIES, "return_nan_when_prediction_changes": True}
        euclidean = {"norm_numerator": norm, "norm_denominator": norm}
        others = other_classes(self.target, self.model.n_classes, self.ids, 0)
        offsets = (others - (others > self.target).long()).numpy()

        def mprt() -> list[float]:
            with self.given_networks("cascading", NETWORKS):
                return self.theirs(quantus.MPRT)

        def efficient() -> list[float]:
            with self.given_networks("all", 1):
                return self.theirs(quantus.EfficientMPRT, compute_extra_scores=False)

        def random_logit() -> list[float]:
            draw, np.random.randint = np.random.randint, lambda *_: offsets
            try:
                spearman = quantus.similarity_func.correlation_spearman
                classes = self.model.n_classes
                return self.theirs(
                    quantus.RandomLogit, num_classes=classes, similarity_func=spearman
                )
            finally:
                np.random.randint = draw

        def noisy_metric(metric: type, **options: Any) -> Callable[[], list[float]]:
            return lambda: self.theirs(metric, perturb_func=self.noise(), **noisy, **options)

        sensitivity = f"sensitivity(copies={COPIES}, radius={RADIUS}, statistic="
        return {
            f"randomization(networks={NETWORKS})": ("MPRT", mprt),
            "emprt": ("EfficientMPRT", efficient),
            "random-logit": ("RandomLogit", random_logit),
            f"{sensitivity}max)": ("MaxSensitivity", noisy_metric(quantus.MaxSensitivity)),
            f"{sensitivity}mean)": ("AvgSensitivity", noisy_metric(quantus.AvgSensitivity)),
            f"{sensitivity}lipschitz)": (
                "LocalLipschitzEstimate",
                noisy_metric(quantus.LocalLipschitzEstimate, **euclidean),
            ),
            "sparseness": ("Sparseness", lambda: self.theirs(quantus.Sparseness)),
            "complexity(unit=nats)": ("Complexity", lambda: self.theirs(quantus.Complexity)),
            "pointing": ("PointingGame", lambda: self.theirs(quantus.PointingGame)),
            "mass": ("RelevanceMassAccuracy", lambda: self.theirs(quantus.RelevanceMassAccuracy)),
            "rank-accuracy": (
                "RelevanceRankAccuracy",
                lambda: self.theirs(quantus.RelevanceRankAccuracy),
            ),
        }


def norm(a: np.ndarray, b: np.ndarray, **_: object) -> np.ndarray:
    return np.linalg.norm(np.asarray(a) - np.asarray(b), axis=-1)


def gradient(model: Any, x: Any, target: Any, *, rng: Any, batch: Any) -> Any:
    return batch.gradient().sum(1).abs()


def timed(call: Callable[[], list[float]], repeats: int) -> tuple[list[float], float]:
    """Return the scores, and the least processor time."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        values = call()
        seconds.append(time.process_time() - start)
    return values, min(seconds)


def compare_ten(comparison: Comparison, methods: list[str], given: bool) -> str:
    """Return a line of a table: `randomization` of ten methods, ours, bare passes and Quantus.

    Quantus is given our random networks, or makes its own anew for every method, one per layer.
    """
    model, ids, x, target = comparison.model, comparison.ids, comparison.x, comparison.target
    size = model.height
    own = PyTorchModel(model.module, channel_first=True).random_layer_generator_length
    count = NETWORKS if given else own
    (protocol,) = parse_protocols([f"randomization(networks={count})"])
    evaluations = [Evaluation(protocol, Expression.parse(method)) for method in methods]
    networks = random_networks(model, "cascading", "top-down", NETWORKS) if given else []
    by_module = {id(network.module): network for network in (model, *networks)}

    def ours() -> dict[str, list[float]]:
        found = score_batch(model, Batch(ids, x, target.tolist(), None, {}), evaluations)
        return {e.expression.label: list(found.outcomes[e].values) for e in evaluations}

    def theirs() -> dict[str, list[float]]:
        found = {}
        for method in methods:

            def maps(model: Any, inputs: Any, targets: Any, method: str = method, **_: Any) -> Any:
                known = by_module.get(id(model)) or hp.Model(model, size=size)
                images = torch.from_numpy(inputs).float()
                return hp.explain(known, images, targets.tolist(), method, ids=ids)[:, None].numpy()

            call = quantus.MPRT(abs=False, normalise=False, disable_warnings=True)
            scores = call(
                model.module, x.numpy(), target.numpy(), explain_func=maps, channel_first=True
            )
            scores.pop("original", None)
            found[method] = list(np.mean(list(scores.values()), 0))
        return found

    with comparison.given_networks("cascading", NETWORKS) if given else nullcontext():
        other, their_time = timed(theirs, 1)
    model.pass_counts.clear()
    mine, own_time = timed(ours, 1)
    counts = dict(model.pass_counts)
    _, bare = timed(lambda: bare_passes(model, x, target, counts), 1)
    apart = max(np.nanmax(np.abs(np.array(mine[m]) - np.array(other[m]))) for m in methods)
    shown = f"{apart:.1e}" if given else "other networks"
    return (
        f"| {count} | {shown} | {own_time:.1f} | {own_time / bare:.2f} | {their_time:.1f} "
        f"| {their_time / own_time:.1f} |"
    )


def bare_passes(model: hp.Model, x: Any, target: Any, counts: dict[str, int]) -> None:
    """Make as many passes, of rows of a full batch."""
    images = len(x)
    for _ in range(round(counts["backward"] / images)):
        saliency(model.module, x.numpy(), target.numpy())
    with torch.no_grad():
        for _ in range(round(max(0, counts["forward"] - counts["backward"]) / images)):
            model.module(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=64, choices=(64, 112, 224))
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ten", choices=TEN, help="randomization of ten methods")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    comparison = Comparison(arguments.size, arguments.images)
    if arguments.ten:
        asserts.assert_attributions = lambda **_: None  # it refuses maps of zeros, as CAMs may be
        print("| networks | number | difference | ours, s | over bare | Quantus, s | ratio |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for name, given in (("ours", True), ("its own", False)):
            line = compare_ten(comparison, TEN[arguments.ten], given)
            print(f"| {name} {line}", flush=True)
        return
    print("| ours | Quantus | our mean | theirs | largest difference | ours, s | theirs / ours |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, (theirs, call) in comparison.cases().items():
        mine, own_time = timed(lambda name=name: comparison.ours(name), arguments.repeats)
        other, other_time = timed(call, arguments.repeats)
        apart = np.nanmax(np.abs(np.array(mine) - np.array(other)))
        print(
            f"| `{name}` | {theirs} | {np.nanmean(mine):.5f} | {np.nanmean(other):.5f} "
            f"| {apart:.1e} | {own_time:.2f} | {other_time / own_time:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
