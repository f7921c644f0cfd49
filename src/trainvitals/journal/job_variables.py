"""The variables by which schedulers tell a process what it is, as plain values. Imports nothing: a training reads them.
Tested in tests/journal/test_documents_job.py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

LONGEST = 256
"""Letters of a name or a label."""
_VARIABLES = {
    "slurm": "SLURM_JOB_ID",
    "step": "SLURM_STEP_ID",
    "name": "SLURM_JOB_NAME",
    "partition": "SLURM_JOB_PARTITION",
    "account": "SLURM_JOB_ACCOUNT",
    "nodes": "SLURM_JOB_NODELIST",
    "pbs": "PBS_JOBID",
    "lsf": "LSB_JOBID",
    "pod": "POD_NAME",
    "namespace": "POD_NAMESPACE",
    "container": "CONTAINER_NAME",
    "node": "NODE_NAME",
}
_OF_PODS = ("namespace", "container", "node", "labels")


def read_variables(environ: Mapping[str, str], *, in_pod: bool | None = None) -> dict[str, Any]:
    """Fields of `Job` (docs/schedulers.md); what is not known is absent. In a pod the host name is the pod's, unless
    POD_NAME says better; `in_pod` where that is known by other means."""
    if in_pod is None:
        in_pod = "KUBERNETES_SERVICE_HOST" in environ
    found: dict[str, Any] = {field: environ.get(name, "")[:LONGEST] for field, name in _VARIABLES.items()}
    if in_pod and not found["pod"]:
        found["pod"] = environ.get("HOSTNAME", "")[:LONGEST]
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    found["array"] = f"{array}_{task}" if array and task else ""
    found["restarts"] = count_requeues(environ)
    found["labels"] = parse_pairs(environ.get("POD_LABELS", "").split(","))
    if not (in_pod or found["pod"]):  # these names may mean anything elsewhere
        found = {field: value for field, value in found.items() if field not in _OF_PODS}
    return {field: value for field, value in found.items() if value}


def count_requeues(environ: Mapping[str, str]) -> int:
    """How often Slurm has requeued the job."""
    count = environ.get("SLURM_RESTART_COUNT", "")
    return int(count) if re.fullmatch(r"[0-9]{1,6}", count) else 0


def parse_pairs(lines: Iterable[str]) -> dict[str, str]:
    """`team=vision`, or `team="vision"` as in a file of the downward API."""
    pairs = (line.strip().partition("=") for line in lines)
    return {key[:LONGEST]: value.strip('"')[:LONGEST] for key, sign, value in pairs if key and sign}
