"""The metrics pages of the Ray nodes on this machine, which `ray[default]` serves: `ray` in the setting `openmetrics`.

A page has hundreds of series, most of them about Ray's own requests. What is kept: the node, its resources, the object
store, actors and tasks. Several nodes may be on one machine and have one address, so each is known by its id.
Tested in tests/sources/test_openmetrics.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from trainvitals.sources.sysfs import read_text

SCHEME = "ray:"
FOLDER = "/tmp/ray"
"""Of Ray's sessions; another one comes after the colon: `ray:/scratch/ray`."""
SECONDS = 10.0
"""Between two scrapes of a page of 300 KB, which Ray updates every 10 s."""
KEPT = (
    "ray_node_",
    "ray_resources",
    "ray_object_store_available_memory",
    "ray_object_store_used_memory",
    "ray_object_store_fallback_memory",
    "ray_object_store_num_local_objects",
    "ray_spill_manager_objects_bytes",
    "ray_actors",
    "ray_gcs_actors_count",
    "ray_tasks",
    "ray_cluster_active_nodes",
    "ray_cluster_failed_nodes",
    "ray_running_jobs",
)
"""How the names begin."""
CONSTANT = frozenset({"SessionName", "Version", "NodeAddress", "ip", "IsHeadNode", "Component"})
"""Labels that are the same on every line of a page."""
_PORT = re.compile(r"metrics_export_port_([0-9a-f]{16,64})")


def list_pages(address: str) -> Iterator[tuple[str, str]]:
    """The id and the address of the page of every node in the newest session. A node without a page is left out: with
    plain `ray`, which has none, the port is missing or -1."""
    folder = Path(address.removeprefix(SCHEME) or FOLDER) / "session_latest"
    for path in sorted(folder.glob("metrics_export_port_*")):
        found, text = _PORT.fullmatch(path.name), (read_text(str(path)) or "").strip()
        if found is not None and text.isdecimal() and 0 < int(text) < 65_536:
            yield found[1], f"http://127.0.0.1:{int(text)}/metrics"


def keep_lines(text: str) -> str:
    """The page without the lines that are not kept."""
    return "\n".join(line for line in text.split("\n") if line.startswith(KEPT))


def keep_labels(labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Without those that are empty or the same everywhere."""
    return tuple(item for item in labels if item[1] and item[0] not in CONSTANT and not item[0].startswith("otel_"))
