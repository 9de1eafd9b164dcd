"""Protocols as metrics of a training loop: ``update`` for every batch, then ``compute``.

Example::

    metric = hp.metrics.SDS(model, method="ixg")
    for images, targets in batches:
        metric.update(images, targets)
    print(metric.compute(), metric.interval())

Only the score of every sample is kept. The network is left as it was found: mode, gradients,
hooks and parameters.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from heatproof.analysis.intervals import RESAMPLES, bootstrap_means, mean_ends
from heatproof.data.base import Data
from heatproof.errors import HeatproofError
from heatproof.files import content_hash
from heatproof.methods import Expression
from heatproof.models.model import Model
from heatproof.models.zoo import load_model
from heatproof.plan.spec import parse_protocols
from heatproof.protocols.base import make_protocol
from heatproof.scoring.scorer import Scorer
from heatproof.text import counted


class Metric:
    """The mean score of a method under a protocol, over all batches since the last reset.

    Args:
        model: A ``Model``, a module or a name. The weights are those at the time of an update.
        method: An expression such as ``"ig(steps=20)|abs"``, or a function
            ``(model, x, target, *, rng) -> maps``.
        protocol: The protocol, such as ``"sds(patches=64)"``; subclasses have their own.
        seed: Seed for all noise.
        batch_size: Images in one pass.
        reference: Images that are not evaluated, for methods or baselines that need them.
        **settings: Settings of the protocol, such as ``patches=64`` or ``baseline="blur"``.

    Raises:
        HeatproofError: If method or protocol are unknown or not defined for the model, or if the
            protocol has no scores of single samples.
    """

    id: ClassVar[str] = ""  # of the protocol of a subclass

    def __init__(
        self,
        model: Model | nn.Module | str,
        method: str | Callable[..., Tensor],
        protocol: str | None = None,
        *,
        seed: int = 0,
        batch_size: int = 64,
        reference: Data | None = None,
        **settings: Any,
    ):
        name = protocol or self.id
        if not name:
            raise HeatproofError('name a protocol: hp.metrics.Metric(model, "ixg", "sds")')
        if settings:
            parsed = make_protocol(name, settings)
        else:
            (parsed,) = parse_protocols([name])
        self.method = Expression.parse(method)
        self.higher_is_better = parsed.higher_is_better
        self._scorer = Scorer(
            load_model(model), parsed, seed=seed, batch_size=batch_size, reference=reference
        )
        self._scorer.check(self.method)
        self.reset()

    def __repr__(self) -> str:
        protocol = self._scorer.protocol.canonical
        samples = counted(len(self.values), "sample")
        return f"{type(self).__name__}({self.method.label}, {protocol}: {samples})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Metric:
        """Copy the scores, but not the network."""
        other = copy.copy(self)
        other._values = list(self._values)
        other._ids = list(self._ids)
        other._reasons = Counter(self._reasons)
        return other

    def reset(self) -> None:
        """Forget all scores."""
        self._values: list[float] = []
        self._ids: list[str] = []
        self._reasons: Counter[str] = Counter()

    def update(
        self,
        images: Tensor,
        targets: Tensor | Sequence[int] | None = None,
        ids: Sequence[str] | None = None,
    ) -> None:
        """Score the maps of a batch.

        Args:
            images: Images ``(B, C, H, W)`` in the model's input space, as the network takes them.
            targets: Labels ``(B,)``; without them, and for protocols that say so, the model's
                predictions are explained.
            ids: Sample ids, which key noise; by default samples are numbered from the last reset.

        Raises:
            HeatproofError: If images do not fit the model, or the method fails for all of them.
        """
        named = list(ids or self._numbers(len(images)))
        self._values += self.score(images, targets, named).tolist()
        self._ids += named

    def _numbers(self, count: int) -> list[str]:
        """Return ids of the next samples."""
        return [str(len(self._ids) + i) for i in range(count)]

    def score(
        self,
        images: Tensor,
        targets: Tensor | Sequence[int] | None = None,
        ids: Sequence[str] | None = None,
    ) -> Tensor:
        """Score a batch without adding it; takes and raises what ``update`` does.

        Returns:
            Scores ``(B,)`` of float64; nan where there is none.
        """
        labels: list[int | None] = [None] * len(images)
        if targets is not None:
            labels = [int(target) for target in targets]
        found = self._scorer.score(self.method, images, labels, ids or self._numbers(len(images)))
        self._reasons.update(reason for reason in found.reasons if reason)
        return found.values

    @property
    def values(self) -> Tensor:
        """The scores of all samples since the last reset, ``(N,)``; nan where there is none."""
        return torch.tensor(self._values, dtype=torch.float64)

    @property
    def left_out(self) -> dict[str, int]:
        """Why samples have no score, with their number."""
        return dict(self._reasons)

    def compute(self) -> float:
        """Return the mean score of the samples that have one; nan if none has."""
        finite = [value for value in self._values if math.isfinite(value)]
        return sum(finite) / len(finite) if finite else math.nan

    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the mean, that of ``Result.summary``; nan for one sample."""
        order = sorted(range(len(self._ids)), key=self._ids.__getitem__)
        values = self.values.numpy()[order][:, None]
        limits = self._scorer.protocol.facts()["range"]
        draws = bootstrap_means(values, RESAMPLES, limits=limits)
        (low,), (high,) = mean_ends(values, draws, limits=limits)
        return float(low), float(high)

    def torchmetric(self) -> Any:
        """Return the same metric as a ``torchmetrics.Metric``, for a ``MetricCollection``.

        It has scores of its own, which are gathered from all processes of a distributed run.

        Raises:
            HeatproofError: If torchmetrics is not installed.
        """
        try:
            import torchmetrics
        except ModuleNotFoundError as error:
            raise HeatproofError(
                f"torchmetrics cannot be imported ({error}). Install it: pip install torchmetrics"
            ) from None
        return _wrapper(torchmetrics, self)()


