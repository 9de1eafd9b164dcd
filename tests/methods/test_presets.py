"""Each group of a paper's methods has the settings that the paper, or its code, states.

Every line names its source: a section of the paper, or its code where the text is silent.
"""

import pytest

from heatproof.methods import parse_methods

HESSE_NOISE = {"n": 4, "std": 1.0, "unit": "absolute"}
LI_NOISE = {"n": 20, "std": 0.3, "unit": "absolute"}
NOT_SIGNED = {"signed": False}

# (group, beginning of the label, what is compared, source)
SETTINGS = [
    ("hesse2024", "ixg", {"reduce": "sum", "score": "logit"}, "Eq. 1: the target's logit"),
    ("hesse2024", "ig", {"steps": 50, "rule": "gauss", "baseline": "zero"}, "App. E: Captum"),
    ("hesse2024", "ig-u", {"steps": 50}, "Table 2: uniform baseline"),
    ("hesse2024", "ixg-sg(", HESSE_NOISE | {"kind": "mean"}, "App. E: Captum's NoiseTunnel"),
    ("hesse2024", "ig-sg(", HESSE_NOISE | {"kind": "mean"}, "App. E: Captum's NoiseTunnel"),
    ("hesse2024", "ig-sq(", HESSE_NOISE | {"kind": "sq"}, "Table 2: SmoothGrad squared"),
    ("hesse2024", "saliency", {"reduce": "abs_sum"}, "code: |sum of the channels|"),
    ("hesse2024", "rise", {"masks": 1000, "cells": 8, "p": 0.1, "score": "softmax"}, "code"),
    ("hesse2024", "rise-u", {"masks": 1000, "cells": 8, "p": 0.1, "score": "softmax"}, "code"),
    ("hesse2024", "gradcam", {"layer": "cam"}, "App. E: TorchCAM, last block"),
    ("hesse2024", "gradcam++(", {"compat": "torchcam", "layer": "cam"}, "App. E: TorchCAM"),
    ("hesse2024", "sg-cam++(", {"compat": "torchcam", "n": 4}, "App. E: TorchCAM"),
    ("hesse2024", "rollout", {"start": 1, "resize": "nearest"}, "App. E: code of [14]"),
    ("hesse2024", "chefer", {"start": 1, "resize": "nearest"}, "App. E: code of [14]"),
    ("rao2024", "saliency(", {"reduce": "sum_abs"}, "code: sum of the absolute channels"),
    ("rao2024", "guided-backprop", {"reduce": "sum_abs"}, "code"),
    ("rao2024", "ixg", {"reduce": "sum"}, "code"),
    ("rao2024", "ig(", {"steps": 20, "baseline": "zero"}, "code"),
    ("rao2024", "lrp-focus", {"epsilon": 0.25, "start": "logit"}, "Sec. 4, Attribution Methods"),
    ("rao2024", "rise(", {"masks": 1000, "cells": 6, "p": 0.1, "score": "softmax"}, "Sec. 4; code"),
    ("rao2024", "occlusion", {"size": None, "stride": None, "score": "logit"}, "Sec. 4: by layer"),
    ("rao2024", "scorecam", {"score": "softmax"}, "code"),
    ("li2024", "gradcam@", {"layer": "last-conv"}, "code: features.28 of VGG-16"),
    ("li2024", "ig|relu", {"baseline": "zero"} | NOT_SIGNED, "App. G: clamped to [0, 1]"),
    ("li2024", "ig-sg(", LI_NOISE | {"kind": "mean"} | NOT_SIGNED, "App. G.4: 20 samples, 0.3"),
    ("li2024", "ig-sq(", LI_NOISE | {"kind": "sq"}, "App. G.4"),
    ("li2024", "ig-var(", LI_NOISE | {"kind": "var"}, "App. G.4"),
    ("li2024", "deepshap(", {"compat": "captum"} | NOT_SIGNED, "code: Captum's DeepLiftShap"),
    ("li2024", "iba", {"beta": 10, "steps": 10, "copies": 10, "lr": 1}, "defaults of its authors"),
    ("li2024", "input-iba", {"beta": 20, "steps": 60, "copies": 10}, "its authors' configuration"),
    ("li2024", "extremal", {"steps": 800, "areas": (0.1,)}, "defaults of TorchRay"),
    ("picard2024", "saliency(", {"reduce": "max_abs"}, "Xplique's default reducer"),
    ("picard2024", "ixg|abs", NOT_SIGNED, "notebooks: absolute values are ranked"),
    ("picard2024", "ig(", {"steps": 128, "rule": "trapezoid"} | NOT_SIGNED, "notebooks"),
    ("picard2024", "smoothgrad(", {"n": 128, "std": 0.15 / 2, "unit": "range"}, "notebooks"),
    ("picard2024", "squaregrad(", {"n": 128, "std": 0.2 / 2, "unit": "range"}, "notebooks"),
    ("picard2024", "vargrad(", {"n": 128, "std": 0.2 / 2, "unit": "range"}, "notebooks"),
    ("picard2024", "occlusion(", {"size": 7, "stride": 7} | NOT_SIGNED, "notebooks"),
    ("picard2024", "rise(", {"masks": 3000, "cells": 8, "p": 0.5, "score": "logit"}, "notebooks"),
    ("picard2024", "sobol(", {"designs": 32} | NOT_SIGNED, "notebooks"),
    ("picard2024", "hsic(", {"masks": 1000} | NOT_SIGNED, "notebooks"),
    ("picard2024-text", "ig(", {"steps": 50, "rule": "trapezoid"}, "Sec. 3: default settings"),
    ("picard2024-text", "smoothgrad(", {"n": 50, "std": 0.2 / 2}, "Sec. 3: default settings"),
    ("picard2024-text", "vargrad(", {"n": 50, "std": 0.2 / 2}, "Sec. 3: default settings"),
    ("picard2024-text", "squaregrad(", {"n": 50, "std": 0.2 / 2}, "Sec. 3: default settings"),
    ("picard2024-text", "occlusion(", {"size": 3, "stride": 3}, "Sec. 3: default settings"),
    ("picard2024-text", "rise(", {"masks": 4000, "cells": 7, "p": 0.5}, "Sec. 3: default settings"),
]  # fmt: skip


