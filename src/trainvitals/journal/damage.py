"""What of a run could not be understood. Tested in tests/journal/test_writer.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Damage:
    """What could not be understood, counted and shown rather than dropped silently."""

    torn: int = 0
    """Lines that are no JSON: cut off by a crash or a full disk, or not ours."""
    foreign: int = 0
    """JSON that is not a line of the journal: not an object, or without a time."""
    files: int = 0
    """Parquet files that cannot be read and whose JSONL file is gone."""

    def __add__(self, other: Damage) -> Damage:
        return Damage(self.torn + other.torn, self.foreign + other.foreign, self.files + other.files)

    def __bool__(self) -> bool:
        return bool(self.torn or self.foreign or self.files)

    def __str__(self) -> str:
        """`3 torn lines, 1 unreadable Parquet file`."""
        kinds = ((self.torn, "torn line"), (self.foreign, "foreign line"), (self.files, "unreadable Parquet file"))
        return ", ".join(f"{count:,} {what}{'s' if count > 1 else ''}" for count, what in kinds if count)
