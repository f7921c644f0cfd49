"""What a server is called: whether a name means this machine alone, and which name a request was sent to."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a name or address means this machine only."""
    if is_address(host):
        return ipaddress.ip_address(host).is_loopback
    return host in ("localhost", "localhost.localdomain")


def is_address(host: str) -> bool:
    """Whether it is no name: anybody can point a name of theirs at an address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def split_host(header: str) -> str | None:
    """The name in a Host header without its port, lower case; None if the header is not a host."""
    text = header.strip().lower()
    if text.startswith("["):
        name, bracket, port = text[1:].partition("]")
        if not bracket or (port and not (port[0] == ":" and port[1:].isdecimal())):
            return None
        return name
    name, colon, port = text.partition(":")
    if not name or (colon and not port.isdecimal()) or any(character in name for character in "/\\@ \t"):
        return None
    return name.rstrip(".") or None
