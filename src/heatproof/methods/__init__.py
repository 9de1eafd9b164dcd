"""Attribution methods, one module per family. Each registers its methods when it is imported."""

from heatproof.methods.base import METHODS, TRANSFORMS, method, transform
from heatproof.methods.explain import Explainer, explain
from heatproof.methods.expression import (
    Expression,
    expand_layers,
    named,
    parse_methods,
    with_seeds,
)
from heatproof.methods.groups import GROUPS
from heatproof.registry import import_modules

__all__ = [
    "GROUPS",
    "METHODS",
    "TRANSFORMS",
    "Explainer",
    "Expression",
    "expand_layers",
    "explain",
    "method",
    "named",
    "parse_methods",
    "transform",
    "with_seeds",
]

import_modules(__name__)
