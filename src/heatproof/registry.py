"""One table per kind of thing (methods, transforms, baselines, protocols, models, data); filled by decorators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from heatproof.errors import HeatproofError, unknown


class Named(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=Named)


class Registry(Generic[T]):
    def __init__(self, kind: str):
        self.kind = kind
        self._entries: dict[str, T] = {}

    def add(self, entry: T, replace: bool = False) -> None:
        if entry.id in self._entries and not replace:
            raise HeatproofError(
                f'there is already a {self.kind} "{entry.id}"; choose another name'
            )
        self._entries[entry.id] = entry

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            raise unknown(self.kind, name, self._entries) from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[T]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)
