"""The arithmetic alone, on tensors. `model` is any function from images to logits, or an hp.Model."""

from heatproof.protocols.curves import removal_curve, updated_curve
from heatproof.protocols.single_deletion import patch_drops
from heatproof.tensor.curves import auc, removal_order
from heatproof.tensor.patches import patch_sums
from heatproof.tensor.rank import spearman

__all__ = ["auc", "patch_drops", "patch_sums", "removal_curve", "removal_order", "spearman", "updated_curve"]
