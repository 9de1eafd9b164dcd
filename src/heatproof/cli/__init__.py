"""The command line.

It parses and prints; everything else is in the library, which commands import only when they need
it.
"""

from __future__ import annotations

import _thread
import ctypes
import inspect
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from heatproof.cli.complete import complete_spec
from heatproof.cli.location import RunLocation
from heatproof.cli.output import echo, replace_unencodable
from heatproof.errors import HeatproofError, unknown
from heatproof.text import clip, printable

if TYPE_CHECKING:
    from heatproof.bench.spec import Spec

USAGE_ERROR = 2  # exit codes
METHOD_FAILED = 3
WORSE = 4
INTERRUPTED = 130


class Group(click.Group):
    """A group of commands that prints errors meant for users without a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        replace_unencodable()
        return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HeatproofError as error:
            _exit_with_error(str(error))
        except OSError as error:
            message = str(error.strerror or error)
            if error.filename:
                message += f": {clip(str(error.filename))}"
            _exit_with_error(message)
        except KeyboardInterrupt:  # while modules are imported, or in a command without a run
            echo("interrupted", err=True)
            sys.exit(INTERRUPTED)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise click.UsageError(printable(str(unknown("command", args[0], self.commands))))
        return super().resolve_command(ctx, args)


def _exit_with_error(message: str) -> NoReturn:
    click.secho("error: ", fg="red", bold=True, nl=False, err=True)
    echo(message, err=True)
    sys.exit(USAGE_ERROR)


class Command(click.Command):
    """A command whose help keeps the line breaks of its docstring."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write("\n")
        for line in inspect.cleandoc(self.help or "").splitlines():
            formatter.write(f"  {line}\n" if line else "\n")


command = {"cls": Command, "context_settings": {"help_option_names": ["-h", "--help"]}}


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="heatproof", prog_name="heatproof")
def main() -> None:
    """Measure which attribution heatmaps you can trust.

    \b
    Examples:
      heatproof run quickstart                try it: a run with a report, about a minute
      heatproof run spec.yaml -o runs/mine    evaluate your models, images and methods
      heatproof list methods                  list all methods
    """
    keep_memory()
    printed = set[str]()

    def show_once(message: Warning | str, *args: Any, **kwargs: Any) -> None:
        if str(message) not in printed:
            printed.add(str(message))
            echo(f"note: {message}", err=True)

    warnings.showwarning = show_once


REMIND_SECONDS = 30.0  # enough to write what is computed


class Terminated(KeyboardInterrupt):
    """The process has to end, because of SIGTERM or because its time is over."""


@contextmanager
def stopped_by_sigterm(minutes: float | None) -> Iterator[None]:
    """Raise ``Terminated`` at SIGTERM, or after some minutes.

    Python discards an exception that a signal raises in a destructor, so the signal is repeated
    until the block ends; and its own parser turns one into a ``SystemError``.
    """
    requested = threading.Event()
    ended = threading.Event()
    sending = threading.Lock()

    def stop(*_: object) -> None:
        requested.set()
        if not ended.is_set():
            raise Terminated

    def send() -> None:
        with sending:  # so that no signal is sent once the handler is gone
            if ended.is_set():
                return
            if hasattr(signal, "pthread_kill"):  # it also wakes a thread that sleeps
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            else:
                _thread.interrupt_main(signal.SIGTERM)

    def remind() -> None:
        if minutes is not None and not requested.wait(60 * minutes):
            send()
        requested.wait()
        while not ended.wait(REMIND_SECONDS):
            send()

    before = signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=remind, daemon=True).start()
    try:
        yield
    except SystemError as error:
        if not requested.is_set():
            raise
        raise Terminated from error
    finally:
        ended.set()
        requested.set()  # so that the thread ends
        with sending:
            signal.signal(signal.SIGTERM, before)


