"""Every exporter once, and which of them settings ask for.

There are two contracts. *Families*: the newest values of the whole machine as metric families, collected whenever they
are sent (`contracts.py`). *Rows*: the lines of one run, in order, as they are written (`rows.py`). Imports none of the
exporters, so that whoever asks for none pays for none. Other packages add rows through the entry points
`trainvitals.exporters` (docs/plugins.md) and are asked for by name in the setting `export`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal, get_args

from trainvitals.journal.layout import METRIC_TABLES
from trainvitals.plugins import Registry
from trainvitals.settings import TABLE, Settings

Contract = Literal["families", "rows"]


@dataclass(frozen=True, slots=True)
class ExporterRow:
    """An exporter, before its module is imported."""

    name: str
    module: str
    """Families: has `start(order: Order) -> Output`. Rows: has `create(target, settings) -> RowExporter`."""
    contract: Contract
    find_target: Callable[[Settings], str | None] | None = None
    """Where settings want it to go, None for nowhere; by default what `export` has under its name."""
    settings: tuple[str, ...] = ()
    """Names of the settings that, besides the target, make it another one."""
    needs: str | None = None
    """A module without which it cannot work."""
    install: str | None = None
    """What to type where that is missing."""
    usage: str | None = None
    """How it is asked for, as `doctor` shows it."""
    tables: tuple[str, ...] = METRIC_TABLES
    """Rows: those that it gets."""
    is_mirror: bool = False
    """Rows: shows the run as a whole to people, so of several hosts only the one that leads the run has it."""

    def check(self) -> None:
        """ValueError for a row of another package that others would stumble over."""
        if self.contract not in get_args(Contract):
            raise ValueError(f"contract is {self.contract!r}, not one of {', '.join(get_args(Contract))}")
        if self.find_target is not None:
            raise ValueError(
                "an exporter of another package is requested with the setting 'export', not with find_target"
            )
        if unknown := set(self.settings) - {row.name for row in TABLE}:
            raise ValueError(f"unknown setting {', '.join(sorted(unknown))}")

    def target(self, settings: Settings) -> str | None:
        if self.find_target is not None:
            return self.find_target(settings)
        return settings.export.get(self.name)

    @property
    def is_installed(self) -> bool:
        try:
            return self.needs is None or find_spec(self.needs) is not None
        except ModuleNotFoundError:  # not even the package that it would be in
            return False


def _page(settings: Settings) -> str | None:
    port = settings.prometheus_port
    return None if port is None else f"{settings.prometheus_address}:{port}"


_PUSH = (
    "prometheus.push_interval", "prometheus.push_token", "prometheus.push_headers", "prometheus.names",
    "prometheus.host", "prometheus.labels", "prometheus.push_tls_certificate", "prometheus.push_tls_key",
    "prometheus.push_tls_ca",
)  # fmt: skip
_MEASURED = tuple(table for table in METRIC_TABLES if table != "source")
_PROMETHEUS = "pip install 'trainvitals[prometheus]'"

REGISTRY: Registry[ExporterRow] = Registry(
    "exporters",
    (
        ExporterRow(
            "prometheus",
            "trainvitals.exporters.page",
            "families",
            _page,
            settings=(
                "prometheus.address", "prometheus.port", "prometheus.token", "prometheus.password",
                "prometheus.tls_certificate", "prometheus.tls_key", "prometheus.tls_client_ca", "prometheus.names",
                "prometheus.compat",
                "prometheus.user_metrics", "prometheus.max_user_series", "prometheus.host",
            ),
            needs="prometheus_client",
            install=_PROMETHEUS,
            usage="--prometheus-port 9091",
        ),
        ExporterRow(
            "remote_write",
            "trainvitals.exporters.remote_write",
            "families",
            lambda settings: settings.prometheus_remote_write,
            settings=(*_PUSH, "prometheus.push_native_histograms"),
            needs="prometheus_client",
            install=_PROMETHEUS,
            usage="--prometheus-remote-write http://HOST:9090/api/v1/write",
        ),
        ExporterRow(
            "pushgateway",
            "trainvitals.exporters.pushgateway",
            "families",
            lambda settings: settings.prometheus_pushgateway,
            settings=_PUSH,
            needs="prometheus_client",
            install=_PROMETHEUS,
            usage="TRAINVITALS_PROMETHEUS_PUSHGATEWAY=http://HOST:9091",
        ),
        ExporterRow(
            "otlp",
            "trainvitals.exporters.otlp",
            "families",
            lambda settings: settings.prometheus_otlp,
            settings=_PUSH,
            needs="opentelemetry.proto",
            install="pip install 'trainvitals[otlp]'",
            usage="TRAINVITALS_PROMETHEUS_OTLP=http://HOST:4318/v1/metrics",
        ),
        ExporterRow(
            "tensorboard",
            "trainvitals.exporters.tensorboard",
            "rows",
            lambda settings: settings.tensorboard,
            usage="--tensorboard",
            tables=(*_MEASURED, "alerts"),
            is_mirror=True,
        ),
        ExporterRow(
            "mlflow",
            "trainvitals.exporters.mlflow",
            "rows",
            lambda settings: settings.mlflow,
            usage="--mlflow http://HOST:5000",
            tables=_MEASURED,
            is_mirror=True,
        ),
        ExporterRow(
            "wandb",
            "trainvitals.exporters.wandb",
            "rows",
            lambda settings: settings.wandb_project,
            settings=("wandb.run_name", "wandb.offline"),
            needs="wandb",
            install="pip install 'trainvitals[wandb]'",
            usage="--wandb-project NAME",
            tables=_MEASURED,
            is_mirror=True,
        ),
    ),
    ExporterRow,
    check=lambda row: row.check(),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wish:
    """One exporter that settings ask for; equal wishes are one."""

    exporter: ExporterRow
    target: str
    values: tuple[tuple[str, object], ...]
    """The settings that matter to it."""
    settings: Settings = field(compare=False)
    """All of whoever asked."""

    @property
    def key(self) -> tuple[str, str]:
        """The same for all who want the same exporter to go to the same place."""
        return self.exporter.name, self.target


def wishes_of(settings: Settings, contract: Contract) -> list[Wish]:
    """What these settings ask for; empty for nothing, which is the default. Other packages are not looked at unless
    the setting `export` names something."""
    wanted = [row for row in REGISTRY.own if row.contract == contract]
    for name in settings.export:
        row = REGISTRY.get(name)
        if row is not None and row.contract == contract and row not in wanted:
            wanted.append(row)
    rows = {row.name: row.value for row in settings}
    found = []
    for row in wanted:
        target = row.target(settings)
        if target is not None:
            found.append(Wish(row, target, tuple((name, rows[name]) for name in row.settings), settings))
    return found


def explain_unusable(settings: Settings) -> list[str]:
    """One sentence for each name in `export` that is not an exporter, or is a broken one."""
    found = []
    for name in settings.export:
        if REGISTRY.get(name) is None:
            error = REGISTRY.error(name)
            why = f"plugin failed to load: {error}" if error else "no installed package provides it"
            found.append(f"setting 'export': '{name}': {why}")
        elif name in (row.name for row in REGISTRY.own):
            found.append(f"setting 'export': '{name}' is built in and has its own settings: trainvitals config")
    return found
