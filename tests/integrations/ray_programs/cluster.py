"""Holds a cluster of two nodes with pretended GPUs on this machine, for as long as its standard input is open.

Prints its address, then obeys: `add late` adds a node with one of the resource `late`, `remove late` removes it again;
each is answered with the id of the node.
"""

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray._private import services
from ray._raylet import DASHBOARD_AGENT_LISTEN_PORT_NAME, persist_port
from ray.cluster_utils import Cluster

sys.path.insert(0, str(Path(__file__).parents[2]))

from waiting import PATIENCE, free_port

STORE = 80_000_000


def choose_ports() -> dict[str, int]:
    """For the agents of a node. One that is to find out itself where they listen ends if they take 15 seconds."""
    names = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    return {name: free_port() for name in names}


def announce_ports(start: Callable[..., Any]) -> Callable[..., Any]:
    """Around the start of a raylet: it ends if the dashboard's agent has not written its port within 15 seconds, also
    where that port was chosen beforehand."""

    def start_raylet(*args: Any, **options: Any) -> Any:
        given = inspect.signature(start).bind(*args, **options).arguments
        port = given["dashboard_agent_listen_port"]
        persist_port(given["session_dir"], given["node_id"], DASHBOARD_AGENT_LISTEN_PORT_NAME, port)
        return start(*args, **options)

    return start_raylet


def main(folder: str) -> None:
    services.start_raylet = announce_ports(services.start_raylet)
    head = {"num_cpus": 12, "include_dashboard": False, "temp_dir": folder, "object_store_memory": STORE}
    head |= {"resources": {"elastic": 1}, **choose_ports()}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=4, num_gpus=4, object_store_memory=STORE, **choose_ports())
    print(f"answer: {cluster.address}", flush=True)
    added: dict[str, Any] = {}
    for line in sys.stdin:
        command, resource = line.split()
        if command == "add":
            more = {"resources": {resource: 1}, "object_store_memory": STORE, **choose_ports()}
            added[resource] = cluster.add_node(num_cpus=1, **more)
        else:
            cluster.remove_node(added[resource])
            cluster.wait_for_nodes(timeout=PATIENCE)  # else it counts as alive for some seconds
        print(f"answer: {added[resource].node_id}", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
