"""The directory in which heatproof caches files of its own."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """Return the cache directory: $HEATPROOF_CACHE, by default ~/.cache/heatproof."""
    if directory := os.environ.get("HEATPROOF_CACHE"):
        return Path(directory)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heatproof"
