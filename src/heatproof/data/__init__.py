"""Data sets: images with stable ids. Every module here registers those it defines."""

from heatproof.registry import import_modules

import_modules(__name__)
