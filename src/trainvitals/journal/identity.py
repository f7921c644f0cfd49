"""Of what a row speaks: the labels that identify it, and who a GPU is.

Every surface must agree on this, or one GPU becomes two curves here and two become one there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainvitals.journal.encoding import NONFINITE

SUBJECT_KEYS: Mapping[str, tuple[str, ...]] = {
    "gpu": ("gpu_index", "gpu_uuid"),
    "system": (),
    "process": ("rank",),
    "training": ("rank",),
    "run": ("rank",),
}
"""The labels that identify what a row of a table speaks of, on one host. In other tables every label does."""

_NEVER_LABELS = ("timestamp", "host")


def subject_of(table: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """The identifying labels of a row or of a sample's labels, without what may change about the same thing."""
    keys = SUBJECT_KEYS.get(table)
    if keys is None:  # scraped pages and the like: what is text there is a label
        return {key: value for key, value in row.items() if key not in _NEVER_LABELS and _is_label(value)}
    if keys == ("rank",):
        return {"rank": row.get("rank", 0)}
    return {key: row[key] for key in keys if key in row}


def _is_label(value: object) -> bool:
    return isinstance(value, str) and value not in NONFINITE


def gpu_key(labels: Mapping[str, Any]) -> str:
    """Who a GPU is on its host: its UUID, else its index. In status.json GPUs are called so."""
    return str(labels.get("gpu_uuid", labels.get("gpu_index")))


def gpu_key_across_hosts(labels: Mapping[str, Any]) -> str:
    """The same where GPUs of several hosts meet: an index alone would be the same on each of them."""
    return str(labels.get("gpu_uuid") or f"{labels.get('host') or ''}/{gpu_number(labels)}")


def gpu_number(labels: Mapping[str, Any], unknown: object = "?") -> str:
    """How people call a GPU: `0`, or `0:2` for slice 2 of GPU 0; `unknown` for one that cannot give its index."""
    index = labels.get("gpu_index", unknown)
    return f"{index}:{labels['mig_index']}" if labels.get("mig_index") is not None else str(index)


def is_gpu_named(wanted: int | str, labels: Mapping[str, Any]) -> bool:
    """Whether an entry of the setting `gpus` means this GPU: its index, or how its UUID or that of its parent
    begins."""
    uuids = (str(labels[key]) for key in ("gpu_uuid", "mig_parent") if key in labels)
    return wanted == labels.get("gpu_index") or any(uuid.startswith(str(wanted)) for uuid in uuids)
