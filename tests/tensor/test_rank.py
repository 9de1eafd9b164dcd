import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from heatproof.tensor.rank import average_ranks, spearman

rows = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 5), st.integers(2, 20)),
    elements=st.integers(-3, 3).map(float),
)


@settings(deadline=None)
@given(rows, st.integers(0, 2**32 - 1))
def test_spearman_equals_scipy_with_many_ties(a, seed):
    b = np.random.default_rng(seed).integers(-3, 4, a.shape).astype(float)
    ours = spearman(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    np.testing.assert_allclose(
        average_ranks(torch.from_numpy(a)).numpy(), scipy.stats.rankdata(a, axis=-1)
    )
    for row_a, row_b, rho in zip(a, b, ours, strict=True):
        if np.ptp(row_a) == 0 or np.ptp(row_b) == 0:
            assert np.isnan(rho)
        else:
            assert rho == pytest.approx(scipy.stats.spearmanr(row_a, row_b).statistic, abs=1e-12)


@settings(deadline=None)
@given(hnp.arrays(np.float64, (3, 12), elements=st.floats(-5, 5, width=16), unique=True))
def test_spearman_depends_only_on_the_order(a):
    b = np.random.default_rng(0).normal(size=a.shape)
    plain = spearman(torch.from_numpy(a), torch.from_numpy(b))
    torch.testing.assert_close(plain, spearman(torch.from_numpy(np.exp(a)), torch.from_numpy(b**3)))
    torch.testing.assert_close(plain, -spearman(torch.from_numpy(-a), torch.from_numpy(b)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_value_leaves_its_row_undefined_and_no_other(bad):
    a, b = (
        torch.randn(3, 8, generator=torch.Generator().manual_seed(0)),
        torch.arange(8.0).expand(3, 8),
    )
    a[1, 4] = bad
    rho = spearman(a, b)
    assert rho.isnan().tolist() == [False, True, False]


def test_shapes_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(2, 4\)"):
        spearman(torch.zeros(2, 3), torch.zeros(2, 4))