def members(group):
    return parse_methods([f"group:{group}"])


def stated(expression, name):
    """Return a setting: an argument, a setting of the noise, or a property of the expression."""
    if expression.noise and name in ("n", "std", "unit", "kind"):
        return getattr(expression.noise, name)
    if name in ("layer", "signed"):
        return getattr(expression, name)
    return expression.arguments[name]


@pytest.mark.parametrize(("group", "label", "settings", "source"), SETTINGS)
def test_a_method_has_the_settings_of_its_paper(group, label, settings, source):
    matching = [e for e in members(group) if e.label == label or e.label.startswith(label)]
    exact = [e for e in matching if e.label == label]
    assert matching, source
    for expression in exact or matching:
        found = {name: stated(expression, name) for name in settings}
        assert found == settings, source


def test_the_groups_have_the_methods_of_their_papers():
    labels = {g: [e.label for e in members(g)] for g in ("hesse2024", "rao2024", "li2024")}
    assert {g: len(of_group) for g, of_group in labels.items()} == {
        "hesse2024": 23,  # Table 2
        "rao2024": 12,  # Sec. 4
        "li2024": 9,  # Figs 8, 9, and the authors' configuration
    }
    assert {"ixg", "ig-u|abs", "layercam", "bagnet"} <= set(labels["hesse2024"])


def test_both_groups_of_picard_have_the_same_methods():
    """The notebooks and the text differ in settings alone; curves rank absolute values."""
    entries = {g: [e.entry.id for e in members(g)] for g in ("picard2024", "picard2024-text")}
    assert entries["picard2024"] == entries["picard2024-text"]
    assert len(entries["picard2024"]) == 14
    assert all(not e.signed for g in entries for e in members(g))


def test_absolute_values_follow_the_sum_of_the_channels():
    """Hesse et al. take |sum of the channels|, after the reduction."""
    for expression in members("hesse2024"):
        if expression.label.endswith("|abs"):
            assert expression.arguments["reduce"] == "sum", expression.label


def test_a_group_at_a_layer():
    expressions = parse_methods(["group:rao2024@middle", "group:rao2024@final"])
    assert len(expressions) == 24
    assert {e.layer for e in expressions} == {"middle", "final"}
    assert "ig(steps=20)@middle" in [e.label for e in expressions]
