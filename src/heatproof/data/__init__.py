"""Data sets: images with stable ids. Every module here registers those it defines.

The package is also the public decorator ``hp.data`` that registers a data set: see
`heatproof.data.catalog.data`.
"""

import sys
from types import ModuleType

from heatproof.data import catalog
from heatproof.registry import import_modules

import_modules(__name__)


class _Decorator(ModuleType):
    """A package that can be called, as ``hp.data`` is both its name and that of the decorator."""

    __call__ = staticmethod(catalog.data)


sys.modules[__name__].__class__ = _Decorator
