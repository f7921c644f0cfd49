"""A fleet that does not exist: nodes of eight simulated GPUs with jobs of several sizes, idle and lost GPUs, a silent
node, alerts and deaths, as run folders. Every GPU in it is labeled as simulated, and the pages say so."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from made_runs import make_run, write

from trainvitals.analysis.gpu_days import DAY, GpuDay, GpuDays, date_of
from trainvitals.analysis.gpu_use import METRICS, GpuUse
from trainvitals.analysis.spread import Spread
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.status import Status
from trainvitals.journal.encoding import format_time

GPUS = 8
NODES_OF_A_RACK = 16
MEMORY_MB = 81_559.0
PROJECTS = ("vision", "speech", "language", "robotics")
USERS = ("user-a", "user-b", "user-c", "user-d", "user-e", "user-f", "user-g")
MODEL = "H100 80GB HBM3"
SIZES = (1, 1, 2, 4, 8, 16, 32)


def node_name(number: int) -> str:
    return f"node-{number + 1:03d}"


class _Maker:
    def __init__(self, root: Path, nodes: int, now: float) -> None:
        self.root, self.nodes, self.now = root, nodes, now
        self.chance = random.Random(18)
        self.made = 0
        small = nodes <= 8
        self.rack_size = 2 if small else NODES_OF_A_RACK
        self.hot = {2 if small else 5}
        self.broken = {1 if small else nodes // 3}
        self.slow = {0 if small else nodes // 2 + 3}

    def rack(self, node: int) -> str:
        return f"rack {node // self.rack_size + 1:02d}"

    def gpu(self, node: int, index: int, load: float, days: int, ended: float) -> GpuUse:
        """One that was `load` percent busy for the last `days` up to `ended`."""
        labels = {"gpu_index": index, "gpu_uuid": f"GPU-{node:04d}-{index}", "gpu_name": MODEL, "simulated": 1}
        use = GpuUse(labels)
        heat = 14.0 if node in self.hot else 0.0
        now = min(max(load + self.chance.gauss(0, 5), 0.0), 100.0)
        memory = 12.0 + load * 0.75 + self.chance.random() * 6 if load > 1 else 28.0
        watts = 90.0 + 5.9 * now + self.chance.gauss(0, 8)
        celsius = 32.0 + 0.4 * now + heat + self.chance.gauss(0, 2)
        values = (now, memory, memory * MEMORY_MB / 100, celsius, watts)
        for name, value in zip(METRICS, values, strict=True):
            use.spreads[name] = Spread(1000, value * 0.9, value, value, round(value, 1))
        use.memory_total_mb = MEMORY_MB
        kept = {}
        for ago in range(days):
            seconds = ended % DAY if ago == 0 else DAY
            share = min(max(load / 100 + self.chance.gauss(0, 0.06), 0.0), 1.0)
            idle = seconds * (0.97 if load < 2 else max(self.chance.gauss(0.05, 0.04), 0.0))
            joules = seconds * (90.0 + 590.0 * share)
            day = GpuDay(seconds, seconds * share, idle, joules, idle * 95.0, celsius + 3, min(memory + 4, 99.0))
            kept[date_of(ended - ago * DAY)] = day
        use.days = GpuDays(kept)
        use.energy.joules = sum(day.joules or 0.0 for day in kept.values())
        return use

    def run(
        self,
        nodes: Iterable[int],
        *,
        load: float,
        days: int,
        ended_ago: float | None = None,
        gpus: Iterable[int] = range(GPUS),
        silent: bool = False,
        alerts: Iterable[dict[str, Any]] = (),
        cause: dict[str, Any] | None = None,
    ) -> Path:
        """A run on these nodes: one rank for each GPU."""
        nodes, gpus = list(nodes), list(gpus)
        self.made += 1
        project = PROJECTS[self.made % len(PROJECTS)]
        user = USERS[self.made * 3 % len(USERS)]
        ended = self.now - ended_ago if ended_ago is not None else None
        began = (ended or self.now) - (days - 1) * DAY - 3600
        status = "running" if ended is None else "crashed" if cause else "finished"
        hosts = [node_name(node) for node in nodes]
        name = f"{project}-{self.made:03d}"
        attempt = {"number": 1, "started": format_time(began), "host": hosts[0], "status": status}
        if ended is not None:
            attempt |= {"ended": format_time(ended)} | ({"reason": cause} if cause else {})
        more: dict[str, Any] = {"ended": format_time(ended)} if ended is not None else {}
        folder = make_run(
            self.root / project / f"{self.made:05d}-{name}", name=name, project=project, user=user, simulated=True,
            status=status, created=format_time(began), started=format_time(began), attempts=[attempt],
            world_size=len(nodes) * len(gpus), host={"name": hosts[0]}, process={"pid": 4000, "host": hosts[0]},
            job={"slurm": str(70_000 + self.made)} if self.made % 2 else {"pod": f"{name}-0", "namespace": project},
            **more, **({"reason": cause} if cause else {}),
        )  # fmt: skip
        reported = ended if ended is not None else self.now - (900.0 if silent else 2.0)
        for place, node in enumerate(nodes):
            uses = {f"GPU-{node:04d}-{index}": self.gpu(node, index, load, days, ended or self.now) for index in gpus}
            ranks = {
                str(place * len(gpus) + at): {"pid": 4000 + at, "alive": ended is None, "state": status}
                for at in range(len(gpus))
            }
            found = {
                "updated": format_time(reported), "host": node_name(node), "rack": self.rack(node), "attempt": 1,
                "state": status, "ranks": ranks, "gpu_summary": {key: use.as_json() for key, use in uses.items()},
                "alerts": [item for item in alerts if item.get("node", node) == node],
            }  # fmt: skip
            run_folder.write_status(folder, Status.parse(found), node_name(node) if len(nodes) > 1 else None)
        return folder

    def fire(
        self, folder: Path, node: int, rule: str, severity: str, message: str, at: list[float], **labels: Any
    ) -> None:
        for ago in at:
            row = {"rule": rule, "state": "firing", "severity": severity, "labels": labels, "message": message}
            moment = self.now - ago
            write(folder, [{**row, "host": node_name(node)}], "alerts_20260101_000000", moment)
            write(
                folder, [{**row, "state": "resolved", "host": node_name(node)}], "alerts_20260101_000000", moment + 60
            )


def make_fleet(root: Path, nodes: int, now: float) -> None:
    """Runs that live on most of the nodes, and some that ended in the weeks before."""
    made = _Maker(root, nodes, now)
    # Weeks ago, on all of them: so the GPUs of nodes that are quiet now are known.
    for first in range(0, nodes, made.rack_size):
        block = range(first, min(first + made.rack_size, nodes))
        folder = made.run(block, load=84.0, days=6, ended_ago=1.5 * DAY)
        for node in block:
            if node in made.broken:
                made.fire(
                    folder, node, "gpu_xid", "critical", "GPU 3 reported Xid 79: GPU has fallen off the bus",
                    [3 * DAY, 2.4 * DAY], gpu_index=3,
                )  # fmt: skip
            if node in made.hot:
                for index in (1, 4, 6):
                    made.fire(
                        folder, node, "gpu_throttled_heat", "warning", f"GPU {index} is throttled by heat",
                        [5 * DAY, 4 * DAY, 3 * DAY, 2 * DAY], gpu_index=index,
                    )  # fmt: skip
            if node in made.slow:
                rank = (node - first) * GPUS
                message = f"rank {rank} takes 1.4 times as long as the others"
                made.fire(folder, first, "straggler", "warning", message, [4 * DAY, 2 * DAY], rank=rank)
    lost = {"kind": "node_failed", "detail": "Slurm job 70001"}
    made.run(sorted(made.broken), load=60.0, days=2, ended_ago=6 * DAY, cause=lost)
    # Now.
    free = nodes - max(nodes // 12, 1)
    node = 0
    while node < free:
        size = min(made.chance.choice([size for size in SIZES if size <= max(nodes // 6, 1)]), free - node)
        block = range(node, node + size)
        alerts: list[dict[str, Any]] = []
        for item in block:
            if item in made.hot:
                message = "GPU 4 is throttled by heat (hardware thermal slowdown)"
                alerts.append(_alert(now, item, "gpu_throttled_heat", "warning", message, 5400, 3))
            if item in made.broken:
                alerts.append(_alert(now, item, "gpu_xid", "critical", "GPU 3 reported Xid 79", 1500, 1))
        kind = made.chance.random()
        load = made.chance.uniform(30, 60) if kind < 0.3 else made.chance.uniform(78, 97)
        if size <= 2 and (made.made % 5 == 2 or kind < 0.1) and node not in made.broken:
            load = 1.0
        if load < 2:
            message = "GPU 0 has been idle for over 10 minutes while the run holds it"
            alerts.append(_alert(now, node, "gpu_idle", "warning", message, 2400, GPUS))
        days = made.chance.randrange(1, 9)
        shared = size == 1 and kind > 0.8 and node not in made.broken
        gpus = range(4) if shared else range(GPUS)
        silent = nodes > 8 and node <= nodes * 2 // 3 < node + size and size == 1
        folder = made.run(block, load=load, days=days, gpus=gpus, silent=silent, alerts=alerts)
        if shared:
            made.run(block, load=made.chance.uniform(50, 90), days=2, gpus=range(4, GPUS), silent=silent)
        for item in block:
            if item in made.broken:
                lose_gpu(folder, node_name(item), 3)
        node += size


def lose_gpu(folder: Path, host: str, index: int) -> None:
    """Its driver no longer answers."""
    for status in run_folder.read_statuses(folder):
        if status.host == host:
            summary = {key: dict(item) for key, item in status.gpu_summary.items()}
            for item in summary.values():
                if item["gpu_index"] == index:
                    item["state"] = "lost"
            own = run_folder.own_token(folder, host)
            changed = Status.parse({**status.as_json(), "gpu_summary": summary})
            run_folder.write_status(folder, changed, host if own else None)


def _alert(now: float, node: int, rule: str, severity: str, message: str, ago: float, count: int) -> dict[str, Any]:
    since = format_time(now - ago)
    return {"node": node, "rule": rule, "severity": severity, "message": message, "since": since, "count": count}
