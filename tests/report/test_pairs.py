"""Pairs of methods that differ in one respect."""

import pytest

import heatproof as hp
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.report.sections.pairs import content
from heatproof.report.site import Site

METHODS = ["ixg", "ig(steps=3)", "gradcam", "saliency"]


def compared(tmp_path, methods):
    result = hp.evaluate(
        "paperbirds/vgg", "paperbirds:test", methods, ["sds"], limit=12, out=tmp_path / "run"
    )
    run = RunStatistics(result.store)
    return result, content(run, Site(tmp_path / "site"))


def test_methods_are_paired_with_their_absolute_values_and_with_the_softmax(tmp_path):
    absolute = [f"{m}|abs" for m in METHODS[:3]]
    softmax = ["ixg(score=softmax)", "ig(steps=3, score=softmax)", "gradcam(score=softmax)"]
    result, found = compared(tmp_path, [*METHODS, *absolute, *softmax, "rise(masks=8)"])
    assert {title: [c.of for c in cs] for title, cs in found.kinds.items()} == {
        "Absolute in place of signed values": [3],
        "The softmax explained in place of the logit": [3],
    }
    (comparison,) = found.kinds["The softmax explained in place of the logit"]
    means = result.summary().set_index("method")["mean"]
    for method in ("ixg", "gradcam"):
        difference = means[f"{method}(score=softmax)"] - means[method]
        assert f"{abs(difference):.3f}" in str(comparison.figure.svg)
    assert comparison.better == "higher"
    assert "nan" not in str(comparison.figure.svg)


def test_the_counts_are_those_of_significant_differences(tmp_path):
    result, found = compared(tmp_path, [*METHODS[:3], *(f"{m}|abs" for m in METHODS[:3])])
    (comparison,) = found.kinds["Absolute in place of signed values"]
    scores = result.scores.pivot(index="sample", columns="method", values="value")
    higher = lower = 0
    for method in METHODS[:3]:
        difference = scores[f"{method}|abs"] - scores[method]
        interval = Estimate.mean(difference.to_numpy())
        higher += interval.low > 0
        lower += interval.high < 0
    assert (comparison.higher, comparison.lower) == (higher, lower)
    assert comparison.of == 3


@pytest.mark.parametrize("methods", [METHODS, ["ixg", "ixg|abs", "gradcam"]])
def test_too_few_pairs_are_left_out(tmp_path, methods):
    assert compared(tmp_path, methods)[1] is None
