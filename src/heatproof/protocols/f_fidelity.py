"""F-Fidelity (Zheng et al. 2025): does the prediction depend on the pixels that a map marks?

The network was fine-tuned with random pixels deleted. Of the pixels that a map marks, a random part
is deleted, never more than in the fine-tuning, so that deletions are in-domain at every size of the
explanation.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.protocols.base import EvalBatch, Kind, Protocol, Scores, Shared, protocol
from heatproof.protocols.in_domain import InDomain
from heatproof.protocols.removal import (
    PixelRemoval,
    Side,
    Steps,
    by_sample,
    pixel_counts,
    scores_with_reasons,
)
from heatproof.tensor.batching import rows
from heatproof.tensor.noise import Rng


@protocol
class FineTunedFidelity(InDomain, PixelRemoval):
    id: ClassVar[str] = "f-fidelity"
    kind: ClassVar[Kind] = "in-domain"
    summary: ClassVar[str] = (
        "FFid+: how often the prediction is lost when a random part of the most relevant pixels is "
        "deleted, on weights that were fine-tuned with random pixels deleted"
    )
    higher_is_better: ClassVar[bool] = True
    range: ClassVar[tuple[float, float] | None] = (-1.0, 1.0)
    citation: ClassVar[str] = (
        "Zheng, Shirani, Chen, Lin, Cheng, Guo, Luo: "
        "F-Fidelity: A Robust Framework for Faithfulness Evaluation of Explainable AI. ICLR 2025"
    )
    side: ClassVar[Side] = "most"

    score: Literal["correct", "softmax"] = Field(
        default="correct", description="what is lost: the right answer, or its probability"
    )
    sizes: Steps = Field(
        default=20, description="sizes of the explanation; 20: 5, 10, … 100 % of the pixels"
    )
    samples: Steps = Field(default=50, description="random deletions for each size")
    alpha: float = Field(
        default=0.5, gt=0, le=1, description="part of the marked pixels that is deleted, at most"
    )
    beta: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="part of all pixels that is deleted, at most, as in the fine-tuning",
    )

    @property
    def fine_tuning(self) -> str:
        return f"{100 * self.beta:g}%/{self.baseline}"

    def facts(self) -> dict[str, Any]:
        return Protocol.facts(self)  # scores are differences

    def check(self, model: Model) -> None:
        super().check(model)
        pixels = model.height * model.width
        if self.sizes > pixels:
            raise HeatproofError(
                f"{self.id}: sizes={self.sizes}, but an image of {model.name} has only "
                f"{pixels} pixels"
            )

    def passes(self) -> Mapping[Hashable, int]:
        return {(self.canonical,): self.sizes * self.samples}

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        """Score maps; the curve ``lost`` ``(B, sizes)`` is over the sizes of the explanation."""
        fractions = [k / self.sizes for k in range(1, self.sizes + 1)]
        pixels = maps[0].numel()
        counts = torch.tensor(pixel_counts(fractions, pixels), device=maps.device)
        chances = (self.beta * pixels / counts).clamp(max=self.alpha)
        ranks = self._ranks(batch, maps)
        if self.side == "least":
            ranks = pixels - 1 - ranks
        remove = self._remover(model, batch)
        draws = self.sizes * self.samples
        logits = []
        for part in rows(torch.arange(len(maps) * draws, device=maps.device), model.batch_size):
            sample = part // draws
            size = part % draws // self.samples
            keys = [f"{batch.ids[i // draws]}, deletion {i % draws}" for i in part.tolist()]
            noise = Rng(batch.rng.seed, keys, maps.device).uniform("f-fidelity", maps.shape[1:])
            marked = ranks[sample] < counts[size, None, None]
            logits.append(
                model.logits(remove(sample, marked & (noise < chances[size, None, None])))
            )
        left = self.scores(model, by_sample(torch.cat(logits), len(maps)), batch.target)
        clean = self.scores(model, batch.clean[:, None], batch.target).double()
        lost = clean - left.double().reshape(-1, self.sizes, self.samples).mean(2)
        return scores_with_reasons(lost.mean(1), {"lost": lost})


@protocol
class FineTunedFidelityMinus(FineTunedFidelity):
    id: ClassVar[str] = "f-fidelity-minus"
    summary: ClassVar[str] = (
        "FFid−: how often the prediction is lost when a random part of the least relevant pixels "
        "is deleted, on weights that were fine-tuned with random pixels deleted"
    )
    higher_is_better: ClassVar[bool] = False
    side: ClassVar[Side] = "least"
