"""Fills on disk, by image and removed pixels, for baselines that take longer than the network.

A generative model fills every image alone, so that a fill does not depend on the others of a batch,
and a fill is rounded to half precision whether it was kept or not: results are the same with a
cache and without one.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from heatproof.files import atomic_write, content_hash
from heatproof.models.cache_dir import home
from heatproof.tensor.noise import Rng


def complete(
    x: Tensor,
    removed: Tensor,
    rng: Rng,
    compute: Callable[[Tensor, Tensor, Rng], Tensor],
    parts: Sequence[object] | None,
) -> Tensor:
    """Return images whose removed pixels are filled in; all others stay as they are.

    Args:
        x: Images, ``(B, C, H, W)``.
        removed: Their removed pixels, ``(B, H, W)`` of bool.
        rng: The samples' noise, by row.
        compute: Fills in one image, given as a batch of one.
        parts: What identifies the baseline, beside the images; None: nothing is kept.
    """
    folder = home() / "fills" / content_hash(repr([parts, str(x.dtype)])) if parts else None
    filled = x.clone()
    for row, sample in enumerate(rng.ids):
        mask = removed[row]
        if not mask.any():
            continue
        noise = f"{rng.seed} {sample}".encode()
        image = x[row].detach().float().cpu().numpy().tobytes()
        key = content_hash([image, np.packbits(mask.cpu().numpy()).tobytes(), noise], length=32)
        path = folder / key[:2] / f"{key}.npy" if folder else None
        values = _read(path, (len(x[row]), int(mask.sum()))) if path else None
        if values is None:
            own = Rng(rng.seed, [sample], rng.device)
            with torch.no_grad():
                fill = compute(x[row : row + 1], removed[row : row + 1], own)[0]
            values = fill[:, mask].to("cpu", torch.float16)
            if path:
                _write(path, values)
        filled[row, :, mask] = values.to(x)
    return filled


def _read(path: Path, shape: tuple[int, int]) -> Tensor | None:
    """Return kept values; None if there are none, or they are damaged."""
    with suppress(OSError, ValueError, EOFError):
        values = np.load(path, allow_pickle=False)
        if values.shape == shape and values.dtype == np.float16:
            return torch.from_numpy(values)
    return None


def _write(path: Path, values: Tensor) -> None:
    content = io.BytesIO()
    np.save(content, values.numpy(), allow_pickle=False)
    with suppress(OSError):  # a full disk costs time, not the run
        atomic_write(path, content.getvalue())
