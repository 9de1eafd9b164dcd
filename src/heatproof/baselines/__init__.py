"""Baselines: what removed pixels become. Each module registers its own when it is imported."""

from heatproof.baselines.base import BASELINES, Baseline, BaselineName, baseline
from heatproof.registry import import_modules

__all__ = ["BASELINES", "Baseline", "BaselineName", "baseline"]

import_modules(__name__)
