"""What a scheduler knows this process as: its environment, and in a pod the files of the downward API."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainvitals.journal.job_variables import LONGEST, parse_pairs, read_variables

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
LARGEST_FILE = 1 << 16
MOST_LABELS = 50


def read_job(environ: Mapping[str, str], pod_info: Path) -> dict[str, Any]:
    """Fields of `Job`. `pod_info` is a folder in which a volume of the downward API has `labels`, and perhaps `name`
    and `namespace`."""
    labels = parse_pairs(_read(pod_info / "labels").splitlines())
    job = read_variables(environ, in_pod=True if labels else None)
    labels |= job.pop("labels", {})
    if labels:
        job["labels"] = dict(list(labels.items())[:MOST_LABELS])
    if "pod" in job or labels:
        found = {
            "pod": _read(pod_info / "name"),
            "namespace": _read(pod_info / "namespace") or _read(NAMESPACE_FILE),
        }
        job = {field: text.strip()[:LONGEST] for field, text in found.items() if text.strip()} | job
    return job


def _read(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(LARGEST_FILE).decode("utf-8", "replace")
    except OSError:
        return ""
