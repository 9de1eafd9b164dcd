"""What ``heatproof plan`` prints by a pilot: the images that a difference or a race takes."""

from __future__ import annotations

from pathlib import Path

from heatproof.analysis import race_wording, wording
from heatproof.analysis.planning import check_difference, images_for, needed_images
from heatproof.analysis.race_forecast import forecast_race
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.cli.terminal import print_plain
from heatproof.errors import HeatproofError, join_limited
from heatproof.plan.question import Question
from heatproof.plan.spec import Spec
from heatproof.plan.tasks import Plan
from heatproof.runs.format import is_run
from heatproof.runs.store import Store

FEW = 10  # images of a pilot, whose spread is rough


def print_needed(
    spec: Spec, difference: float, spread: float | None, pilot: Path | None, default: Path
) -> None:
    """Print how many images show a difference, by the spread in a pilot or a stated one.

    Args:
        spec: The spec.
        difference: The true difference of two methods.
        spread: Standard deviation of their paired differences, in place of a pilot.
        pilot: A run of the spec.
        default: The run that is the pilot if none is named.

    Raises:
        HeatproofError: If there is neither or both, or the pilot has no protocol of the spec.
    """
    check_difference(difference)
    if spread is not None and pilot is not None:
        raise HeatproofError("the spread follows from --pilot or is stated by --spread, not both")
    pilot = pilot or default
    methods = len(spec.expressions())
    if spread is not None:
        print_plain(wording.planned(difference, methods))
        images = images_for(difference, spread, methods)
        print_plain(wording.needed(f"with a spread of {spread:g}", "images", images))
        return
    if not is_run(pilot):
        raise HeatproofError(
            f"there is no pilot in {pilot}. Run the spec on few images, such as with --limit 16 "
            "-o runs/pilot, and name it by --pilot; or state the spread of paired differences by "
            "--spread"
        )
    run = RunStatistics(Store(pilot))
    wanted = {protocol.canonical for protocol in spec.parsed_protocols()}
    keys = {facts.key for facts in run.plan.protocols if facts.canonical in wanted}
    chosen = [scores for scores in run.settings if scores.key[1:] in keys]
    if not chosen:
        raise HeatproofError(
            f"{run.store.name} has none of the protocols {join_limited(sorted(wanted))}"
        )
    print_plain(wording.planned(difference, methods))
    for line in needed_images(chosen, difference, methods).to_dict("records"):
        key = (line["protocol"], line["setting"], line["baseline"])
        label = f"{run.titles[line['model']]}, {run.setting_labels[key]}"
        unit = "grids" if run.counts_of[line["model"], key].maps else "images"
        print_plain(wording.needed(label, unit, line["needed"], line["needed_for_all"]))
    missing = len(wanted) - len({f.canonical for f in run.plan.protocols} & wanted)
    if missing:
        print_plain(f"The pilot lacks {missing} of {len(wanted)} protocols of the spec.")
    fewest = min(scores.pairs.count for scores in chosen)
    if fewest < FEW:
        print_plain(f"The pilot has only {fewest} images for this, so these numbers are rough.")


def print_forecast(plan: Plan, question: Question, pilot: Path | None, default: Path) -> None:
    """Print how many images, maps and passes a race will take, by a pilot.

    Args:
        plan: The plan.
        question: What is to be decided.
        pilot: A run of the spec on few images.
        default: The run that is the pilot if none is named.

    Raises:
        HeatproofError: If there is no pilot, or it lacks something of the plan.
    """
    pilot = pilot or default
    if not is_run(pilot):
        print_plain(
            f"How soon it is decided follows from a pilot, and there is none in {pilot}: run the "
            "spec on few images, such as with --limit 32 -o runs/pilot, and name it by --pilot."
        )
        return
    for line in race_wording.forecast(forecast_race(plan, question, RunStatistics(Store(pilot)))):
        print_plain(line)
