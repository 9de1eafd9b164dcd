"""Pairs of methods that differ in one respect."""

from itertools import product

import numpy as np
import pytest

import heatproof as hp
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.report.sections.pairs import content
from heatproof.report.site import Site

METHODS = ["ixg", "ig(steps=3)", "gradcam", "saliency"]


def compared(tmp_path, methods):
    result = hp.evaluate(
        "paperbirds/vgg", "paperbirds:test", methods, ["sds"], limit=10, out=tmp_path / "run"
    )
    run = RunStatistics(result.store)
    return result, content(run, Site(tmp_path / "site"))


def test_methods_are_paired_with_their_absolute_values_and_with_the_softmax(tmp_path):
    absolute = [f"{m}|abs" for m in METHODS[:3]]
    softmax = ["ixg(score=softmax)", "ig(steps=3, score=softmax)", "gradcam(score=softmax)"]
    result, found = compared(tmp_path, [*METHODS, *absolute, *softmax, "rise(masks=8)"])
    texts = {title: [c.text for c in cs] for title, cs in found.kinds.items()}
    assert list(texts) == [
        "Absolute in place of signed values",
        "The softmax explained in place of the logit",
    ]
    assert all(text.startswith("Of 3 methods, ") for (text,) in texts.values())
    assert all(text.endswith("; higher is better.") for (text,) in texts.values())
    (comparison,) = found.kinds["The softmax explained in place of the logit"]
    means = result.summary().set_index("method")["mean"]
    for method in ("ixg", "gradcam"):
        difference = means[f"{method}(score=softmax)"] - means[method]
        assert f"{abs(difference):.3f}" in str(comparison.figure.svg)
    assert "nan" not in str(comparison.figure.svg)


def rejected(differences: np.ndarray) -> list[bool]:
    """Test columns as one family, by all flips of the signs of the rows, one column at a time."""
    flips = np.array(list(product([1, -1], repeat=len(differences))))[:, :, None] * differences
    errors = flips.std(1, ddof=1) / len(differences) ** 0.5
    t = np.abs(flips.mean(1)) / np.where(errors > 0, errors, np.inf)  # equal scores differ never
    left = list(range(differences.shape[1]))
    while left:
        largest = t[:, left].max(1)
        p = (np.mean(largest >= largest[0] - 1e-9) + np.mean(largest > largest[0] + 1e-9)) / 2
        if p > 0.05:
            break
        left.remove(max(left, key=lambda k: t[0, k]))
    return [k not in left for k in range(differences.shape[1])]


def test_the_counts_are_those_of_significant_differences(tmp_path):
    result, found = compared(tmp_path, [*METHODS[:3], *(f"{m}|abs" for m in METHODS[:3])])
    (comparison,) = found.kinds["Absolute in place of signed values"]
    scores = result.scores.pivot(index="sample", columns="method", values="value")
    changed = scores[[f"{m}|abs" for m in METHODS[:3]]].to_numpy()
    differences = changed - scores[METHODS[:3]].to_numpy()
    signs = np.sign(differences.mean(0)) * rejected(differences)
    assert comparison.text == (
        f"Of 3 methods, {(signs > 0).sum()} score significantly higher and {(signs < 0).sum()} "
        "significantly lower, at a joint level of 5 %; higher is better."
    )


@pytest.mark.parametrize("methods", [METHODS, ["ixg", "ixg|abs", "gradcam"]])
def test_too_few_pairs_are_left_out(tmp_path, methods):
    assert compared(tmp_path, methods)[1] is None


def test_the_axis_holds_differences_that_have_no_interval(tmp_path, monkeypatch):
    charts = []
    monkeypatch.setattr(Site, "figure", lambda self, chart: charts.append(chart))
    methods = [*METHODS[:3], *(f"{m}|abs" for m in METHODS[:3])]
    result = hp.evaluate("paperbirds/vgg", "paperbirds:test", methods, ["sds"], limit=4)
    content(RunStatistics(result.store), Site(tmp_path / "site"))
    (chart,) = charts
    assert all(np.isnan([mark.low, mark.high]).all() for mark in chart.marks)
    assert all(chart.axis.low < mark.mean < chart.axis.high for mark in chart.marks)
