"""Which names mean this machine, and which name a request is for."""

from __future__ import annotations

import pytest

from trainvitals.host_names import is_loopback, split_host


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"),
        ("Localhost.:9090", "localhost"),
        ("127.0.0.1:80", "127.0.0.1"),
        ("[::1]", "::1"),
        ("[::1]:9090", "::1"),
        ("Node7.lab:80", "node7.lab"),
        ("", None),
        ("[::1", None),
        ("[::1]x", None),
        ("a b", None),
        ("localhost@evil", None),
        ("node7:http", None),
    ],
)
def test_the_name_of_a_host_header_is_without_its_port(header: str, name: str | None) -> None:
    assert split_host(header) == name


def test_only_names_and_addresses_of_this_machine_are_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "localhost.localdomain", "127.0.0.1", "127.8.9.1", "::1")))
    assert not any(
        map(is_loopback, ("", "0.0.0.0", "::", "10.0.0.1", "node7", "localhost.evil.example", "127.0.0.1.x"))
    )
