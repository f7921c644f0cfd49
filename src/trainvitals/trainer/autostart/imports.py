"""Waiting for an import, without importing anything: a finder that finds nothing itself.

When one of the modules in WANTED is imported by the program, it is found and loaded by whoever finds and loads it
anyway; afterwards our hook is placed. A hook that cannot be placed is an event of the run, never an error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple


class Wanted(NamedTuple):
    """A module to wait for, and ours whose `autostart()` places the hook once it is there."""

    module: str
    hook: str


WANTED = (
    Wanted("torch", "trainvitals.trainer.autostart.beginning"),
    Wanted("transformers.trainer", "trainvitals.integrations.transformers"),
    Wanted("lightning.pytorch.trainer.trainer", "trainvitals.integrations.lightning"),
    Wanted("pytorch_lightning.trainer.trainer", "trainvitals.integrations.lightning"),
    Wanted("keras", "trainvitals.integrations.keras"),
)


class Finder:
    """First in `sys.meta_path`; steps aside for every name it does not wait for."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._hooks = {item.module: item.hook for item in wanted}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        hook = self._hooks.get(name)
        if hook is None:
            return None
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = Loader(spec.loader, hook)  # type: ignore[assignment]
                    return spec
        return None


class Loader:
    """Loads with the real loader, then places the hook. The module never sees anything but its real loader."""

    def __init__(self, loader: Any, hook: str) -> None:
        self._loader = loader
        self._hook = hook

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        place(self._hook, module.__name__)


def install() -> None:
    """Wait from now on; once per process."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder(WANTED))


def place(hook: str, module: str) -> None:
    """Place one hook. Whatever goes wrong, the import of the program's module has succeeded."""
    try:
        import_module(hook).autostart()
    except Exception as error:  # noqa: BLE001 - the boundary around the user's program
        if isinstance(error, ImportError) and error.name and hook.startswith(error.name):
            return  # no such integration in this version of trainvitals
        from trainvitals.trainer.autostart.trouble import note_trouble

        note_trouble(f"{module} was imported, but nothing could be hooked into it: {error!r:.300}")
