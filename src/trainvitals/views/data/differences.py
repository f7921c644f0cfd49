"""What runs were made of besides their configuration, where it differs: code, command, packages, machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from trainvitals.analysis.comparison import compare_configs
from trainvitals.journal.contracts import Reader
from trainvitals.journal.documents.run import RunFile
from trainvitals.views.data.patches import find_patch, format_patch
from trainvitals.views.data.shapes import DifferenceGroupJson

_GIT = {"commit": "commit", "branch": "branch", "remote": "remote", "dirty": "uncommitted changes"}
_HOST = {
    "name": "host",
    "distribution": "system",
    "release": "kernel",
    "cpu_available": "CPUs",
    "memory_total_mb": "memory in MB",
}


def describe_differences(readers: Sequence[Reader]) -> list[DifferenceGroupJson]:
    """Only what differs, in groups that have something; the first run is the baseline. What a run does not know, such
    as the packages of an imported one, is None."""
    described = [_describe(reader) for reader in readers]
    found: list[DifferenceGroupJson] = []
    for title in described[0] if described else ():
        rows = compare_configs([groups[title] for groups in described])
        if rows:
            found.append({"title": title, "rows": [{"key": row.key, "values": list(row.values)} for row in rows]})
    return found


def _describe(reader: Reader) -> dict[str, Mapping[str, Any]]:
    run = reader.info.file
    return {
        "code": {**_pick(run.git.as_json(), _GIT), **_known({"patch": _format_patch(reader)})},
        "command": _known({"command": run.command, "folder": run.cwd}),
        "package": {**_pick(run.python, {"version": "Python"}), **(run.packages or {})},
        "environment": run.environment or {},
        "machine": {**_pick(run.host, _HOST), **_known({"GPUs": _format_gpus(reader), "ranks": _ranks(run)})},
    }


def _format_patch(reader: Reader) -> str:
    """`+12 -3 in 2 files (sha256 1a2b3c4d)`: the last part tells patches of one size apart. Empty if none is known."""
    found = find_patch(reader)
    if found is None:
        return ""
    digest = f" (sha256 {found.about.sha256[:8]})" if found.about.sha256 else ""
    return f"{format_patch(found.about)}{digest}"


def _ranks(run: RunFile) -> int | None:
    return run.world_size if (run.world_size or 0) > 1 else None


def _pick(found: Mapping[str, Any] | None, titles: Mapping[str, str]) -> dict[str, Any]:
    return _known({title: (found or {}).get(name) for name, title in titles.items()})


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "")}


def _format_gpus(reader: Reader) -> str:
    """`8 x NVIDIA H100`; empty if none was sampled."""
    counts = Counter(str(labels.get("gpu_name") or "GPU") for labels in reader.labels("gpu"))
    return ", ".join(f"{count} x {name}" for name, count in counts.items())
