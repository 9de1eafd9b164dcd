"""The public surface of heatproof, which ``import heatproof as hp`` offers.

* ``load_model``, ``Model``: the network under inspection.
* ``load_data``, ``TensorData``, ``Sample``: images with stable ids.
* ``explain``: maps of one method; ``MapNotes``: what it says about single maps.
* ``named``: a method with a name and arguments of your own.
* ``evaluate``, ``run``, ``Result``: scores of many methods, from Python or from a spec.
* ``compare``, ``compare_published``, ``merge``, ``leaderboard``: two results beside each other, a
  result beside the numbers of a paper, one result of several, and one table over several.
* ``method``, ``transform``, ``baseline``, ``protocol``, ``dataset``, ``section``: decorators that
  register extensions of your own; ``Protocol``, ``EvalBatch`` and ``Scores`` are for protocols.
* ``finetune``, ``FineTuned``: fine-tune a model on images with deleted patches.
* ``HeatproofError``: an error that the user can fix; its message says how.
"""

from __future__ import annotations

from heatproof.baselines import baseline
from heatproof.data.base import Sample, TensorData
from heatproof.data.catalog import dataset, load_data
from heatproof.errors import HeatproofError
from heatproof.evaluation import evaluate, explain, run
from heatproof.methods import method, named, transform
from heatproof.methods.notes import MapNotes
from heatproof.models.model import Model
from heatproof.models.zoo import load_model
from heatproof.protocols import EvalBatch, Protocol, Scores, protocol
from heatproof.report.sections import section
from heatproof.results import Result
from heatproof.results.compare import compare
from heatproof.results.leaderboard import leaderboard
from heatproof.results.merge import merge
from heatproof.results.published import compare_published
from heatproof.training.finetune import FineTuned, finetune

__all__ = [
    "EvalBatch",
    "FineTuned",
    "HeatproofError",
    "MapNotes",
    "Model",
    "Protocol",
    "Result",
    "Sample",
    "Scores",
    "TensorData",
    "baseline",
    "compare",
    "compare_published",
    "dataset",
    "evaluate",
    "explain",
    "finetune",
    "leaderboard",
    "load_data",
    "load_model",
    "merge",
    "method",
    "named",
    "protocol",
    "run",
    "section",
    "transform",
]
