"""Measure races: how often they err in simulated worlds, and what they save on paperbirds.

    make soak
    python benchmarks/race.py errors --worlds 1000
    python benchmarks/race.py savings --out runs/races --images 512 --orders 100

`errors` draws the worlds of `statements.py`, whose true means are known, and holds races over them:
for the best method, and for the order of all within a margin. A race errs if it drops a method that
no other is better than, if it says that a method is ahead of one that is as good, or if it ends
because methods differ by less than the margin while two of those left differ by more.

`savings` evaluates twelve methods on every image once (a run that is there is read), and holds
races over these scores in many random orders of the images. Beside a race stands what a fixed
number of images costs: all of them, and the smallest number that decides as often, by the tests
that a run without a race is judged by. docs/speed.md holds the table.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from statements import EQUAL, SCENARIOS, SCORES, UNLIKE, World, draw, true_ranks

import heatproof as hp
from heatproof.analysis.families import LEVEL
from heatproof.analysis.pair_sequences import Table
from heatproof.analysis.race import Race, hold_race
from heatproof.analysis.race_tables import tables_of
from heatproof.analysis.settings import scored_settings
from heatproof.plan.question import Question
from heatproof.results import Result

# Errors

MARGIN = 0.05
DROPPED = "drops the best"
AHEAD = "says ahead of an equal"
WITHIN = "ends within a margin"
WORLDS = [
    *(scenario for scenario in SCENARIOS if isinstance(scenario, World)),
    *(
        World(256, 8, scores=scores, means=means)
        for scores in SCORES
        for means in ("equal", "two best")
    ),
    World(256, 8, scores=UNLIKE),
    World(512, 4, scores=UNLIKE),
    World(512, 12, 2, "nearly equal", shared=0.5),
]


@dataclass(frozen=True)
class Error:
    """How often races were wrong in the worlds of a scenario.

    Attributes:
        scenario: The scenario.
        kind: What went wrong.
        rate: In which fraction of worlds.
        worlds: Number of worlds.
        images: The mean fraction of scores that were looked at.
    """

    scenario: str
    kind: str
    rate: float
    worlds: int
    images: float

    @property
    def exceeds(self) -> bool:
        """Whether it is wrong in more than 5 % of the worlds, by two standard errors."""
        return self.rate > LEVEL + 2 * math.sqrt(LEVEL * (1 - LEVEL) / self.worlds)


def drawn_tables(
    world: World, rng: np.random.Generator
) -> tuple[list[str], list[Table], np.ndarray]:
    """Draw the scores of a world: names of methods, a table per setting, and true means (S, M)."""
    drawn = draw(world, rng)
    found = tables_of(drawn.rows)
    ((methods, tables),) = found.values()
    return methods, tables, drawn.truth


def is_false(race: Race, truth: np.ndarray) -> dict[str, bool]:
    """Return what a race said that is false, given true means (S, M)."""
    ranks = np.stack([true_ranks(of_setting) for of_setting in truth]).mean(0)
    best = ranks <= ranks.min() + EQUAL
    (contest,) = race.contests
    names = race.methods
    dropped = {drop.method for drop in contest.drops if drop.reason == "behind"}
    ahead = any(
        (sequences.ahead & ~(truth[s][:, None] > truth[s][None, :] + EQUAL)).any()
        for s, sequences in enumerate(race.sequences)
    )
    margin = race.question.margin
    apart = False
    if contest.ended == "margin" and margin is not None:
        left = [names.index(method) for method in contest.left[-1][1]]
        spread = truth[:, left].max(1) - truth[:, left].min(1)
        apart = bool((spread >= margin).any())
    return {
        DROPPED: any(best[names.index(method)] for method in dropped),
        AHEAD: ahead,
        WITHIN: apart,
    }


def looked_at(race: Race, images: int) -> float:
    """Return the fraction of scores that a race looked at, of all of them."""
    seen = [list(race.evaluated(s).values()) for s in range(len(race.sequences))]
    return float(np.mean(seen)) / images


def errors(worlds: int, exact: bool, seconds: float, only: str = "") -> Iterator[Error]:
    """Yield the rates of errors in every scenario; fewer worlds where time is short.

    Args:
        worlds: Number of worlds of each scenario.
        exact: Whether scores with a range are compared by bets.
        seconds: The time for all scenarios.
        only: Part of the names of the scenarios that are drawn.
    """
    begun = time.monotonic()
    chosen = [world for world in WORLDS if only in world.name]
    for number, world in enumerate(chosen):
        share = (seconds - (time.monotonic() - begun)) / (len(chosen) - number)
        yield from _errors_of(world, worlds, exact, share)


def _errors_of(world: World, worlds: int, exact: bool, seconds: float) -> Iterator[Error]:
    own = zlib.crc32(world.name.encode())
    counts: dict[str, list[bool]] = {DROPPED: [], AHEAD: [], WITHIN: []}
    images: list[float] = []
    end = time.monotonic() + seconds
    for number in range(worlds):
        if number >= 100 and time.monotonic() > end:
            break
        rng = np.random.default_rng([own, number])
        methods, tables, truth = drawn_tables(world, rng)
        clusters = 1 + max(int(table.clusters.max()) for table in tables)
        race = hold_race(methods, tables, Question(exact=exact))
        found = is_false(race, truth)
        counts[DROPPED].append(found[DROPPED])
        counts[AHEAD].append(found[AHEAD])
        images.append(looked_at(race, clusters))
        within = hold_race(methods, tables, Question(exact=exact, margin=MARGIN))
        counts[WITHIN].append(is_false(within, truth)[WITHIN])
    for kind, wrong in counts.items():
        yield Error(world.name, kind, float(np.mean(wrong)), len(wrong), float(np.mean(images)))


# Savings

METHODS = [
    "saliency",
    "ixg",
    "ixg|abs",
    "ig(steps=8)",
    "ig(steps=8)|abs",
    "gradcam",
    "gradcam++",
    "xgradcam",
    "layercam",
    "guided-backprop",
    "deconvnet",
    "lrp-composite",
]
MODELS = ("paperbirds/resnet", "paperbirds/vgg")
MARGINS = (None, 0.02, 0.03)
FIXED = 16  # step of the numbers of images that a fixed sample is tried with


@dataclass(frozen=True)
class Costs:
    """Passes of one image: of each method's map, of its score, and of what methods share."""

    maps: dict[str, int]
    scores: int
    shared: int

    def passes(self, images: dict[str, int]) -> float:
        """Return the passes for numbers of images of each method."""
        own = sum(n * (self.maps[method] + self.scores) for method, n in images.items())
        return own + max(images.values(), default=0) * self.shared


