"""The command ``heatproof explain``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from heatproof.cli.complete import complete_method, complete_model
from heatproof.cli.group import command, main
from heatproof.cli.options import device_option
from heatproof.cli.output import echo


@main.command(**command)
@click.argument(
    "images", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False)
)
@click.option(
    "-m",
    "--model",
    required=True,
    shell_complete=complete_model,
    help="Name of a model, such as torchvision:resnet50 or file:my_model.py:build.",
)
@click.option(
    "--weights",
    help="A local .safetensors or .pth file, download (the published weights), or random.",
)
@click.option(
    "--method",
    "methods",
    shell_complete=complete_method,
    multiple=True,
    default=("gradcam",),
    show_default=True,
    help="Method expression; can be given several times.",
)
@click.option(
    "--target",
    help="What to explain: a class by its number or as 'class NAME', runner-up, or a difference "
    "such as 'prediction - runner-up'.  [default: the model's prediction]",
)
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
    target: str | None,
    out: Path,
    seed: int,
    device: str,
) -> None:
    """Draw the maps of one or more images side by side.

    Examples:
      heatproof explain photo.jpg -m file:net.py:build --method gradcam --method "ig|abs"
      heatproof explain a.jpg b.jpg -m paperbirds/resnet --method ixg --target 3 -o maps.png
      heatproof explain a.jpg -m paperbirds/resnet --target "prediction - runner-up"
    """
    from heatproof.api import load_model
    from heatproof.report.draw_maps import check_suffix, draw_maps

    check_suffix(out)
    captions = draw_maps(images, load_model(model, weights, device), methods, out, target, seed)
    labelled = (f"{image.name}: {c}" for image, c in zip(images, captions, strict=True))
    echo(f"{out}: {', '.join(labelled)}")
