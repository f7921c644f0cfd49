"""Several hosts on one machine: each a network namespace with a host name and a link of its own, which can be cut."""

from __future__ import annotations

import ipaddress
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from waiting import free_port

_SPACE = ipaddress.ip_network("198.18.0.0/15")
"""For tests of networks; nobody else has addresses in it."""


class Host:
    """Its link is a pair of interfaces: `near` is here, with an address that the host can reach."""

    def __init__(self, number: int) -> None:
        self.name = f"gpu{number}"
        self.space = f"tv{os.getpid()}-{number}"
        self.near, far = f"tv{os.getpid()}{number}n", f"tv{os.getpid()}{number}f"
        block = list(_SPACE.subnets(new_prefix=30))[(os.getpid() * 8 + number) % 32768]
        self.address, own = (str(address) for address in block.hosts())
        _ip("netns", "add", self.space)
        _ip("link", "add", self.near, "type", "veth", "peer", "name", far)
        _ip("link", "set", far, "netns", self.space)
        _ip("address", "add", f"{self.address}/30", "dev", self.near)
        _ip("link", "set", self.near, "up")
        for words in (
            ("address", "add", f"{own}/30", "dev", far),
            ("link", "set", far, "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", self.space, *words)

    def command(self, words: Sequence[str]) -> list[str]:
        """What runs a program there."""
        set_name = f'hostname {self.name}; exec "$@"'
        return ["ip", "netns", "exec", self.space, "unshare", "--uts", "sh", "-c", set_name, "sh", *words]

    def cut(self) -> None:
        _ip("link", "set", self.near, "down")

    def heal(self) -> None:
        _ip("link", "set", self.near, "up")

    def remove(self) -> None:
        _ip("link", "delete", self.near)
        _ip("netns", "delete", self.space)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextmanager
def make_hosts(count: int) -> Iterator[list[Host]]:
    """Needs root."""
    with ExitStack() as stack:
        hosts = []
        for number in range(1, count + 1):
            host = Host(number)
            stack.callback(host.remove)
            hosts += [host]
        yield hosts


BALANCER = """
defaults
  mode http
  timeout connect 5s
  timeout client 120s
  timeout server 120s
  option redispatch
frontend agents
{binds}
  default_backend gateways
backend gateways
  balance roundrobin
  option httpchk GET /health
  default-server check inter 200ms fall 1 rise 1
{servers}
"""


@contextmanager
def run_balancer(place: Path, addresses: Sequence[str], ports: Sequence[int]) -> Iterator[int]:
    """Debian's HAProxy on these addresses, in front of servers on loopback; its port."""
    program = shutil.which("haproxy")
    assert program is not None, "apt-get install haproxy"
    port = free_port()
    binds = "\n".join(f"  bind {address}:{port}" for address in addresses)
    servers = "\n".join(f"  server gateway{number} 127.0.0.1:{port}" for number, port in enumerate(ports))
    place.mkdir()
    (place / "haproxy.cfg").write_text(BALANCER.format(binds=binds, servers=servers))
    process = subprocess.Popen([program, "-q", "-db", "-f", str(place / "haproxy.cfg")])
    try:
        yield port
    finally:
        process.kill()
        process.wait()
