"""The arithmetic of protocols as functions on tensors, without specs, runs or files.

Wherever a function takes a ``model``, it may be a ``heatproof.Model`` or any callable from images
``(B, C, H, W)`` to logits ``(B, K)``. Maps have the shape ``(B, H, W)``. Results are float64
wherever precision matters.
"""

from heatproof.baselines.linear import linear_impute
from heatproof.protocols.removal import removal_curve, updated_curve
from heatproof.protocols.single_deletion import patch_drops
from heatproof.tensor.curves import auc, removal_order
from heatproof.tensor.information import (
    area_beyond,
    area_reached,
    energy,
    logit_variance,
    mean_logit,
    mean_sigmoid,
    negentropy,
)
from heatproof.tensor.localization import aggregate_maps, localization
from heatproof.tensor.ood_distance import knn_distance
from heatproof.tensor.patches import patch_sums
from heatproof.tensor.rank import spearman
from heatproof.tensor.soundness import soundness

__all__ = [
    "aggregate_maps",
    "area_beyond",
    "area_reached",
    "auc",
    "energy",
    "knn_distance",
    "linear_impute",
    "localization",
    "logit_variance",
    "mean_logit",
    "mean_sigmoid",
    "negentropy",
    "patch_drops",
    "patch_sums",
    "removal_curve",
    "removal_order",
    "soundness",
    "spearman",
    "updated_curve",
]
