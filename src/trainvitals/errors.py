"""What can go wrong, with what to do next. Tested in tests/test_settings.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class TrainvitalsError(Exception):
    """Base of every error that trainvitals raises on purpose.

    `hint` is the next thing to do, a command where there is one; it is printed on its own line.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class SettingError(TrainvitalsError):
    """A setting, flag or configuration file that cannot be used."""


class MetricError(TrainvitalsError):
    """A value that is not a number was logged (raised in strict mode only)."""


class RunNotFound(TrainvitalsError):
    """No run folder at this place or under this name."""


class JournalError(TrainvitalsError):
    """A run folder that cannot be read or written."""


class AgentError(TrainvitalsError):
    """The agent could not be started, reached or stopped."""


class MachineError(TrainvitalsError):
    """Another machine could not be asked: it is down, slow, refuses, or answers what makes no sense."""


def no_such_gpu(missing: Sequence[object], present: Sequence[object]) -> str:
    """`no GPU 7; available: 0, 1`."""
    word = "GPU" if len(missing) == 1 else "GPUs"
    return f"no {word} {', '.join(map(str, missing))}; available: {', '.join(map(str, present))}"


def nearest(word: str, known: Iterable[str], prefix: str = "", most: int = 1) -> str:
    """`, did you mean 'interval'?` or an empty string. `prefix` is common to them all, and ignored for similarity."""
    import difflib  # 10 ms, and wanted only by who mistyped something

    close = difflib.get_close_matches(word, list(known), n=most, cutoff=0.6)
    listed = " or ".join(f"'{prefix}{one}'" for one in close)
    return f", did you mean {listed}?" if close else ""


def name_kind(value: object) -> str:
    """The type of a value as a message names it: `an int`, `a list`, `an ndarray`."""
    name = type(value).__qualname__
    return f"{'an' if name.lower().startswith(('a', 'e', 'i', 'o', 'nd')) else 'a'} {name}"
