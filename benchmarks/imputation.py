"""Linear imputation of a batch beside a sparse LU per image: equal pixels, and the ratio of times.

The other is scipy's `spsolve`, with a matrix assembled from arrays, or filled in neighbor by
neighbor as a `lil_matrix`, as implementations of ROAD do. Ratios are theirs / ours. Run it as
`OMP_NUM_THREADS=2 python benchmarks/imputation.py`; on a busy machine, use one thread and
`--clock cpu`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse import csc_matrix, lil_matrix, spmatrix
from scipy.sparse.linalg import spsolve
from timing import CLOCKS
from torch import Tensor

from heatproof.tensor.filters import gaussian, separable
from heatproof.tensor.stencil import impute

SIZE = 224
TOLERANCE = 1e-4
NEIGHBORS = [  # ((row, column), weight)
    ((i, j), 1 / 6 if i * j == 0 else 1 / 12) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j
]
Assembly = Callable[[np.ndarray, np.ndarray], tuple[spmatrix, np.ndarray]]


def neighbors(
    removed: np.ndarray, step: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the neighbor of each removed pixel in one direction.

    Returns:
        Its index in the image, whether it is inside the image, and its number among the removed
        pixels, or −1 if it is not removed.
    """
    numbers = np.full(removed.shape, -1)
    numbers[removed] = np.arange(removed.sum())
    row, column = (index + by for index, by in zip(np.nonzero(removed), step, strict=True))
    inside = (row >= 0) & (row < removed.shape[0]) & (column >= 0) & (column < removed.shape[1])
    flat = np.where(inside, row * removed.shape[1] + column, 0)
    return flat, inside, np.where(inside, numbers.ravel()[flat], -1)


def by_arrays(image: np.ndarray, removed: np.ndarray) -> tuple[spmatrix, np.ndarray]:
    pixels = image.reshape(len(image), -1).astype(np.float64)
    count = int(removed.sum())
    right = np.zeros((count, len(image)))
    diagonal = np.zeros(count)
    entries = []
    for step, weight in NEIGHBORS:
        flat, inside, number = neighbors(removed, step)
        diagonal += weight * inside
        right += weight * np.where(inside & (number < 0), pixels[:, flat], 0).T
        inner = np.nonzero(number >= 0)[0]
        entries.append((inner, number[inner], np.full(len(inner), -weight)))
    entries.append((np.arange(count), np.arange(count), diagonal))
    rows, columns, values = (np.concatenate(part) for part in zip(*entries, strict=True))
    return csc_matrix((values, (rows, columns)), shape=(count, count)), right


def by_lil_matrix(image: np.ndarray, removed: np.ndarray) -> tuple[spmatrix, np.ndarray]:
    pixels = image.reshape(len(image), -1).astype(np.float64)
    count = int(removed.sum())
    matrix = lil_matrix((count, count))
    right = np.zeros((count, len(image)))
    diagonal = np.zeros(count)
    for step, weight in NEIGHBORS:
        flat, inside, number = neighbors(removed, step)
        diagonal += weight * inside
        edge = np.nonzero(inside & (number < 0))[0]
        inner = np.nonzero(number >= 0)[0]
        right[edge] += weight * pixels[:, flat[edge]].T
        matrix[inner, number[inner]] = -weight
    matrix[np.arange(count), np.arange(count)] = diagonal
    return matrix.tocsc(), right


