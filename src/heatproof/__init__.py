"""heatproof: which heatmaps can you trust?"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heatproof import data as data
    from heatproof import metrics as metrics
    from heatproof import quantus as quantus
    from heatproof.api import EvalBatch as EvalBatch
    from heatproof.api import FineTuned as FineTuned
    from heatproof.api import HeatproofError as HeatproofError
    from heatproof.api import MapNotes as MapNotes
    from heatproof.api import Model as Model
    from heatproof.api import Protocol as Protocol
    from heatproof.api import Result as Result
    from heatproof.api import Sample as Sample
    from heatproof.api import Scores as Scores
    from heatproof.api import TensorData as TensorData
    from heatproof.api import baseline as baseline
    from heatproof.api import compare as compare
    from heatproof.api import compare_published as compare_published
    from heatproof.api import dataset as dataset
    from heatproof.api import evaluate as evaluate
    from heatproof.api import explain as explain
    from heatproof.api import finetune as finetune
    from heatproof.api import leaderboard as leaderboard
    from heatproof.api import load_data as load_data
    from heatproof.api import load_model as load_model
    from heatproof.api import merge as merge
    from heatproof.api import method as method
    from heatproof.api import named as named
    from heatproof.api import protocol as protocol
    from heatproof.api import run as run
    from heatproof.api import section as section
    from heatproof.api import transform as transform

    __version__: str

LAZY_MODULES = ("data", "metrics", "quantus")


def __dir__() -> list[str]:
    return [*import_module("heatproof.api").__all__, *LAZY_MODULES, "__version__"]


def __getattr__(name: str) -> object:
    """Import the API on first use, so that ``heatproof --help`` need not wait for torch."""
    if name == "__version__":
        return _version()
    if name in LAZY_MODULES:
        return import_module(f"heatproof.{name}")
    api = import_module("heatproof.api")
    if name in api.__all__:
        return getattr(api, name)
    raise AttributeError(f"module 'heatproof' has no attribute {name!r}")


def _version() -> str:
    """Return the version of the installed package, which is made from the tag of its commit."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("heatproof")
    except PackageNotFoundError:
        return "0+not.installed"
