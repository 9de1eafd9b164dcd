"""One score from beginning to end (Figure 1 of Hesse et al. 2024): the map's sum in every patch against the network's drops."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Key, Standings
from heatproof.protocols import ViewKey
from heatproof.report import charts, pictures
from heatproof.report.run_data import CRISP_BELOW, Kept, Run, confidence
from heatproof.report.sections.base import section
from heatproof.report.site import Site
from heatproof.tensor.patches import patch_sums
from heatproof.tensor.rank import average_ranks, spearman

SAME = 5e-4  # maps are kept in half precision: a ρ computed from them may differ
WORDS = [  # ρ from here on
    (0.9, "almost the order of the true drops"),
    (0.6, "much the order of the true drops, with some patches misplaced"),
    (0.3, "some of the order of the true drops"),
    (0.1, "little of the order of the true drops"),
    (-0.1, "nothing of the order of the true drops"),
    (-math.inf, "rather the reverse of the true order"),
]


class Score(NamedTuple):
    """A sample's score, taken apart."""

    sample: str
    value: float  # as it is in the table
    sums: Tensor  # (P,)
    drops: Tensor  # (P,)

    @property
    def rho(self) -> float:
        return float(spearman(self.sums[None].double(), self.drops[None].double()))


@section("example", short="Example", question="How is a score made?", order=20)
def content(run: Run, site: Site) -> dict[str, Any] | None:
    for standing in run.standings:
        for key in run.preferred:
            if found := _worked(run, site, standing, key):
                return found
    return None


def _worked(run: Run, site: Site, standing: Standings, key: Key) -> dict[str, Any] | None:
    methods = [m for m in standing.order if not run.is_control(m)]
    protocol, model = run.protocols[key], standing.model
    if not methods or key not in standing.settings or "patches" not in protocol.settings:
        return None
    view, mean = run.view_of(model, key), standing.score(standing.settings.index(key), methods[0])
    kept = run.kept(model, view)
    score = typical(_scores(run, kept, model, key, methods[0]), mean.value)
    return _shown(run, site, kept, model, view, key, methods[0], score, mean) if score else None


def _scores(run: Run, kept: Kept, model: str, key: Key, method: str) -> list[Score]:
    """Of the kept samples that the network classifies as labelled, if they are."""
    rows, protocol, found = run.rows, run.protocols[key], []
    for column, value in zip(
        ("model", "method", "protocol", "setting", "baseline"), (model, method, *key), strict=True
    ):
        rows = rows[rows[column] == value]
    values = dict(zip(rows["sample"], rows["value"], strict=True))
    right = {
        s
        for s, logits, label in zip(kept.ids, kept.logits, kept.labels, strict=True)
        if label in (None, int(logits.argmax()))
    }
    for sample in kept.shown:
        image = kept.image(sample)
        small = kept.map(sample, method)
        drops = kept.shared_row(sample, protocol, "drops")
        value = values.get(sample, math.nan)
        if (
            sample in right
            and image is not None
            and small is not None
            and drops is not None
            and math.isfinite(value)
        ):
            large = pictures.resized(small, (image.shape[1], image.shape[2]))
            found.append(
                Score(
                    sample, value, patch_sums(large[None], protocol.settings["patches"])[0], drops
                )
            )
    return found


def typical(scores: list[Score], mean: float) -> Score | None:
    """Nearest to the method's mean; if possible one whose score the kept map gives exactly."""
    exact = [s for s in scores if abs(s.rho - s.value) < SAME] or scores
    return min(exact, key=lambda s: abs(s.value - mean), default=None)


def _shown(
    run: Run,
    site: Site,
    kept: Kept,
    model: str,
    view: ViewKey,
    key: Key,
    method: str,
    score: Score,
    mean: Estimate,
) -> dict[str, Any]:
    image, small = kept.image(score.sample), kept.map(score.sample, method)
    assert image is not None and small is not None
    size = (image.shape[1], image.shape[2])
    row = kept.ids.index(score.sample)
    predicted, sure = confidence(kept.logits[row])
    by_map, by_drop = (average_ranks(v[None].double())[0] for v in (score.sums, score.drops))
    shares, drops = (
        [float(v) for v in 100 * score.sums / score.sums.abs().sum()],
        [float(v) for v in score.drops],
    )
    far = int((by_map - by_drop).abs().argmax())
    side = math.isqrt(len(drops))
    return {
        "sample": score.sample,
        "label": run.class_name(model, predicted),
        "labelled": kept.labels[row] is not None,
        "sure": sure,
        "model": run.short_names[model],
        "fine_tuned": view.is_fine_tuned,
        "method": method,
        "setting": run.setting_labels[key],
        "judge": run.protocols[key],
        "patches": len(drops),
        "crisp": max(size) < CRISP_BELOW,
        "grid": charts.grid(side),
        "photo": site.picture(pictures.photo(image)),
        "map": site.picture(pictures.heatmap(small, size, pictures.is_signed(small))),
        "sums": charts.patches(
            shares, max(map(abs, shares)), "The map summed over each patch, as a share of all"
        ),
        "drops": charts.patches(
            drops, max(map(abs, drops)), "How far the score drops without each patch"
        ),
        "ranks": charts.ranks(
            by_map.tolist(),
            by_drop.tolist(),
            ("map", "true drop"),
            "Rank of each patch in the map and by its drop",
        ),
        "value": score.value,
        "exact": abs(score.rho - score.value) < SAME,
        "words": next(words for least, words in WORDS if score.value >= least),
        "mean": mean,
        "far": {
            "row": far // side + 1,
            "column": far % side + 1,
            "by_map": _place(by_map, far),
            "by_drop": _place(by_drop, far),
            "apart": float((by_map - by_drop).abs()[far]),
        },
    }


def _place(ranks: Tensor, patch: int) -> str:
    """Counted from the most important."""
    return charts.rank_text(len(ranks) + 1 - float(ranks[patch]))
