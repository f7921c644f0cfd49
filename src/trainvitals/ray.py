"""A Ray cluster, watched: an agent on every node, and the cluster's numbers in one run.

    ray.init()
    trainvitals.ray.monitor_cluster()

Ray itself is imported when a function is called. Tested in tests/integrations/test_ray.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from trainvitals import runtime
from trainvitals.integrations.ray.supervision import settle_options
from trainvitals.journal import folder as run_folder
from trainvitals.journal import registrations
from trainvitals.journal.documents.registration import new_registration
from trainvitals.journal.documents.run import MONITOR
from trainvitals.stderr import print_line
from trainvitals.trainer import ranks, ray_job
from trainvitals.trainer.run import Run
from trainvitals.trainer.start import begin

if TYPE_CHECKING:
    from ray.actor import ActorHandle

CLUSTER = "cluster"
"""The role of the actor that watches the cluster."""
NODE = "node"
"""The role of a node: the tree of its raylet's processes."""
INTERVAL = 5.0
_ACTOR = "trainvitals_cluster"
_MEMORY = ("memory", "object_store_memory")
"""Resources that Ray counts in bytes."""


class ResourceUse(TypedDict):
    """Of one resource of the cluster, in Ray's unit: a number of CPUs or GPUs, bytes of memory."""

    total: float
    available: float
    used_share: float
    """From 0 to 1."""


def monitor_ray_cluster() -> dict[str, ResourceUse]:
    """What the cluster has and what of it is in use, by resource: `["GPU"]["used_share"]`."""
    ray = _import_ray()
    available = ray.available_resources()
    found: dict[str, ResourceUse] = {}
    for name, total in sorted(ray.cluster_resources().items()):
        # Those only name nodes, and count the shares of placement groups again.
        if total > 0 and not name.startswith("node:") and "_group_" not in name:
            free = min(float(available.get(name, 0.0)), float(total))
            found[name] = ResourceUse(total=float(total), available=free, used_share=1.0 - free / total)
    return found


def monitor_cluster(*, interval: float = INTERVAL, **options: Any) -> ActorHandle:
    """Watch the cluster for as long as this job lives: an agent on every node, also on those that join later, and the
    cluster's numbers in the run of the job, or in one that begins with `options` (`project=`, `name=`, any setting).

    A second call returns the same actor. It needs no CPU of the cluster's resources.
    """
    ray = _import_ray()
    if not ray.is_initialized():
        ray.init()
    actor = _make_watch(ray, settle_options(options), interval)
    ray.get(actor.start.remote())
    return actor


def watch_nodes_of(run: Run) -> ActorHandle | None:
    """The same for the run of this process, if there are several nodes; whoever calls does not wait for it, and keeps
    what is returned. Nothing is raised."""
    try:
        ray = _import_ray()
        if sum(node["Alive"] for node in ray.nodes()) < 2:
            return None
        actor = _make_watch(ray, {**run.settings.as_json(), "dir": str(run.folder.parent.parent)}, INTERVAL)
        actor.start.remote()
    except Exception as error:  # noqa: BLE001 - errors of Ray; the training comes first
        print_line(f"the nodes of the cluster are not measured: {error!r:.300}")
        return None
    return actor


def _make_watch(ray: Any, options: Mapping[str, Any], interval: float) -> ActorHandle:
    actor: ActorHandle = (
        ray.remote(ClusterWatch)
        .options(
            name=_ACTOR,
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,  # it may be on a node that is lost
            scheduling_strategy=_affinity(ray.get_runtime_context().get_node_id(), soft=True),
        )
        .remote(options, interval)
    )
    return actor


