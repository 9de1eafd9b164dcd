"""Protocols in plain words; one that is not here is told by its own summary."""

from __future__ import annotations

from heatproof.bench.layout import ProtocolFacts

WORDS = {
    "sds": "one patch of the image is deleted at a time; the map should give most weight to the patches whose loss hurts the answer most",
    "idsds": "the same question, asked of the network after it was fine-tuned on images with deleted patches, "
    "so that an answer changes because something is missing and not because the image looks strange",
}


def told(protocol: ProtocolFacts) -> str:
    return WORDS.get(protocol.id, protocol.summary)
