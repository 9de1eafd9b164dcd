"""The sections of the report. Every module here that defines one registers it."""

from heatproof.registry import import_modules
from heatproof.report.sections.base import SECTIONS as SECTIONS
from heatproof.report.sections.base import Section as Section
from heatproof.report.sections.base import ordered_sections as ordered_sections
from heatproof.report.sections.base import section as section

import_modules(__name__)
