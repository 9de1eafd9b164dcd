"""Does a map depend on what the network has learned, and on the class that it explains?

``randomization`` compares a map with those of networks with random weights (Adebayo et al. 2018),
``emprt`` the complexity of the two (Hedström et al. 2024), and ``random-logit`` the map with that
of another class (Sixt et al. 2020).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from heatproof.models.model import Model
from heatproof.models.random_weights import Mode, Order, layers_with_parameters, random_networks
from heatproof.models.targets import Explains
from heatproof.protocols.base import EvalBatch, Kind, Protocol, Scores, Shared, protocol
from heatproof.protocols.removal import cached
from heatproof.tensor.descriptors import level_entropy
from heatproof.tensor.map_similarity import (
    Normalization,
    Similarity,
    map_similarity,
    similarity_to,
)
from heatproof.tensor.noise import chance

DEVIATION = 0.1  # of the noise of `denoise`
MAPS_KEPT = 8  # of each sample, for other protocols of the same map
NETWORK_NOT_FINITE = "the map of a network with random weights is not finite"
CLASS_NOT_FINITE = "the map of the other class is not finite"


class RandomNetworks(Protocol):
    """Base class of protocols that compute maps of networks with random weights."""

    kind: ClassVar[Kind] = "sanity"

    denoise: Annotated[int, Field(ge=2)] | None = Field(
        default=None,
        description="noisy copies of the image whose maps are averaged, also those of the trained "
        "network (sMPRT); by default the map of the image itself",
    )
    noise: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="standard deviation of that noise, for images in [0, 1]; by default 0.1",
    )
    seed: int = Field(default=0, ge=0, description="seed of the random weights")

    def check(self, model: Model) -> None:
        super().check(model)
        layers_with_parameters(model)

    def _group(self) -> tuple[Mode, Order, int, int]:
        """Return the arguments of `random_networks`."""
        return "all", "top-down", 1, self.seed

    def _number(self) -> int:
        mode, _, count, _ = self._group()
        return 1 if mode == "all" else count

    def explanations(self) -> Mapping[Hashable, int]:
        copies = self.denoise or 1
        what = (self.denoise, self.noise)
        own = {} if self.denoise is None else {("denoised", *what): copies}
        return own | {(self._group(), *what): copies * self._number()}

    def _maps(self, model: Model, batch: EvalBatch, network: Model) -> Tensor:
        """Compute the maps of a network, averaged over noisy copies of the image if so set."""

        def compute() -> Tensor:
            assert batch.explain is not None
            other = network if network is not model else None
            if self.denoise is None:
                return batch.explain(batch.x, model=other)
            deviation = (self.noise or DEVIATION) / model.std
            total = torch.zeros_like(batch.x[:, 0])
            for i in range(self.denoise):
                noise = batch.rng.normal(f"denoising {i}", batch.x.shape[1:]).to(batch.x)
                total += batch.explain(batch.x + deviation * noise, model=other) / self.denoise
            return total

        if self._number() > MAPS_KEPT:
            return compute()
        key = ("maps of", network.view, self.denoise, self.noise)
        return cached(batch.map_cache, key, compute)

    def _pairs(
        self, model: Model, batch: EvalBatch, maps: Tensor
    ) -> tuple[Tensor, Sequence[Model]]:
        """Return the map of the trained network, and the networks with random weights."""
        own = maps if self.denoise is None else self._maps(model, batch, model)
        return own, random_networks(model, *self._group())


@protocol
class Randomization(RandomNetworks):
    id: ClassVar[str] = "randomization"
    summary: ClassVar[str] = (
        "similarity of the map with those of networks with random weights, averaged over networks"
    )
    higher_is_better: ClassVar[bool] = False
    range: ClassVar[tuple[float, float] | None] = (-1.0, 1.0)
    random_score: ClassVar[float | None] = 1.0  # it does not depend on the network
    citation: ClassVar[str] = (
        "Adebayo, Gilmer, Muelly, Goodfellow, Hardt, Kim: "
        "Sanity Checks for Saliency Maps. NeurIPS 2018"
    )

    mode: Mode = Field(
        default="cascading",
        description="cascading: one group of layers after the other becomes random; independent: "
        "each group alone; all: one network, random everywhere",
    )
    order: Order = Field(
        default="top-down", description="whether groups are counted from the logits or the image"
    )
    networks: int = Field(
        default=5,
        ge=1,
        description="groups of layers, each with a network; at most one for each layer",
    )
    similarity: Similarity = Field(
        default="spearman", description="rank correlation of the pixels, or structural similarity"
    )
    normalization: Normalization | None = Field(
        default=None,
        description="what maps are divided by before ssim: max, their largest absolute value, or "
        "moment, their root mean square; by default nothing",
    )

    def _group(self) -> tuple[Mode, Order, int, int]:
        if self.mode == "all":
            return super()._group()
        return self.mode, self.order, self.networks, self.seed

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        """Score maps; the curve ``similarity`` has one value per network, ``(B, networks)``.

        It is nan where the map of a random network is the same everywhere. Nothing is left of the
        map then, which counts as a similarity of 0.
        """
        own, networks = self._pairs(model, batch, maps)
        similarity = similarity_to(own, self.similarity, self.normalization)
        similarities = []
        finite = torch.ones(len(maps), dtype=torch.bool, device=maps.device)
        for network in networks:
            other = self._maps(model, batch, network)
            finite &= _finite(other)
            similarities.append(similarity(other))
        curve = torch.stack(similarities, 1)
        value = torch.where(finite, curve.nan_to_num(0).mean(1), torch.nan)
        return Scores(value, _reasons(finite, NETWORK_NOT_FINITE), {"similarity": curve})


@protocol
class EfficientRandomization(RandomNetworks):
    id: ClassVar[str] = "emprt"
    summary: ClassVar[str] = (
        "relative rise of the entropy of a map's values when all weights become random"
    )
    higher_is_better: ClassVar[bool] = True
    range: ClassVar[tuple[float, float] | None] = None
    random_score: ClassVar[float | None] = 0.0
    citation: ClassVar[str] = (
        "Hedström, Weber, Lapuschkin, Höhne: Sanity Checks Revisited: An Exploration to Repair the "
        "Model Parameter Randomisation Test. XAI in Action workshop, NeurIPS 2023"
    )

    bins: int = Field(default=100, ge=2, description="bins of the histogram of a map's values")

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        own, (network,) = self._pairs(model, batch, maps)
        other = self._maps(model, batch, network)
        finite = _finite(other)
        before = level_entropy(own, self.bins)
        after = level_entropy(other.nan_to_num(0), self.bins)
        value = torch.where(finite & (before > 0), after / before - 1, torch.nan)
        curves = {"entropy": torch.stack([before, after], 1)}
        return Scores(value, _reasons(finite, NETWORK_NOT_FINITE), curves)


@protocol
class RandomLogit(Protocol):
    id: ClassVar[str] = "random-logit"
    kind: ClassVar[Kind] = "sanity"
    explains: ClassVar[Explains] = "class"
    summary: ClassVar[str] = "similarity of the map with that of another class"
    higher_is_better: ClassVar[bool] = False
    range: ClassVar[tuple[float, float] | None] = (-1.0, 1.0)
    random_score: ClassVar[float | None] = 1.0  # it does not depend on the class
    citation: ClassVar[str] = (
        "Sixt, Granz, Landgraf: When Explanations Lie: Why Many Modified BP Attributions Fail. "
        "ICML 2020"
    )

    similarity: Similarity = Field(
        default="spearman", description="rank correlation of the pixels, or structural similarity"
    )
    normalization: Normalization | None = Field(
        default=None, description="what maps are divided by before ssim: max or moment"
    )

    def explanations(self) -> Mapping[Hashable, int]:
        return {"other class": 1}

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        """Score maps; each sample has another class of its own, drawn from all others alike."""
        assert batch.explain is not None
        explain = batch.explain
        target = other_classes(batch.target, model.n_classes, batch.ids, batch.rng.seed)
        other = cached(batch.map_cache, "other class", lambda: explain(batch.x, target=target))
        value = map_similarity(maps, other, self.similarity, self.normalization)
        finite = _finite(other)
        constant = torch.isnan(value) & finite
        return Scores(value.masked_fill(constant, 0), _reasons(finite, CLASS_NOT_FINITE))


def _finite(maps: Tensor) -> Tensor:  # (B,)
    return torch.isfinite(maps).flatten(1).all(1)


def _reasons(finite: Tensor, reason: str) -> list[str]:
    return ["" if is_finite else reason for is_finite in finite.tolist()]


def other_classes(target: Tensor, classes: int, ids: Sequence[str], seed: int) -> Tensor:
    """Draw a class other than the target for each sample, ``(B,)``."""
    steps = [1 + int((classes - 1) * chance(seed, "other class", sample)) for sample in ids]
    return (target + torch.tensor(steps, device=target.device)) % classes
