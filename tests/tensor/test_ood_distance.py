import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

import heatproof.functional as F
from heatproof.errors import HeatproofError
from heatproof.tensor import ood_distance


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def unit(v):
    v = v.double().numpy()
    return v / np.linalg.norm(v, axis=1, keepdims=True)


@pytest.mark.parametrize("k", [1, 3, 40])
@pytest.mark.parametrize("normalize", [True, False])
def test_distances_equal_scipys(k, normalize):
    features, bank = draw(25, 6), draw(40, 6, seed=1)
    a, b = (unit(v) if normalize else v.double().numpy() for v in (features, bank))
    theirs = cKDTree(b).query(a, [k])[0][:, 0]
    np.testing.assert_allclose(F.knn_distance(features, bank, k, normalize), theirs, rtol=1e-12)


@pytest.mark.parametrize("normalize", [True, False])
def test_close_neighbours_far_from_zero_are_distinguished(normalize):
    """Distances of 1e-6 at a length of 3e4: a matrix product alone would round them away."""
    bank = 1000 * draw(30, 1000).abs().double()
    features = bank[:10] + 1e-6 * draw(10, 1000, seed=1).double() / 1000**0.5
    a, b = (unit(v) if normalize else v.numpy() for v in (features, bank))
    theirs = np.sqrt(((a[:, None] - b) ** 2).sum(-1)).min(1)
    assert theirs.max() < 2e-6
    np.testing.assert_allclose(
        F.knn_distance(features, bank, normalize=normalize), theirs, rtol=1e-6
    )


def test_a_row_of_the_bank_is_its_own_first_neighbour():
    bank = draw(50, 64).relu()
    bank[7] = bank[3]
    assert (F.knn_distance(bank, bank) == 0).all()
    others = [np.delete(unit(bank), i, 0) for i in range(50)]
    expected = [
        np.linalg.norm(rest - row, axis=1).min()
        for row, rest in zip(unit(bank), others, strict=True)
    ]
    np.testing.assert_allclose(F.knn_distance(bank, bank, k=2), expected, rtol=1e-12, atol=1e-15)
    assert F.knn_distance(bank, bank, k=2)[3] == 0


def test_normalised_distances_lie_between_0_and_2():
    far = draw(1, 8)
    assert F.knn_distance(torch.cat([100 * far, -far, 0 * far]), far).tolist() == pytest.approx(
        [0, 2, 1], abs=1e-7
    )
    distances = F.knn_distance(draw(200, 3), draw(2, 3, seed=1), k=2)
    assert distances.min() >= 0 and distances.max() <= 2 and distances.max() > 1.9
    scale = torch.rand(200, 1, generator=torch.Generator().manual_seed(2)) + 0.1
    torch.testing.assert_close(
        F.knn_distance(scale * draw(200, 3), draw(2, 3, seed=1), k=2),
        distances,
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("elements", [2**23, 50])  # all at once, or a row at a time
def test_bytes_depend_neither_on_the_order_of_the_bank_nor_on_other_rows(
    monkeypatch, normalize, elements
):
    features, bank = draw(37, 300), draw(200, 300, seed=1)
    bank[100:120] = bank[5]
    features[11] = bank[5]
    features[12] = bank[5] * (1 + 1e-7)
    distances = F.knn_distance(features, bank, 5, normalize)
    monkeypatch.setattr(ood_distance, "MOST_TABLE_ELEMENTS", elements)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(2))
    assert torch.equal(F.knn_distance(features, bank[order], 5, normalize), distances)
    for rows in ([3], [12, 11], [30, 2, 11, 5]):
        assert torch.equal(F.knn_distance(features[rows], bank, 5, normalize), distances[rows])


def test_values_that_are_not_finite_give_nan():
    features, bank = draw(4, 3), draw(5, 3, seed=1)
    clean = F.knn_distance(features, bank)
    features[1, 2], features[3, 0] = torch.nan, torch.inf
    distances = F.knn_distance(features, bank)
    assert distances.isnan().tolist() == [False, True, False, True]
    assert torch.equal(distances[::2], clean[::2])
    bank[0, 0] = torch.nan
    with pytest.raises(HeatproofError, match="not finite"):
        F.knn_distance(features, bank)


@pytest.mark.parametrize(
    ("shape", "k", "message"),
    [((5, 4), 1, r"got \(2, 3\) and \(5, 4\)"), ((5, 3), 6, "5 rows"), ((5, 3), 0, "k=0")],
)
def test_mismatched_arguments_are_refused(shape, k, message):
    with pytest.raises(HeatproofError, match=message):
        F.knn_distance(draw(2, 3), draw(*shape), k)


def test_a_batch_without_rows_has_no_distances():
    assert F.knn_distance(draw(0, 3), draw(5, 3)).shape == (0,)
