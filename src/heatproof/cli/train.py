"""The command ``heatproof train``."""

from __future__ import annotations

from pathlib import Path

import click

from heatproof.cli.group import command, main


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
