"""Baselines: what removed pixels become. Each module registers its own when it is imported."""

from heatproof.baselines.base import BASELINES as BASELINES
from heatproof.baselines.base import Baseline as Baseline
from heatproof.baselines.base import BaselineName as BaselineName
from heatproof.baselines.base import baseline as baseline
from heatproof.registry import import_modules

import_modules(__name__)
