import numba
import pytest

from heatproof.tensor import stencil
from heatproof.tensor.compiled import compiled


def add(a: float, b: float) -> float:
    return a + b


def test_a_function_is_compiled_where_nothing_can_be_kept(monkeypatch):
    """A package of the system in a container without a home has no folder for it."""
    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="cannot cache function"):
        numba.njit(cache=True)(add)
    assert compiled(add)(1.5, 2) == 3.5


def test_compiled_loops_are_kept_and_release_the_lock_of_python():
    for function in (stencil.sweep, stencil.descend, stencil.multiply):
        assert function.targetoptions["nogil"] is True
        assert function.stats.cache_path
