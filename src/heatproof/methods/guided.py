"""Gradients that let only positive signals back through ReLUs.

The ReLUs are found in the graph that autograd has recorded, so it does not matter how they are
written: as modules, modules used twice, ``F.relu``, ``x.relu_()``, or inside TorchScript.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from heatproof.errors import NotApplicable
from heatproof.methods.base import method, reason_not_applicable
from heatproof.models.intercept import graph, is_opaque
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng
from heatproof.tensor.scores import ScoreName

# (gradient of the ReLU's input by torch, gradient of its output) -> what is passed on
Gate = Callable[[Tensor, Tensor], Tensor]


def relus(output: Tensor) -> list[Any]:
    """Return the nodes of ReLUs, ReLU6s and clamps at zero in the graph of a tensor.

    Raises:
        NotApplicable: If a node hides what happens inside it.
    """
    nodes = []
    for node in graph(output):
        if is_opaque(node):
            raise NotApplicable(
                f"{node.name()} may hide ReLUs; give the network without checkpoints, compilation "
                "and custom backwards"
            )
        if _is_relu(node):
            nodes.append(node)
    return nodes


_FLOOR_ATTRIBUTES = {  # the value below which a node is flat; a ReLU needs none
    "ReluBackward": None,
    "ThresholdBackward": "_saved_threshold",
    "HardtanhBackward": "_saved_min_val",
    "ClampBackward": "_saved_min",
    "ClampMinBackward": "_saved_min",
    "MaximumBackward": "_saved_other",
}


def _is_relu(node: Any) -> bool:
    name = node.name().rstrip("0123456789")
    if name not in _FLOOR_ATTRIBUTES:
        return False
    attribute = _FLOOR_ATTRIBUTES[name]
    if attribute is None:
        return True
    floor = getattr(node, attribute)
    return floor is not None and not torch.as_tensor(floor).any()


def gated_gradient(model: Model, x: Tensor, target: Tensor, score: str, gate: Gate) -> Tensor:
    """Compute the score's gradient with a gate in place of every ReLU's backward.

    If no ReLU follows x, it is the plain gradient.

    Args:
        model: The model to explain at its input.
        x: Its input, ``(B, C, h, w)``.
        target: Class indices of shape ``(B,)``.
        score: The name of the score.
        gate: What replaces the backward of ReLUs.

    Raises:
        NotApplicable: If the network hides its ReLUs.
    """

    def attribute(leaf: Tensor, goal: Tensor) -> Tensor:
        total = model.score_function(score)(model(leaf), goal).sum()
        for node in relus(total):
            node.register_hook(
                lambda through, arrived: (gate(through[0], arrived[0]), *through[1:])
            )
        return torch.autograd.grad(total, leaf)[0]

    return model.passes.attribute(x, target, attribute)


@reason_not_applicable
def _without_relus(model: Model) -> None:
    """Check that there are ReLUs anywhere in the network."""
    if not relus(model.root(model.root.passes.zero_activation())):
        raise NotApplicable(
            f"{model.name} has no ReLUs, so it would be the plain gradient; "
            "use saliency(reduce=sum_abs)"
        )


guided = partial(
    method,
    family="gradient",
    signed=False,
    reduce="sum_abs",
    cost=(0, 1),
    needs=("relus",),
    applies=_without_relus,
)


@guided("guided-backprop", paper="Springenberg et al. 2015")
def guided_backprop(
    model: Model, x: Tensor, target: Tensor, *, rng: Rng, score: ScoreName = "logit"
) -> Tensor:
    """The gradient with only positive values passing back through the ReLUs that were active."""
    return gated_gradient(model, x, target, score, lambda through, arrived: through.relu())


@guided("deconvnet", paper="Zeiler & Fergus 2014")
def deconvnet(
    model: Model, x: Tensor, target: Tensor, *, rng: Rng, score: ScoreName = "logit"
) -> Tensor:
    """The gradient with positive values passing back through all ReLUs, active or not."""
    return gated_gradient(model, x, target, score, lambda through, arrived: arrived.relu())
