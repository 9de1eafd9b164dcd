"""One table for each kind of thing that can be added to heatproof.

Methods, transforms, protocols, baselines, data sets, models and report sections are all looked up
in a `Registry`. Its entries come from decorators in heatproof's own modules and in the user's code,
from files named ``file:path.py:name``, and from installed packages that declare entry points.
"""

from __future__ import annotations

import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

from heatproof.errors import HeatproofError, format_error, unknown
from heatproof.userfile import PREFIX, from_file, is_builtin


class Entry(Protocol):
    """An entry of a registry, with the name it is looked up by."""

    @property
    def id(self) -> str: ...


E = TypeVar("E", bound=Entry)


class Registry(Generic[E]):
    """Entries of one kind by name.

    Args:
        kind: The word for one of them in messages, such as ``method``.
        convert: Return the entry for an object that a user passes or names in a file, and that no
            decorator has registered. It takes the object and the name to give it, which may be
            empty, and raises `HeatproofError` if the object is not of the right kind.
        group: The group of entry points that packages use, by default ``heatproof.{kind}s``.
    """

    def __init__(self, kind: str, convert: Callable[[Any, str], E], group: str = ""):
        self.kind = kind
        self.group = group or f"heatproof.{kind}s"
        self._convert = convert
        self._entries: dict[str, E] = {}
        self._objects: dict[str, object] = {}  # id -> what was registered
        self._placeholders: set[str] = set()
        self._plugins_loaded = False

    def add(self, entry: E, registered: object, placeholder: bool = False) -> None:
        """Add an entry for a function, class or object.

        The same code may be registered again, as happens when a notebook cell or an edited file
        is run again.

        Args:
            entry: The entry.
            registered: The object that it stands for.
            placeholder: Whether another entry of the same name may replace it.

        Raises:
            HeatproofError: If something else has the same name.
        """
        before = None if entry.id in self._placeholders else self._objects.get(entry.id)
        if before is not None and not _is_rerun(before, registered):
            raise HeatproofError(
                f'there is already a {self.kind} "{entry.id}" in {_origin(before)}; give the one '
                f"in {_origin(registered)} another name"
            )
        self._entries[entry.id] = entry
        self._objects[entry.id] = registered
        self._placeholders.discard(entry.id)
        if placeholder:
            self._placeholders.add(entry.id)

    def is_placeholder(self, name: str) -> bool:
        """Return whether the entry of that name is a placeholder."""
        return name in self._placeholders

    def resolve(self, name_or_object: object) -> E:
        """Return the entry for a name, for ``file:path.py:name``, or for an object.

        Raises:
            HeatproofError: If there is no such entry, or the object is not of the right kind.
        """
        if isinstance(name_or_object, str) and name_or_object.startswith(PREFIX):
            name_or_object = from_file(name_or_object)
        if isinstance(name_or_object, str):
            return self[name_or_object]
        return self._entry_of(name_or_object)

    def registered(self, thing: object) -> E | None:
        """Return the entry that was registered for an object; None if there is none."""
        for entry_id, registered in self._objects.items():
            if registered is thing:
                return self._entries[entry_id]
        return None

    def _entry_of(self, thing: object, name: str = "") -> E:
        return self.registered(thing) or self._convert(thing, name)

    def __getitem__(self, name: str) -> E:
        """Return the entry of that name. Files are not looked into: this never runs user code."""
        if name not in self:
            raise unknown(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            self._load_plugins()
        return name in self._entries

    def __iter__(self) -> Iterator[E]:
        self._load_plugins()
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        self._load_plugins()
        return len(self._entries)

    def _load_plugins(self) -> None:
        """Load what installed packages add, once. A package that is broken is left out."""
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        for point in entry_points(group=self.group):
            try:
                self._load_plugin(point)
            except Exception as error:  # importing a package can raise anything
                package = point.dist.name if point.dist else point.module
                reason = str(error) if isinstance(error, HeatproofError) else format_error(error)
                warnings.warn(
                    f"the package {package} adds the {self.kind} {point.name}, which cannot be "
                    f"loaded and is left out: {reason}",
                    stacklevel=3,
                )

    def _load_plugin(self, point: EntryPoint) -> None:
        """Load an entry point: a registered or plain object, or a module that registers some."""
        loaded = point.load()
        if isinstance(loaded, ModuleType):
            return
        entry = self._entry_of(loaded, point.name)
        if self._entries.get(entry.id) is not entry:
            self.add(entry, loaded)


def _is_rerun(before: object, now: object) -> bool:
    """Return whether a definition is the same one again, perhaps edited."""
    if is_builtin(before) or _origin(before) != _origin(now):
        return False
    module = getattr(now, "__module__", None)
    if module == "__main__" or module != getattr(before, "__module__", None):
        return True  # a notebook cell, or an edited file that was loaded again
    return getattr(before, "__qualname__", "") == getattr(now, "__qualname__", "")


def _origin(registered: object) -> str:
    """Return where something was defined: a file, or the module if it has none."""
    if is_builtin(registered):
        return "heatproof"
    module = getattr(registered, "__module__", None) or type(registered).__module__
    return str(getattr(sys.modules.get(module), "__file__", None) or module)


def import_modules(package: str) -> None:
    """Import all modules of a package, so that their decorators register what they define."""
    for module in pkgutil.iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")
