"""One agent for all pods of a node, as the DaemonSet runs it: whose GPUs these are, though no pod knows of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fake_kubelet import make_pod, running_kubelet
from fake_nvml import FakeNvml
from prometheus_client.parser import text_string_to_metric_families
from servers import fetch
from waiting import PATIENCE, free_port, wait_until

UUID = "GPU-fa4e0000-0000-4000-8000-{:012x}"
ELSEWHERE = 2**22 + 5
"""A number that means nothing here, as in an agent without the host's process numbers."""


def test_gpus_are_attributed_to_all_pods_of_a_node(fake_nvml_library: Path, tmp_path: Path) -> None:
    fake = FakeNvml(fake_nvml_library, tmp_path / "nvml")
    fake.script(f"count = 4\ngpu.0.procs = C:{ELSEWHERE}:4Gi:55\ngpu.1.procs = C:{ELSEWHERE + 1}:1Gi:5\n")
    port = free_port()
    environ = {
        **fake.env(),
        "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "runtime"),
        "TRAINVITALS_PROMETHEUS_PORT": str(port),
        "TRAINVITALS_PROMETHEUS_HOST": "node-7",
        "TRAINVITALS_KUBELET_SOCKET": str(tmp_path / "kubelet.sock"),
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    }

    def holders() -> set[tuple[str, ...]]:
        page = fetch(f"http://127.0.0.1:{port}/metrics")[1]
        names = ("gpu", "uuid", "pid", "namespace", "pod", "container", "host")
        return {
            tuple(sample.labels[name] for name in names)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == "trainvitals_gpu_holder_info"
        }

    expected = {
        ("0", UUID.format(0), str(ELSEWHERE), "vision", "trainer-0", "training", "node-7"),
        ("1", UUID.format(1), str(ELSEWHERE + 1), "speech", "decoder", "main", "node-7"),
        ("2", UUID.format(2), "", "speech", "notebook", "lab", "node-7"),  # given, and nobody computes there
    }
    with running_kubelet(tmp_path / "kubelet.sock") as kubelet:
        kubelet.pods = [
            make_pod("trainer-0", "vision", "training", UUID.format(0)),
            make_pod("decoder", "speech", "main", "nvidia1"),
            make_pod("notebook", "speech", "lab", f"{UUID.format(2)}::1"),
        ]
        agent = subprocess.Popen([sys.executable, "-P", "-m", "trainvitals.agent", "--keep"], env=environ)
        try:
            wait_until(lambda: holders() == expected, lambda: f"{expected}, found {holders()}")
        finally:
            agent.terminate()
            assert agent.wait(PATIENCE) == 0
