"""Localization and aggregated maps, compared with closed forms and slow implementations."""

from itertools import pairwise

import pytest
import torch

import heatproof.functional as F
from heatproof.errors import HeatproofError
from heatproof.tensor.localization import BIN_EDGE_PERCENTILES, bin_slices, cell_sums


def noise(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("grid", [2, 3])
def test_a_map_that_is_the_same_everywhere_scores_by_chance(grid):
    scores = [F.localization(torch.full((1, 12, 12), 0.3), cell, grid) for cell in range(grid**2)]
    torch.testing.assert_close(
        torch.cat(scores), torch.full((grid**2,), 1 / grid**2, dtype=torch.float64)
    )


def test_only_the_positive_part_counts_and_an_empty_map_scores_zero():
    maps = torch.zeros(3, 4, 4)
    maps[0, :2, 2:] = 1  # grid cell 1
    maps[0, 2:, :2] = -5
    maps[1] = -1
    assert F.localization(maps, 1).tolist() == [1, 0, 0]
    assert F.localization(maps, 2).tolist() == [0, 0, 0]


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_scale_of_a_map_does_not_matter(scale):
    maps = noise(5, 6, 6)
    torch.testing.assert_close(
        F.localization(maps * scale, 4, 3), F.localization(maps, 4, 3), rtol=1e-6, atol=0
    )


def test_every_map_can_have_its_own_grid_cell():
    maps, cells = noise(4, 8, 8), torch.tensor([3, 0, 2, 2])
    assert F.localization(maps, cells).tolist() == [
        F.localization(maps[i : i + 1], int(c)).item() for i, c in enumerate(cells)
    ]
    torch.testing.assert_close(
        sum(F.localization(maps, cell) for cell in range(4)), torch.ones(4, dtype=torch.float64)
    )


def test_a_grid_that_does_not_divide_the_map_is_refused():
    with pytest.raises(HeatproofError, match="3×3 grid does not divide"):
        F.localization(noise(1, 8, 8), 0, 3)


@pytest.mark.parametrize("count", [50, 64, 500, 1000, 1777])
def test_bins_cover_all_maps(count):
    parts = bin_slices(count)
    assert len(parts) == len(BIN_EDGE_PERCENTILES) - 1
    assert [i for part in parts for i in range(count)[part]] == list(range(count))
    fractions = [(part.stop - part.start) / count for part in parts]
    assert fractions == pytest.approx(
        [(b - a) / 100 for a, b in pairwise(BIN_EDGE_PERCENTILES)], abs=1 / count
    )


@pytest.mark.parametrize("signed", [False, True])
def test_aggregated_maps_are_means_from_the_best_to_the_worst(signed):
    maps = noise(100, 4, 4)
    maps[60:] = -maps[60:].abs()  # many that score nothing
    scores, inside = (F.localization(maps, 0) * 10).round(), cell_sums(maps)[:, 0]
    aggregate = F.aggregate_maps(maps, scores, inside, edges=(0, 10, 50, 100), signed=signed)
    ranked = sorted(range(100), key=lambda i: (-scores[i].item(), -inside[i].item(), i))
    assert aggregate.order.tolist() == ranked
    for bin_, (begin, end) in zip(aggregate.bins, [(0, 10), (10, 50), (50, 100)], strict=True):
        chosen = torch.stack(
            [maps[i] if signed else maps[i].clamp(min=0) for i in ranked[begin:end]]
        )
        torch.testing.assert_close(bin_, chosen.mean(0))
    sizes = sorted(aggregate.bins.abs().flatten().tolist())
    assert aggregate.scale == sizes[int(0.995 * len(sizes))]


def test_too_few_maps_and_invalid_edges_are_refused():
    maps = noise(49, 2, 2)
    with pytest.raises(HeatproofError, match="49 maps leave a bin of 2 % empty; take at least 50"):
        F.aggregate_maps(maps, torch.zeros(49), torch.zeros(49))
    with pytest.raises(HeatproofError, match="edges must rise from 0 to 100"):
        F.aggregate_maps(maps, torch.zeros(49), torch.zeros(49), edges=(0, 50))
    with pytest.raises(HeatproofError, match="49 maps need as many scores .* got 3"):
        F.aggregate_maps(maps, torch.zeros(3), torch.zeros(49))
