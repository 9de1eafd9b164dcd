"""Every setting of every protocol matters: another value gives other scores or other grids."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.protocols import PROTOCOLS, Protocol, make_protocol

GRIDS = ("gridpg", "difull", "dipart")
CURVE = {"baseline": "uniform", "score": "softmax", "steps": 4, "of": "label"}
# For each protocol the settings that all its variants share, and another value of every setting.
# `ood` adds to the curves, not to the scores. The network here is not accurate enough for
# soundness, nor for what `compat` changes of completeness: test_soundness.py has these.
VARIANTS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "deletion": ({"steps": 3}, CURVE),
    "insertion": ({"steps": 3}, CURVE),
    "srg": ({"steps": 3}, CURVE),
    "ids": (
        {"steps": 4},
        {"baseline": "uniform", "score": "logit", "steps": 6, "order": "most", "updated": True},
    ),
    "road": (
        {"steps": 3, "baseline": "zero", "score": "logit"},
        {**CURVE, "order": "least"},
    ),
    "parts": ({}, {"dilate": 5, "compat": "funnybirds"}),
    "sds": ({}, {"baseline": "uniform", "patches": 4, "score": "softmax"}),
    "completeness": (
        {"steps": 3, "baseline": "zero", "score": "logit"},
        {
            "baseline": "uniform",
            "score": "softmax",
            "steps": 4,
            "absolute": True,
        },
    ),
    "random-logit": ({"similarity": "ssim"}, {"similarity": "spearman", "normalization": "max"}),
    "sensitivity": ({"copies": 3}, {"statistic": "mean", "copies": 5, "radius": 0.1}),
    "complexity": ({}, {"unit": "pixels"}),
}
TESTED_ELSEWHERE = {  # in files of their names: they need weights, accurate networks or regions
    "idsds",
    "f-fidelity",
    "f-fidelity-minus",
    "soundness",
    "randomization",
    "emprt",
    "pointing",
}
# `rewritten` gives other scores to some methods alone: tests/models/test_rewritten.py.
LEFT_OUT = {"completeness": {"compat"}, "difull": {"rewritten"}}
OF_GRIDS = {"grid": 3, "confidence": 0.5, "grids": 3, "seed": 1, "pool": "common"}


def made(name: str, settings: dict[str, object]) -> Protocol:
    return make_protocol(name, settings)


def test_no_setting_is_left_out():
    for entry in PROTOCOLS:
        if entry.cls.source is not None or entry.id in TESTED_ELSEWHERE:
            continue
        left_out = {"ood", "missing"} | LEFT_OUT.get(entry.id, set())
        known = OF_GRIDS if entry.id in GRIDS else VARIANTS.get(entry.id, ({}, {}))[1]
        assert {*entry.cls.model_fields} - left_out == {*known}, entry.id


@pytest.fixture(scope="module")
def values() -> dict[str, list[float]]:
    """Return the scores of all variants, by the setting that differs."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 8, 5, 2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(128, 32),
        )
    net[-1].weight.data *= 8  # so that probabilities differ
    model = hp.Model(net, size=32, mean=(0.5,) * 3, std=(0.25,) * 3, name="net")
    protocols = {
        f"{name} {setting}": made(name, shared | {setting: value} if setting else shared)
        for name, (shared, other) in VARIANTS.items()
        for setting, value in [("", None), *other.items()]
    }
    found = hp.evaluate(model, "paperbirds:test", ["ixg"], list(protocols.values()), limit=8).scores
    groups = [
        rows
        for _, rows in found.groupby(["protocol", "setting", "baseline"], sort=False, dropna=False)
    ]
    for (label, protocol), rows in zip(protocols.items(), groups, strict=True):
        assert rows["protocol"].iloc[0].startswith(protocol.id), label
    return {
        label: rows["value"].fillna(-9).tolist()
        for label, rows in zip(protocols, groups, strict=True)
    }


@pytest.mark.parametrize("name", VARIANTS)
def test_another_value_gives_other_scores(values, name):
    for setting in VARIANTS[name][1]:
        assert values[f"{name} {setting}"] != values[f"{name} "], setting


def grids_of(name: str, settings: dict[str, object], first: str = "vgg") -> list[object]:
    other = "resnet" if first == "vgg" else "vgg"
    models = [hp.load_model(f"paperbirds/{net}", device="cpu") for net in (first, other)]
    data = hp.load_data("paperbirds:test", limit=160)
    among = [(model, data) for model in models]
    views = made(name, settings).views(models[0], data, among)
    return [(view.key.cell, list(view.data.ids)) for view in views]


@pytest.mark.parametrize("name", GRIDS)
def test_another_value_gives_other_grids(name):
    shared = {"grids": 6, "confidence": 0.98}
    first = grids_of(name, shared)
    assert grids_of(name, shared) == first
    for setting, value in OF_GRIDS.items():
        if setting != "pool":
            assert grids_of(name, shared | {setting: value}) != first, setting
    # the ResNet is sure of more images than the VGG
    common = grids_of(name, shared | {"pool": "common"}, "resnet")
    assert common != grids_of(name, shared, "resnet")


def test_in_domain_deletion_asks_for_the_weights_of_its_settings():
    asked = {
        made("idsds", settings).fine_tuning
        for settings in ({}, {"patches": 4}, {"baseline": "black"})
    }
    assert asked == {"16/zero", "4/zero", "16/black"}


@pytest.mark.parametrize("setting", ["first", "last"])
@pytest.mark.parametrize("value", [0, 1])
def test_fractions_are_between_zero_and_one(setting, value):
    with pytest.raises(hp.HeatproofError, match=setting):
        made("soundness", {setting: value})


def test_updated_deletion_counts_the_maps_that_it_needs():
    for steps, further in ((2, 0), (3, 1), (10, 8)):
        protocol = made("ids", {"steps": steps, "updated": True})
        assert sum(protocol.explanations().values()) == further
        assert sum(protocol.passes().values()) == steps - 1
