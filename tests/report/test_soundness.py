"""The section on soundness and completeness, compared with a slow re-computation from the run."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from report_text import report_text
from scipy.spatial.distance import directed_hausdorff

import heatproof as hp
import heatproof.functional as F
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures.axes import Axis
from heatproof.figures.charts import CurveChart, Trace
from heatproof.figures.svg import draw
from heatproof.report.sections import soundness
from heatproof.report.site import Site

CHANGED = ["saliency|unit", "saliency|remove(constant)", "saliency|introduce(constant)"]
SOUNDNESS = "soundness(baseline=zero, first=0.8, last=0.2, step=0.2, eps=0.05)"
PROTOCOLS = [
    SOUNDNESS,
    "completeness(baseline=zero, steps=4, absolute=true)",
    "road(baseline=zero, steps=4, of=label)",
    "deletion(steps=4)",
]


def negative_at_times(model, x, target, *, rng):
    """Return maps that are positive except for one sample."""
    maps = x[:, 0].abs()
    for i, sample in enumerate(rng.ids):
        maps[i] *= -1.0 if sample == "test-00003" else 1.0
    return maps


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunStatistics:
    out = tmp_path_factory.mktemp("values") / "run"
    methods = [*CHANGED, negative_at_times, "constant"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return hp.evaluate(
            "paperbirds/vgg", "paperbirds:test", methods, PROTOCOLS, limit=12, out=out
        )


@pytest.fixture(scope="module")
def section(run: RunStatistics, tmp_path_factory: pytest.TempPathFactory) -> soundness.Model:
    content = soundness.content(run, Site(tmp_path_factory.mktemp("site")))
    assert content
    return content.models[0]


def curve(run: RunStatistics, protocol: str, method: str, name: str) -> np.ndarray:
    facts = next(p for p in run.protocols.values() if p.id == protocol)
    return run.kept("paperbirds/vgg").curves(facts, method, name).double()


def test_soundness_is_listed_at_the_levels_of_accuracy(
    run: RunStatistics, section: soundness.Model
):
    rows = {r.method: r for r in section.levels[0].rows}
    assert {m: r.n for m, r in rows.items()} == {
        **dict.fromkeys(CHANGED, 12),
        "negative_at_times": 11,
    }
    for method, row in rows.items():
        keep = [i for i in range(12) if not (method == "negative_at_times" and i == 3)]
        score, mass = (curve(run, "soundness", method, name)[keep] for name in ("score", "mass"))
        q = F.soundness(score.mean(0), mass, eps=0.05).mean(0)
        assert row.highest == pytest.approx(score.mean(0).max().item())
        for level, estimate in zip(soundness.LEVELS, row.estimates, strict=True):
            reached = (score.mean(0) >= level - 1e-9).nonzero()
            assert estimate.value == pytest.approx(
                q[reached[0, 0]].item() if len(reached) else np.nan, nan_ok=True
            )


def test_completeness_is_listed_by_threshold(run: RunStatistics, section: soundness.Model):
    table = section.thresholds[0]
    assert table.thresholds == [0.75, 0.5, 0.25]
    rows = {r.method: r for r in table.rows}
    for method in CHANGED:
        drop = curve(run, "completeness", method, "drop")
        assert [e.value for e in rows[method].estimates] == pytest.approx(drop.mean(0).tolist())
        assert rows[method].mean.value == pytest.approx(drop.mean().item())
    assert rows["negative_at_times"].n == 11


def test_the_best_methods_by_a_metric_of_values_are_named(section: soundness.Model):
    for text, name in zip(section.best, ("soundness", "completeness"), strict=True):
        column = next(i for i, (label, _) in enumerate(section.columns) if label.startswith(name))
        label, higher_is_better = section.columns[column]
        assert higher_is_better
        scores = {row.method: row.estimates[column] for row in section.scores}
        own = [scores[method] for method in ("saliency|unit", "negative_at_times")]
        score = max(own, key=lambda e: e.value)
        best = next(m for m in scores if scores[m] == score)
        number = f"{score.value:.2f} ({score.low:.2f} to {score.high:.2f})"
        assert re.match(re.escape(f"{label}: `{best}` ") + "(wins|ranks first), ", text)
        assert number in text
        assert "remove" not in text and "introduce" not in text  # modified maps have no part


def test_warnings_name_the_samples_that_are_left_out(section: soundness.Model):
    left_out = {
        (w.setting.split(" ")[0], w.method): (w.samples, w.reason) for w in section.left_out
    }
    for protocol in ("soundness", "completeness"):
        assert left_out[protocol, "negative_at_times"] == (1, "nothing in the map is positive")
        assert left_out[protocol, "constant"] == (12, "the map is the same everywhere")
    few = section.too_few[0]
    assert (few.samples, few.needed) == (12, 20)


def test_a_metric_that_is_not_measured_in_accuracy_is_not_drawn(section: soundness.Model):
    assert [label.split(" ")[0] for label in section.by_value] == ["soundness", "completeness"]
    assert [label.split(" ")[0] for label in section.by_order] == ["road"]


def test_distances_between_changed_maps_are_hausdorff_distances(
    run: RunStatistics, section: soundness.Model
):
    assert [(t.base, t.scheme) for t, _ in section.distinct.trios] == [("saliency", "constant")]
    distances = {
        label.split(" ")[0]: values for label, values in section.distinct.distances.items()
    }
    assert set(distances) == {"soundness", "completeness", "road"}
    for protocol, name, positions in (
        ("completeness", "drop", [0.75, 0.5, 0.25]),
        ("road", "score", [0.25, 0.5, 0.75]),
    ):
        xy = [np.stack([positions, curve(run, protocol, m, name).mean(0)], 1) for m in CHANGED]
        pairs = [
            max(directed_hausdorff(xy[a], xy[b])[0], directed_hausdorff(xy[b], xy[a])[0])
            for a, b in ((0, 1), (0, 2), (1, 2))
        ]
        assert distances[protocol].each[0].value == pytest.approx(min(pairs))
        assert distances[protocol].mean == pytest.approx(min(pairs))
    for label, found in section.distinct.distances.items():
        (only,) = found.each
        assert 0 < only.p <= 1
        answer = "distinguishes" if only.p <= 0.05 else "does not significantly distinguish"
        assert any(text.startswith(f"{label} {answer}") for text in section.distinct.answers)
    maps = section.distinct.panels[0].rows["saliency"]
    assert len(set(maps)) == len(maps) == 3


def test_the_page_shows_the_warnings(run: RunStatistics, tmp_path):
    with pytest.warns(UserWarning, match="use 20 or more"):
        text = report_text(hp.Result.load(run.store.root).report(tmp_path / "site"))
    assert "1 sample left out (nothing in the map is positive)" in text
    assert "12 samples cannot resolve a gain of 0.05 in accuracy" in text


def test_a_curve_ends_where_its_values_are_undefined():
    nan = float("nan")
    lines = [
        Trace("a", "cam", (0.2, 0.4, nan), (0.1, 0.5, 0.9), (0.1, 0.3, nan), (0.3, 0.5, nan)),
        Trace("b", "cam", (nan, nan, nan)),
    ]
    drawn = draw(CurveChart("t", lines, Axis(0, 1, (0.0, 1.0)), ("x", "y")))
    assert "nan" not in drawn
    assert 'data-method="b"' not in drawn
    assert "10 %: 0.20 (0.10 to 0.30)\n50 %: 0.40 (0.30 to 0.50)" in drawn
