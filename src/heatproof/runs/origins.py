"""Origins of results: versions and hardware that computed them, and where these differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from heatproof.errors import join_limited
from heatproof.runs.format import ModelView, Origin
from heatproof.runs.store import Store

NUMERIC_PACKAGES = ("torch", "numpy", "scipy", "pillow")
FIELDS: dict[str, Callable[[Origin], str]] = {
    "heatproof": lambda o: f"{o.heatproof} ({o.git[:12]})" if o.git else o.heatproof,
    **{
        name: lambda o, name=name: o.packages.get(name, "unknown")  # type: ignore[misc]
        for name in NUMERIC_PACKAGES
    },
    "processor": lambda o: f"{o.hardware.cpu} ({o.hardware.machine})",
    "threads": lambda o: str(o.hardware.threads),
    "device": lambda o: o.device,
    "backend": lambda o: o.backend,
    "batch size": lambda o: str(o.batch_size),
}


def origins_by_view(store: Store) -> dict[ModelView, dict[str, Origin | None]]:
    """Return what computed the planned records of each view of a model, by digest.

    The digest is empty, and the origin None, for records of which nothing is on record.
    """
    found: dict[ModelView, dict[str, Origin | None]] = {}
    for task in store.plan().tasks:
        manifest = store.manifest(task.name)
        if manifest is None:
            continue
        digests: set[str] = set()
        for record in task.records:
            facts = manifest.records.get(record)
            if facts is not None:
                digests.update([manifest.origins[i] for i in facts.origins] or [""])
        known = found.setdefault(task.subject, {})
        for digest in sorted(digests - known.keys()):
            known[digest] = store.origin(digest) if digest else None
    return found


def differences(store: Store) -> list[str]:
    """Return sentences about views whose parts were not all computed in the same way."""
    texts: dict[str, list[str]] = {}
    for subject, origins in origins_by_view(store).items():
        text = "; ".join(_differences(origins.values()))
        if text:
            texts.setdefault(text, []).append(subject.title)
    return [
        f"parts of the results of {join_limited(titles)} were computed in different ways: {text}"
        for text, titles in texts.items()
    ]


def _differences(origins: Iterable[Origin | None]) -> list[str]:
    everything = list(origins)
    known = [origin for origin in everything if origin is not None]
    found = []
    for name, value in FIELDS.items():
        values = sorted(set(map(value, known)), key=lambda text: (len(text), text))
        if len(values) > 1:
            found.append(f"{name} {join_limited(values)}")
    if known and len(known) < len(everything):
        found.append("for some parts it is not on record")
    return found
