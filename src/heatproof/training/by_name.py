"""Training a network from scratch by its name, such as ``paperbirds/resnet18``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from heatproof.errors import HeatproofError, unknown
from heatproof.models.hashes import is_intact, record_hash
from heatproof.models.nets import CIFAR10_NETS, NETS
from heatproof.training.cache import weights_path
from heatproof.training.cifar10 import train_cifar10
from heatproof.training.loop import Progress
from heatproof.training.train import train


class Trained(NamedTuple):
    """Result of a training.

    Attributes:
        weights: The weights file.
        metrics: What was measured, or None if the file existed already.
        spec: How a spec refers to the weights; empty if it cannot.
    """

    weights: Path
    metrics: dict[str, Any] | None
    spec: str


def train_by_name(
    name: str,
    *,
    data: str | None = None,
    out: Path | None = None,
    steps: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Trained:
    """Train an embedded network with its recipe.

    Args:
        name: Name of the network, ``paperbirds/…`` or ``cifar10/…``.
        data: Location of CIFAR-10, as ``cifar10:/path``; only for ``cifar10/…``.
        out: Weights file; by default in the cache, where nothing is trained twice.
        steps: Number of training steps, if other than the recipe's.
        seed: Seed of the initial weights and of the batches.
        progress: Called after each step with step, steps and loss.

    Returns:
        The weights file, its metrics, and how a spec refers to it.

    Raises:
        HeatproofError: If the name is unknown, or the location of CIFAR-10 or ``out`` is missing.
    """
    if name.startswith("cifar10/"):
        return _train_cifar10(name, data, out, steps, seed, progress)
    net = name.removeprefix("paperbirds/")
    if net not in NETS:
        raise unknown("model", name, [f"paperbirds/{n}" for n in NETS])
    path = out or weights_path(net, seed, steps)
    if out is not None:
        spec = f"{{name: paperbirds/{net}, weights: {path}}}"
    elif steps is not None:
        spec = ""  # a spec trains with the number of steps of the recipe
    elif seed:
        spec = f"{{train: paperbirds/{net}, seed: {seed}}}"
    else:
        spec = f"{{train: paperbirds/{net}}}"
    if out is None and is_intact(path):
        return Trained(path, None, spec)
    metrics = train(net, steps=steps, seed=seed, out=path, progress=progress)
    if out is None:
        record_hash(path)
    return Trained(path, metrics, spec)


def _train_cifar10(
    name: str,
    data: str | None,
    out: Path | None,
    steps: int | None,
    seed: int,
    progress: Progress | None,
) -> Trained:
    net = name.removeprefix("cifar10/")
    if net not in CIFAR10_NETS:
        raise unknown("model", name, [f"cifar10/{n}" for n in CIFAR10_NETS])
    if data is None or out is None:
        raise HeatproofError(
            "specify where CIFAR-10 is and where the weights go: "
            f"heatproof train {name} --data cifar10:/path -o FILE"
        )
    metrics = train_cifar10(data, out, net=net, steps=steps, seed=seed, progress=progress)
    return Trained(out, metrics, f"{{name: {name}, weights: {out}}}")