def _wrapper(torchmetrics: Any, metric: Metric) -> Any:
    """Return a subclass of ``torchmetrics.Metric``; the library is known only at run time."""
    # A collection takes metrics for one if their states have the same names and values.
    state = f"scores_{id(metric._scorer)}_{content_hash(metric.method.canonical, length=8)}"

    class HeatproofMetric(torchmetrics.Metric):  # type: ignore[misc]
        """A heatproof metric for torchmetrics."""

        is_differentiable = False
        full_state_update = False
        higher_is_better = metric.higher_is_better

        def __init__(self) -> None:
            super().__init__()
            self.metric = copy.deepcopy(metric)
            self.add_state(state, default=[], dist_reduce_fx="cat")
            self.seen = 0  # samples since the last reset, which are numbered

        def update(self, images: Tensor, targets: Tensor | None = None) -> None:
            ids = [str(self.seen + i) for i in range(len(images))]
            getattr(self, state).append(self.metric.score(images, targets, ids))
            self.seen += len(images)

        def forward(self, images: Tensor, targets: Tensor | None = None) -> Tensor:
            """Return the mean score of this batch; torchmetrics would restart the numbering."""
            self.update(images, targets)
            self._forward_cache = getattr(self, state)[-1].nanmean()
            return self._forward_cache

        def reset(self) -> None:
            super().reset()
            self.seen = 0

        def compute(self) -> Tensor:
            scores = getattr(self, state)
            return (torch.cat(scores) if isinstance(scores, list) else scores).nanmean()

    return HeatproofMetric


class SDS(Metric):
    """Single-deletion score (Hesse et al. 2024)."""

    id = "sds"


class IDSDS(Metric):
    """Single-deletion score on weights that were fine-tuned with deleted patches."""

    id = "idsds"


class IDS(Metric):
    """Incremental-deletion score (Hesse et al. 2024)."""

    id = "ids"


class Deletion(Metric):
    """Area under the deletion curve (Petsiuk et al. 2018)."""

    id = "deletion"


class Insertion(Metric):
    """Area under the insertion curve (Petsiuk et al. 2018)."""

    id = "insertion"


class SRG(Metric):
    """Symmetric relevance gain."""

    id = "srg"


class ROAD(Metric):
    """Remove and debias (Rong et al. 2022)."""

    id = "road"


class Completeness(Metric):
    """Completeness (Li et al. 2024)."""

    id = "completeness"
