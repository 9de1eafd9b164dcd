"""The commands that open a spec: ``run``, ``plan`` and ``validate``."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heatproof.cli.complete import complete_spec
from heatproof.cli.group import INTERRUPTED, METHOD_FAILED, UNFINISHED, command, main
from heatproof.cli.location import RunLocation
from heatproof.cli.options import engine_options, load_changed_spec, spec_options
from heatproof.cli.output import echo
from heatproof.cli.signals import Terminated, stopped_by_sigterm
from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    from heatproof.plan.spec import Spec


out_option = click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the run, or an address such as s3://bucket/run.  [default: runs/NAME]",
)


def run_directory(spec: str, out: Path | None) -> Path:
    """Return the directory of the run of a spec: the one that is named, or that of its name."""
    from heatproof.runs.addresses import to_write

    name = Path(spec).stem if Path(spec).is_file() else spec
    return to_write(out or Path("runs") / name)


def load_for_run(spec: str, directory: Path, options: dict[str, Any], weights: bool = True) -> Spec:
    """Load a spec with its changes; methods that are added join those of the run that is there."""
    from heatproof.runs.store import methods_of_run

    options["run_methods"] = methods_of_run(directory) if options["add_methods"] else ()
    return load_changed_spec(spec, options, weights)


@main.command(**command)
@click.argument("spec", shell_complete=complete_spec)
@out_option
@click.option(
    "--report/--no-report", default=True, show_default=True, help="Build a report at the end."
)
@click.option(
    "--add",
    is_flag=True,
    help="Use a directory that holds a run with other data, another seed or other models.",
)
@click.option(
    "--walltime",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MINUTES",
    help="Stop after this time, as at SIGTERM.",
)
@click.option(
    "--unfinished-ok", is_flag=True, help="End with code 0 instead of 5 if it is stopped early."
)
@engine_options
@spec_options
def run(
    spec: str,
    out: Path | None,
    report: bool,
    add: bool,
    walltime: float | None,
    unfinished_ok: bool,
    device: str,
    **options: Any,
) -> None:
    """Run a spec or an included study and build its report.

    The same command again computes only what is missing, so it resumes a run
    that was interrupted. A run can grow: with more methods, protocols, models or
    samples, only these are computed. The exit code is 3 if a method failed
    or nothing has a score.

    At SIGTERM, or after --walltime, what is computed is written, and the command
    ends with code 5 and a line that begins with "unfinished"; with --unfinished-ok
    the code is 0, for jobs that are submitted again anyway.

    A spec that names file:… runs that file: use only files you would import.

    Examples:
      heatproof run quickstart
      heatproof run spec.yaml -o runs/mine
      heatproof run spec.yaml -o runs/mine --limit 64 --batch-size 16
      heatproof run spec.yaml -o runs/mine --add-methods rise
      heatproof run spec.yaml -o runs/mine --decide --set decide.margin=0.02
      heatproof run hesse2024/table6 --model file:net.py:build --data folder:/data/images
      heatproof run rao2024/fig4 --methods ixg@final --set protocols.0.grids=50
      heatproof run spec.yaml --engine dask --workers 4
      heatproof run spec.yaml --engine dask --cluster slurm.yaml
      heatproof run spec.yaml -o s3://bucket/runs/mine

    A spec:
      models: [paperbirds/resnet, "file:net.py:build", {name: bagnet33, weights: bagnet33.pth.tar}]
      data: {name: "folder:/data/images", limit: 1000}    # or folder:/data/images:labels.csv
      methods: [ixg, ig, "ig|abs", gradcam, "ixg@middle|smooth(9)", "file:mine.py:my_method"]
      protocols: [sds, {name: sds, patches: 64, baseline: blur}]
    """
    from heatproof.api import run as run_spec
    from heatproof.cli.progress import preparation_progress
    from heatproof.cli.results import print_failures, print_notes, print_summary
    from heatproof.cli.terminal import print_plain
    from heatproof.execute.engines.base import EngineOptions
    from heatproof.plan.open_spec import open_spec
    from heatproof.platform import keep_freed_memory

    engine = {field.name: options.pop(field.name) for field in fields(EngineOptions)}
    EngineOptions(**engine).check()
    directory = run_directory(spec, out)
    grows = bool(options["add_methods"])
    loaded = load_for_run(spec, directory, options)
    if grows and loaded.decide is not None:
        echo(
            "the race is held anew with the methods that are added: what is computed is kept, and "
            "as there are more pairs to compare, methods that were dropped may come back",
            err=True,
        )
    resume = "what is computed is kept, and the same command continues the run"
    try:
        with stopped_by_sigterm(walltime):
            with preparation_progress() as trained:
                plan = open_spec(loaded, device, progress=trained, out=directory)
            plan.check_applicable()
            result = run_spec(loaded, directory, device, True, plan, add, **engine)
    except Terminated:
        echo(f"unfinished; {resume}", err=True)
        sys.exit(0 if unfinished_ok else UNFINISHED)
    except KeyboardInterrupt:
        echo(f"interrupted; {resume}", err=True)
        sys.exit(INTERRUPTED)
    print_summary(result)
    print_notes(result)
    if report:
        keep_freed_memory()
        print_plain(f"\nreport: {result.report()}")
    print_plain(f"run:    {result.store.name}")
    if print_failures(result) or not (result.scores["status"] == "ok").any():
        sys.exit(METHOD_FAILED)


@main.command(**command)
@click.argument("spec", shell_complete=complete_spec)
@out_option
@click.option("--measure", is_flag=True, help="Time full batches, for a better estimate.")
@click.option(
    "--assume",
    type=click.IntRange(min=1),
    metavar="N",
    help="Count passes as if there were N images; needs neither data nor weights.",
)
@click.option(
    "--detect",
    type=float,
    metavar="DIFFERENCE",
    help="Say instead how many images show a difference of two methods' mean scores.",
)
@click.option(
    "--pilot",
    type=RunLocation(),
    metavar="RUN",
    help="detect, decide: a run of the spec on few images.  [default: runs/NAME]",
)
@click.option(
    "--spread",
    type=click.FloatRange(min=0, min_open=True),
    help="detect: standard deviation of paired differences of two methods, in place of a pilot.",
)
@spec_options
def plan(
    spec: str,
    out: Path | None,
    measure: bool,
    assume: int | None,
    detect: float | None,
    pilot: Path | None,
    spread: float | None,
    device: str,
    **options: Any,
) -> None:
    """Estimate what a spec would cost, without running it.

    Counts the passes through the network (passes that methods share count
    once) and estimates the time from earlier runs of the same network on this
    machine, or else from two images that are timed. A run that has begun (-o) keeps
    its backends, and --add-methods adds to what it has.

    With --decide, says how many images and passes a race takes, by a pilot.
    With --detect, says how many images it takes to tell two methods apart,
    among all pairs, in four of five data sets. How much scores vary follows
    from a pilot, or is stated.

    Examples:
      heatproof plan quickstart
      heatproof plan spec.yaml --limit 1000 --device cuda
      heatproof plan spec.yaml --measure
      heatproof plan hesse2024/imagenet/table6 --assume 50000
      heatproof plan spec.yaml --decide --pilot runs/pilot
      heatproof plan spec.yaml --detect 0.05 --pilot runs/pilot
      heatproof plan spec.yaml --detect 0.05 --spread 0.3
    """
    from heatproof.cli.planning import print_forecast, print_needed
    from heatproof.cli.progress import preparation_progress, still_working
    from heatproof.cli.results import print_assumed, print_cost, print_plan
    from heatproof.data.grids import assumed_confidence
    from heatproof.plan.assumed_cost import assumed_cost
    from heatproof.plan.cost import forecast
    from heatproof.plan.open_models import pending_training
    from heatproof.plan.open_spec import open_spec

    directory = run_directory(spec, out)
    loaded = load_for_run(spec, directory, options, weights=assume is None and detect is None)
    if detect is None and (spread or (pilot and loaded.decide is None)):
        raise HeatproofError("--pilot is for --detect and --decide, --spread for --detect")
    if detect is not None:
        print_needed(loaded, detect, spread, pilot, directory)
        return
    if assume is not None:
        with still_working(f"counting the passes of {spec}"):
            cost = assumed_cost(loaded, assume)
        print_cost(cost)
        return
    with assumed_confidence() as assumed, preparation_progress() as measured:
        opened = open_spec(loaded, device, train=False, progress=measured, out=directory)
    print_plan(opened, forecast(opened, measure), pending_training(loaded))
    print_assumed(assumed)
    if loaded.decide is not None:
        print_forecast(opened, loaded.decide, pilot, directory)


@main.command(**command)
@click.argument("spec", shell_complete=complete_spec)
@spec_options
def validate(spec: str, device: str, **options: Any) -> None:
    """Check the keys, methods, protocols, models and data of a spec.

    Examples:
      heatproof validate spec.yaml
      heatproof validate hesse2024/imagenet/sds --data folder:/imagenet/val --weights-dir weights
    """
    from heatproof.cli.progress import still_working
    from heatproof.cli.results import print_assumed, print_validated
    from heatproof.data.grids import assumed_confidence
    from heatproof.plan.open_spec import open_spec

    with assumed_confidence() as assumed, still_working(f"opening {spec}"):
        opened = open_spec(load_changed_spec(spec, options), device, train=False, measure=False)
    opened.check_applicable()
    print_validated(spec, opened)
    print_assumed(assumed)
