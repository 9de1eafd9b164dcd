"""Heads: how the outputs of a network become the logits and the probabilities of classes.

- ``softmax``: K logits of classes that exclude each other; probabilities are their softmax.
- ``sigmoid``: K logits of labels that do not exclude each other (multi-label); the probability of
  each is its sigmoid. The prediction is the label of the highest logit, and a sample is classified
  correctly if the probability of its label is above one half.
- ``binary``: one output z for two classes. It is presented as the logits (−z, z), so that the score
  ``logit`` of class 1 is z and that of class 0 is −z; the probabilities are their sigmoids, which
  sum to 1.

- ``regression``: one number z, which is the score ``logit``. There are no classes, so that labels,
  predictions and probabilities do not exist.

For ``sigmoid`` and ``binary``, the score ``softmax`` is the sigmoid of the target's logit, and
``logprob`` its logarithm: the target's probability, as for a softmax.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from heatproof.errors import HeatproofError, unknown
from heatproof.models.cutting import Body, Steps
from heatproof.tensor.scores import HEADS, HeadName


def find_head(name: str, asked: str | None, outputs: Tensor) -> HeadName:
    """Return the head of a network: a single output is a binary one, others are as asked.

    Args:
        name: The model's name, for messages.
        asked: What the user asked for; None finds the head by the shape of the outputs.
        outputs: What the network returns for a batch, ``(B,)`` or ``(B, K)``.

    Raises:
        HeatproofError: If there is no such head, or the outputs do not fit it.
    """
    if asked is not None and asked not in HEADS:
        raise unknown("head", asked, HEADS)
    count = 1 if outputs.ndim == 1 else outputs.shape[1]
    if count == 1 and asked in (None, "binary"):
        return "binary"
    if count == 1 and asked == "regression":
        return "regression"
    if count == 1:
        raise HeatproofError(
            f"{name} returns one output per image, so head={asked} does not fit; leave it out, or "
            'write head="binary": class 1 if the output is positive, else class 0; or '
            'head="regression": a number'
        )
    if asked in ("binary", "regression"):
        raise HeatproofError(
            f'{name} returns {count} outputs per image, but head="{asked}" is for one; '
            'head="softmax" is for classes that exclude each other, head="sigmoid" for several '
            "labels per image"
        )
    return next((head for head in HEADS if head == asked), "softmax")


def as_logits(outputs: Tensor, head: HeadName) -> Tensor:
    """Return the logits ``(B, K)`` of the classes, from what the network returns.

    A single output z becomes (−z, z). The factor comes before the concatenation so that rules of
    relevance merge it into the layer that computed z.
    """
    if head == "regression":
        return outputs.reshape(-1, 1)
    if head != "binary":
        return outputs
    z = outputs.reshape(-1, 1) if outputs.ndim == 1 else outputs
    return torch.cat([z * -1, z], 1)


class OneOutput:
    """A body of one output per image: the logits of two classes, or a number."""

    def __init__(self, inner: Body, head: HeadName):
        self.inner = inner
        self.head = head
        self.layers = inner.layers
        self.aliases = inner.aliases
        self.stages = getattr(inner, "stages", ())

    def run(
        self, h: Tensor, start: int, stop: int | None = None, watch: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        out, seen = self.inner.run(h, start, stop, watch)
        return (as_logits(out, self.head) if stop is None else out), seen

    def steps(self, start: int) -> Steps | None:
        steps = self.inner.steps(start)
        if steps is None:
            return None
        return [*steps, ("head", lambda out: as_logits(out, self.head))]

    def module_after(self, layer: int) -> nn.Module | None:
        return self.inner.module_after(layer)


class LogitsOf(nn.Module):
    """A network that returns the logits of its head, for methods that take a module."""

    def __init__(self, network: nn.Module, head: HeadName):
        super().__init__()
        self.network = network
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return as_logits(self.network(x), self.head)
