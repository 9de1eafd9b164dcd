"""Protocols: how maps are scored, one module per family, registered when it is imported."""

from heatproof.protocols.base import (
    PROTOCOLS,
    EvalBatch,
    Protocol,
    Scores,
    Shared,
    View,
    ViewKey,
    make_protocol,
    protocol,
)
from heatproof.registry import import_modules

__all__ = [
    "PROTOCOLS",
    "EvalBatch",
    "Protocol",
    "Scores",
    "Shared",
    "View",
    "ViewKey",
    "make_protocol",
    "protocol",
]

import_modules(__name__)
