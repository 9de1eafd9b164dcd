"""The embedded images are the same bytes everywhere, and a model is the same in every process."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from heatproof.data.paperbirds import Paperbirds

SCRIPT = """
import heatproof as hp
for name in ("resnet", "bcos", "vit"):
    print(hp.load_model(f"paperbirds/{name}", device="cpu").fingerprint())
"""
PINNED = {  # the first six images
    ("train", 64): "dd8cc35a86663e23",
    ("val", 64): "03b8448c681bb259",
    ("test", 64): "b34a76bb0111ae2c",
    ("test", 32): "80846dbf72edb651",
}


def digest(split: str, size: int) -> str:
    birds = Paperbirds(split, limit=6, size=size)
    found = hashlib.sha256()
    for index in range(6):
        image = (255 * birds.load(index).image).round().numpy()
        found.update(image.astype(np.uint8).tobytes())
    return found.hexdigest()[:16]


@pytest.mark.parametrize(("split", "size"), PINNED)
def test_embedded_images_are_those_of_every_version(split, size):
    assert digest(split, size) == PINNED[split, size]


def test_fingerprints_are_the_same_in_every_process():
    printed = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    ]
    assert len(printed[0].split()) == 3
    assert printed[0] == printed[1] == printed[2]
