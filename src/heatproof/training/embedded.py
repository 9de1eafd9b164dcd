"""Make the fine-tuned weights that ship: ``python -m heatproof.training.embedded [NET …]``.

Several processes can divide the networks. A fine-tuning that was interrupted resumes.
"""

from __future__ import annotations

import argparse
import json

from heatproof.models.nets import ASSETS, FINE_TUNED, fine_tuned_path
from heatproof.models.weights_file import metadata
from heatproof.models.zoo import load_model
from heatproof.training.cache import FineTuning, write_fine_tuned


def make_fine_tuned(net: str) -> None:
    """Fine-tune one embedded network for everything that ships, and replace the files in assets.

    Args:
        net: Name of the network without prefix, such as ``resnet``.
    """
    model = load_model(f"paperbirds/{net}")
    for fine_tuned in FINE_TUNED[net]:
        path = fine_tuned_path(net, fine_tuned)
        write_fine_tuned(model, FineTuning(fine_tuned), path)
        for epoch in json.loads(metadata(path)["history"]):
            print(
                f"{net} {fine_tuned}, epoch {epoch['epoch']}: loss {epoch['loss']}, accuracy "
                f"{epoch['accuracy']}, worst patch {epoch['worst_all']}, probe IDSDS "
                f"{epoch['idsds']} ± {epoch['idsds_error']}, drop {epoch['drop']}",
                flush=True,
            )


def remove_stale() -> None:
    """Delete fine-tuned weights in assets that no longer ship."""
    shipped = {fine_tuned_path(net, f) for net, names in FINE_TUNED.items() for f in names}
    for path in ASSETS.glob("paperbirds-*.safetensors"):
        if "fine_tuned" in metadata(path) and path not in shipped:
            path.unlink()


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*", metavar="NET", help="by default all networks")
    nets = parser.parse_args().nets or list(FINE_TUNED)
    unknown = [net for net in nets if net not in FINE_TUNED]
    if unknown:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(FINE_TUNED)}")
    for net in nets:
        make_fine_tuned(net)
    remove_stale()


if __name__ == "__main__":
    main()
