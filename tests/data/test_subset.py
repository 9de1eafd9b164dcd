"""Samples chosen by class."""

import pytest
import torch

import heatproof as hp
from heatproof.data.base import PartData
from heatproof.data.subset import Subset, balanced
from heatproof.errors import HeatproofError


def data(labels):
    return hp.TensorData(torch.rand(len(labels), 3, 4, 4), labels, name="mine")


def test_every_class_has_the_same_number_of_samples_in_the_original_order():
    whole = data([2, 0, 0, 1, 2, 1, 0, 2])
    chosen = balanced(whole, 2)
    assert chosen.labels == [2, 0, 0, 1, 2, 1]
    assert chosen.ids == ["0", "1", "2", "3", "4", "5"]
    assert torch.equal(chosen.load(3).image, whole.load(3).image)
    assert (chosen.name, chosen.has_silhouettes) == ("mine", False)
    assert balanced(whole, 1).ids == ["0", "1", "3"]
    assert balanced(whole, 1, limit=2).ids == ["0", "1"]


def test_too_few_samples_and_missing_labels_are_explained():
    with pytest.raises(HeatproofError, match="it has 1 of it, so that per_class can be 1 at most"):
        balanced(data([0, 0, 1]), 2)
    with pytest.raises(HeatproofError, match="images of tensors have none; use limit"):
        balanced(hp.TensorData(torch.rand(2, 3, 4, 4)), 1)
    with pytest.raises(HeatproofError, match="per_class must be at least 1"):
        hp.load_data("paperbirds:test", per_class=0)


def test_parts_follow_their_samples():
    whole = hp.load_data("paperbirds:test", limit=8)
    chosen = Subset(whole, [5, 2])
    assert isinstance(chosen, PartData)
    assert torch.equal(chosen.parts(0).without, whole.parts(5).without)
    assert not isinstance(balanced(data([0, 1]), 1), PartData)


def test_a_spec_evaluates_the_same_number_of_every_class(tmp_path):
    spec = {
        "models": ["paperbirds/resnet"],
        "data": {"name": "paperbirds", "split": "test", "per_class": 1, "limit": 16},
        "methods": ["ixg"],
        "protocols": ["sds"],
    }
    result = hp.run(spec, tmp_path / "run")
    assert len(result.scores) == 16
