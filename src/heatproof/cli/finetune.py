"""`heatproof finetune`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heatproof.cli import command, main

if TYPE_CHECKING:
    from heatproof.training.finetune import FineTuned, Step

MOST_NAMED = 5


@main.command(**command)
@click.argument("model")
@click.argument("data")
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the weights go.",
)
@click.option(
    "--patches", type=int, default=16, show_default=True, help="Cells of the grid: 4, 16 or 64."
)
@click.option(
    "--baseline", default="zero", show_default=True, help="What a deleted cell is replaced by."
)
@click.option(
    "--schedule",
    type=click.Choice(["paper", "short"]),
    default="paper",
    show_default=True,
    help="short: the embedded models.",
)
@click.option(
    "--epochs", type=click.IntRange(min=1), help="Another number of epochs than the schedule's."
)
@click.option("--lr", type=float, help="Another learning rate than the schedule's.")
@click.option(
    "--batch-size", type=click.IntRange(min=2), help="Images in a step, over all processes."
)
@click.option("--limit", type=click.IntRange(min=1), help="Train on the first N images only.")
@click.option("--val", help="Validation data.  [default: paperbirds:val, or a tenth held out]")
@click.option(
    "--weights",
    help="Start from a local .safetensors or .pth, from random, or download the published ones.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Threads that read images.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, mps, or auto."
)
def finetune(
    model: str, data: str, out: Path, weights: str | None, device: str, **options: Any
) -> None:
    """Fine-tune a model for IDSDS: one cell of the grid is deleted in half of its images.

    Keeps the epoch with the best accuracy on images that are neither trained on
    nor judged. The same command again goes on where this one was stopped.

    The paper's schedule: 30 epochs of SGD, batch 256, learning rate 0.001 (B-cos
    networks: 0.01), a tenth of it every 10 epochs.

    Examples:
      heatproof finetune paperbirds/vgg paperbirds:train -o fine-tuned/vgg --schedule short
      heatproof finetune file:net.py:build folder:/data/train -o fine-tuned/net --patches 64 --baseline blur
      heatproof finetune bagnet33 folder:/data/imagenet/train -o fine-tuned/bagnet33 --weights bagnet32-2ddd53ed.pth.tar
      torchrun --nproc_per_node 2 $(which heatproof) finetune paperbirds/vgg paperbirds:train -o fine-tuned/vgg
    """
    from heatproof.api import finetune as tune
    from heatproof.api import load_model
    from heatproof.models.zoo import pick_device

    place = pick_device(device)
    if place == "cuda" and "LOCAL_RANK" in os.environ:
        place = f"cuda:{os.environ['LOCAL_RANK']}"
    opened = load_model(model, weights, place)
    leads = os.environ.get("RANK", "0") == "0"
    try:
        found = (
            followed(opened, data, out, options)
            if leads
            else tune(opened, data, out=out, **options)
        )
    except KeyboardInterrupt:
        click.echo("stopped; the same command goes on where this one ended", err=True)
        sys.exit(130)
    if leads:
        show(found, model, weights, f"{options['patches']}/{options['baseline']}")


def followed(model: Any, data: str, out: Path, options: dict[str, Any]) -> FineTuned:
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from heatproof.api import finetune as tune
    from heatproof.cli.show import console

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        shown = bar.add_task("the model as it came", total=None, speed="")

        def advance(step: Step) -> None:
            speed = bar.tasks[0].speed
            told = f"{f'{speed:.0f} images/s, ' if speed else ''}loss {step.loss:.3f}"
            bar.update(
                shown,
                description=f"epoch {step.epoch}/{step.epochs}",
                completed=step.images,
                total=step.total,
                speed=told,
            )

        return tune(model, data, out=out, progress=advance, **options)


def show(found: FineTuned, model: str, base: str | None, fine_tuned: str) -> None:
    from rich import box
    from rich.table import Table

    from heatproof.cli.show import console

    table = Table("epoch", box=box.SIMPLE_HEAD)
    for column in (
        "loss",
        "clean",
        "worst patch (all right)",
        "worst patch (largest drop)",
        "seconds",
        "",
    ):
        table.add_column(column, justify="right")
    for epoch in found.metrics:
        shares = (
            f"{share:.2%}" for share in (epoch.accuracy, epoch.worst_all, epoch.worst_largest)
        )
        loss = "–" if epoch.loss is None else f"{epoch.loss:.4f}"
        note = "before" if epoch.epoch == 0 else "kept" if epoch.epoch == found.best else ""
        table.add_row(str(epoch.epoch), loss, *shares, f"{epoch.seconds:.0f}", note)
    console.print(table)
    for what, names in (
        (
            "images could not be read and were skipped",
            [f"{sample} ({why})" for sample, why in found.unreadable.items()],
        ),
        ("classes have no training image", list(found.empty_classes)),
    ):
        if names:
            more = ", …" if len(names) > MOST_NAMED else ""
            console.print(
                f"{len(names)} {what}: {', '.join(names[:MOST_NAMED])}{more}",
                markup=False,
                soft_wrap=True,
            )
    console.print("accuracies on the validation images; for idsds, in a spec:", markup=False)
    told = (
        f"name: {model!r}, "
        + (f"weights: {base!r}, " if base else "")
        + f"fine_tuned_weights: {{{fine_tuned}: {str(found.weights)!r}}}"
    )
    console.print(f"  models: [{{{told}}}]", markup=False, soft_wrap=True, highlight=False)
