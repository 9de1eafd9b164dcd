"""Results of a run: ``Result``, its tables and figures, and results beside each other."""

from heatproof.results.result import Result

__all__ = ["Result"]