def keep_memory() -> None:
    """Tell glibc to keep freed memory instead of returning it to the system.

    By default it returns the memory of every large tensor and gets cleared pages for the next one,
    which takes a tenth of the time of gradient passes. The peak does not change.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # not glibc
            for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
                ctypes.CDLL("libc.so.6").mallopt(option, 2**31 - 1)


CHANGE_OPTIONS = [
    click.option("--model", "models", multiple=True, help="Model in place of those of the spec."),
    click.option("--data", help="Data set in place of that of the spec, such as folder:/images."),
    click.option(
        "--methods",
        multiple=True,
        help="Method, or group of methods, in place of those of the spec.",
    ),
    click.option("--protocols", multiple=True, help="Protocol in place of those of the spec."),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Another value for a key: data.limit=100, protocols.0.grids=50.",
    ),
    click.option(
        "--weights-dir",
        type=click.Path(path_type=Path, file_okay=False),
        help="Directory with the weights of models: resnet50.pth, resnet50-16-zero.pth.",
    ),
]
device_option = click.option(
    "--device", default="auto", show_default=True, help="Device: cpu, cuda, cuda:1, mps or auto."
)
ENGINE_OPTIONS = [
    click.option(
        "--engine",
        type=click.Choice(["local", "dask"]),
        default="local",
        show_default=True,
        help="What computes: this process, or the workers of a Dask cluster.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        help="dask: processes on this machine.  [default: one per core]",
    ),
    click.option(
        "--address", help="dask: address of a running scheduler, such as tcp://host:8786."
    ),
    click.option(
        "--cluster",
        type=click.Path(path_type=Path, dir_okay=False),
        help="dask: YAML file with a class of cluster and its arguments.",
    ),
    click.option(
        "--threads", type=click.IntRange(min=1), help="dask: threads per worker.  [default: 1]"
    ),
    click.option(
        "--gpus", type=click.IntRange(0, 1), help="dask: give each of the --workers its own GPU."
    ),
]
SPEC_OPTIONS = [
    click.option("--limit", type=click.IntRange(min=1), help="Evaluate only the first N samples."),
    click.option(
        "--batch-size", type=click.IntRange(min=1), help="Images per pass; bounds the memory."
    ),
    click.option(
        "--backend",
        help="Backend of passes without gradients: eager, fused, compile, openvino, or auto, the "
        "fastest here.  [default: auto]",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        help="Seed for all noise and for the sample order.",
    ),
    device_option,
]


def _spec_options(function: Any) -> Any:
    for option in reversed([*CHANGE_OPTIONS, *SPEC_OPTIONS]):
        function = option(function)
    return function


def _engine_options(function: Any) -> Any:
    for option in reversed(ENGINE_OPTIONS):
        function = option(function)
    return function


def _load_spec(spec: str, options: dict[str, Any], weights: bool = True) -> Spec:
    """Load a spec with what the options of a command change in it.

    Args:
        spec: A file, or the name of a study.
        options: The options; those that change a spec are removed.
        weights: Whether files of weights are looked up.
    """
    from heatproof.bench.changes import Changes
    from heatproof.bench.spec import load_spec

    names = [field.name for field in fields(Changes)]
    changes = Changes(**{name: options.pop(name) for name in names})
    if not weights:
        changes = replace(changes, weights_dir=None)
    return load_spec(spec, changes, **options)


@main.command(**command)
@click.argument("spec", shell_complete=complete_spec)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the run, or an address such as s3://bucket/run.  [default: runs/NAME]",
)
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
@_engine_options
@_spec_options
def run(
    spec: str,
    out: Path | None,
    report: bool,
    add: bool,
    walltime: float | None,
    device: str,
    **options: Any,
) -> None:
    """Run a spec or an included study and build its report.

    The same command again computes only what is missing, so it resumes a run
    that was interrupted. A run can grow: with more methods, protocols, models or
    samples, only these are computed. The exit code is 3 if a method failed.

    At SIGTERM, or after --walltime, what is computed is written, and the command
    ends with code 0 and a line that begins with "unfinished".

    A spec that names file:… runs that file: use only files you would import.

    Examples:
      heatproof run quickstart
      heatproof run spec.yaml -o runs/mine
      heatproof run spec.yaml -o runs/mine --limit 64 --batch-size 16
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
    from heatproof.bench.addresses import to_write
    from heatproof.bench.engines.base import EngineOptions
    from heatproof.bench.orchestrate import open_spec
    from heatproof.cli.progress import preparation_progress
    from heatproof.cli.results import print_failures, print_notes, print_summary
    from heatproof.cli.terminal import print_plain

    engine = {field.name: options.pop(field.name) for field in fields(EngineOptions)}
    EngineOptions(**engine).check()
    loaded = _load_spec(spec, options)
    name = Path(spec).stem if Path(spec).is_file() else spec
    directory = to_write(out or Path("runs") / name)
    resume = "what is computed is kept, and the same command continues the run"
    try:
        with stopped_by_sigterm(walltime):
            with preparation_progress() as trained:
                plan = open_spec(loaded, device, progress=trained, out=directory)
            result = run_spec(loaded, directory, device, True, plan, add, **engine)
    except Terminated:
        echo(f"unfinished; {resume}", err=True)
        return
    except KeyboardInterrupt:
        echo(f"interrupted; {resume}", err=True)
        sys.exit(INTERRUPTED)
    print_summary(result)
    print_notes(result)
    if report:
        print_plain(f"\nreport: {result.report()}")
    print_plain(f"run:    {result.store.name}")
    if print_failures(result):
        sys.exit(METHOD_FAILED)


