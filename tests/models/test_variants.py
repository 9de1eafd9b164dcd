"""Scores of variants that the cells of a grid share: the same values from fewer passes."""

import pytest
import torch

import heatproof as hp
from heatproof.methods import Expression
from heatproof.methods.perturbation import occlusion
from heatproof.models import variants, views
from heatproof.plan.speed import method_cost
from heatproof.protocols import grids
from heatproof.tensor.noise import Rng

METHODS = [
    f"{method}@{layer}"
    for method in ("occlusion", "rise(masks=20, cells=4)", "ablationcam", "scorecam")
    for layer in ("input", "final")
]


def run(protocol, methods=METHODS):
    """Return the values by method and sample, and the passes of all tasks."""
    result = hp.evaluate("paperbirds/vgg", "paperbirds:test", methods, [protocol], limit=64)
    rows = result.scores[["method", "sample", "value"]]
    values = {(row.method, row.sample): row.value for row in rows.itertuples()}
    timings = [result.store.timings(task.name) for task in result.store.plan().tasks]
    return values, sum(count.images for of_task in timings for count in of_task.passes)


@pytest.fixture
def alone(monkeypatch):
    """Return what does the same without sharing."""

    def run_alone(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(grids, "_share_passes", lambda models, data: None)
            return run(*arguments)

    return run_alone


@pytest.mark.parametrize(("protocol", "cells"), [("gridpg(grids=2)", 4), ("dipart(grids=2)", 2)])
def test_cells_of_a_grid_share_passes_and_have_the_same_scores(alone, protocol, cells):
    values, passes = run(protocol)
    expected, many = alone(protocol)
    assert values == expected
    assert len(values) == len(METHODS) * 2 * cells
    own = 2 * cells * 2  # the clean pass and that to `final`, which each cell makes
    assert many - own == cells * (passes - own)


def test_other_variants_are_not_mistaken_for_the_same_and_forgotten_ones_are_made(
    alone, monkeypatch
):
    """Noisy copies have noise of their own in each cell."""
    methods = ["occlusion|noise(n=2, std=0.1)", "rise(masks=20, cells=4)", "rise-u(masks=20)"]
    values, few = run("gridpg(grids=1)", methods)
    expected, most = alone("gridpg(grids=1)", methods)
    assert values == expected and few < most
    monkeypatch.setattr(variants, "MOST_BYTES_AHEAD", 0)
    values, again = run("gridpg(grids=1)", methods)
    assert values == expected and again == most


@pytest.mark.parametrize("layer", ["input", "middle"])
def test_windows_that_difull_cannot_see_take_no_pass(layer):
    view = views.difull(hp.load_model("paperbirds/vgg"), 2, 3)
    tail = view.tail(layer)
    x = view.activation(torch.randn(1, *view.image_shape), layer)
    target = torch.tensor([5])
    side = x.shape[2]
    view.pass_counts.clear()
    maps = occlusion(tail, x, target, rng=Rng(0, ["a"]), size=8, stride=8)
    assert sum(view.pass_counts.values()) == (side // 2 // 8) ** 2 + 1
    expression = Expression.parse(f"occlusion(size=8, stride=8)@{layer}")
    assert method_cost(expression, view) == ((side // 2 // 8) ** 2 + 1, 0)
    # Slowly: every window of the grid, one after the other.
    clean = tail.logits(x)[0, 5].double()
    for top in range(0, side, 8):
        for left in range(0, side, 8):
            without = x.clone()
            without[..., top : top + 8, left : left + 8] = 0
            drop = (clean - tail.logits(without)[0, 5].double()) / 64
            window = maps[0, top : top + 8, left : left + 8].double()
            assert torch.allclose(window, drop.expand_as(window), atol=1e-6)
