"""The configuration keys that classic monitors accept, and what each means today: one row per key.

Most became settings of a run. A key whose purpose is gone does nothing, and says so once, with what to use instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals.errors import SettingError, nearest
from trainvitals.stderr import print_line


class ClassicKey(NamedTuple):
    """One key. `sets` is what it becomes, by name of a setting or, with `watch.`, of an option of `Run.watch`."""

    name: str
    sets: str | None
    meaning: str
    inverted: bool = False


KEYS: tuple[ClassicKey, ...] = (
    ClassicKey("save_dir", "dir", "Folder that holds all runs: the setting `dir`"),
    ClassicKey("enable_dashboard", "dashboard", "Serve the dashboard while the run lives: the setting `dashboard`"),
    ClassicKey("dashboard_port", "web_port", "Port of the dashboard: the setting `web.port`"),
    ClassicKey("enable_alerts", "alerts_enabled", "Judge rules and send messages: the setting `alerts.enabled`"),
    ClassicKey(
        "tensorboard_dir", None, "Nothing: the run folder is the record, and `trainvitals export` writes it elsewhere"
    ),
    ClassicKey("track_gradients", "track_gradients", "Gradient norms, of the whole model and by layer; false: none"),
    ClassicKey("gradient_monitoring.track_layers", "watch.track_layers", "Layers to look at, by part of their name"),
    ClassicKey("distributed_monitoring", "rank_zero_only", "Every rank writes; false: only rank 0", inverted=True),
    ClassicKey("track_rank_0_only", "rank_zero_only", "Only rank 0 writes: the setting `rank_zero_only`"),
    ClassicKey("performance_tuning.high_frequency_mode", "high_frequency", "Hardware is sampled ten times a second"),
    ClassicKey(
        "performance_tuning.buffer_size", None, "Nothing: there is no buffer, a line is in the file when log() returns"
    ),
    ClassicKey("performance_tuning.flush_interval", None, "Nothing: there is nothing to flush"),
    ClassicKey("performance_tuning.max_events_per_second", None, "Nothing: no line is dropped"),
    ClassicKey(
        "performance_tuning.auto_cleanup", "auto_cleanup", "Ended runs give way when `max_database_size_gb` is reached"
    ),
    ClassicKey(
        "performance_tuning.max_database_size_gb", "max_size_gb", "The setting `max_size_gb`, if `auto_cleanup` is on"
    ),
    ClassicKey("monitoring.enabled", "enabled", "false: nothing is started and nothing is logged"),
    ClassicKey("monitoring.interval", "interval", "Time between two samples of the hardware: the setting `interval`"),
    ClassicKey("monitoring.metrics", None, "Nothing: everything that can be read is recorded"),
    ClassicKey(
        "monitoring.visualization", None, "Nothing: `trainvitals top`, `serve` and `report` draw any run at any time"
    ),
    ClassicKey("monitoring.alerting", "alerts_enabled", "Judge rules and send messages: the setting `alerts.enabled`"),
    ClassicKey("monitoring.analysis", None, "Nothing: `trainvitals runs show` tells what is wrong with any run"),
)
_BY_NAME = {key.name: key for key in KEYS}
_EXPECTED = "lines of 'name: value', such as save_dir: runs; every name: docs/classic-api.md"
_SECTIONS = {key.name.partition(".")[0] for key in KEYS if "." in key.name}


class Configuration(NamedTuple):
    """What a configuration comes to."""

    enabled: bool
    settings: dict[str, Any]
    watch: dict[str, Any]
    idle: tuple[ClassicKey, ...]
    """Keys that were given and do nothing."""


def read_configuration(source: Mapping[str, Any] | str | Path | None) -> Configuration:
    """From a mapping, or from the path of a YAML file. SettingError for a key that never was one."""
    if source is None:
        given: Any = {}
    elif isinstance(source, Mapping):
        given = source
    else:
        import yaml

        try:
            given = yaml.safe_load(Path(source).read_text(encoding="utf-8")) or {}
        except OSError as error:
            raise SettingError(f"cannot read {source}: {error.strerror}", hint="name a file that exists") from None
        except yaml.YAMLError as error:
            raise SettingError(f"{source} is not YAML: {error}", hint=_EXPECTED) from None
    if not isinstance(given, Mapping):
        raise SettingError(f"the configuration is a {type(given).__name__}, not a mapping", hint=_EXPECTED)
    return parse_configuration(given)


def parse_configuration(given: Mapping[str, Any]) -> Configuration:
    found: dict[str, Any] = {}
    watch: dict[str, Any] = {}
    idle: list[ClassicKey] = []
    for name, value in _flatten(given):
        key = _BY_NAME.get(name)
        if key is None:
            raise SettingError(
                f"the configuration has no key '{name}'{nearest(name, _BY_NAME)}", hint="keys: docs/classic-api.md"
            )
        if key.sets is None:
            if value:
                idle.append(key)
        elif key.sets.startswith("watch."):
            watch[key.sets.removeprefix("watch.")] = value
        elif key.inverted:
            found.setdefault(key.sets, not value)
        else:
            found[key.sets] = _switch(value) if name == "monitoring.alerting" else value
    if found.pop("high_frequency", False):
        found.setdefault("interval", 0.1)
    if not found.pop("auto_cleanup", True):
        found.pop("max_size_gb", None)
    if not found.pop("track_gradients", True):
        watch |= {"gradients_every": 0, "layers_every": 0}
    return Configuration(bool(found.pop("enabled", True)), found, watch, tuple(idle))


def tell_idle(configuration: Configuration) -> None:
    """Say once of each key that does nothing any more what took its place."""
    for key in configuration.idle:
        if key.name not in _warned:
            _warned.add(key.name)
            print_line(f"configuration key '{key.name}': {key.meaning[0].lower()}{key.meaning[1:]}")


_warned: set[str] = set()


def _flatten(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        if name in _SECTIONS and isinstance(value, Mapping):
            for inner, item in value.items():
                yield f"{name}.{inner}", item
        else:
            yield str(name), value


def _switch(value: Any) -> bool:
    """`alerting` may be a switch or a section with `enabled` in it."""
    return bool(value.get("enabled", True)) if isinstance(value, Mapping) else bool(value)
