"""The images that activate a channel most, before and after fine-tuning (Hesse 2024, Fig. 10)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heatproof.analysis.run_statistics import CRISP_BELOW_PIXELS, RunStatistics
from heatproof.analysis.similarity import shared, top
from heatproof.figures import pictures
from heatproof.report.sections.common import size_of
from heatproof.report.site import Site
from heatproof.runs.format import ModelFacts
from heatproof.runs.run import PLAIN_VIEW, Kept

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
    """The top images of a channel, among those whose images were kept."""

    number: int | None  # None: not on record
    common: int  # of the images that are shown
    before: list[ChannelImage]
    after: list[ChannelImage]


@dataclass(frozen=True)
class Copy:
    """A network and its fine-tuned copy."""

    name: str
    layer: str
    n: int  # images that were searched
    shown_from: int  # images that are shown are among so many, those that were kept
    count: int
    channels: list[Channel]
    compared: int  # channels
    mean: float  # number of images in common
    least: int
    most: int
    chance: float
    crisp: bool


def content(run: RunStatistics, site: Site) -> list[Copy]:
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
                before = run.kept(model, PLAIN_VIEW)
                facts = run.facts(model, view)
                copy = _copy(site, name, before, run.kept(model, view), facts)
                if copy:
                    copies.append(copy)
    return copies


def _copy(
    site: Site, name: str, before: Kept, after: Kept, facts: ModelFacts | None
) -> Copy | None:
    in_both = set(after.ids)
    samples = [s for s in before.ids if s in in_both]
    peaks_before = _peaks(before, samples)
    peaks_after = _peaks(after, samples)
    if peaks_before is None or peaks_after is None or peaks_before.shape != peaks_after.shape:
        return None
    kept = [i for i, s in enumerate(samples) if s in before.with_images and s in after.with_images]
    if len(kept) < 2 * COUNT:
        return None
    common = shared(top(peaks_before, COUNT), top(peaks_after, COUNT))
    shown = [samples[i] for i in kept]
    old = top(peaks_before[kept], COUNT)
    new = top(peaks_after[kept], COUNT)
    shown_common = shared(old, new)
    numbers = dict(enumerate(facts.channels)) if facts else {}
    channels = [
        Channel(
            numbers.get(c),
            int(shown_common[c]),
            _images(site, before, shown, old[c], new[c]),
            _images(site, before, shown, new[c], old[c]),
        )
        for c in range(min(CHANNELS, len(old)))
    ]
    return Copy(
        name=name,
        layer=facts.layers.get("cam", "") if facts else "",
        n=len(samples),
        shown_from=len(shown),
        count=COUNT,
        channels=channels,
        compared=len(common),
        mean=float(common.mean()),
        least=int(common.min()),
        most=int(common.max()),
        chance=COUNT * COUNT / len(samples),
        crisp=max(size_of(before.image(shown[0]))) < CRISP_BELOW_PIXELS,
    )


def _peaks(kept: Kept, samples: list[str]) -> np.ndarray | None:  # (samples, C)
    peaks = kept.channel_peaks()
    position = {sample: i for i, sample in enumerate(kept.ids)}
    return peaks.numpy()[[position[s] for s in samples]] if peaks is not None else None


def _images(
    site: Site, kept: Kept, samples: list[str], chosen: np.ndarray, others: np.ndarray
) -> list[ChannelImage]:
    in_others = set(others.tolist())
    images = []
    for i in chosen.tolist():
        photo = site.picture(pictures.photo(kept.image(samples[i])))
        images.append(ChannelImage(samples[i], i in in_others, photo))
    return images
