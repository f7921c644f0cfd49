"""Keys of configuration files that were written for older monitors: one row each.

A row has what the key sets today, and how its value is converted. One that sets nothing is reported with what takes its
place, so that nobody believes in something that is not there. docs/arriving.md has the same rows for people.
Tested in tests/test_older_names.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from trainvitals.errors import nearest
from trainvitals.settings.kinds import NUMBERS, SWITCH


class OlderKey(NamedTuple):
    """One key with its sections. `convert` makes the value of a setting of that of the key: None for "not given"."""

    name: str
    sets: tuple[str, ...]
    """Names of settings; empty if it has no effect."""
    meaning: str
    """What it means today, as a sentence without its end."""
    convert: Callable[[Any], object] = lambda value: value
    misleads: Callable[[object], bool] = lambda value: False
    """Whether a value that sets nothing looks as if it did: then it is reported, with `meaning`."""
    precedence: int = 0
    """Of two keys that set the same thing the higher counts; two equals that differ are an error."""


def _is_on(value: object) -> bool:
    """Whether a value that was written asks for something; a section may say so itself."""
    if isinstance(value, Mapping):
        value = value.get("enabled", bool(value))
    return str(value).strip().lower() not in ("", "none", "false", "no", "off", "0", "0.0", "[]", "{}")


def _is_off(value: object) -> bool:
    return not _is_on(value)


def _gone(name: str, meaning: str, misleads: Callable[[object], bool] = _is_on) -> OlderKey:
    return OlderKey(name, (), meaning, misleads=misleads)


def _only(*, when: bool, gives: object) -> Callable[[object], object]:
    """For a switch of which one side is what happens anyway."""
    return lambda value: gives if SWITCH.parse(value) is when else None


# -- thresholds


class OlderThreshold(NamedTuple):
    """A threshold that was a share: `cpu_usage: 0.9` is `cpu_usage_percent: 90`."""

    name: str
    becomes: str
    bounded: bool = True
    """No share is above 1: what is larger was a percentage already."""


THRESHOLDS: tuple[OlderThreshold, ...] = (
    OlderThreshold("loss_increase", "loss_up_percent", bounded=False),
    OlderThreshold("training_speed", "throughput_drop_percent"),
    OlderThreshold("gpu_memory", "gpu_memory_percent"),
    OlderThreshold("memory_usage", "memory_usage_percent"),
    OlderThreshold("cpu_usage", "cpu_usage_percent"),
    OlderThreshold("disk_usage", "disk_usage_percent"),
)
_THRESHOLDS = {row.name: row for row in THRESHOLDS}


def convert_thresholds(value: object) -> dict[str, float]:
    """Our names with our units; a name that is not in the table is kept as it is."""
    found: dict[str, float] = {}
    for name, number in NUMBERS.parse(value).items():
        row = _THRESHOLDS.get(name)
        if row is None:
            found[name] = number
        else:
            # 0.07 * 100 is 7.000000000000001
            found[row.becomes] = number if row.bounded and number > 1 else round(number * 100, 9)
    return found


# -- where messages went


def _convert_webhook(value: object) -> dict[str, str] | None:
    """An address to send to; None for a switch, which never was one."""
    url = (value.get("webhook_url") or value.get("url")) if isinstance(value, Mapping) else value
    return {"slack": url.strip()} if isinstance(url, str) and ":" in url and _is_on(value) else None


_MAIL_KEYS = {
    "server": ("smtp_server", "smtp_host", "server", "host"),
    "port": ("smtp_port", "port"),
    "user": ("username", "user", "smtp_user"),
    "password": ("password", "smtp_password"),
    "from": ("from", "sender", "from_address"),
    "to": ("to", "recipients", "recipient", "to_addresses"),
}


def convert_mail(value: object) -> dict[str, str] | None:
    """The address of a mail server and of whoever reads; None if the value does not name both."""
    if not isinstance(value, Mapping) or not _is_on(value):
        return None
    given = {
        part: next((value[key] for key in keys if value.get(key)), None)  # the first of the names that it has
        for part, keys in _MAIL_KEYS.items()
    }
    to = given["to"] if isinstance(given["to"], (list, tuple)) else [given["to"]]
    if not given["server"] or not all(to):
        return None
    login = ":".join(_quote(given[part]) for part in ("user", "password") if given[part])
    port = f":{given['port']}" if given["port"] else ""
    sender = f"&from={_quote(given['from'])}" if given["from"] else ""
    readers = ",".join(map(_quote, to))
    return {"mail": f"mailtos://{login}{'@' if login else ''}{given['server']}{port}?to={readers}{sender}"}


def _quote(value: object) -> str:
    """As part of an address, with references such as `${env:SMTP_PASSWORD}` left alone."""
    parts = re.split(r"(\$\{[^}]*\})", str(value))
    return "".join(part if part.startswith("${") else quote(part, safe="") for part in parts)


# -- the rows

_ALERT_SECTIONS = ("alert_system", "alerting", "monitoring.alerting")
_NO_BUFFER = "there is no buffer, a line is in the file when log() returns"


def _make_rows() -> Iterator[OlderKey]:
    yield OlderKey("save_dir", ("dir",), "folder that holds all runs")
    yield OlderKey("enable_dashboard", ("dashboard",), "serves the dashboard while the run lives")
    yield OlderKey("dashboard.enabled", ("dashboard",), "serves the dashboard while the run lives")
    yield OlderKey("monitoring.visualization.dashboard", ("dashboard",), "serves the dashboard while the run lives")
    yield OlderKey("dashboard_port", ("web.port",), "port of the dashboard")
    yield OlderKey("dashboard.port", ("web.port",), "port of the dashboard")
    yield OlderKey("dashboard.host", ("web.host",), "address of the dashboard")
    yield _gone("dashboard.refresh_interval", "the page shows every row as soon as it is written")
    yield OlderKey("enable_alerts", ("alerts.enabled",), "judges rules and sends messages")
    for section in _ALERT_SECTIONS:
        # Given as a switch, or as a section with `enabled` in it.
        for name in (section, f"{section}.enabled"):
            yield OlderKey(name, ("alerts.enabled",), "judges rules and sends messages")
        yield OlderKey(
            f"{section}.thresholds",
            ("alerts.thresholds",),
            "thresholds; shares such as `cpu_usage: 0.9` become percentages",
            convert_thresholds,
        )
        yield OlderKey(
            f"{section}.email_notifications",
            ("alerts.notify",),
            "mails need a server and a reader: name them here as `smtp_server` and `to`, or add "
            "`mailtos://user:password@smtp.example.org?to=you@example.org` to `alerts.notify`",
            convert_mail,
            _is_on,
        )
        yield OlderKey(
            f"{section}.slack_notifications",
            ("alerts.notify",),
            "Slack needs the address of a webhook: name it here, or add it to `alerts.notify`",
            _convert_webhook,
            _is_on,
        )
    yield OlderKey("tensorboard_dir", ("tensorboard",), "folder for TensorBoard's event files")
    yield OlderKey(
        "monitoring.visualization.tensorboard",
        ("tensorboard",),
        "writes TensorBoard's event files, into the run folder",
        _only(when=True, gives="on"),
        precedence=-1,
    )
    yield _gone("monitoring.visualization.prometheus", "set `prometheus.port` to the port that Prometheus scrapes")
    yield _gone("monitoring.visualization.grafana", "`trainvitals grafana` writes dashboards for Grafana")
    yield _gone(
        "monitoring.visualization", "`trainvitals top`, `trainvitals serve` and `trainvitals report` show any run"
    )
    yield _gone(
        "enable_performance_monitor",
        "performance is measured for every model that is watched",
        _is_off,
    )
    yield OlderKey(
        "track_gradients",
        ("watch.gradients_every", "watch.layers_every"),
        "gradient norms, of the whole model and by layer; false: none",
        _only(when=False, gives=0),
    )
    yield OlderKey("gradient_monitoring.track_layers", ("watch.track_layers",), "layers to look at, by part of a name")
    yield OlderKey(
        "distributed_monitoring",
        ("rank_zero_only",),
        "every rank writes; false: only rank 0",
        _only(when=False, gives=True),
        precedence=-1,
    )
    yield OlderKey("track_rank_0_only", ("rank_zero_only",), "only rank 0 writes")
    yield OlderKey(
        "performance_tuning.high_frequency_mode",
        ("interval",),
        "hardware is sampled ten times a second",
        _only(when=True, gives=0.1),
        precedence=-1,
    )
    for prefix in ("performance_tuning.", "metrics_collection."):
        yield _gone(f"{prefix}buffer_size", _NO_BUFFER)
        yield _gone(f"{prefix}flush_interval", _NO_BUFFER)
    for prefix in ("performance_tuning.", "metrics_collection.", ""):
        yield _gone(f"{prefix}batch_metrics_collection", _NO_BUFFER)
        yield _gone(f"{prefix}use_memory_maps", "files are read in pieces, however large they are")
        yield _gone(f"{prefix}max_events_per_second", "no line is dropped")
    yield OlderKey("metrics_collection.interval", ("interval",), "time between two samples of the hardware")
    for name in ("metrics_collection", "metrics_collection.enabled"):
        yield _gone(name, "everything that can be read is recorded", _is_off)
    yield OlderKey(
        "performance_tuning.auto_cleanup",
        ("max_size_gb",),
        "the oldest runs give way when `max_database_size_gb` is reached; false: none does",
        _only(when=False, gives="none"),
        precedence=1,
    )
    yield OlderKey("performance_tuning.max_database_size_gb", ("max_size_gb",), "size above which the oldest runs go")
    yield _gone(
        "monitoring.enabled",
        "false, for a TrainingMonitor: nothing is started and nothing is logged; elsewhere leave out "
        "`trainvitals.init()`",
        _is_off,
    )
    yield OlderKey("monitoring.interval", ("interval",), "time between two samples of the hardware")
    yield _gone("monitoring.metrics", "everything that can be read is recorded")
    yield _gone("monitoring.analysis", "`trainvitals runs show` reports what is wrong with any run")


KEYS: tuple[OlderKey, ...] = tuple(_make_rows())
_BY_NAME = {key.name: key for key in KEYS}


def find_older(name: str) -> OlderKey | None:
    return _BY_NAME.get(name)


# -- names that were never ours

_SECTIONS = {
    **dict.fromkeys(_ALERT_SECTIONS, "alerts"),
    "dashboard": "web",
    "gradient_monitoring": "watch",
}
_MEANT = {
    **dict.fromkeys(("alert", "alerting", "alert_system"), "alerts"),
    **dict.fromkeys(("notification", "notifications", "channels", "email", "mail", "smtp"), "alerts.notify"),
    **dict.fromkeys(("slack", "discord", "teams", "telegram", "slack_webhook", "slack_webhook_url"), "alerts.notify"),
    **dict.fromkeys(("webhook", "webhooks", "webhook_url"), "alerts.notify"),
    **dict.fromkeys(("alert_thresholds", "limits"), "alerts.thresholds"),
    **dict.fromkeys(("log_dir", "logdir", "logging_dir", "output_dir", "run_dir", "runs_dir"), "dir"),
    **dict.fromkeys(("sample_interval", "sampling_interval", "poll_interval", "frequency"), "interval"),
    **dict.fromkeys(("monitor_interval", "gpu_monitor_interval", "update_interval"), "interval"),
    **dict.fromkeys(("device_ids", "devices", "gpu_ids", "gpu_index"), "gpus"),
    **dict.fromkeys(("experiment", "experiment_name", "project_name"), "project"),
    **dict.fromkeys(("retention", "retention_days", "keep_days"), "max_age"),
    **dict.fromkeys(("gradients", "gradient_tracking"), "watch.gradients_every"),
    "host": "web.host",
    "port": "web.port",
}
"""What a word means that people try: likeness of letters would not find it."""


def suggest(name: str, known: Collection[str]) -> str:
    """`, did you mean 'alerts'?` for a name that is not known: by meaning, or else by its letters."""
    section, _, last = name.rpartition(".")
    meant = _MEANT.get(name) or (_MEANT.get(last) if section not in _SECTIONS else None)
    if meant:
        return f", did you mean '{meant}'?"
    if section in _SECTIONS:
        return nearest(f"{_SECTIONS[section]}.{last}", known)
    return nearest(name, (*known, *_BY_NAME))
