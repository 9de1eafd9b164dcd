"""The race of a run that decides: who was in when, what it saved, what more images would buy."""

from __future__ import annotations

from dataclasses import dataclass

from heatproof.analysis import race_wording
from heatproof.analysis.race_lanes import Lane, Lanes
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures.svg.lanes import DrawnLane, draw_lanes
from heatproof.report.sections.base import section
from heatproof.report.site import Figure, Site


@dataclass(frozen=True)
class Contest:
    """A race as the page shows it."""

    title: str
    figure: Figure


@dataclass(frozen=True)
class Content:
    """The content of the template."""

    contests: list[Contest]
    story: list[str]
    asked: str


@section(
    "race",
    short="Race",
    question="Which methods were dropped when, and why?",
    order=12,
    page="Ranking",
)
def content(run: RunStatistics, site: Site) -> Content | None:
    """Return the races of a run; None if it had a fixed number of images."""
    if run.question is None or not run.race_lanes:
        return None
    contests = [_contest(run, site, lanes) for lanes in run.race_lanes]
    return Content(contests, run.race_story, race_wording.asked(run.question))


def _contest(run: RunStatistics, site: Site, of_contest: Lanes) -> Contest:
    title = run.titles[of_contest.model]
    if len(of_contest.race.contests) > 1:
        title += f", {of_contest.keys[0][0]}"
    several = len(of_contest.keys) > 1
    drawn = [
        DrawnLane(
            lane.method,
            run.family(lane.method),
            lane.images,
            race_wording.lane(lane),
            _tip(run, lane, several),
        )
        for lane in of_contest.lanes
    ]
    looks = [images for images, _ in of_contest.contest.left]
    figure = draw_lanes(f"{title}: the race", drawn, looks, run.race_images)
    return Contest(title, site.figure(figure))


def _tip(run: RunStatistics, lane: Lane, several: bool) -> str:
    under = f"\nunder {run.setting_labels[lane.setting]}" if several and lane.setting else ""
    return f"{lane.method}\n{race_wording.lane(lane)}{under}\nevaluated on {lane.evaluated} images"
