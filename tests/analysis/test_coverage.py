"""A short version of ``make soak``: intervals cover the truth about as often as they claim."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import pytest

REPETITIONS = 60
CHOSEN = {  # one scenario of each kind
    "mean": "correlation near 1, n = 16",
    "clustered mean": "localization, 16 × 4",
    "paired difference": "n = 16",
    "proportion": "p = 0.9, n = 40",
    "change of a proportion": "0.8 to 0.6, n = 64",
    "no false difference": "localization, 10 of 10 equal, 16 × 1",
    "rank": "10 methods, 0.05 apart, n = 32",
    "mean rank": "10 methods, 4 settings, 0.02 ± 0.03, n = 32",
    "agreement of rankings": "4 × 15, 0.05 ± 0.03, n = 64",
    "agreement of protocols": "2 protocols × 3 settings, 0.05 ± 0.03, n = 64",
    "soundness": "plateaus, 24 steps, eps = 0.04, n = 128",
}


def _load():
    path = Path(__file__).parents[2] / "benchmarks" / "interval_coverage.py"
    spec = importlib.util.spec_from_file_location("coverage_of_intervals", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


COVERAGE = _load()
COVERAGE.RESAMPLES = 1000  # which takes a tenth of the time and costs little coverage


def test_every_kind_is_tested():
    assert set(CHOSEN) == {kind.name for kind in COVERAGE.KINDS}


@pytest.mark.parametrize("kind", COVERAGE.KINDS, ids=lambda kind: kind.name)
def test_coverage(kind):
    """At most three standard errors of 60 data sets below 93 %."""
    (scenario,) = (s for s in kind.scenarios if s.name == CHOSEN[kind.name])
    result = COVERAGE.measure(scenario, REPETITIONS)
    assert result.coverage >= 0.93 - 3 * math.sqrt(0.93 * 0.07 / REPETITIONS)
    assert math.isfinite(result.width)
