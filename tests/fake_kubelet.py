"""A kubelet on a unix socket: a real gRPC server, and the messages of its pod-resources API."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Of kubernetes/kubelet, pkg/apis/podresources/v1/api.proto: (name, number, type or message, repeated).
MESSAGES: dict[str, list[tuple[str, int, str, bool]]] = {
    "ListPodResourcesRequest": [],
    "ListPodResourcesResponse": [("pod_resources", 1, "PodResources", True)],
    "PodResources": [
        ("name", 1, "string", False),
        ("namespace", 2, "string", False),
        ("containers", 3, "ContainerResources", True),
        ("cpu_ids", 4, "int64", True),
    ],
    "ContainerResources": [
        ("name", 1, "string", False),
        ("devices", 2, "ContainerDevices", True),
        ("cpu_ids", 3, "int64", True),
        ("memory", 4, "ContainerMemory", True),
        ("dynamic_resources", 5, "DynamicResource", True),
    ],
    "ContainerMemory": [("memory_type", 1, "string", False), ("size", 2, "uint64", False)],
    "ContainerDevices": [
        ("resource_name", 1, "string", False),
        ("device_ids", 2, "string", True),
        ("topology", 3, "TopologyInfo", False),
    ],
    "TopologyInfo": [("nodes", 1, "NUMANode", True)],
    "NUMANode": [("ID", 1, "int64", False)],
    "DynamicResource": [
        ("claim_name", 2, "string", False),
        ("claim_namespace", 3, "string", False),
        ("claim_resources", 4, "ClaimResource", True),
    ],
    "ClaimResource": [
        ("cdi_devices", 1, "CDIDevice", True),
        ("driver_name", 2, "string", False),
        ("pool_name", 3, "string", False),
        ("device_name", 4, "string", False),
    ],
    "CDIDevice": [("name", 1, "string", False)],
}


def _make_messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="fake_kubelet.proto", package="v1", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, kind, repeated in fields:
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            field = described.field.add(name=name, number=number, label=label)
            if kind in MESSAGES:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".v1.{kind}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in MESSAGES}


_MESSAGES = _make_messages()


def make_answer(pods: list[dict[str, Any]]) -> Any:
    """A ListPodResourcesResponse of these pods, as the fields of the messages are called."""
    from google.protobuf.json_format import ParseDict

    return ParseDict({"pod_resources": pods}, _MESSAGES["ListPodResourcesResponse"]())


def make_pod(name: str, namespace: str, container: str, *ids: str, resource: str = "nvidia.com/gpu") -> dict[str, Any]:
    """With exclusive CPUs and NUMA nodes beside its devices, as the kubelet's static policies give them."""
    devices = {"resource_name": resource, "device_ids": list(ids), "topology": {"nodes": [{"ID": "1"}]}}
    inside = {
        "name": container,
        "devices": [devices],
        "cpu_ids": ["2", "3", "300"],
        "memory": [{"memory_type": "hugepages-1Gi", "size": "1073741824"}],
    }
    return {"name": name, "namespace": namespace, "containers": [inside]}


class FakeKubelet:
    """Answers `pods`, or with `status` if that is set."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.pods: list[dict[str, Any]] = []
        self.status: grpc.StatusCode | None = None

    def list(self, request: Any, context: grpc.ServicerContext) -> Any:
        assert type(request).__name__ == "ListPodResourcesRequest"
        if self.status is not None:
            context.abort(self.status, "not now")
        return make_answer(self.pods)


@contextmanager
def running_kubelet(socket: Path) -> Iterator[FakeKubelet]:
    kubelet = FakeKubelet(socket)
    handler = grpc.unary_unary_rpc_method_handler(
        kubelet.list,
        request_deserializer=_MESSAGES["ListPodResourcesRequest"].FromString,
        response_serializer=lambda answer: answer.SerializeToString(),
    )
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield kubelet
    finally:
        server.stop(None).wait()
