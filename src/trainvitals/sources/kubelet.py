"""Which container of which pod was given which GPU: asked of the kubelet, through its pod-resources socket.

The API is gRPC, `v1.PodResourcesLister` of
https://github.com/kubernetes/kubelet/blob/master/pkg/apis/podresources/v1/api.proto; its few messages are read by hand.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals.newest import Value
from trainvitals.protobuf import BYTES, Malformed, as_bytes, read_fields
from trainvitals.sources import described_gpus

LIST = "/v1.PodResourcesLister/List"
INTERVAL_SECONDS = 10.0
TIMEOUT_SECONDS = 5.0
KEEP_SECONDS = 120.0
"""How long an answer holds if no other comes: a kubelet that restarts keeps its pods."""
LARGEST_ANSWER = 16 << 20
DRA_DRIVER = "gpu.nvidia.com"
UNKNOWN = "which pod has which GPU is not known"

_BY_MINOR = re.compile(r"nvidia(\d+)(?:/gi(\d+))?|gpu-(\d+)")
_SHARED = re.compile(r"(?:::|/vgpu)\d*$")


class GivenDevice(NamedTuple):
    """A device that a container was given."""

    pod: str
    namespace: str
    container: str
    device: str
    """As its device plugin or DRA driver calls it."""


class GivenGpu(NamedTuple):
    """A GPU of this machine, or a MIG slice, that a container was given."""

    gpu: Mapping[str, Value]
    """The labels of the GPU, as those of its samples as far as they identify it."""
    pod: str
    namespace: str
    container: str


def parse_devices(answer: bytes) -> list[GivenDevice]:
    """What a ListPodResourcesResponse says; raises Malformed."""
    return [device for pod in _messages(answer, 1) for device in _parse_pod(pod)]


def _parse_pod(data: bytes) -> Iterator[GivenDevice]:
    name, namespace = _text(data, 1), _text(data, 2)
    for container in _messages(data, 3):
        who = (name, namespace, _text(container, 1))
        for devices in _messages(container, 2):
            yield from (GivenDevice(*who, _decode(device)) for device in _messages(devices, 2))
        for claim in _messages(container, 5):
            for resource in _messages(claim, 4):
                if _text(resource, 2) == DRA_DRIVER:
                    yield GivenDevice(*who, _text(resource, 4))


def _messages(data: bytes, number: int) -> list[bytes]:
    return [as_bytes(value) for field, kind, value, _ in read_fields(data) if field == number and kind == BYTES]


def _text(data: bytes, number: int) -> str:
    return _decode((_messages(data, number) or [b""])[-1])


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def find_gpus(devices: Sequence[GivenDevice], hardware: Mapping[str, Any]) -> list[GivenGpu]:
    """Those that are GPUs of this machine, as its drivers describe them (`describe()` by source). A GPU that is shared
    in time, or was given to a container in several parts, is there once for each container."""
    found: dict[GivenDevice, GivenGpu] = {}
    if not devices:
        return []
    gpus = [gpu for _, known in described_gpus(hardware) for gpu in known if {"index", "uuid"} <= gpu.keys()]
    for given in devices:
        labels = _find_gpu(given.device, gpus)
        if labels is not None:
            found[given._replace(device=str(labels["gpu_uuid"]))] = GivenGpu(labels, *given[:3])
    return list(found.values())


def _find_gpu(device: str, gpus: Sequence[Mapping[str, Any]]) -> dict[str, Value] | None:
    """The GPU or slice that a device plugin calls so: `GPU-...` or `MIG-...`; on GKE, and in DRA, by the number of its
    device file: `nvidia0`, `nvidia0/gi2`, `gpu-0`. A part of a shared one has `::3` or `/vgpu3` at its end, a name of
    CDI `nvidia.com/gpu=` before it."""
    device = _SHARED.sub("", device.rpartition("=")[2])
    numbered = _BY_MINOR.fullmatch(device)
    for gpu in gpus:
        whole: dict[str, Value] = {"gpu_index": gpu["index"], "gpu_uuid": str(gpu["uuid"])}
        if numbered is not None:
            minor, instance = int(numbered[1] or numbered[3]), numbered[2]
            if gpu.get("minor", gpu["index"]) != minor:
                continue
            if instance is None:
                return whole
            part = next((part for part in gpu.get("mig", ()) if str(part.get("gpu_instance")) == instance), None)
            return None if part is None else {**whole, **_slice(gpu, part)}
        if device == gpu["uuid"]:
            return whole
        for part in gpu.get("mig", ()):
            if device == part["uuid"]:
                return {**whole, **_slice(gpu, part)}
    return None


def _slice(gpu: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Value]:
    return {"gpu_uuid": str(part["uuid"]), "mig_parent": str(gpu["uuid"]), "mig_index": part["index"]}


class Kubelet:
    """Asks now and then, in a thread: one that hangs delays nobody. Costs a look at a path where there is none."""

    def __init__(self, socket: Path, warn: Callable[[str], None], *, is_expected: bool) -> None:
        """`warn` says the same thing once. A socket that is not there is worth a word only if it is expected, as in a
        pod."""
        self._socket = socket
        self._warn = warn
        self._is_expected = is_expected
        self._devices: list[GivenDevice] = []
        self._answered = float("-inf")
        self._asked = float("-inf")
        self._thread: threading.Thread | None = None

    def given_devices(self) -> list[GivenDevice]:
        """As of the last answer; empty before the first."""
        now = time.monotonic()
        if now - self._asked >= INTERVAL_SECONDS and (self._thread is None or not self._thread.is_alive()):
            self._asked = now
            if self._is_there():
                self._thread = threading.Thread(target=self._ask, name="kubelet", daemon=True)
                self._thread.start()
        return self._devices if now - self._answered < KEEP_SECONDS else []

    def _is_there(self) -> bool:
        try:
            self._socket.stat()
        except OSError as error:
            if self._is_expected:
                self._warn(f"{self._socket}: {UNKNOWN}: {error.strerror}; docs/schedulers.md")
            return False
        return True

    def _ask(self) -> None:
        try:
            self._devices = parse_devices(ask(self._socket))
            self._answered = time.monotonic()
        except ImportError as error:
            self._warn(
                f"{self._socket}: {UNKNOWN}: {error.name} is not installed; pip install 'trainvitals[kubernetes]'"
            )
            self._asked = float("inf")  # it will not come while this process runs
        except (OSError, Malformed) as error:
            self._warn(f"{self._socket}: {UNKNOWN}: {error}")


def ask(socket: Path) -> bytes:
    """The kubelet's ListPodResourcesResponse. Raises OSError, and ImportError without grpcio."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else it writes to standard error itself
    import grpc

    options = [("grpc.max_receive_message_length", LARGEST_ANSWER), ("grpc.enable_http_proxy", 0)]
    try:
        with grpc.insecure_channel(f"unix:{socket.absolute()}", options=options) as channel:
            answer: bytes = channel.unary_unary(LIST)(b"", timeout=TIMEOUT_SECONDS)
            return answer
    except grpc.RpcError as error:
        code = error.code().name if hasattr(error, "code") else type(error).__name__
        raise OSError(f"the kubelet answers {code}: {getattr(error, 'details', lambda: '')() or ''}".strip()) from None
