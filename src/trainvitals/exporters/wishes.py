"""Which exporters settings ask for. Imports nothing of them, so that whoever asks for none pays for none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainvitals.settings import Settings


@dataclass(frozen=True, slots=True)
class Wish:
    """One way out that a settings object asks for; equal wishes are one."""

    kind: str
    target: str
    settings: tuple[tuple[str, object], ...]


# Way out -> the settings that make it another one.
_PAGE = (
    "prometheus.address", "prometheus.port", "prometheus.token", "prometheus.password",
    "prometheus.tls_certificate", "prometheus.tls_key", "prometheus.names", "prometheus.compat",
    "prometheus.user_metrics", "prometheus.max_user_series",
)  # fmt: skip
_PUSH = ("prometheus.push_interval", "prometheus.push_token", "prometheus.spool_size_mb", "prometheus.names")


def wishes_of(settings: Settings) -> list[Wish]:
    """What these settings ask for; empty for nothing, which is the default."""
    rows = {row.name: row.value for row in settings}

    def wish(kind: str, target: object, names: Iterable[str]) -> Wish:
        return Wish(kind, str(target), tuple((name, rows[name]) for name in names))

    found = []
    if settings.prometheus_port is not None:
        found.append(wish("page", f"{settings.prometheus_address}:{settings.prometheus_port}", _PAGE))
    for kind, target in (
        ("remote_write", settings.prometheus_remote_write),
        ("pushgateway", settings.prometheus_pushgateway),
        ("otlp", settings.prometheus_otlp),
    ):
        if target is not None:
            found.append(wish(kind, target, _PUSH))
    return found
