"""Attribution methods, one module per family. Each registers its methods when it is imported."""

from heatproof.methods.base import METHODS as METHODS
from heatproof.methods.base import TRANSFORMS as TRANSFORMS
from heatproof.methods.base import method as method
from heatproof.methods.base import transform as transform
from heatproof.methods.explain import Explainer as Explainer
from heatproof.methods.explain import explain as explain
from heatproof.methods.expression import Expression as Expression
from heatproof.methods.expression import expand_layers as expand_layers
from heatproof.methods.expression import named as named
from heatproof.methods.expression import parse_methods as parse_methods
from heatproof.methods.groups import GROUPS as GROUPS
from heatproof.registry import import_modules

import_modules(__name__)