@main.command(**command)
@click.argument("spec", shell_complete=complete_spec)
@click.option("--measure", is_flag=True, help="Time full batches, for a better estimate.")
@click.option(
    "--assume",
    type=click.IntRange(min=1),
    metavar="N",
    help="Count passes as if there were N images; needs neither data nor weights.",
)
@_spec_options
def plan(spec: str, measure: bool, assume: int | None, device: str, **options: Any) -> None:
    """Estimate what a spec would cost, without running it.

    Counts the passes through the network (passes that methods share count
    once) and estimates the time from earlier runs of the same network on this
    machine, or else from two images that are timed.

    Examples:
      heatproof plan quickstart
      heatproof plan spec.yaml --limit 1000 --device cuda
      heatproof plan spec.yaml --measure
      heatproof plan hesse2024/imagenet/table6 --assume 50000
    """
    from heatproof.bench.assumed import assumed_cost
    from heatproof.bench.cost import forecast
    from heatproof.bench.models import pending_training
    from heatproof.bench.orchestrate import open_spec
    from heatproof.cli.results import print_assumed, print_cost, print_plan
    from heatproof.data.grids import assumed_confidence

    loaded = _load_spec(spec, options, weights=assume is None)
    if assume is not None:
        print_cost(assumed_cost(loaded, assume))
        return
    with assumed_confidence() as assumed:
        opened = open_spec(loaded, device, train=False)
    print_plan(opened, forecast(opened, measure), pending_training(loaded))
    print_assumed(assumed)


@main.command(**command)
@click.argument("directory", type=RunLocation())
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the report.  [default: DIRECTORY/report]",
)
@click.option(
    "--single-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report to one HTML file instead, with its pictures inside.",
)
def report(directory: Path, out: Path | None, single_file: Path | None) -> None:
    """Build the report of a run again.

    Examples:
      heatproof report runs/quickstart
      heatproof report runs/quickstart --single-file quickstart.html
    """
    from heatproof.api import Result
    from heatproof.report import build_single_file

    if single_file is None:
        echo(Result.load(directory).report(out))
    elif out is None:
        echo(build_single_file(Result.load(directory).store, single_file))
    else:
        raise click.UsageError("--out is for a directory; give either --out or --single-file")


