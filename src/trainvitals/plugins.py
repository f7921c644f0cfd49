"""Rows that other packages add to our registries, through entry points (docs/plugins.md).

A package names an object in one of the groups `trainvitals.sources`, `trainvitals.exporters`, `trainvitals.importers`,
`trainvitals.channels`, `trainvitals.integrations`, `trainvitals.rules`, `trainvitals.panels` and
`trainvitals.commands`. Nothing is looked up before somebody asks for more than what is built in, and an object that
cannot be used costs nothing but itself: it is left out, and `doctor` and the agent's log show the reason.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PREFIX = "trainvitals."

Row = TypeVar("Row")


class Plugin(NamedTuple, Generic[Row]):  # not a dataclass: importing those is half of `trainvitals --help`
    """One entry point of another package: its row, or why there is none."""

    group: str
    name: str
    package: str
    version: str
    row: Row | None = None
    error: str | None = None


class Registry(Generic[Row]):
    """Our rows, and those of other packages from the first time that ours are not enough.

    The object of an entry point is one row. It is left out if it cannot be imported, is not a `kind`, has another name
    than its entry point or one that is taken, or if `check` raises.
    """

    def __init__(
        self,
        group: str,
        own: Sequence[Row],
        kind: type[Row],
        *,
        name: Callable[[Row], str] = attrgetter("name"),
        check: Callable[[Row], object] = lambda row: None,
        taken: Sequence[str] = (),
    ) -> None:
        """`taken` are names of ours that have no row here."""
        self.group = group
        self.own = tuple(own)
        self._kind = kind
        self._name = name
        self._check = check
        self._taken = taken
        self._plugins: tuple[Plugin[Row], ...] | None = None
        self._lock = threading.RLock()  # a plugin may look at the registry while it is imported

    def __iter__(self) -> Iterator[Row]:
        yield from self.own
        for plugin in self.plugins():
            if plugin.row is not None:
                yield plugin.row

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Row:
        row = self.get(name)
        if row is None:
            raise KeyError(f"{name} is not one of the {self.group}: {', '.join(map(self._name, self))}")
        return row

    def get(self, name: str) -> Row | None:
        """The row of that name. Nothing of another package is imported for a name that none of them declares."""
        for row in self.own:
            if self._name(row) == name:
                return row
        return next((plugin.row for plugin in self._named(name) if plugin.row is not None), None)

    def error(self, name: str) -> str | None:
        """Why the row of that name, which another package declares, cannot be used; None if there is no such row."""
        return next((plugin.error for plugin in self._named(name) if plugin.error is not None), None)

    def plugins(self) -> tuple[Plugin[Row], ...]:
        """What other packages add, the broken ones included."""
        if self._plugins is None:
            with self._lock:
                if self._plugins is None:
                    self._plugins = tuple(self._load())
        return self._plugins

    def _named(self, name: str) -> list[Plugin[Row]]:
        if all(entry.name != name for entry in declared(self.group)):
            return []
        return [plugin for plugin in self.plugins() if plugin.name == name]

    def _load(self) -> Iterator[Plugin[Row]]:
        owners = dict.fromkeys((*map(self._name, self.own), *self._taken), "trainvitals")
        for entry in declared(self.group):
            package, version = (entry.dist.name, entry.dist.version) if entry.dist is not None else ("?", "?")
            row, error = None, None
            if entry.name in owners:
                error = f"the name '{entry.name}' is taken by {owners[entry.name]}: rename the entry point"
            else:
                owners[entry.name] = package
                try:
                    row = self._parse(entry.name, entry.load())
                except (Exception, SystemExit) as raised:  # noqa: BLE001 - the boundary around another package's code
                    error = describe(raised)
            yield Plugin(self.group, entry.name, package, version, row, error)

    def _parse(self, name: str, loaded: Any) -> Row:
        if not isinstance(loaded, self._kind):
            raise TypeError(f"the object must be a {self._kind.__name__}, not a {type(loaded).__name__}")
        if self._name(loaded) != name:
            raise ValueError(f"the entry point is called '{name}', its {self._kind.__name__} '{self._name(loaded)}'")
        self._check(loaded)
        return loaded


def describe(error: BaseException) -> str:
    """What went wrong in a plugin, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@cache
def declared(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, in a fixed order; none of their modules is imported."""
    if not _is_any_declared():
        return ()
    from importlib.metadata import entry_points

    found = entry_points(group=PREFIX + group)
    return tuple(sorted(found, key=lambda entry: (entry.dist.name if entry.dist is not None else "", entry.name)))


@cache
def _is_any_declared() -> bool:
    """Whether an installed package has any of our groups. `importlib.metadata` would take fifteen times as long to
    find out that there is none, which is the usual answer."""
    section = f"[{PREFIX}".encode()
    for folder in sys.path:
        try:
            names = os.listdir(folder or os.curdir)  # noqa: PTH208 - a fifth of the time
        except NotADirectoryError:
            return True  # packages in an archive: let importlib.metadata look inside
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")) and section in _read(
                f"{folder or os.curdir}/{name}/entry_points.txt"
            ):
                return True
    return False


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
