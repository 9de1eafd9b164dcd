"""The arithmetic alone, on tensors. `model` is any function from images to logits, or an hp.Model."""

from heatproof.protocols.single_deletion import patch_drops
from heatproof.tensor.patches import patch_sums
from heatproof.tensor.rank import spearman

__all__ = ["patch_drops", "patch_sums", "spearman"]