@main.command(**command)
@click.argument("directory", type=RunLocation())
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True)
@click.option("--open", "open_browser", is_flag=True, help="Open it in a browser.")
def serve(directory: Path, port: int, open_browser: bool) -> None:
    """Serve the report of a run on this machine, also while the run goes on.

    The report is built again whenever a task has finished; pages say so, or
    reload. Only this machine can open it. --port 0 takes any port that is free.

    Example:
      heatproof serve runs/quickstart
    """
    from heatproof.cli.serve import serve_run

    serve_run(directory, port, open_browser)


@main.command(**command)
@click.argument("directory", type=RunLocation(fresh=True))
@click.option("--repair", is_flag=True, help="Set damaged files aside; the next run makes them.")
def check(directory: Path, repair: bool) -> None:
    """Verify that every file of a run is as it was written.

    Files that are damaged, missing or foreign are listed; the exit code is 3 if
    there are any. With --repair, they are moved to DIRECTORY/damaged, and
    manifests that are lost are rebuilt.

    Examples:
      heatproof check runs/quickstart
      heatproof check runs/quickstart --repair
    """
    from heatproof.cli.check import check_run

    if not check_run(directory, repair):
        sys.exit(METHOD_FAILED)


@main.command(**command)
@click.argument("spec", shell_complete=complete_spec)
@_spec_options
def validate(spec: str, device: str, **options: Any) -> None:
    """Check the keys, methods, protocols, models and data of a spec.

    Examples:
      heatproof validate spec.yaml
      heatproof validate hesse2024/imagenet/sds --data folder:/imagenet/val --weights-dir weights
    """
    from heatproof.bench.orchestrate import open_spec
    from heatproof.cli.results import print_assumed, print_validated
    from heatproof.data.grids import assumed_confidence

    with assumed_confidence() as assumed:
        opened = open_spec(_load_spec(spec, options), device, train=False, measure=False)
    print_validated(spec, opened)
    print_assumed(assumed)


@main.command(**command)
@click.argument("name", shell_complete=complete_spec)
@click.option(
    "--copy",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the spec to this file, to be edited.",
)
def study(name: str, copy: Path | None) -> None:
    """Print the spec of an included study, or of a figure or table of a paper.

    Examples:
      heatproof study quickstart
      heatproof study hesse2024/table6 --copy mine.yaml
    """
    from heatproof.bench.spec import spec_path

    text = spec_path(name).read_text(encoding="utf-8")
    if copy is None:
        echo(text, nl=False)
        return
    if copy.exists():
        raise HeatproofError(f"{copy} exists; choose another file, or remove it first")
    copy.write_text(text, encoding="utf-8")
    echo(f"{copy}: run it with heatproof run {copy}")


@main.command("compare", **command)
@click.argument("run", type=RunLocation())
@click.argument("others", nargs=-1, required=True)
@click.option(
    "--fail-if-worse",
    "limits",
    metavar="METHOD:AMOUNT",
    multiple=True,
    help="End with code 4 if a method (or any of all) scores significantly worse in another run, "
    "by more than this amount.",
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write as JSON."
)
@click.option(
    "--html", "html_file", type=click.Path(path_type=Path, dir_okay=False), help="Write a page."
)
def compare_(
    run: Path,
    others: tuple[str, ...],
    limits: tuple[str, ...],
    json_file: Path | None,
    html_file: Path | None,
) -> None:
    """Set a run beside other runs, or beside the published numbers of a paper.

    Runs are compared over the samples that both have, in pairs: the other minus
    the first, with 95 % intervals and tests, and what changed in spec, versions
    and weights.

    A published number is reproduced if it lies in the run's 95 % interval, and
    differs if it does not. Where the model or the protocol's settings are not
    the paper's, there is no verdict.

    Examples:
      heatproof compare runs/before runs/after --html compare.html
      heatproof compare runs/main runs/branch --fail-if-worse gradcam:0.02
      heatproof compare runs/main runs/branch --fail-if-worse all:0.05
      heatproof compare runs/hesse2024/ranking published:hesse2024/table6
      heatproof compare runs/li2024/distinctness published:li2024/table1
    """
    from heatproof.analysis.published import PREFIX, compare_published, published_table
    from heatproof.bench.addresses import is_address, to_read
    from heatproof.bench.store import Store
    from heatproof.cli.comparison import compare_runs
    from heatproof.cli.results import print_comparison

    published = [other for other in others if other.startswith(PREFIX)]
    if published and (limits or json_file or html_file):
        raise HeatproofError("--fail-if-worse, --json and --html are for runs")
    others = tuple(str(to_read(o)) if is_address(o) else o for o in others)
    missing = [o for o in others if o not in published and not Path(o).is_dir()]
    if missing:
        raise HeatproofError(
            f'"{missing[0]}" is neither a run directory nor a published table, which is named like '
            f"{PREFIX}hesse2024/table6"
        )
    for name in published:
        store = Store(run)
        print_comparison(compare_published(store, published_table(name)), store)
    runs = [Path(other) for other in others if other not in published]
    if runs and compare_runs(run, runs, limits, json_file, html_file):
        sys.exit(WORSE)


