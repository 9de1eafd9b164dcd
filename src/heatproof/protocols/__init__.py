"""How maps are judged: one file a family."""

from heatproof.protocols import attr_mass as attr_mass
from heatproof.protocols import curves as curves
from heatproof.protocols import grids as grids
from heatproof.protocols import parts as parts
from heatproof.protocols import single_deletion as single_deletion
from heatproof.protocols import soundness as soundness
from heatproof.protocols.base import PROTOCOLS as PROTOCOLS
from heatproof.protocols.base import EvalBatch as EvalBatch
from heatproof.protocols.base import Protocol as Protocol
from heatproof.protocols.base import View as View
from heatproof.protocols.base import ViewKey as ViewKey
from heatproof.protocols.base import make_protocol as make_protocol
