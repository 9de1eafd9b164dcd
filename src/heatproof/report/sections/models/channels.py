"""The images that activate a channel most, before and after fine-tuning (Hesse 2024, Fig. 10)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heatproof.analysis.similarity import shared, top
from heatproof.report import pictures
from heatproof.report.run_data import CRISP_BELOW, PLAIN_VIEW, Kept, Run
from heatproof.report.sections.common import size_of
from heatproof.report.site import Site

COUNT = 8  # images
CHANNELS = 3


@dataclass(frozen=True)
class ChannelImage:
    """An image, and whether it is among the top images both before and after."""

    id: str
    both: bool
    photo: str


@dataclass(frozen=True)
class Channel:
    """The top images of a channel."""

    common: int
    before: list[ChannelImage]
    after: list[ChannelImage]


@dataclass(frozen=True)
class Copy:
    """A network and its fine-tuned copy."""

    name: str
    n: int
    count: int
    channels: list[Channel]
    compared: int  # channels
    mean: float  # number of images in common
    least: int
    most: int
    chance: float
    crisp: bool


def content(run: Run, site: Site) -> list[Copy]:
    """Return one entry per fine-tuned copy that has enough images to choose from."""
    copies = []
    for model in run.models:
        views = run.networks(model)
        if PLAIN_VIEW not in views:
            continue
        for view in views:
            if view.is_fine_tuned:
                suffix = f", {view.description}" if len(views) > 2 else ""
                name = run.short_names[model] + suffix
                copy = _copy(site, name, run.kept(model, PLAIN_VIEW), run.kept(model, view))
                if copy:
                    copies.append(copy)
    return copies


def _copy(site: Site, name: str, before: Kept, after: Kept) -> Copy | None:
    samples = [s for s in before.with_images if s in after.with_images]
    peaks_before = _peaks(before, samples)
    peaks_after = _peaks(after, samples)
    if len(samples) < 2 * COUNT or peaks_before is None or peaks_after is None:
        return None
    if peaks_before.shape != peaks_after.shape:
        return None
    old = top(peaks_before, COUNT)
    new = top(peaks_after, COUNT)
    common = shared(old, new)
    channels = [
        Channel(
            int(common[c]),
            _images(site, before, samples, old[c], new[c]),
            _images(site, before, samples, new[c], old[c]),
        )
        for c in range(min(CHANNELS, len(old)))
    ]
    return Copy(
        name=name,
        n=len(samples),
        count=COUNT,
        channels=channels,
        compared=len(old),
        mean=float(common.mean()),
        least=int(common.min()),
        most=int(common.max()),
        chance=COUNT * COUNT / len(samples),
        crisp=max(size_of(before.image(samples[0]))) < CRISP_BELOW,
    )


def _peaks(kept: Kept, samples: list[str]) -> np.ndarray | None:  # (samples, C)
    peaks = kept.channel_peaks()
    return peaks.numpy()[[kept.ids.index(s) for s in samples]] if peaks is not None else None


def _images(
    site: Site, kept: Kept, samples: list[str], chosen: np.ndarray, others: np.ndarray
) -> list[ChannelImage]:
    in_others = set(others.tolist())
    images = []
    for i in chosen.tolist():
        photo = site.picture(pictures.photo(kept.image(samples[i])))
        images.append(ChannelImage(samples[i], i in in_others, photo))
    return images
