"""Update the table of networks in docs/models.md: `make models`."""

from __future__ import annotations

import sys
from pathlib import Path

from tables import replace_rows

from heatproof.models.paper_networks import NETWORKS, OURS, Network


def row(name: str, network: Network) -> str:
    layers = ", ".join(f"`{layer}`" for layer in network.layers.values()) or "–"
    if name in OURS:
        weights = f"[{network.url.rpartition('/')[2]}]({network.url})"
    else:
        weights = f"{name.partition(':')[0]}'s"
    columns = (
        f"`{name}`",
        layers,
        f"{network.resize}, {network.size} px",
        " ".join(f"{value:g}" for value in network.mean),
        network.zero,
        weights,
        network.papers,
    )
    return f"| {' | '.join(columns)} |"


if __name__ == "__main__":
    replace_rows(Path(sys.argv[1]), (row(name, network) for name, network in NETWORKS.items()))
