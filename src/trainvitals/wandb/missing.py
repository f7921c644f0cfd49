"""What W&B has and this does not: reported once by name, and without effect.
Tested in tests/wandb_drop_in/test_surface.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainvitals.stderr import print_line

_reported: set[str] = set()


def report_once(text: str) -> None:
    if text not in _reported:
        _reported.add(text)
        print_line(text)


def report_missing(name: str) -> None:
    report_once(f"trainvitals.wandb has no {name}: ignored")


class Missing:
    """Stands for anything: whatever is asked of it or done with it gives it again. As a class, nothing is an instance
    of it, and what is derived from it is derived from nothing."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self._name}.{name}")

    def __call__(self, *args: Any, **more: Any) -> Missing:
        report_missing(f"{self._name}()")
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> Missing:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        report_missing(self._name)
        return ()

    def __repr__(self) -> str:
        return f"<no {self._name} in trainvitals.wandb>"
