"""Protocols in plain words; for one that is not here, its own summary is used."""

from __future__ import annotations

from heatproof.runs.format import ProtocolFacts

DESCRIPTIONS = {
    "sds": (
        "one patch of the image is deleted at a time; the map should give most weight to the "
        "patches whose deletion lowers the target's score most"
    ),
    "idsds": (
        "the same as sds, for the network after it was fine-tuned on images with deleted patches, "
        "so that its output changes because information is missing and not because the image is "
        "out of distribution"
    ),
}


def described(protocol: ProtocolFacts) -> str:
    """Describe a protocol in plain words."""
    return DESCRIPTIONS.get(protocol.id, protocol.summary)
