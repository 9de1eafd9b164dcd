"""Options that several commands have."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heatproof.cli.complete import (
    complete_data,
    complete_method,
    complete_model,
    complete_protocol,
)
from heatproof.cli.output import echo

if TYPE_CHECKING:
    from heatproof.plan.spec import Spec

CHANGE_OPTIONS = [
    click.option(
        "--model",
        "models",
        multiple=True,
        shell_complete=complete_model,
        help="Model in place of those of the spec.",
    ),
    click.option(
        "--data",
        shell_complete=complete_data,
        help="Data set in place of that of the spec, such as folder:/images.",
    ),
    click.option(
        "--methods",
        multiple=True,
        shell_complete=complete_method,
        help="Method, or group of methods, in place of those of the spec.",
    ),
    click.option(
        "--add-methods",
        multiple=True,
        shell_complete=complete_method,
        help="Method, or group of methods, beside those of the spec, or of the run that -o holds.",
    ),
    click.option(
        "--protocols",
        multiple=True,
        shell_complete=complete_protocol,
        help="Protocol in place of those of the spec.",
    ),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Another value for a key: data.limit=100, protocols.0.grids=50.",
    ),
    click.option(
        "--weights",
        help="Weights of the model, if there is one: a file, download (what is published), or "
        "random.",
    ),
    click.option(
        "--weights-dir",
        type=click.Path(path_type=Path, file_okay=False),
        help="Directory with the weights of models: resnet50.pth, resnet50-16-zero.pth.",
    ),
    click.option(
        "--download",
        is_flag=True,
        help="Download the published weights of models that have none in the spec.",
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
    click.option(
        "--dashboard",
        is_flag=True,
        default=None,
        help="dask: show the dashboard of the --workers to the users of this machine.",
    ),
    click.option(
        "--insecure",
        is_flag=True,
        default=None,
        help="dask: do not warn of an --address or --cluster without TLS.",
    ),
]
SPEC_OPTIONS = [
    click.option(
        "--decide",
        is_flag=True,
        default=None,
        help="Evaluate in growing rounds, drop methods that can no longer be the best, and stop "
        "when it is decided; see decide in a spec.",
    ),
    click.option("--limit", type=click.IntRange(min=1), help="Evaluate only the first N samples."),
    click.option(
        "--target",
        help="What is explained: label, prediction, runner-up, 'class NAME', 'classes PATTERN', "
        "value, or a difference such as 'prediction - runner-up'.",
    ),
    click.option(
        "--batch-size", type=click.IntRange(min=1), help="Images per pass; bounds the memory."
    ),
    click.option(
        "--backend",
        help="Backend of passes without gradients: eager, fused, compile, openvino, or auto, the "
        "fastest here.  [default: auto]",
    ),
    click.option(
        "--precision",
        help="Precision of passes without gradients: float32, tf32, bfloat16 or float16. One below "
        "float32 is refused where results differ.  [default: float32]",
    ),
    click.option(
        "--approximate",
        is_flag=True,
        default=None,
        help="Let a lower --precision change the results, which then state by how much.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        help="Seed for all noise and for the sample order.",
    ),
    device_option,
]


def spec_options(function: Any) -> Any:
    """Add the options that change a spec to a command."""
    for option in reversed([*CHANGE_OPTIONS, *SPEC_OPTIONS]):
        function = option(function)
    return function


def engine_options(function: Any) -> Any:
    """Add the options that say what computes a run to a command."""
    for option in reversed(ENGINE_OPTIONS):
        function = option(function)
    return function


def load_changed_spec(spec: str, options: dict[str, Any], weights: bool = True) -> Spec:
    """Load a spec with what the options of a command change in it.

    Args:
        spec: A file, or the name of a study.
        options: The options; those that change a spec are removed.
        weights: Whether files of weights are looked up.
    """
    from heatproof.plan.changes import Changes
    from heatproof.plan.spec import load_spec, read_yaml

    names = [field.name for field in fields(Changes)]
    changes = Changes(**{name: options.pop(name) for name in names if name in options})
    if not weights:
        changes = replace(changes, weights=None, weights_dir=None, download=False)
    loaded = load_spec(spec, changes, **options)
    if options.get("limit") is None and (note := changes.note(read_yaml(spec))):
        echo(note, err=True)
    return loaded
