"""The report: a static site that opens from disk, without a server or network access."""

from heatproof.report.build import build as build
from heatproof.report.build import build_single_file as build_single_file