def evaluated(
    out: Path,
    images: int,
    protocols: Sequence[str],
    models: Sequence[str],
    data: str,
    methods: Sequence[str],
) -> Result:
    """Evaluate all methods on all images, or read the run that is there."""
    return hp.evaluate(
        list(models),
        data,
        list(methods),
        protocols,
        limit=images,
        keep_maps=0,
        backend="eager",
        out=out,
        progress=True,
    )


def costs_of(result: Result, protocol: str) -> Costs:
    facts = next(facts for facts in result.plan.protocols if facts.id == protocol)
    maps = {method: result.passes(method) or 0 for method in result.methods}
    return Costs(maps, facts.method_forwards, facts.shared_forwards)


def decides(rows: pd.DataFrame, margin: float | None) -> bool:
    """Return whether a fixed sample tells the best method, or that those left are alike."""
    (scores,) = scored_settings(rows, resamples=2)
    pairs = scores.pairs
    best = pairs.best(pairs.methods)
    if len(best) == 1:
        return True
    if margin is None:
        return False
    chosen = [pairs.methods.index(method) for method in best]
    block = np.ix_(chosen, chosen)
    critical = pairs.family.critical
    reach = np.abs(pairs.gaps[block]) + critical * pairs.errors[block]
    np.fill_diagonal(reach, 0)
    return bool((reach < margin).all())


