"""The command line: it parses and prints; everything else is in the library, imported only by the commands that need it."""

from __future__ import annotations

import ctypes
import inspect
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heatproof import __version__
from heatproof.errors import HeatproofError, unknown

if TYPE_CHECKING:
    from heatproof.bench.plan import Plan

FAILED_RECORDS = 3


class Group(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HeatproofError as error:
            click.secho("error: ", fg="red", bold=True, nl=False, err=True)
            click.echo(str(error), err=True)
            sys.exit(2)
        except OSError as error:
            click.secho("error: ", fg="red", bold=True, nl=False, err=True)
            click.echo(
                f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""),
                err=True,
            )
            sys.exit(2)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise click.UsageError(str(unknown("command", args[0], self.commands)))
        return super().resolve_command(ctx, args)


class Command(click.Command):
    """Help keeps the line breaks of examples."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write("\n")
        for line in inspect.cleandoc(self.help or "").splitlines():
            formatter.write(f"  {line}\n" if line else "\n")


command = {"cls": Command, "context_settings": {"help_option_names": ["-h", "--help"]}}


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="heatproof")
def main() -> None:
    """Which heatmaps can you trust?

    \b
    heatproof run quickstart                a first run and its report, about a minute
    heatproof run spec.yaml -o runs/mine    your models, images and methods
    heatproof list methods                  what there is
    """
    keep_memory()
    told = set[str]()

    def note(message: Warning | str, *where: Any, **more: Any) -> None:
        if str(message) not in told:
            told.add(str(message))
            click.echo(f"note: {message}", err=True)

    warnings.showwarning = note


def keep_memory() -> None:
    """glibc gives the memory of a large tensor back when it is freed, and gets cleared pages for the next one: a tenth of the time of
    gradient passes. It keeps what it has instead; no more is taken than at the peak."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
                ctypes.CDLL("libc.so.6").mallopt(option, 2**31 - 1)


def _spec_options(function: Any) -> Any:
    for option in reversed(
        [
            click.option(
                "--limit", type=click.IntRange(min=1), help="Judge only the first N samples."
            ),
            click.option(
                "--batch-size",
                type=click.IntRange(min=1),
                help="Images in one pass; bounds the memory.",
            ),
            click.option(
                "--backend",
                help="What computes passes without gradients: eager, fused, compile, openvino.",
            ),
            click.option(
                "--seed", type=click.IntRange(min=0), help="Of all noise and of the samples' order."
            ),
            click.option(
                "--device",
                default="auto",
                show_default=True,
                help="cpu, cuda, cuda:1, mps, or auto.",
            ),
        ]
    ):
        function = option(function)
    return function


@main.command(**command)
@click.argument("spec")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="The run's directory.  [default: runs/NAME]",
)
@click.option(
    "--report/--no-report", default=True, show_default=True, help="Build the report at the end."
)
@_spec_options
def run(spec: str, out: Path | None, report: bool, device: str, **changes: Any) -> None:
    """Run a spec, or a study that ships with heatproof, and build its report.

    The same command again does only what is missing: a run that was stopped or
    killed goes on where it ended. Ends with code 3 where a method failed.

    A spec that names file:… runs that file: use only those you would import.

    Examples:
      heatproof run quickstart
      heatproof run spec.yaml -o runs/mine
      heatproof run spec.yaml -o runs/mine --limit 64 --batch-size 16

    A spec:
      models: [paperbirds/resnet, "file:net.py:build", {name: bagnet33, weights: bagnet33.pth.tar}]
      data: {name: "folder:/data/images", limit: 1000}    # or folder:/data/images:labels.csv
      methods: [ixg, ig, "ig|abs", gradcam, "ixg@middle|smooth(9)", "file:mine.py:my_method"]
      protocols: [sds, {name: sds, patches: 64, baseline: blur}]
    """
    from heatproof.api import run as run_spec
    from heatproof.bench.orchestrate import open_spec
    from heatproof.bench.spec import load_spec
    from heatproof.cli.show import console, making, print_summary, progress_of

    told = load_spec(spec, **changes)
    directory = out or Path("runs") / (Path(spec).stem if Path(spec).is_file() else spec)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with making() as made:
            plan = open_spec(told, device, progress=made)
        with progress_of(plan) as advance:
            result = run_spec(told, directory, device, advance, plan)
    except KeyboardInterrupt:
        click.echo(
            "stopped; finished blocks of 64 samples are kept, and the same command goes on from there",
            err=True,
        )
        sys.exit(130)
    print_summary(result)
    if report:
        console.print(f"\nreport: {result.report()}", markup=False, soft_wrap=True)
    console.print(f"run:    {directory}", markup=False, soft_wrap=True)
    if len(result.failures):
        for message, rows in result.failures.groupby("message"):
            console.print("failed", style="red", end=" ")
            console.print(
                f"{', '.join(sorted(set(rows['method'])))}: {message} ({len(rows)} rows)",
                markup=False,
            )
        sys.exit(FAILED_RECORDS)