@main.command("figure", **command)
@click.argument("run", type=RunLocation())
@click.argument("name", required=False)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="[default: NAME.pdf]"
)
@click.option("--list", "list_all", is_flag=True, help="List the figures of the run.")
@click.option("--model", help="A model; by default all.")
@click.option("--protocol", help="A protocol; by default all.")
@click.option("--sample", help="The sample of maps; by default the first that has any.")
def figure_(
    run: Path,
    name: str | None,
    out: Path | None,
    list_all: bool,
    model: str | None,
    protocol: str | None,
    sample: str | None,
) -> None:
    """Draw a figure of a run for a paper: PDF, SVG or PNG, by the name of the file.

    The numbers of the figure are written beside it, as CSV. This needs
    pip install "heatproof[plot]".

    Examples:
      heatproof figure runs/quickstart --list
      heatproof figure runs/quickstart ranking -o ranking.pdf
      heatproof figure runs/quickstart curves --protocol deletion -o deletion.svg
      heatproof figure runs/quickstart maps --sample test_0003 -o maps.png
    """
    from heatproof.cli.results import print_figures
    from heatproof.results.figures import list_figures, write_figure

    if list_all or name is None:
        print_figures(list_figures(run))
        return
    options = {"model": model, "protocol": protocol, "sample": sample}
    chosen = {key: value for key, value in options.items() if value is not None}
    for path in write_figure(run, name, out or Path(f"{name}.pdf"), chosen):
        echo(str(path))


@main.command("table", **command)
@click.argument("run", type=RunLocation())
@click.argument("name", required=False)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file that ends in .tex, .md or .csv; by default the table is printed.",
)
@click.option("--model", help="A model; by default all.")
@click.option("--protocol", help="A protocol; by default all.")
def table_(
    run: Path, name: str | None, out: Path | None, model: str | None, protocol: str | None
) -> None:
    """Write a table of a run for a paper: LaTeX (booktabs), Markdown or CSV.

    Without NAME, the tables are listed.

    Examples:
      heatproof table runs/quickstart ranking -o ranking.tex
      heatproof table runs/quickstart pairs --protocol sds -o pairs.csv
      heatproof table runs/quickstart agreement
    """
    from heatproof.cli.results import print_figures
    from heatproof.results.figures import TABLES, write_table

    if name is None:
        print_figures([(name, table.about, "") for name, table in TABLES.items()])
        return
    options = {"model": model, "protocol": protocol}
    chosen = {key: value for key, value in options.items() if value is not None}
    text = write_table(run, name, out, chosen)
    echo(str(out) if out else text.rstrip())


