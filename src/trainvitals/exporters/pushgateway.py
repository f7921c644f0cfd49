"""Pushgateway: for jobs that may be over before anybody scrapes. One group per run, with that run's series only.

The gateway keeps the last values after the run's end; that is what it is for. GPUs and hosts are not pushed: there they
would freeze.
"""

from __future__ import annotations

import base64
import urllib.request
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from prometheus_client.exposition import push_to_gateway
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import CollectorRegistry

from trainvitals import http_client
from trainvitals.exporters.contracts import Order
from trainvitals.exporters.credentials import Credentials
from trainvitals.exporters.push_queue import split_url
from trainvitals.exporters.pushing import Pushing

TIMEOUT = 10.0


class _Run:
    """The families of one run, as a registry that prometheus-client can push."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def by_run(families: Iterable[Metric]) -> dict[str, list[Metric]]:
    """The series that carry a run, by run, without created times."""
    found: dict[str, dict[str, Metric]] = {}
    for family in families:
        for sample in family.samples:
            run = sample.labels.get("run")
            if not run or sample.name.endswith("_created"):
                continue
            mine = found.setdefault(run, {})
            if family.name not in mine:
                mine[family.name] = Metric(family.name, family.documentation, family.type, family.unit)
            mine[family.name].samples.append(sample)
    return {run: list(mine.values()) for run, mine in found.items()}


def push(url: str, run: str, families: Iterable[Metric], credentials: Credentials) -> None:
    """Replace the group of this run. Raises OSError when the gateway does not accept it."""
    registry = CollectorRegistry()
    registry.register(_Run(families))

    def prepare(
        url: str, method: str, timeout: float | None, headers: list[tuple[str, str]], data: bytes
    ) -> Callable[[], None]:
        address, own = split_url(url)
        given = {**credentials.headers, **dict(headers), **own}
        request = urllib.request.Request(address, data=data, headers=given, method=method)
        password = credentials.token
        if password is not None:
            request.add_header("Authorization", f"Basic {base64.b64encode(password.encode()).decode()}")

        def send() -> None:
            answer = http_client.send(request, TIMEOUT, context=credentials.context)
            if not answer.is_good:
                raise OSError(f"it returned {answer.status} {answer.reason}")

        return send

    push_to_gateway(url, "trainvitals", registry, grouping_key={"run": run}, timeout=TIMEOUT, handler=prepare)


def start(order: Order) -> Pushing:
    credentials = order.make_credentials()  # a wrong reference is reported now
    find_url = order.read_target or (lambda: order.target)
    return Pushing(
        lambda families: push_runs(find_url(), families, credentials),
        lambda: order.collect(order.options),
        interval=order.settings.prometheus_push_interval,
        title=f"the Pushgateway {_address(order.target)}",
        warn=order.warn,
    )


def push_runs(url: str, families: Iterable[Metric], credentials: Credentials) -> None:
    """Replace the group of every run that these families speak of."""
    for run, mine in by_run(families).items():
        push(url, run, mine, credentials)


def _address(url: str) -> str:
    """Without a password."""
    return urlsplit(url if "//" in url else f"//{url}").netloc.rpartition("@")[2]
