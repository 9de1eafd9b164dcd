"""Variance of ranks, split among choices: the model, the protocol, its settings or its baseline.

The ranks of M methods under C settings vary because methods differ, and because a choice (another
baseline, say) changes their order. A setting shifts no mean rank, so the variance of all ranks is
that of the methods' mean ranks plus what the choices do to single methods. The second part is split
among the choices: what a choice explains, averaged over all orders in which the choices can be
taken into account (Lindeman, Merenda, Gold 1980). Where every combination of choices was run, this
is the analysis of variance. What no choice explains alone are combinations of choices, and noise.
Noise also makes choices seem to move ranks, the more so the fewer the images, and no interval that
was tried covers this; the shares stand alone and claim nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from heatproof.analysis.ranks import Standings, average_ranks
from heatproof.runs.format import MethodFacts

CHOICES = ("model", "protocol", "setting", "baseline")


@dataclass(frozen=True)
class Shares:
    """Parts of the variance of ranks, as fractions of all of it.

    Attributes:
        methods: The methods that are ranked under all settings.
        settings: Number of settings, over all models.
        shares: By name: ``method`` (without its transforms), ``transform`` (such as ``abs`` or
            ``relu``), every choice that differs between settings, and ``rest``. They add up to 1.
    """

    methods: list[str]
    settings: int
    shares: dict[str, float]


def split_variance(
    standings: Sequence[Standings], facts: Mapping[str, MethodFacts], leave_out: Sequence[str] = ()
) -> Shares | None:
    """Split the variance of ranks over methods, transforms, models, protocols and baselines.

    Args:
        standings: Ranks of all models.
        facts: What is on record about each method.
        leave_out: Methods to ignore, such as controls.

    Returns:
        The shares; None for fewer than two settings or three methods that all settings rank, and
        where methods are ranked within layers.
    """
    if any(name for standing in standings for name in standing.layers):
        return None
    scored = [
        {m for i, m in enumerate(s.methods) if np.isfinite(s.ranks[:, i]).all()} for s in standings
    ]
    first = standings[0].methods if standings else []
    common = [m for m in first if all(m in s for s in scored) and m not in leave_out]
    cells = [(s.model, *key) for s in standings for key in s.settings]
    if len(cells) < 2 or len(common) < 3:
        return None
    ranks = np.concatenate([s.ranks[:, _columns(s, common)] for s in standings])  # (C, M)
    bases = [facts[m].layerless_base if m in facts else m for m in common]
    names, found = _split(average_ranks(ranks)[None], cells, bases)
    if not np.isfinite(found).all():
        return None
    return Shares(common, len(cells), dict(zip(names, found[0].tolist(), strict=True)))


def _columns(standing: Standings, methods: Sequence[str]) -> list[int]:
    return [standing.methods.index(method) for method in methods]


def _split(
    ranks: np.ndarray, cells: Sequence[tuple[str, ...]], bases: Sequence[str]
) -> tuple[list[str], np.ndarray]:
    """Return the names of the shares, and the shares ``(R, K)`` of rankings ``(R, C, M)``."""
    centred = ranks - ranks.mean((1, 2), keepdims=True)
    total = (centred**2).sum((1, 2))
    of_method = centred.mean(1)  # (R, M)
    base_of = np.array(bases, dtype=object)
    of_base = np.stack([of_method[:, base_of == base].mean(1) for base in bases], 1)
    settings = len(cells)
    parts = {"method": settings * (of_base**2).sum(1)}
    if len(set(bases)) < len(bases):
        parts["transform"] = settings * ((of_method - of_base) ** 2).sum(1)
    moved = centred - of_method[:, None]
    parts |= _explained(moved, _levels(cells))
    parts["rest"] = total - sum(parts.values())
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.stack(list(parts.values()), 1) / total[:, None]
    return list(parts), shares


def _levels(cells: Sequence[tuple[str, ...]]) -> dict[str, list[str]]:
    """Return the level of each setting by choice, for the choices that differ.

    A setting or a baseline counts if some protocol was run with several: one that comes with its
    protocol cannot be told from it.
    """
    levels = {}
    for i, choice in enumerate(CHOICES):
        within = 1 if choice in ("setting", "baseline") else None
        pairs = {(cell[within] if within is not None else "", cell[i]) for cell in cells}
        if len(pairs) > len({group for group, _ in pairs}):
            levels[choice] = [cell[i] for cell in cells]
    return levels


def _explained(moved: np.ndarray, levels: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """Split the sum of squares of ``(R, C, M)`` that factors explain, averaged over their orders.

    Args:
        moved: Values whose mean over C is 0.
        levels: The level of each of the C settings, by factor.

    Returns:
        The sum of squares ``(R,)`` of every factor.
    """
    names = list(levels)
    squares = {
        chosen: _projected(moved, [levels[name] for name in chosen])
        for size in range(len(names) + 1)
        for chosen in combinations(names, size)
    }
    explained = {}
    for name in names:
        others = [other for other in names if other != name]
        total = np.zeros(len(moved))
        for size in range(len(others) + 1):
            weight = 1 / (len(names) * math.comb(len(others), size))
            for chosen in combinations(others, size):
                together = tuple(n for n in names if n == name or n in chosen)
                total += weight * (squares[together] - squares[chosen])
        explained[name] = total
    return explained


def _projected(values: np.ndarray, factors: Sequence[Sequence[str]]) -> np.ndarray:  # (R,)
    """Return the sum of squares of values (R, C, M) that indicators of levels explain."""
    if not factors:
        return np.zeros(len(values))
    columns = [
        np.array([level == name for level in factor], dtype=float)
        for factor in factors
        for name in dict.fromkeys(factor)
    ]
    design = np.stack(columns, 1)
    left, singular, _ = np.linalg.svd(design, full_matrices=False)
    basis = left[:, singular > 1e-9 * singular.max()]  # (C, k)
    explained: np.ndarray = (np.einsum("ck,rcm->rkm", basis, values) ** 2).sum((1, 2))
    return explained