@main.command("leaderboard", **command)
@click.argument("runs", nargs=-1, required=True, type=RunLocation())
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write as JSON."
)
@click.option(
    "--csv", "csv_file", type=click.Path(path_type=Path, dir_okay=False), help="Write as CSV."
)
def leaderboard_(runs: tuple[Path, ...], json_file: Path | None, csv_file: Path | None) -> None:
    """Rank the methods of several runs, models and people.

    RUNS are run directories, or directories that contain some. Scores are in
    one table only if they are of the same version of a protocol, with the same
    settings, on the same samples. Entries that share a letter do not differ
    significantly.

    Examples:
      heatproof leaderboard runs
      heatproof leaderboard runs/mine runs/theirs --csv board.csv
    """
    from heatproof.api import leaderboard
    from heatproof.cli.results import print_leaderboard
    from heatproof.text import without_formulas

    board = leaderboard(runs)
    if json_file is not None:
        board.to_json(json_file)
    if csv_file is not None:
        without_formulas(board.to_frame()).to_csv(csv_file, index=False)
    print_leaderboard(board)


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
@click.option("--json", "as_json", is_flag=True, help="Print all facts as a JSON list.")
def list_(kind: str, as_json: bool) -> None:
    """List everything of one kind that a spec can name.

    Examples:
      heatproof list methods
      heatproof list protocols --json
    """
    import json

    from heatproof.catalogue import catalogue
    from heatproof.cli.catalogue import print_catalogue

    if as_json:
        echo(json.dumps(catalogue(kind), indent=1))
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
    help="Name of a model, such as torchvision:resnet50 or file:my_model.py:build.",
)
@click.option(
    "--weights",
    help="A local .safetensors or .pth file, download (the published weights), or random.",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("gradcam",),
    show_default=True,
    help="Method expression; can be given several times.",
)
@click.option("--target", type=int, help="Class to explain.  [default: the model's prediction]")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("maps.png"),
    show_default=True,
    help="Picture to write: .png, .jpg, .webp or .pdf.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of methods that use noise.",
)
@device_option
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
    """Draw the maps of one or more images side by side.

    Examples:
      heatproof explain photo.jpg -m file:net.py:build --method gradcam --method "ig|abs"
      heatproof explain a.jpg b.jpg -m paperbirds/resnet --method ixg --target 3 -o maps.png
    """
    from heatproof.api import load_model
    from heatproof.report.draw_maps import check_suffix, draw_maps

    check_suffix(out)
    captions = draw_maps(images, load_model(model, weights, device), methods, out, target, seed)
    labelled = (f"{image.name}: {c}" for image, c in zip(images, captions, strict=True))
    echo(f"{out}: {', '.join(labelled)}")


@main.command(**command)
@click.argument("name")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Weights file.  [default: in the cache]",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Number of training steps.  [default: that of the recipe]",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the initial weights and of the batches.",
)
@click.option(
    "--data",
    help="Location of CIFAR-10 for cifar10/vgg11, such as cifar10:/data/cifar10.npz.",
)
def train(name: str, out: Path | None, steps: int | None, seed: int, data: str | None) -> None:
    """Train an embedded model with its recipe.

    Training takes a few minutes on two cores. Without -o the weights are stored
    in the cache ($HEATPROOF_CACHE, by default ~/.cache/heatproof), where a spec
    finds them: {train: paperbirds/resnet18}.

    Examples:
      heatproof train paperbirds/resnet18
      heatproof train paperbirds/resnet --seed 1
      heatproof train paperbirds/resnet -o resnet.safetensors
      heatproof train cifar10/vgg11 --data cifar10:/data/cifar10.npz -o vgg11.safetensors
    """
    from heatproof.cli.progress import step_progress
    from heatproof.cli.results import print_trained
    from heatproof.training.by_name import train_by_name

    with step_progress() as progress:
        trained = train_by_name(name, data=data, out=out, steps=steps, seed=seed, progress=progress)
    print_trained(trained)


from heatproof.cli import finetune as _finetune  # noqa: E402, F401 (registers a command of `main`)
from heatproof.cli import setup as _setup  # noqa: E402, F401 (the same)
