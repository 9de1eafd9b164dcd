"""The public surface of heatproof, which ``import heatproof as hp`` offers.

* ``load_model``, ``Model``: the network under inspection.
* ``load_data``, ``TensorData``: images with stable ids.
* ``explain``: maps of one method.
* ``evaluate``, ``run``, ``Result``: scores of many methods, from Python or from a spec.
* ``method``: registers a method of your own.
* ``finetune``, ``FineTuned``: fine-tune a model on images with deleted patches.
* ``HeatproofError``: an error that the message tells how to resolve.
"""

from __future__ import annotations

from heatproof.data.base import TensorData
from heatproof.data.catalog import load_data
from heatproof.errors import HeatproofError
from heatproof.evaluation import Result, evaluate, explain, run
from heatproof.methods import method
from heatproof.models.model import Model
from heatproof.models.zoo import load_model
from heatproof.training.finetune import FineTuned, finetune

__all__ = [
    "FineTuned",
    "HeatproofError",
    "Model",
    "Result",
    "TensorData",
    "evaluate",
    "explain",
    "finetune",
    "load_data",
    "load_model",
    "method",
    "run",
]
