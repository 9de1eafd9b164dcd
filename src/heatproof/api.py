"""The public surface: load_model, load_data, explain, evaluate."""

from __future__ import annotations

from heatproof.methods import explain, method
from heatproof.models.model import Model

__all__ = ["Model", "explain", "method"]