def images(count: int) -> Tensor:
    """Return noise at four scales."""
    noise = torch.randn(4, count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    layers = [noise[0] / 4] + [
        separable(n, gaussian(size, size / 5), "reflect")
        for n, size in zip(noise[1:], (7, 31, 121), strict=True)
    ]
    return sum((layer / layer.std() for layer in layers), torch.zeros(())) / 2


def masks(kind: str, fraction: float, count: int) -> Tensor:  # (count, SIZE, SIZE) bool
    """Return scattered pixels, or those nearest to a point; fractions are nested."""
    draw = torch.Generator().manual_seed(1)
    if kind == "scattered":
        order = torch.rand(count, SIZE, SIZE, generator=draw)
    else:
        centre = SIZE * (0.3 + 0.4 * torch.rand(count, 2, 1, 1, generator=draw))
        lines = torch.arange(SIZE, dtype=torch.float32)
        order = (lines[:, None] - centre[:, 0]) ** 2 + (lines - centre[:, 1]) ** 2
    ranks = order.flatten(1).argsort(dim=1, stable=True).argsort(1)
    return (ranks < fraction * SIZE**2).reshape(order.shape)


def compared(
    x: Tensor, removed: Tensor, repeats: int, clock: Callable[[], float]
) -> tuple[dict[str, float], float]:
    """Return the median seconds of each part, timed in turn, and the largest difference."""
    spent: dict[str, list[float]] = {"ours": [], "arrays": [], "solve": [], "lil": []}
    pairs = [(image.numpy(), mask.numpy()) for image, mask in zip(x, removed, strict=True)]
    impute(x, removed)
    for _ in range(repeats):
        times = [clock()]
        filled = impute(x, removed)[0]
        times.append(clock())
        systems = [by_arrays(*pair) for pair in pairs]
        times.append(clock())
        solved = [spsolve(*system) for system in systems]
        times.append(clock())
        naive = [by_lil_matrix(*pair) for pair in pairs]
        times.append(clock())
        for name, took in zip(spent, np.diff(times), strict=True):
            spent[name].append(float(took))
    differences = []
    for (matrix, right), (lil, lil_right) in zip(systems, naive, strict=True):
        assert abs(matrix - lil).max() < 1e-12
        assert np.abs(right - lil_right).max() < 1e-12
    for image, mask, solution in zip(filled, removed, solved, strict=True):
        differences.append(np.abs(image[:, mask].numpy() - solution.T).max())
    return {name: statistics.median(times) for name, times in spent.items()}, max(differences)


def print_cycles(x: Tensor) -> None:
    """Count solver cycles from zero, and from the result for a tenth more or less."""
    count = len(x)
    print(f"{count} images, {SIZE} px: cycles from zero, from a smaller mask, from a larger mask")
    for kind in ("scattered", "contiguous"):
        for fraction in (0.1, 0.5, 0.9, 0.98):
            smaller, larger = (
                impute(x, masks(kind, fraction * by, count))[0]
                for by in (0.9, min(1.1, 0.99 / fraction))
            )
            removed = masks(kind, fraction, count)
            cycles = [impute(x, removed, start)[1] for start in (None, smaller, larger)]
            ranges = "   ".join(f"{c.min()}–{c.max()}" for c in cycles)
            print(f"  {kind:10} {fraction:4.0%}   {ranges}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--cycles",
        action="store_true",
        help="only count solver cycles, from zero and from the result for another mask",
    )
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()
    x = images(options.images)
    if options.cycles:
        print_cycles(x)
        return
    print(
        f"{options.images} images, {SIZE} px, {torch.get_num_threads()} threads, "
        f"{options.clock} time          theirs / ours"
    )
    print(
        "                     ours   spsolve   arrays    lil      spsolve   arrays + spsolve   "
        "lil + spsolve   difference"
    )
    for kind in ("scattered", "contiguous"):
        for fraction in (0.5, 0.9):
            removed = masks(kind, fraction, options.images)
            spent, difference = compared(x, removed, options.repeats, CLOCKS[options.clock])
            ours = spent["ours"]
            solve = spent["solve"]
            ratios = [solve / ours, (solve + spent["arrays"]) / ours, (solve + spent["lil"]) / ours]
            print(
                f"  {kind:10} {fraction:3.0%} {ours:7.2f} s {solve:7.2f} s "
                f"{spent['arrays']:6.2f} s {spent['lil']:6.2f} s "
                f"{ratios[0]:9.1f} {ratios[1]:14.1f} {ratios[2]:17.1f} {difference:17.0e}",
                flush=True,
            )
            assert difference < TOLERANCE, f"{kind} {fraction:.0%} disagrees"


if __name__ == "__main__":
    main()