@main.command(**command)
@click.argument("spec")
@_spec_options
def plan(spec: str, device: str, **changes: Any) -> None:
    """What a spec would cost, before anything runs.

    Counts passes through the whole network, what methods share only once, and
    forecasts the time from one timed batch.

    Examples:
      heatproof plan quickstart
      heatproof plan spec.yaml --limit 1000 --device cuda
    """
    from heatproof.bench.cost import forecast
    from heatproof.bench.models import pending_training
    from heatproof.bench.orchestrate import open_spec
    from heatproof.bench.spec import load_spec
    from heatproof.cli.show import print_plan

    told = load_spec(spec, **changes)
    made: Plan = open_spec(told, device, train=False)
    print_plan(made, forecast(made), pending_training(told))


@main.command(**command)
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the site goes.  [default: DIRECTORY/report]",
)
def report(directory: Path, out: Path | None) -> None:
    """Build the report of a run anew.

    Example:
      heatproof report runs/quickstart
    """
    from heatproof.api import Result

    click.echo(Result.load(directory).report(out))


@main.command(**command)
@click.argument("spec")
def validate(spec: str) -> None:
    """Check a spec without running it: keys, methods, protocols, models and data.

    Example:
      heatproof validate spec.yaml
    """
    from heatproof.bench.orchestrate import open_spec
    from heatproof.bench.spec import load_spec

    made = open_spec(load_spec(spec), train=False)
    records = sum(len(t.records) for t in made.tasks)
    click.echo(
        f"{spec} is right: {sum(len(t.indices) for t in made.tasks)} samples, {records} results in {len(made.tasks)} blocks"
    )
    for title, model in {t.title: t.model for t in made.tasks}.items():
        mean, std = (
            ", ".join(f"{v:.3g}" for v in values.flatten().tolist())
            for values in (model.mean, model.std)
        )
        cut = f"{model.size} px (shorter side to {model.resize}, then the middle)"
        click.echo(f"{title}: {cut}, mean {mean}, std {std}, {model.n_classes} classes")


@main.command("list", **command)
@click.argument(
    "kind",
    type=click.Choice(
        [
            "methods",
            "transforms",
            "protocols",
            "baselines",
            "models",
            "data",
            "sections",
            "studies",
        ]
    ),
)
@click.option("--json", "as_json", is_flag=True, help="As a JSON list, for programs.")
def list_(kind: str, as_json: bool) -> None:
    """What there is, by kind.

    Examples:
      heatproof list methods
      heatproof list protocols --json
    """
    import json

    from heatproof.cli.show import catalogue, print_catalogue

    if as_json:
        click.echo(json.dumps(catalogue(kind), indent=1, ensure_ascii=False))
    else:
        print_catalogue(kind)


@main.command(**command)
@click.argument(
    "images", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False)
)
@click.option(
    "-m",
    "--model",
    required=True,
    help="A model's name, such as torchvision:resnet50, or file:my_model.py:build.",
)
@click.option(
    "--weights", help="A local .safetensors or .pth file, download (the published ones), or random."
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("gradcam",),
    show_default=True,
    help="An expression; may be given several times.",
)
@click.option("--target", type=int, help="The class to explain.  [default: the model's prediction]")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("maps.png"),
    show_default=True,
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--device", default="auto", show_default=True)
def explain(
    images: Sequence[Path],
    model: str,
    weights: str | None,
    methods: Sequence[str],
    target: int | None,
    out: Path,
    seed: int,
    device: str,
) -> None:
    """Draw the maps of one or more images, side by side.

    Examples:
      heatproof explain photo.jpg -m file:net.py:build --method gradcam --method "ig|abs"
      heatproof explain a.jpg b.jpg -m paperbirds/resnet --method ixg --target 3 -o maps.png
    """
    from heatproof.cli.show import draw_maps

    click.echo(draw_maps(images, model, weights, methods, target, out, seed, device))


@main.command(**command)
@click.argument("name")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The weights file.  [default: kept in the cache]",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Another number of training steps than the recipe's.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--data", help="For cifar10/vgg11: where CIFAR-10 is, such as cifar10:/data/cifar10.npz."
)
def train(name: str, out: Path | None, steps: int | None, seed: int, data: str | None) -> None:
    """Train an embedded model with its recipe: some minutes on two cores.

    Without -o the weights are kept in the cache ($HEATPROOF_CACHE, by default
    ~/.cache/heatproof), where a spec finds them: {train: paperbirds/resnet18}.

    Examples:
      heatproof train paperbirds/resnet18
      heatproof train paperbirds/resnet --seed 1
      heatproof train paperbirds/resnet -o resnet.safetensors
      heatproof train cifar10/vgg11 --data cifar10:/data/cifar10.npz -o vgg11.safetensors
    """
    from heatproof.cli.show import train_embedded, train_on_cifar10

    if name.startswith("cifar10/"):
        train_on_cifar10(name, data, out, steps, seed)
    else:
        train_embedded(name, out, steps, seed)


from heatproof.cli import finetune as _finetune  # noqa: E402, F401 (a command of its own file, which needs `main`)
