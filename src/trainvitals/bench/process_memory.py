"""The memory of this process, from /proc: Linux only, absent elsewhere. Tested in tests/bench/test_worker.py."""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc/self")
KB_PER_MB = 1024


def reset_peak() -> bool:
    """From now on the peak is that of what follows; False where the kernel does not allow it."""
    try:
        (_PROC / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def read_peak() -> float | None:
    """MB, the highest resident memory since the last reset."""
    return _read("status", "VmHWM:")


def read_resident() -> float | None:
    """MB."""
    return _read("status", "VmRSS:")


def read_private() -> float | None:
    """MB that no other process shares."""
    parts = [_read("smaps_rollup", key) for key in ("Private_Clean:", "Private_Dirty:")]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _read(name: str, key: str) -> float | None:
    try:
        lines = (_PROC / name).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / KB_PER_MB for line in lines if line.startswith(key)), None)
