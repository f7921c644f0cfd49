"""How each metric of the catalog is called in Prometheus.

Two spellings. `mb`, the default, keeps the units of the files (`gpu_memory_used_mb`); promtool remarks on names that
end in `_mb` or `_mb_s` and on nothing else. `base` has base units only (`gpu_memory_used_bytes`).
Tested in tests/exporters/test_families.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from trainvitals import catalog

Spelling = Literal["mb", "base"]
NAME_ENDINGS = {"counter": "_total", "info": "_info"}
"""What Prometheus wants at the end of the names of series, by the type of their family."""
SPELLINGS: tuple[Spelling, ...] = ("mb", "base")


@dataclass(frozen=True, slots=True)
class Export:
    """One family: its name without `_total`, its kind, unit and meaning, and what a value is multiplied by."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    unit: str = ""
    factor: float = 1.0
    counted_here: bool = False
    """A counter that began with the agent. Others began with the driver, the machine or the program: a created time of
    ours would turn all that they counted before into an increase now."""

    @property
    def series(self) -> str:
        """The name as it is asked for in a query."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


_PREFIXES = {"gpu": "gpu_", "system": "", "process": "process_", "training": "training_", "source": "trainvitals_"}

# (table, metric) -> name where prefix and catalog name do not make a good one: a gauge must not end in `_count` or
# `_total`, `sec` and `gb` are abbreviations, and some names are fixed (design, section 6).
_RENAMED: dict[tuple[str, str], str] = {
    ("training", "learning_rate"): "learning_rate",
    ("training", "gradient_norm"): "gradient_norm",
    ("gpu", "process_count"): "gpu_processes",
    ("gpu", "xid_last"): "gpu_xid_last_code",
    ("system", "cpu_count"): "cpu_cores",
    ("system", "cpu<N>_percent"): "cpu_core_usage_percent",
    ("system", "late_seconds"): "system_late_seconds",
    ("process", "process_count"): "process_tree_processes",
    ("process", "thread_count"): "process_tree_threads",
    ("process", "fd_count"): "process_tree_fds",
    ("process", "fd_limit"): "process_fd_limit",
}

_COUNTED_HERE = frozenset(
    (
        *(("gpu", "xid_errors_total"), ("gpu", "xid_errors_by_code_total")),
        *(("source", "source_errors_total"), ("source", "source_skipped_total")),
    )
)

# Metrics without a separate family: `step` is training_steps_total, `batch_time` the histogram, a phase a label.
PHASES = ("data_time", "transfer_time", "forward_time", "backward_time", "optimizer_time", "other_time")
APART = frozenset((("training", "step"), ("training", "batch_time"), *(("training", name) for name in PHASES)))

# (ending, unit) of a name -> (ending, unit, factor) in base units; the first that fits.
_BASE: tuple[tuple[str, str, float], ...] = (
    ("_mb_s", "_bytes_per_second", 1024.0**2),
    ("_mb", "_bytes", 1024.0**2),
    ("_percent", "_ratio", 0.01),
    ("_mhz", "_hertz", 1e6),
)
_UNITS = (
    "mb_s", "mb", "percent", "celsius", "watts", "joules", "seconds", "mhz", "rpm",
    "bytes_per_second", "bytes", "ratio", "hertz",
)  # fmt: skip


def spell(name: str, spelling: Spelling) -> tuple[str, float]:
    """(the name in that spelling, what its values are multiplied by), from the name with the units of the files."""
    if spelling == "base":
        for ending, base, factor in _BASE:
            if name.endswith(ending):
                return name.removesuffix(ending) + base, factor
    return name, 1.0


def unit_of(name: str) -> str:
    """The unit that the name ends in; empty for a bare number."""
    return next((unit for unit in _UNITS if name.endswith(f"_{unit}")), "")


@cache
def export_of(table: str, metric: str, spelling: Spelling) -> Export | None:
    """The family of a catalog metric or counter; None for text, for a name of the user's own, and for what is put
    elsewhere."""
    counter_row = catalog.find_counter(table, metric)
    if counter_row is not None:
        name = f"{_PREFIXES[table]}{metric.removesuffix('_total')}"
        return Export(name, "counter", counter_row.help, unit_of(name), counted_here=(table, metric) in _COUNTED_HERE)
    row = catalog.find(table, metric)
    if row is None or row.kind == "text" or (table, row.name) in APART or table not in _PREFIXES:
        return None
    prefix = _PREFIXES[table]
    name = _RENAMED.get((table, row.name)) or f"{prefix}{row.name.removeprefix(prefix)}"
    if name.endswith("_per_sec"):
        name += "ond"
    elif row.unit == "s" and not name.endswith("_seconds"):
        name += "_seconds"
    factor = 1.0
    if name.endswith("_gb"):
        name, factor = f"{name.removesuffix('_gb')}_mb", 1024.0
    elif name.endswith("_ms"):
        name, factor = f"{name.removesuffix('_ms')}_seconds", 0.001
    counter = row.kind == "counter"
    name = name.removesuffix("_total") if counter else name
    name, more = spell(name, spelling)
    kind: Literal["gauge", "counter"] = "counter" if counter else "gauge"
    return Export(name, kind, row.help, unit_of(name), factor * more, (table, row.name) in _COUNTED_HERE)


def sanitise(name: str) -> str:
    """A user's metric name with nothing in it but letters, digits and underscores."""
    cleaned = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
    return cleaned.strip("_") or "unnamed"
