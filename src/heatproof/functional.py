"""The metrics as functions of tensors.

Where a function takes a ``model``, it is an ``hp.Model`` or any function from images to logits.
"""

from heatproof.baselines.linear import linear_impute
from heatproof.protocols.curves import removal_curve, updated_curve
from heatproof.protocols.single_deletion import patch_drops
from heatproof.tensor.curves import auc, removal_order
from heatproof.tensor.information import area_beyond, area_reached, energy, mean_sigmoid, negentropy
from heatproof.tensor.localization import aggregate_maps, localization
from heatproof.tensor.neighbours import knn_distance
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
