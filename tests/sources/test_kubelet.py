"""Which pod has which GPU, asked of a kubelet that speaks the real protocol."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from fake_kubelet import FakeKubelet, make_answer, make_pod, running_kubelet
from hypothesis import given
from hypothesis import strategies as st
from waiting import PATIENCE, wait_until

from trainvitals.protobuf import Malformed
from trainvitals.sources import kubelet as kubelet_source
from trainvitals.sources.kubelet import GivenDevice, Kubelet, ask, find_gpus, parse_devices

HARDWARE = {
    "nvidia": {
        "gpus": [
            {"index": 0, "uuid": "GPU-a", "minor": 1, "mig": [{"index": 2, "uuid": "MIG-b", "gpu_instance": 7}]},
            {"index": 1, "uuid": "GPU-c", "minor": 0},
        ]
    }
}
SLICE = {"gpu_index": 0, "gpu_uuid": "MIG-b", "mig_parent": "GPU-a", "mig_index": 2}
FIRST, SECOND = {"gpu_index": 0, "gpu_uuid": "GPU-a"}, {"gpu_index": 1, "gpu_uuid": "GPU-c"}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine answers late."""
    monkeypatch.setattr(kubelet_source, "TIMEOUT_SECONDS", PATIENCE)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeKubelet]:
    with running_kubelet(tmp_path / "kubelet.sock") as running:
        yield running


def test_the_kubelet_says_who_has_which_device(node: FakeKubelet) -> None:
    node.pods = [
        make_pod("trainer-0", "vision", "training", "GPU-a", "GPU-c"),
        make_pod("coredns", "kube-system", "dns"),
        {"name": "pending", "namespace": "vision"},
    ]
    who = ("trainer-0", "vision", "training")
    assert parse_devices(ask(node.socket)) == [GivenDevice(*who, "GPU-a"), GivenDevice(*who, "GPU-c")]


def test_a_device_of_a_claim_is_found_by_its_driver() -> None:
    def claim(driver: str, device: str) -> dict[str, object]:
        resource = {"driver_name": driver, "device_name": device, "cdi_devices": [{"name": "k8s.io/claim=1"}]}
        return {"claim_name": "one", "claim_namespace": "vision", "claim_resources": [resource]}

    claims = [claim("gpu.nvidia.com", "gpu-1"), claim("net.example.com", "gpu-1")]
    pod = {"name": "p", "namespace": "n", "containers": [{"name": "c", "dynamic_resources": claims}]}
    found = parse_devices(make_answer([pod]).SerializeToString())
    assert found == [GivenDevice("p", "n", "c", "gpu-1")]


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("GPU-a", FIRST),
        ("GPU-c::3", SECOND),  # shared in time by NVIDIA's plugin
        ("MIG-b", SLICE),
        ("MIG-b::0", SLICE),
        ("nvidia0", SECOND),  # GKE: the number of the device file, not of the driver
        ("nvidia1/vgpu2", FIRST),
        ("nvidia1/gi7", SLICE),
        ("nvidia1/gi7/vgpu0", SLICE),
        ("nvidia1/gi9", None),
        ("gpu-1", FIRST),  # DRA
        ("nvidia.com/gpu=GPU-c", SECOND),  # CDI
        ("nvidia7", None),
        ("GPU-elsewhere", None),
        ("rdma0", None),
        ("", None),
    ],
)
def test_every_way_to_call_a_gpu_is_understood(device: str, expected: dict[str, object] | None) -> None:
    found = find_gpus([GivenDevice("p", "n", "c", device)], HARDWARE)
    assert [dict(item.gpu) for item in found] == ([] if expected is None else [expected])


def test_parts_of_a_shared_gpu_are_one_gpu_of_their_container() -> None:
    devices = [GivenDevice("p", "n", "c", f"GPU-a::{part}") for part in range(3)] + [
        GivenDevice("q", "n", "c", "GPU-a::3")
    ]
    assert [item.pod for item in find_gpus(devices, HARDWARE)] == ["p", "q"]


@given(st.binary(max_size=200))
def test_no_bytes_are_worse_than_malformed(data: bytes) -> None:
    try:
        assert isinstance(parse_devices(data), list)
    except Malformed:
        pass


class Asked:
    """A kubelet that is asked as often as one looks."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, *, is_expected: bool = False) -> None:
        monkeypatch.setattr(kubelet_source, "INTERVAL_SECONDS", 0.0)
        self.said: list[str] = []
        self._asked = Kubelet(path, self.said.append, is_expected=is_expected)

    def pods(self) -> list[str]:
        return [device.pod for device in self._asked.given_devices()]


def test_what_changes_is_seen_and_an_answer_outlives_a_restart(
    node: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.pods = [make_pod("first", "n", "c", "GPU-a")]
    asked = Asked(node.socket, monkeypatch)
    wait_until(lambda: asked.pods() == ["first"], "the first answer")
    node.pods = [make_pod("second", "n", "c", "GPU-a")]
    wait_until(lambda: asked.pods() == ["second"], "the next one")
    node.status = grpc.StatusCode.UNAVAILABLE
    wait_until(lambda: asked.pods() and asked.said, "an error")
    assert "UNAVAILABLE: not now" in asked.said[0] and asked.pods() == ["second"]
    monkeypatch.setattr(kubelet_source, "KEEP_SECONDS", 0.0)
    assert asked.pods() == []


def test_a_socket_that_is_not_there_is_worth_a_word_only_in_a_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_expected in (False, True):
        asked = Asked(tmp_path / "none.sock", monkeypatch, is_expected=is_expected)
        assert asked.pods() == [] and bool(asked.said) == is_expected
    assert "No such file" in asked.said[0]


def test_somebody_who_answers_no_grpc_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet_source, "TIMEOUT_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "mute.sock"))
        listening.listen()
        asked = Asked(tmp_path / "mute.sock", monkeypatch)
        wait_until(lambda: [asked.pods(), *asked.said][1:], "an error")
    assert "which pod has which GPU is not known" in asked.said[0]


def test_without_grpcio_it_says_what_to_install(tmp_path: Path) -> None:
    program = f"""
import pathlib, sys, time
sys.modules["grpc"] = None
from trainvitals.sources.kubelet import Kubelet
said = []
kubelet = Kubelet(pathlib.Path({str(tmp_path)!r}), said.append, is_expected=False)
kubelet.given_devices()
kubelet._thread.join()
kubelet.given_devices()
print(said)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.count("grpc is not installed; pip install 'trainvitals[kubernetes]'") == 1