class ClusterWatch:
    """The actor. A process of its own: the training has no thread of ours, and the agent no connection to the
    cluster, for which it would have to be a driver of it."""

    def __init__(self, options: Mapping[str, Any], interval: float) -> None:
        self._options = dict(options)
        self._interval = interval
        self._run: Run | None = None
        self._alive: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Begin, unless that was done; returns the folder of the run."""
        if self._run is None:
            self._run = begin(ranks.find_own(os.environ, CLUSTER, None, None), **{"name": "cluster", **self._options})
            self._look(self._run)
            self._task = asyncio.create_task(self._watch(self._run))
        return str(self._run.folder)

    async def _watch(self, run: Run) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                self._look(run)
            except Exception as error:  # noqa: BLE001 - a cluster that does not respond now may do so later
                run.event("cluster_silent", f"the cluster did not respond: {error!r:.200}", severity="warning")

    def _look(self, run: Run) -> None:
        ray = _import_ray()
        nodes = {node["NodeID"]: node for node in ray.nodes()}
        alive = {node_id: _title(node) for node_id, node in nodes.items() if node["Alive"]}
        for node_id, title in alive.items():
            if node_id not in self._alive:
                run.event("node_joined", f"node {title} joined", node_id=node_id, resources=nodes[node_id]["Resources"])
                self._place_agent(run, node_id)
        for node_id, title in self._alive.items():
            if node_id not in alive:
                why = nodes.get(node_id, {}).get("DeathReasonMessage") or "no reason given"
                run.event("node_lost", f"node {title} is lost: {why}", severity="warning", node_id=node_id)
        self._alive = alive
        run.log({**flatten_use(monitor_ray_cluster()), "ray/nodes/alive": len(alive), **_count_actors(ray)})

    def _place_agent(self, run: Run, node_id: str) -> None:
        """By a task on that node, which nobody waits for: the node may be busy, or lost again."""
        ray = _import_ray()
        number = ray_job.number_of(ray_job.job_launch(ray), NODE, node_id)
        options = {"num_cpus": 0, "scheduling_strategy": _affinity(node_id, soft=False), "max_retries": 0}
        settings = run.settings.as_json()
        ray.remote(watch_node).options(**options).remote(str(run.folder), run.attempt, number, settings)


def watch_node(folder: str, attempt: int, number: int, settings: Mapping[str, Any]) -> bool:
    """On a node: have its agent measure it for the run, while both live. False if the node does not see the folder of
    the run; then its agent measures only what is registered with it."""
    is_there = run_folder.is_run(Path(folder))
    if is_there:
        given = {**settings, "stack_dumps": False, "console": "off"}
        raylet = os.getppid()
        # A monitor: it does not train, and its end is not the end of the run.
        more: dict[str, Any] = {"role": NODE, "rank": number, "attempt": attempt, "kind": MONITOR, "settings": given}
        more["ray_job"] = _import_ray().get_runtime_context().get_job_id()
        registrations.register(new_registration(Path(folder), raylet, **more))
    if settings.get("agent", True):
        runtime.ensure_agent()
    return is_there


def flatten_use(use: Mapping[str, ResourceUse]) -> dict[str, float]:
    """As metrics: `ray/gpu/total`, `ray/gpu/available`, `ray/gpu/used_percent`; memory in MB."""
    found: dict[str, float] = {}
    for name, item in use.items():
        is_memory = name in _MEMORY
        scale = 1e-6 if is_memory else 1.0
        key = f"ray/{name.lower()}{'_mb' if is_memory else ''}"
        found[f"{key}/total"] = item["total"] * scale
        found[f"{key}/available"] = item["available"] * scale
        found[f"{key}/used_percent"] = 100.0 * item["used_share"]
    return found


def _count_actors(ray: Any) -> dict[str, int]:
    """Empty where it cannot be known: Ray's public way to ask needs its dashboard."""
    ask: Callable[..., Mapping[str, Any]] | None = getattr(getattr(ray._private, "state", None), "actors", None)
    try:
        return {"ray/actors/alive": len(ask(actor_state_name="ALIVE"))} if ask is not None else {}
    except Exception:  # noqa: BLE001 - debugging information of Ray
        return {}


def _title(node: Mapping[str, Any]) -> str:
    """Its host and the beginning of its id: several nodes may be on one machine."""
    return f"{node.get('NodeManagerHostname') or node.get('NodeManagerAddress')} ({node['NodeID'][:8]})"


def _affinity(node_id: str, *, soft: bool) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id, soft=soft)


def _import_ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        text = "trainvitals.ray needs Ray, which is not installed: pip install 'trainvitals[ray]'"
        raise ModuleNotFoundError(text, name=error.name) from None
    return ray
