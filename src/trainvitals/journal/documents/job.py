"""What a scheduler knows a run or a process as: a job of Slurm, PBS, LSF or Ray, a pod of Kubernetes, or two of them.

The only home of these facts: in run.json, of the processes on a GPU, and wherever they are shown, searched or exported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainvitals.journal.documents.fields import Document, entry, mapping_of, text, whole
from trainvitals.journal.job_variables import read_variables

_TITLES = (("slurm", "Slurm job"), ("pbs", "PBS job"), ("lsf", "LSF job"), ("ray", "Ray job"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Document):
    """What does not apply, or is not known, is empty."""

    slurm: str = entry(text, "")
    """The id of the Slurm job; each task of an array has its own."""
    array: str = entry(text, "")
    """The array's id and the task in it, as Slurm writes them: `4700_3`."""
    step: str = entry(text, "")
    name: str = entry(text, "")
    """Of the Slurm job."""
    partition: str = entry(text, "")
    account: str = entry(text, "")
    nodes: str = entry(text, "")
    """As Slurm writes them: `gpu[01-04]`."""
    restarts: int = entry(whole, 0, implied=True)
    """How often Slurm has requeued the job."""
    pbs: str = entry(text, "")
    lsf: str = entry(text, "")
    ray: str = entry(text, "")
    """Ray's id of the job, in which there may be several trainings."""
    pod: str = entry(text, "")
    namespace: str = entry(text, "")
    container: str = entry(text, "")
    """Its name in the pod; without Kubernetes the first twelve letters of its id, as `docker ps` shows it."""
    node: str = entry(text, "")
    """Of Kubernetes."""
    labels: Mapping[str, str] = entry(mapping_of(text), {})
    """Of the pod."""

    def __bool__(self) -> bool:
        return bool(self.as_json())

    def __str__(self) -> str:
        """`Slurm job 4711`, `pod vision/trainer-0`."""
        named = [f"{title} {getattr(self, field)}" for field, title in _TITLES if getattr(self, field)]
        if self.pod or self.container:
            named.append(f"pod {self.full_pod}" if self.pod else f"container {self.container}")
        return ", ".join(named)

    @property
    def full_pod(self) -> str:
        return f"{self.namespace}/{self.pod}" if self.namespace and self.pod else self.pod

    def label_values(self) -> dict[str, str]:
        """Of series and messages; what is not known is empty."""
        return {
            "slurm_job_id": self.slurm,
            "slurm_array": self.array,
            "slurm_partition": self.partition,
            "slurm_account": self.account,
            "ray_job_id": self.ray,
            "pod": self.pod,
            "namespace": self.namespace,
            "container": self.container,
            "node": self.node,
        }

    def facts(self) -> list[tuple[str, str]]:
        """(title, text) of everything that is known, for people."""
        return list(self._list_facts())

    def _list_facts(self) -> Iterator[tuple[str, str]]:
        for field, title in _TITLES:
            if number := getattr(self, field):
                yield title, ", ".join([number, *(self._describe_slurm() if field == "slurm" else ())])
        if self.nodes:
            yield "Slurm nodes", self.nodes
        if self.pod:
            inside = f", container {self.container}" if self.container else ""
            yield "pod", f"{self.full_pod}{inside}"
        if self.node:
            yield "Kubernetes node", self.node
        if self.labels:
            yield "pod labels", ", ".join(f"{key}={value}" for key, value in self.labels.items())

    def _describe_slurm(self) -> Iterator[str]:
        if self.array:
            yield f"task {self.array}"
        for title in ("partition", "account", "name", "step"):
            if value := getattr(self, title):
                yield f"{title} {value}"
        if self.restarts:
            yield f"requeued {self.restarts} {'time' if self.restarts == 1 else 'times'}"


LABELS = tuple(Job().label_values())


def find_job(environ: Mapping[str, str], *, in_pod: bool | None = None) -> Job:
    """Of a process with this environment; `in_pod` where that is known by other means."""
    return Job.parse(read_variables(environ, in_pod=in_pod))
