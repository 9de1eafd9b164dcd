"""Architectures that are known by their structure, and the layer that is their ``middle``.

``middle`` must mean the same however a network is loaded, so it depends on nothing but the
network's structure: neither on its name, nor on its class, its weights or the number of classes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from torch import nn

_UNIT = r"\S+:Conv2d (?:\S+:BatchNorm2d )?\S+:ReLU "
_POOL = r"\S+:MaxPool2d "

# A pattern for the fingerprint of each family, in which the group ``middle`` is a module's path.
# Rao et al. 2024 name Conv3_x of ResNets, Conv5 of VGG-11 and Conv9 of VGG-19; in the others of a
# family it is the corresponding layer. They name none for GoogLeNet.
FAMILIES = {
    "ResNet": (  # and ResNeXt, Wide ResNet, Fixup, BagNet, B-cos: four groups of blocks
        r"\blayer1\.0:.* (?P<middle>\S*\blayer2)\.0:.*\blayer3\.0:.*\blayer4\.0:(?!.*\blayer5\b)"
    ),
    "VGG": (  # five groups of convolutions, each with a pooling; conv4_1 is the middle
        rf"(?:(?:{_UNIT})+{_POOL}){{3}}"
        rf"\S+:Conv2d (?:\S+:BatchNorm2d )?(?P<middle>\S+):ReLU (?:{_UNIT})*{_POOL}"
        rf"(?:{_UNIT})+{_POOL}"
    ),
    "GoogLeNet": r"\binception3a:.* (?P<middle>\S*\binception4a):.*\binception5b:",
}


def middle_of(module: nn.Module, wrappers: Collection[nn.Module] = ()) -> str | None:
    """Return the path of the layer that is ``middle``, if the network's family is known.

    Args:
        module: The network.
        wrappers: Modules that contain all of the network's weights; they are looked into.
    """
    text = fingerprint(module, wrappers)
    matches = (re.search(pattern, text) for pattern in FAMILIES.values())
    return next((match["middle"] for match in matches if match), None)


def fingerprint(module: nn.Module, wrappers: Collection[nn.Module] = ()) -> str:
    """Describe the structure of a network: paths and classes of its parts, in order.

    Args:
        module: The network.
        wrappers: Modules that are looked into, as containers are.

    Returns:
        Text such as ``conv1:Conv2d bn1:BatchNorm2d … layer1.0:Bottleneck … fc:Linear``.
    """
    return " ".join(_parts(module, wrappers, ""))


def _parts(module: nn.Module, wrappers: Collection[nn.Module], prefix: str) -> Iterator[str]:
    for name, child in module.named_children():
        path = prefix + name
        if type(child) is nn.Sequential or child in wrappers:
            yield from _parts(child, wrappers, f"{path}.")
        else:
            yield f"{path}:{type(child).__name__}"
