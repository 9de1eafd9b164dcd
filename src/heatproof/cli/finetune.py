"""The command ``heatproof finetune``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from heatproof.cli.group import INTERRUPTED, command, main
from heatproof.cli.options import device_option
from heatproof.cli.output import echo


@main.command(**command)
@click.argument("model")
@click.argument("data")
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for the weights.",
)
@click.option(
    "--patches",
    type=int,
    default=16,
    show_default=True,
    help="Number of patches of the grid: 4, 16 or 64.",
)
@click.option(
    "--pixels",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Delete this part of the pixels of every image instead, as f-fidelity requires: 0.1.",
)
@click.option(
    "--baseline",
    default="zero",
    show_default=True,
    help="What a deleted patch or pixel is replaced by.",
)
@click.option(
    "--schedule",
    type=click.Choice(["paper", "short"]),
    default="paper",
    show_default=True,
    help="Training schedule; short is that of the embedded models.",
)
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    help="Number of epochs.  [default: that of the schedule]",
)
@click.option("--lr", type=float, help="Learning rate.  [default: that of the schedule]")
@click.option(
    "--batch-size", type=click.IntRange(min=2), help="Images per step, over all processes."
)
@click.option("--limit", type=click.IntRange(min=1), help="Train on the first N images only.")
@click.option(
    "--val",
    help="Validation data, a fraction or number of images to hold out, or none to train on all "
    "and keep the last epoch.  [default: paperbirds:val, or 0.1]",
)
@click.option(
    "--precision",
    type=click.Choice(["auto", "float32", "bfloat16"]),
    default="auto",
    show_default=True,
    help="Precision of the training: mixed with bfloat16, by default on GPUs that have it.",
)
@click.option(
    "--weights",
    help="Weights to start from: a local .safetensors or .pth file, random, or download (the "
    "published weights).",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Threads that read images.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of crops, deletions and the order of the images.",
)
@device_option
def finetune(
    model: str, data: str, out: Path, weights: str | None, device: str, **options: Any
) -> None:
    """Fine-tune a model on images with deleted patches.

    Half of the training images lose one patch, as IDSDS requires; with --pixels
    all lose random pixels, as F-Fidelity requires. The weights
    of the epoch with the best accuracy on the validation images are kept; these
    images are used neither for training nor for evaluating methods. Of equal
    epochs the last is kept, and with --val none the last of all. The same
    command again resumes a fine-tuning that was interrupted.

    The paper's schedule is 30 epochs of SGD with batch size 256 and learning
    rate 0.001 (B-cos networks: 0.01), divided by 10 every 10 epochs. The loss
    is cross entropy, and binary cross entropy for B-cos networks.

    IDSDS depends on how far a network was fine-tuned. Therefore the scores of a
    few cheap methods are measured after every epoch and stored with the weights.

    Examples:
      heatproof finetune paperbirds/vgg paperbirds:train -o fine-tuned/vgg --schedule short
      heatproof finetune file:net.py:build folder:/data/train -o fine-tuned/net \\
        --patches 64 --baseline blur
      heatproof finetune bagnet33 folder:/data/imagenet/train -o fine-tuned/bagnet33 \\
        --weights bagnet32-2ddd53ed.pth.tar
      torchrun --nproc_per_node 2 $(which heatproof) finetune paperbirds/vgg \\
        paperbirds:train -o fine-tuned/vgg
    """
    from heatproof.api import finetune as run_finetune
    from heatproof.api import load_model
    from heatproof.cli.progress import finetune_progress
    from heatproof.cli.results import print_finetuned
    from heatproof.models.zoo import pick_device
    from heatproof.training.splits import parse_val

    local_device = pick_device(device)
    if local_device == "cuda" and "LOCAL_RANK" in os.environ:
        local_device = f"cuda:{os.environ['LOCAL_RANK']}"
    loaded = load_model(model, weights, local_device)
    options["val"] = parse_val(options["val"])
    is_main = os.environ.get("RANK", "0") == "0"
    try:
        if not is_main:
            run_finetune(loaded, data, out=out, **options)
            return
        with finetune_progress() as progress:
            result = run_finetune(loaded, data, out=out, progress=progress, **options)
    except KeyboardInterrupt:
        echo("interrupted; the same command resumes the fine-tuning", err=True)
        sys.exit(INTERRUPTED)
    print_finetuned(result, model, weights)
