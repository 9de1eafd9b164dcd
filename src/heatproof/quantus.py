"""Protocols as metrics that Quantus can call.

Quantus calls a metric with a network, arrays of images and classes, and arrays of attributions or a
function that computes them. ``Metric`` takes these arguments, and needs nothing of Quantus itself::

    metrics = {"SDS": hp.quantus.Metric("sds", mean=mean, std=std)}
    quantus.evaluate(metrics, xai_methods, model, x_batch, y_batch, explain_func_kwargs={})
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heatproof.errors import HeatproofError
from heatproof.methods import Expression
from heatproof.models.model import Model
from heatproof.plan.spec import parse_protocols
from heatproof.protocols import Protocol
from heatproof.protocols.base import make_protocol
from heatproof.scoring.scorer import Scorer


class Metric:
    """A protocol of heatproof as a metric of Quantus.

    The class of ``y_batch`` is the one that maps explain: a protocol that could explain the label
    or the prediction explains the label here.

    Args:
        protocol: The protocol, such as ``"sds"`` or ``"deletion(steps=20)"``.
        mean: The mean per channel that images were normalized with; baselines that are colours of
            the image depend on it. By default images are as they were.
        std: The standard deviation per channel.
        seed: Seed for all noise.
        batch_size: Images in one pass.
        **settings: Settings of the protocol, such as ``patches=64`` or ``baseline="blur"``.

    Attributes:
        name: The protocol with its settings.
        evaluation_scores: The scores of the latest call.
        all_evaluation_scores: The scores of all calls.

    Raises:
        HeatproofError: If the protocol is unknown, or has no such setting.
    """

    def __init__(
        self,
        protocol: str,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        seed: int = 0,
        batch_size: int = 64,
        **settings: Any,
    ):
        self.protocol = _explaining_labels(protocol, settings)
        self.name = self.protocol.canonical
        self.evaluation_scores: list[float] = []
        self.all_evaluation_scores: list[float] = []
        self._mean = mean
        self._std = std
        self._seed = seed
        self._batch_size = batch_size
        self._scorers: weakref.WeakKeyDictionary[nn.Module, tuple[tuple[int, ...], Scorer]]
        self._scorers = weakref.WeakKeyDictionary()

    def __call__(
        self,
        model: nn.Module,
        x_batch: np.ndarray,
        y_batch: np.ndarray,
        a_batch: np.ndarray | None = None,
        s_batch: np.ndarray | None = None,
        channel_first: bool | None = None,
        explain_func: Callable[..., np.ndarray] | None = None,
        explain_func_kwargs: Mapping[str, Any] | None = None,
        device: str | None = None,
        batch_size: int | None = None,
        **unused: Any,
    ) -> list[float]:
        """Score attributions, as Quantus asks for it.

        Args:
            model: The network.
            x_batch: Images ``(B, C, H, W)`` in the network's input space, or ``(B, H, W, C)`` with
                ``channel_first=False``.
            y_batch: The classes ``(B,)`` that the attributions explain.
            a_batch: Attributions ``(B, C, H, W)``, ``(B, 1, H, W)`` or ``(B, H, W)``; channels are
                summed. None computes them with ``explain_func``.
            s_batch: Not used.
            channel_first: Whether channels come before height and width; None for yes.
            explain_func: A function of ``model``, ``inputs`` and ``targets``.
            explain_func_kwargs: Its further arguments.
            device: Where to compute; by default where the network is.
            batch_size: Images in one pass, in place of the metric's own.
            **unused: What Quantus passes to metrics of its own, such as ``softmax``.

        Returns:
            One score per sample; nan where there is none.

        Raises:
            HeatproofError: If neither attributions nor a function are given, or shapes do not fit.
        """
        images = np.asarray(x_batch)
        if channel_first is False:
            images = np.moveaxis(images, -1, 1)
        network = model if device is None else model.to(device)
        x = torch.from_numpy(np.ascontiguousarray(images)).float()
        targets = np.asarray(y_batch).reshape(-1)
        arguments = dict(explain_func_kwargs or {})

        def explained(
            inputs: np.ndarray, classes: np.ndarray, network: nn.Module = network
        ) -> np.ndarray:
            if explain_func is None:
                raise HeatproofError(
                    f"{self.protocol.id} has to explain images; pass explain_func, or a_batch if "
                    "it explains no altered images"
                )
            return explain_func(model=network, inputs=inputs, targets=classes, **arguments)

        recomputes = bool(self.protocol.explanations())
        if a_batch is None and not recomputes:
            a_batch = explained(images, targets)
        given = None if a_batch is None or recomputes else _maps(a_batch, x)
        positions = {str(i): i for i in range(len(x))}

        def attributions(model: Model, x: Tensor, target: Tensor, *, rng: Any) -> Tensor:
            if given is not None:
                rows = [positions[sample] for sample in rng.ids]
                return given[rows].to(x.device)
            other = model.root.module if model.view else network  # such as one of random weights
            maps = explained(x.detach().cpu().numpy(), target.cpu().numpy(), other)
            return _maps(maps, x).to(x.device)

        scorer = self._scorer(network, x, batch_size or self._batch_size)
        method = Expression.parse(attributions)
        ids = list(positions)
        found = scorer.score(method, x, [int(target) for target in targets], ids)
        self.evaluation_scores = found.values.tolist()
        self.all_evaluation_scores.extend(self.evaluation_scores)
        return self.evaluation_scores

    @property
    def mean_score(self) -> float:
        """The mean of the latest scores that are numbers."""
        finite = [value for value in self.evaluation_scores if math.isfinite(value)]
        return sum(finite) / len(finite) if finite else math.nan

    def _scorer(self, module: nn.Module, x: Tensor, batch_size: int) -> Scorer:
        """Return the scorer of a network, which is traced once."""
        shape = (*x.shape[1:], batch_size)
        known = self._scorers.get(module)
        if known is not None and known[0] == shape:
            return known[1]
        channels = x.shape[1]
        model = Model(
            module,
            size=x.shape[-1],
            mean=self._mean or [0.0] * channels,
            std=self._std or [1.0] * channels,
        )
        scorer = Scorer(model, self.protocol, seed=self._seed, batch_size=batch_size)
        self._scorers[module] = (shape, scorer)
        return scorer


def _explaining_labels(name: str, settings: Mapping[str, Any]) -> Protocol:
    """Return a protocol that explains the class it is given."""
    if settings:
        parsed = make_protocol(name, dict(settings))
    else:
        (parsed,) = parse_protocols([name])
    if parsed.target_policy == "label":
        return parsed
    if "of" not in type(parsed).model_fields:
        raise HeatproofError(
            f"{parsed.id} explains the model's prediction, but Quantus explains y_batch"
        )
    return parsed.model_copy(update={"of": "label"})


def _maps(attributions: np.ndarray, x: Tensor) -> Tensor:  # -> (B, H, W)
    """Return attributions as maps of the size of the images; channels are summed."""
    values = torch.as_tensor(np.asarray(attributions)).float()
    if values.ndim == 4:
        values = values.sum(1)
    if values.shape != (len(x), *x.shape[2:]):
        raise HeatproofError(
            f"attributions must be (B, C, H, W) or (B, H, W) for images {tuple(x.shape)}; got "
            f"{tuple(np.shape(attributions))}"
        )
    return values
