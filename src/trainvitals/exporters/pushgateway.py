"""Pushgateway: for jobs that may be over before anybody scrapes. One group per run, with that run's series only.

The gateway keeps the last values after the run's end; that is what it is for. GPUs and hosts are not pushed: there they
would freeze.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlsplit

from prometheus_client.exposition import basic_auth_handler, default_handler, push_to_gateway
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import CollectorRegistry

TIMEOUT = 10.0
PATIENCE = 2.0
"""Seconds for the last push."""


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


def push(url: str, run: str, families: Iterable[Metric], password: str | None = None) -> None:
    """Replace the group of this run. Raises OSError when the gateway does not take it."""
    registry = CollectorRegistry()
    registry.register(_Run(families))

    def send(
        url: str, method: str, timeout: float | None, headers: list[tuple[str, str]], data: bytes
    ) -> Callable[[], None]:
        if password is None:
            return default_handler(url, method, timeout, headers, data)
        user, _, secret = password.partition(":")
        return basic_auth_handler(url, method, timeout, headers, data, user, secret)

    push_to_gateway(url, "trainvitals", registry, grouping_key={"run": run}, timeout=TIMEOUT, handler=send)


class Pushgateway:
    """Pushes every interval, and once more when a run has ended or the agent ends."""

    def __init__(
        self,
        url: str,
        collect: Callable[[], Iterable[Metric]],
        *,
        interval: float = 15.0,
        password: str | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._url = url
        self._collect = collect
        self._interval = interval
        self._password = password
        self._tell = tell
        self._trouble: str | None = None
        self._hurry = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pushgateway", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Push now, not only after the interval."""
        self._hurry.set()

    def close(self) -> None:
        self._ending.set()
        self._hurry.set()
        self._thread.join(PATIENCE)

    def push_now(self) -> None:
        """Push every run there is; trouble is told once."""
        groups: Mapping[str, list[Metric]] = by_run(self._collect())
        try:
            for run, families in groups.items():
                push(self._url, run, families, self._password)
            self._trouble = None
        except OSError as error:
            reason = getattr(error, "reason", None) or error
            text = f"the Pushgateway {_address(self._url)} does not take metrics: {reason}"
            if text != self._trouble:
                self._trouble = text
                self._tell(text)

    def _run(self) -> None:
        ending = False
        while not ending:
            self._hurry.wait(self._interval)
            self._hurry.clear()
            ending = self._ending.is_set()
            self.push_now()


def _address(url: str) -> str:
    """Without a password."""
    return urlsplit(url if "//" in url else f"//{url}").netloc.rpartition("@")[2]
