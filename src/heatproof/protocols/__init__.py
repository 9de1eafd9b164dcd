"""Protocols: how maps are scored, one module per family, registered when it is imported."""

from heatproof.protocols.base import PROTOCOLS as PROTOCOLS
from heatproof.protocols.base import EvalBatch as EvalBatch
from heatproof.protocols.base import Protocol as Protocol
from heatproof.protocols.base import Scores as Scores
from heatproof.protocols.base import Shared as Shared
from heatproof.protocols.base import View as View
from heatproof.protocols.base import ViewKey as ViewKey
from heatproof.protocols.base import make_protocol as make_protocol
from heatproof.protocols.base import protocol as protocol
from heatproof.registry import import_modules

import_modules(__name__)
