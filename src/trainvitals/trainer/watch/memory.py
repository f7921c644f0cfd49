"""Memory of the device's allocator and of this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trainvitals import runtime
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout

MIB = 1 << 20


def read_allocator(device: Any) -> dict[str, float]:
    """What torch's caching allocator says of `device`, in MB; empty for a CPU. Asks the allocator's own counters,
    never the device."""
    if device is None or device.type not in ("cuda", "xpu", "mps"):
        return {}
    import torch

    if device.type == "mps":
        allocated = torch.mps.current_allocated_memory()
        return {
            "memory_allocated_mb": allocated / MIB,
            "memory_reserved_mb": torch.mps.driver_allocated_memory() / MIB,
        }
    return parse_allocator(getattr(torch, device.type).memory_stats(device))


def parse_allocator(stats: dict[str, Any]) -> dict[str, float]:
    """The numbers of `torch.cuda.memory_stats()`."""
    names = {
        "memory_allocated_mb": "allocated_bytes.all.current",
        "memory_reserved_mb": "reserved_bytes.all.current",
        "memory_peak_allocated_mb": "allocated_bytes.all.peak",
        "memory_peak_reserved_mb": "reserved_bytes.all.peak",
    }
    found = {ours: stats[theirs] / MIB for ours, theirs in names.items() if theirs in stats}
    reserved = stats.get("reserved_bytes.all.current", 0)
    if reserved and "inactive_split_bytes.all.current" in stats:
        # Free pieces inside blocks that are partly in use: they cannot be given back or used for a larger tensor.
        found["memory_fragmentation_percent"] = 100 * stats["inactive_split_bytes.all.current"] / reserved
    for ours, theirs in {"memory_alloc_retries": "num_alloc_retries", "memory_ooms": "num_ooms"}.items():
        if theirs in stats:
            found[ours] = float(stats[theirs])
    return found


def read_host() -> dict[str, float]:
    """Resident memory of this process in MB; empty where /proc is not (the agent measures it there)."""
    try:
        descriptor = os.open("/proc/self/statm", os.O_RDONLY)  # a third of the system calls of `open`
        try:
            return {"host_memory_mb": int(os.read(descriptor, 128).split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB}
        finally:
            os.close(descriptor)
    except (OSError, ValueError, IndexError):
        return {}


def summarize_allocator(device: Any) -> str | None:
    """torch's own table of the allocator's state, for the file that is saved when memory runs out; None for a CPU."""
    if device is None or device.type != "cuda":
        return None
    import torch

    return str(torch.cuda.memory_summary(device))


def save_summary(folder: Path, name: str, error: BaseException, device: Any) -> Path | None:
    """Write the allocator's state into `reports/` of the run folder; None where there is no allocator."""
    summary = summarize_allocator(device)
    if summary is None:
        return None
    place = run_folder.make_within(folder, layout.REPORTS)
    path = place / f"oom.{name}.txt"
    runtime.write_atomically(path, f"{error}\n\n{summary}\n".encode(), run_folder.file_rights(place))
    return path
