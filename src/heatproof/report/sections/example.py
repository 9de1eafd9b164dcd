"""One score step by step (Hesse 2024, Fig. 1): the sums of a map in patches against the drops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup
from torch import Tensor

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Key, Standings
from heatproof.analysis.run_statistics import CRISP_BELOW_PIXELS, RunStatistics
from heatproof.figures import pictures, svg
from heatproof.figures.numbers import rank_text
from heatproof.report.sections.base import section
from heatproof.report.sections.common import select, size_of
from heatproof.report.site import Site
from heatproof.runs.format import ProtocolFacts
from heatproof.runs.run import Kept
from heatproof.tensor.patches import patch_sums
from heatproof.tensor.rank import average_ranks, spearman

SAME = 5e-4  # maps are stored in half precision: a ρ computed from them may differ
DESCRIPTIONS = [  # for ρ of at least
    (0.9, "The map orders the patches almost exactly like the true drops"),
    (0.6, "The map mostly follows the order of the true drops, with some patches misplaced"),
    (0.3, "The map follows the order of the true drops in part"),
    (0.1, "The map has little in common with the order of the true drops"),
    (-0.1, "The map has nothing in common with the order of the true drops"),
    (-math.inf, "The map tends towards the reverse of the true order"),
]


class Score(NamedTuple):
    """The score of a sample, and the numbers it is computed from."""

    sample: str
    value: float  # as it is in the table
    sums: Tensor  # (P,)
    drops: Tensor  # (P,)

    @property
    def rho(self) -> float:
        """Return the score as computed from the stored map."""
        return float(spearman(self.sums[None].double(), self.drops[None].double()))

    @property
    def exact(self) -> bool:
        """Whether the stored map gives the score of the table."""
        return abs(self.rho - self.value) < SAME


@dataclass(frozen=True)
class Disagreement:
    """The patch whose two ranks differ most; ranks count from the most important patch."""

    row: int
    column: int
    by_map: str
    by_drop: str
    difference: float


@dataclass(frozen=True)
class Content:
    """The content of the template."""

    sample: str
    label: str
    labelled: bool
    confidence: float
    model: str
    fine_tuned: bool
    method: str
    setting: str
    protocol: ProtocolFacts
    patches: int
    crisp: bool
    grid: Markup
    photo: str
    map: str
    sums: Markup
    drops: Markup
    ranks: Markup
    value: float
    exact: bool
    description: str
    mean: Estimate
    disagreement: Disagreement


@section(
    "example",
    short="Example",
    question="How is a score computed?",
    order=45,
    page="Explorer",
)
def content(run: RunStatistics, site: Site) -> Content | None:
    """Return the first example that the run allows; None without stored maps and drops."""
    for standing in run.standings:
        for key in run.preferred:
            example = _example(run, site, standing, key)
            if example:
                return example
    return None


def _example(run: RunStatistics, site: Site, standing: Standings, key: Key) -> Content | None:
    methods = [m for m in standing.order if not run.is_control(m)]
    if not methods or key not in standing.settings:
        return None
    if "patches" not in run.protocols[key].settings:
        return None
    method = methods[0]
    mean = standing.score(standing.settings.index(key), method)
    kept = run.kept(standing.model, run.view_of(standing.model, key))
    score = typical(_scores(run, kept, standing.model, key, method), mean.value)
    return _content(run, site, kept, standing.model, key, method, score, mean) if score else None


def _scores(run: RunStatistics, kept: Kept, model: str, key: Key, method: str) -> list[Score]:
    """Return the scores of stored samples that are classified correctly or have no label."""
    protocol = run.protocols[key]
    rows = select(run.rows, model, key, method)
    values = dict(zip(rows["sample"], rows["value"], strict=True))
    correct = dict(zip(kept.ids, kept.correct, strict=True))
    scores = []
    for sample in kept.with_images:
        small = kept.map(sample, method)
        drops = kept.shared_row(sample, protocol, "drops")
        value = values.get(sample, math.nan)
        if correct[sample] is False or not math.isfinite(value):
            continue
        if small is not None and drops is not None:
            large = pictures.resized(small, size_of(kept.image(sample)))
            sums = patch_sums(large[None], protocol.settings["patches"])[0]
            scores.append(Score(sample, value, sums, drops))
    return scores


def typical(scores: list[Score], mean: float) -> Score | None:
    """Return the score nearest to the mean, if possible one that the stored map gives exactly."""
    candidates = [s for s in scores if s.exact] or scores
    return min(candidates, key=lambda s: abs(s.value - mean), default=None)


def _content(
    run: RunStatistics,
    site: Site,
    kept: Kept,
    model: str,
    key: Key,
    method: str,
    score: Score,
    mean: Estimate,
) -> Content:
    image = kept.image(score.sample)
    small = kept.map(score.sample, method)
    assert small is not None
    size = size_of(image)
    row = kept.ids.index(score.sample)
    predicted, probability = kept.confidence(row)
    map_ranks = average_ranks(score.sums[None].double())[0]
    drop_ranks = average_ranks(score.drops[None].double())[0]
    percentages = [float(v) for v in 100 * score.sums / score.sums.abs().sum()]
    drops = [float(v) for v in score.drops]
    return Content(
        sample=score.sample,
        label=run.class_name(model, predicted),
        labelled=kept.labels[row] is not None,
        confidence=probability,
        model=run.short_names[model],
        fine_tuned=run.view_of(model, key).is_fine_tuned,
        method=method,
        setting=run.setting_labels[key],
        protocol=run.protocols[key],
        patches=len(drops),
        crisp=max(size) < CRISP_BELOW_PIXELS,
        grid=svg.grid_lines(math.isqrt(len(drops))),
        photo=site.picture(pictures.photo(image)),
        map=site.picture(pictures.heatmap(small, size, pictures.is_signed(small))),
        sums=svg.patch_grid(
            percentages,
            max(map(abs, percentages)),
            "The map summed over each patch, as a percentage of all patches",
        ),
        drops=svg.patch_grid(
            drops, max(map(abs, drops)), "How far the score drops without each patch"
        ),
        ranks=svg.ranks(
            map_ranks.tolist(),
            drop_ranks.tolist(),
            ("map", "true drop"),
            "Rank of each patch by the map and by its true drop",
        ),
        value=score.value,
        exact=score.exact,
        description=next(text for least, text in DESCRIPTIONS if score.value >= least),
        mean=mean,
        disagreement=_disagreement(map_ranks, drop_ranks),
    )


def _disagreement(map_ranks: Tensor, drop_ranks: Tensor) -> Disagreement:
    differences = (map_ranks - drop_ranks).abs()
    patch = int(differences.argmax())
    row, column = divmod(patch, math.isqrt(len(map_ranks)))

    def from_the_top(ranks: Tensor) -> str:
        return rank_text(len(ranks) + 1 - float(ranks[patch]))

    return Disagreement(
        row + 1,
        column + 1,
        from_the_top(map_ranks),
        from_the_top(drop_ranks),
        float(differences[patch]),
    )
