"""Of what a row speaks: who takes part in a run, who a GPU is, and the labels that identify either.

Every surface must agree on this, or one GPU becomes two curves here and two become one there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainvitals.journal.encoding import NONFINITE

TRAINER = "trainer"
"""The role of every process that does not name another. It is left out of names and labels."""
WORKER = "worker"
"""The role of a process that trains without a rank, such as one started with `multiprocessing`."""
_LONGEST_ROLE = 40
_KEY = re.compile(r"(?:(?P<role>[a-z0-9_]+)\.)?(?P<rank>[0-9]{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Participant:
    """Who takes part in a run: a role, and a rank within it. Which process that is, and on which host, may change
    while the run continues: registrations know it."""

    role: str = TRAINER
    rank: int = 0

    @classmethod
    def of(cls, labels: Mapping[str, Any], rank: int | None = None) -> Participant:
        """Of a row or its labels; `rank` is from the name of its file."""
        role, number = labels.get("role"), labels.get("rank", rank)
        return cls(role if isinstance(role, str) else TRAINER, number if type(number) is int else 0)

    @classmethod
    def parse(cls, key: str) -> Participant | None:
        """What `str` made; None for anything else."""
        match = _KEY.fullmatch(key)
        return cls(match["role"] or TRAINER, int(match["rank"])) if match is not None else None

    def __str__(self) -> str:
        """As a key: `3`, `rollout.3`."""
        return str(self.rank) if self.is_trainer else f"{self.role}.{self.rank}"

    def __lt__(self, other: Participant) -> bool:
        """Trainers first: the lowest participant is the one that speaks for the run."""
        return (not self.is_trainer, self.role, self.rank) < (not other.is_trainer, other.role, other.rank)

    @property
    def is_trainer(self) -> bool:
        return self.role == TRAINER

    @property
    def title(self) -> str:
        """For people: `rank 3`, `rollout 3`."""
        return f"rank {self.rank}" if self.is_trainer else f"{self.role} {self.rank}"

    @property
    def labels(self) -> dict[str, Any]:
        return {"rank": self.rank} if self.is_trainer else {"role": self.role, "rank": self.rank}

    @property
    def file_part(self) -> str:
        """In the name of a file: `rank3`, `role-rollout.rank3`."""
        return f"rank{self.rank}" if self.is_trainer else f"role-{self.role}.rank{self.rank}"


def clean_role(text: str) -> str:
    """A role as it may be part of a file name and a label: `Rollout Worker` is `rollout_worker`."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:_LONGEST_ROLE] or TRAINER


def role_of_class(name: str) -> str:
    """The role of an actor by its class: `RolloutWorker` is `rollout_worker`."""
    words = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return clean_role(re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", words))


SUBJECT_KEYS: Mapping[str, tuple[str, ...]] = {
    "gpu": ("gpu_index", "gpu_uuid", "mig_index"),
    "system": (),
    "process": ("role", "rank"),
    "training": ("role", "rank"),
    "run": ("role", "rank"),
}
"""The labels that identify what a row of a table speaks of, on one host. In other tables every label does."""

_NEVER_LABELS = ("timestamp", "host")


def subject_of(table: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """The identifying labels of a row or of a sample's labels, without what may change about the same thing."""
    keys = SUBJECT_KEYS.get(table)
    if keys is None:  # scraped pages and the like: what is text there is a label
        return {key: value for key, value in row.items() if key not in _NEVER_LABELS and _is_label(value)}
    if "rank" in keys:
        return Participant.of(row).labels
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


def gpu_title(labels: Mapping[str, Any]) -> str:
    """For people: `GPU 0`, `GPU 0:2`, or how the UUID of one begins that cannot give its index."""
    if labels.get("gpu_index") is None:
        return str(labels.get("gpu_uuid") or "GPU")[:12]
    return f"GPU {gpu_number(labels)}"


def is_gpu_named(wanted: int | str, labels: Mapping[str, Any]) -> bool:
    """Whether an entry of the setting `gpus` means this GPU: its index, or how its UUID or that of its parent
    begins."""
    uuids = (str(labels[key]) for key in ("gpu_uuid", "mig_parent") if key in labels)
    return wanted == labels.get("gpu_index") or any(uuid.startswith(str(wanted)) for uuid in uuids)
