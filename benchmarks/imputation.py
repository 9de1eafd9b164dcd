"""Linear imputation of a batch beside a sparse LU for each image: the same pixels, and the ratio of times (theirs / ours).

Theirs is scipy's `spsolve`, once with a matrix put together by arrays, once with one filled in neighbour by neighbour as a `lil_matrix`, as
implementations of ROAD do. `OMP_NUM_THREADS=2 python benchmarks/imputation.py`; where other work keeps the cores busy, take one thread and
`--clock cpu`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse import csc_matrix, lil_matrix, spmatrix
from scipy.sparse.linalg import spsolve
from torch import Tensor

from heatproof.tensor.filters import gaussian, separable
from heatproof.tensor.stencil import impute

SIZE = 224
AGREE = 1e-4
AROUND = [
    ((i, j), 1 / 6 if i * j == 0 else 1 / 12) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j
]
Assembly = Callable[[np.ndarray, np.ndarray], tuple[spmatrix, np.ndarray]]


def around(removed: np.ndarray, step: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pixel beside each removed one, whether there is one, and its number among the removed (−1: known)."""
    numbers = np.full(removed.shape, -1)
    numbers[removed] = np.arange(removed.sum())
    row, column = (index + by for index, by in zip(np.nonzero(removed), step, strict=True))
    there = (row >= 0) & (row < removed.shape[0]) & (column >= 0) & (column < removed.shape[1])
    flat = np.where(there, row * removed.shape[1] + column, 0)
    return flat, there, np.where(there, numbers.ravel()[flat], -1)


def by_arrays(image: np.ndarray, removed: np.ndarray) -> tuple[spmatrix, np.ndarray]:
    pixels, count = image.reshape(len(image), -1).astype(np.float64), int(removed.sum())
    right, own, entries = np.zeros((count, len(image))), np.zeros(count), []
    for step, weight in AROUND:
        flat, there, number = around(removed, step)
        own += weight * there
        right += weight * np.where(there & (number < 0), pixels[:, flat], 0).T
        inner = np.nonzero(number >= 0)[0]
        entries.append((inner, number[inner], np.full(len(inner), -weight)))
    entries.append((np.arange(count), np.arange(count), own))
    rows, columns, values = (np.concatenate(part) for part in zip(*entries, strict=True))
    return csc_matrix((values, (rows, columns)), shape=(count, count)), right


def by_lil_matrix(image: np.ndarray, removed: np.ndarray) -> tuple[spmatrix, np.ndarray]:
    pixels, count = image.reshape(len(image), -1).astype(np.float64), int(removed.sum())
    matrix, right, own = lil_matrix((count, count)), np.zeros((count, len(image))), np.zeros(count)
    for step, weight in AROUND:
        flat, there, number = around(removed, step)
        own += weight * there
        edge, inner = np.nonzero(there & (number < 0))[0], np.nonzero(number >= 0)[0]
        right[edge] += weight * pixels[:, flat[edge]].T
        matrix[inner, number[inner]] = -weight
    matrix[np.arange(count), np.arange(count)] = own
    return matrix.tocsc(), right


def images(count: int) -> Tensor:
    """Noise at four scales."""
    noise = torch.randn(4, count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    layers = [noise[0] / 4] + [
        separable(n, gaussian(size, size / 5), "reflect")
        for n, size in zip(noise[1:], (7, 31, 121), strict=True)
    ]
    return sum((layer / layer.std() for layer in layers), torch.zeros(())) / 2


def masks(
    kind: str, share: float, count: int
) -> Tensor:  # (count, SIZE, SIZE); nested in the share
    """Pixels here and there, or those nearest to some point."""
    draw = torch.Generator().manual_seed(1)
    if kind == "scattered":
        order = torch.rand(count, SIZE, SIZE, generator=draw)
    else:
        centre = SIZE * (0.3 + 0.4 * torch.rand(count, 2, 1, 1, generator=draw))
        lines = torch.arange(SIZE, dtype=torch.float32)
        order = (lines[:, None] - centre[:, 0]) ** 2 + (lines - centre[:, 1]) ** 2
    return (order.flatten(1).argsort(dim=1, stable=True).argsort(1) < share * SIZE**2).reshape(
        order.shape
    )


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def compared(
    x: Tensor, removed: Tensor, repeats: int, clock: Callable[[], float]
) -> tuple[dict[str, float], float]:
    """Median seconds of each part, taken in turn, and the largest difference."""
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
    for image, mask, found, (matrix, right), (same, also) in zip(
        filled, removed, solved, systems, naive, strict=True
    ):
        assert abs(matrix - same).max() < 1e-12 and np.abs(right - also).max() < 1e-12
        differences.append(np.abs(image[:, mask].numpy() - found.T).max())
    return {name: statistics.median(times) for name, times in spent.items()}, max(differences)


def told(cycles: Tensor) -> str:
    return f"{cycles.min()}–{cycles.max()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--cycles",
        action="store_true",
        help="only count cycles, from nothing and from the result for a tenth more or less",
    )
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()
    x = images(options.images)
    if options.cycles:
        print(
            f"{options.images} images, {SIZE} px: cycles from nothing, from a smaller mask, from a larger mask"
        )
        for kind in ("scattered", "contiguous"):
            for share in (0.1, 0.5, 0.9, 0.98):
                smaller, larger = (
                    impute(x, masks(kind, share * by, options.images))[0]
                    for by in (0.9, min(1.1, 0.99 / share))
                )
                removed = masks(kind, share, options.images)
                counts = [told(impute(x, removed, start)[1]) for start in (None, smaller, larger)]
                print(f"  {kind:10} {share:4.0%}   {'   '.join(counts)}")
        return
    print(
        f"{options.images} images, {SIZE} px, {torch.get_num_threads()} threads, {options.clock} time          theirs / ours"
    )
    print(
        "                     ours   spsolve   arrays    lil      spsolve   arrays + spsolve   lil + spsolve   difference"
    )
    for kind in ("scattered", "contiguous"):
        for share in (0.5, 0.9):
            spent, difference = compared(
                x, masks(kind, share, options.images), options.repeats, CLOCKS[options.clock]
            )
            ours, solve = spent["ours"], spent["solve"]
            ratios = [solve / ours, (solve + spent["arrays"]) / ours, (solve + spent["lil"]) / ours]
            print(
                f"  {kind:10} {share:3.0%} {ours:7.2f} s {solve:7.2f} s {spent['arrays']:6.2f} s {spent['lil']:6.2f} s",
                end=" ",
            )
            print(
                f"{ratios[0]:9.1f} {ratios[1]:14.1f} {ratios[2]:17.1f} {difference:17.0e}",
                flush=True,
            )
            assert difference < AGREE, f"{kind} {share:.0%} disagrees"


if __name__ == "__main__":
    main()