def savings(result: Result, images: int, orders: int, exact: bool) -> Iterator[dict[str, object]]:
    """Yield what races take in random orders of the images, and what fixed samples take."""
    for model, (methods, tables) in tables_of(result.rows, result.limits).items():
        for table in tables:
            protocol = table.key[0]
            costs = costs_of(result, protocol)
            rows = result.rows[result.rows["protocol"] == protocol]
            whole = dict.fromkeys(methods, images)
            for margin in MARGINS:
                question = Question(margin=margin, exact=exact)
                rng = np.random.default_rng(0)
                found = [_raced(methods, table, question, rng, costs) for _ in range(orders)]
                decided, last, maps, passes = (
                    float(np.mean(column)) for column in zip(*found, strict=True)
                )
                fixed = _fixed(rows, model, decided, margin, orders)
                beside = costs.passes(dict.fromkeys(methods, fixed)) if fixed else math.nan
                yield {
                    "model": model,
                    "protocol": protocol,
                    "margin": margin,
                    "decided": decided,
                    "images": last,
                    "maps": maps / (images * len(methods)),
                    "passes": passes / costs.passes(whole),
                    "fixed": fixed,
                    "maps_beside": maps / (fixed * len(methods)) if fixed else math.nan,
                    "passes_beside": passes / beside,
                }


def _raced(
    methods: Sequence[str],
    table: Table,
    question: Question,
    rng: np.random.Generator,
    costs: Costs,
) -> tuple[bool, int, int, float]:
    """Hold a race in a random order: whether it ended, images of the last, maps, and passes."""
    order = rng.permutation(len(table.values))
    shuffled = Table(table.key, table.values[order], np.arange(len(order)), table.limits)
    race = hold_race(methods, [shuffled], question)
    (contest,) = race.contests
    seen = race.evaluated(0)
    return bool(contest.ended), contest.images, sum(seen.values()), costs.passes(seen)


def _fixed(
    rows: pd.DataFrame, model: str, decided: float, margin: float | None, orders: int
) -> int | None:
    """Return the smallest number of images that decides as often as a race did; None if none.

    As many numbers are tried as a bisection needs, each in a tenth of the orders, at least ten.
    """
    own = rows[rows["model"] == model]
    names = own["sample"].unique()
    tries = max(10, orders // 10)

    def often(number: int) -> bool:
        rng = np.random.default_rng(1)
        found = [
            decides(own[own["sample"].isin(rng.permutation(names)[:number])], margin)
            for _ in range(tries)
        ]
        return float(np.mean(found)) >= decided

    steps = range(FIXED, len(names) + 1, FIXED)
    low, high = 0, len(steps) - 1
    if decided == 0 or not often(steps[high]):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if often(steps[middle]) else (middle + 1, high)
    return steps[low]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    of_errors = commands.add_parser("errors")
    of_errors.add_argument("--worlds", type=int, default=1000)
    of_errors.add_argument("--seconds", type=float, default=math.inf, help="for all scenarios")
    of_errors.add_argument("--only", default="", help="part of the names of scenarios")
    of_savings = commands.add_parser("savings")
    of_savings.add_argument("--out", type=Path, default=Path("runs/races"))
    of_savings.add_argument("--images", type=int, default=512)
    of_savings.add_argument("--orders", type=int, default=100)
    of_savings.add_argument("--protocols", nargs="+", default=["sds", "srg"])
    of_savings.add_argument("--models", nargs="+", default=MODELS)
    of_savings.add_argument("--data", default="paperbirds:test")
    of_savings.add_argument("--methods", nargs="+", default=METHODS)
    for command in (of_errors, of_savings):
        command.add_argument("--exact", action="store_true", help="bets for scores with a range")
    options = parser.parse_args()
    if options.command == "savings":
        result = evaluated(
            options.out,
            options.images,
            options.protocols,
            options.models,
            options.data,
            options.methods,
        )
        lines = list(savings(result, options.images, options.orders, options.exact))
        print(pd.DataFrame(lines).to_string(index=False, float_format=lambda v: f"{v:.3f}"))
        return 0
    worst: dict[str, Error] = {}
    exceeding = []
    for error in errors(options.worlds, options.exact, options.seconds, options.only):
        print(
            f"{error.rate:6.3f}  {error.kind:<24} {error.scenario} ({error.worlds} worlds, "
            f"{error.images:.2f} of the scores)",
            flush=True,
        )
        worst[error.kind] = max(worst.get(error.kind, error), error, key=lambda e: e.rate)
        exceeding += [error] if error.exceeds else []
    for kind, error in worst.items():
        print(f"worst: {kind} {error.rate:.3f} ({error.scenario})")
    return 1 if exceeding else 0


if __name__ == "__main__":
    sys.exit(main())
