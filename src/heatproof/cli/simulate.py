"""The command ``heatproof simulate``."""

from __future__ import annotations

from pathlib import Path

import click

from heatproof.cli.group import command, main


@main.command(**command)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs/li2024/fig6"),
    show_default=True,
    help="Directory for the figures and their numbers.",
)
@click.option(
    "--trials", type=click.IntRange(min=1), default=1000, show_default=True, help="Random trials."
)
@click.option(
    "--points", type=click.IntRange(min=2), default=1000, show_default=True, help="Points."
)
@click.option(
    "--features",
    type=click.IntRange(min=100),
    default=200,
    show_default=True,
    help="Features of a point.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of everything."
)
def simulate(out: Path, trials: int, points: int, features: int, seed: int) -> None:
    """Simulate soundness and completeness with known truth (Figure 6 of Li et al.).

    Points of a Gaussian are classified by the sign of their sum, so that the
    true attribution is known. Half of it is removed, or attribution is
    introduced, in random trials. Missing features are 0, or drawn again. Writes
    four figures and their numbers as CSV; the paper's 1000 trials take minutes.

    Examples:
      heatproof simulate
      heatproof simulate --trials 100 -o figures
    """
    from heatproof.cli.progress import preparation_progress
    from heatproof.cli.terminal import print_plain
    from heatproof.figures.known_truth import write_known_truth

    with preparation_progress() as progress:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress("trials", done, 2 * trials)

        numbers = write_known_truth(out, trials, points, features, seed, advance)
    print_plain(numbers.to_string(index=False, float_format="{:.3f}".format))
    print_plain(f"\nfigures: {out}")
