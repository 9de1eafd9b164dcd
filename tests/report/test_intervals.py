"""Every interval of a report contains its estimate, whichever section writes it."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import pandas as pd
import pytest

import heatproof as hp
from heatproof.figures import numbers
from heatproof.report.sections.base import TEMPLATES

Triple = tuple[float, float, float]  # value, low, high
METHODS = ["ixg", "ixg@final", "ig(steps=3)", "saliency", "gradcam@final", "random", "edges"]
RUNS = {
    "deletions": (
        ["paperbirds/vgg", "paperbirds/resnet"],
        ["sds", "deletion(steps=4, ood=True, baseline=mean)"],
    ),
    "baselines": (["paperbirds/vgg"], [{"name": "sds", "baseline": ["zero", "mean", "uniform"]}]),
    "grids": (["paperbirds/vgg"], ["gridpg(grids=6, confidence=0)", "difull(grids=6)"]),
    "fine-tuned": (["paperbirds/vgg"], ["sds", "idsds"]),
    "values": (
        ["paperbirds/vgg"],
        [
            "soundness(first=0.9, last=0.1, step=0.1, eps=0.05, baseline=mean)",
            "completeness(baseline=mean)",
            "deletion(score=correct, of=label, baseline=mean)",
        ],
    ),
}
COLUMNS = (("mean", "low", "high"), ("rank", "rank_low", "rank_high"))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Triple]:
    """Record every interval that is written, by all modules that use the one function for it."""
    triples: list[Triple] = []
    original = numbers.interval

    def recording(value: float, low: float, high: float, *arguments, **options) -> str:
        triples.append((value, low, high))
        return original(value, low, high, *arguments, **options)

    for module in list(sys.modules.values()):
        if getattr(module, "interval", None) is original:
            monkeypatch.setattr(module, "interval", recording)
    return triples


def outside(triples: list[Triple]) -> list[Triple]:
    """Return the estimates outside their interval, beyond rounding."""
    return [
        (value, low, high)
        for value, low, high in triples
        if math.isfinite(value) and not low - 1e-9 <= value <= high + 1e-9 and math.isfinite(low)
    ]


@pytest.mark.parametrize("name", RUNS)
def test_every_interval_contains_its_estimate(name: str, written: list[Triple], tmp_path: Path):
    models, protocols = RUNS[name]
    limit = 128 if name == "grids" else 24
    out = tmp_path / "run"
    result = hp.evaluate(models, "paperbirds:test", METHODS, protocols, limit=limit, out=out)
    page = result.report()
    assert len(written) > 50
    assert not outside(written)
    tables = [pd.read_csv(path) for path in page.parent.glob("*.csv")]
    tables += [result.summary()]
    found = 0
    for table in tables:
        for columns in COLUMNS:
            if set(columns) <= set(table.columns):
                triples = list(table[list(columns)].itertuples(index=False, name=None))
                assert not outside(triples)
                found += len(triples)
    assert found


def test_an_estimate_outside_its_interval_is_noticed(written: list[Triple]):
    numbers.interval(1.0, 0.675, 0.949)
    assert outside(written) == [(1.0, 0.675, 0.949)]


def test_no_template_writes_an_interval_by_itself():
    for path in TEMPLATES.rglob("*.j2"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"low\b[^}]*\| *(num|points|percent)\b", text), path.name
