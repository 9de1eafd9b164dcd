"""Which images excite a channel most, before and after fine-tuning (Figure 10 of Hesse et al. 2024)."""

from __future__ import annotations

from typing import Any

import numpy as np

from heatproof.analysis.similarity import shared, top
from heatproof.report import pictures
from heatproof.report.run_data import CRISP_BELOW, PLAIN_VIEW, Kept, Run
from heatproof.report.site import Site

COUNT, CHANNELS = 8, 3


def content(run: Run, site: Site) -> list[dict[str, Any]]:
    """One a model and fine-tuned copy; none where there is nothing to choose from."""
    found = []
    for model in run.models:
        views = run.networks(model)
        for view in views:
            if (
                view.is_fine_tuned
                and PLAIN_VIEW in views
                and (pair := _pair(site, run.kept(model, PLAIN_VIEW), run.kept(model, view)))
            ):
                name = run.short_names[model] + (f", {view.description}" if len(views) > 2 else "")
                found.append({"name": name, "model": model, **pair})
    return found


def _pair(site: Site, before: Kept, after: Kept) -> dict[str, Any] | None:
    samples = [s for s in before.shown if s in after.shown]
    peaks = [_peaks(kept, samples) for kept in (before, after)]
    if (
        len(samples) < 2 * COUNT
        or peaks[0] is None
        or peaks[1] is None
        or peaks[0].shape != peaks[1].shape
    ):
        return None
    old, new = (top(p, COUNT) for p in peaks if p is not None)
    common = shared(old, new)
    return {
        "n": len(samples),
        "count": COUNT,
        "channels": [
            _channel(site, before, samples, old[c], new[c], int(common[c]))
            for c in range(min(CHANNELS, len(old)))
        ],
        "watched": len(old),
        "mean": float(common.mean()),
        "least": int(common.min()),
        "most": int(common.max()),
        "chance": COUNT * COUNT / len(samples),
        "crisp": _side(before, samples[0]) < CRISP_BELOW,
    }


def _side(kept: Kept, sample: str) -> int:
    image = kept.image(sample)
    assert image is not None, "images of the first samples are stored"
    return max(image.shape[1:])


def _peaks(kept: Kept, samples: list[str]) -> np.ndarray | None:  # (samples, C)
    found = kept.channel_peaks()
    return found.numpy()[[kept.ids.index(s) for s in samples]] if found is not None else None


def _channel(
    site: Site, kept: Kept, samples: list[str], old: np.ndarray, new: np.ndarray, common: int
) -> dict[str, Any]:
    return {
        "common": common,
        "before": _row(site, kept, samples, old, new),
        "after": _row(site, kept, samples, new, old),
    }


def _row(
    site: Site, kept: Kept, samples: list[str], mine: np.ndarray, others: np.ndarray
) -> list[dict[str, Any]]:
    chosen = [(samples[i], int(i) in set(others.tolist())) for i in mine]
    return [
        {"id": s, "both": both, "photo": site.picture(pictures.photo(i))}
        for s, both in chosen
        if (i := kept.image(s)) is not None
    ]
