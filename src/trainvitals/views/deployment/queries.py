"""PromQL of a panel: which series, by which labels, chosen by which variables of the dashboard."""

from __future__ import annotations

from typing import NamedTuple

from trainvitals import catalog
from trainvitals.exporters import names
from trainvitals.exporters.names import Spelling
from trainvitals.views.panels import Panel

RATE = "[$__rate_interval]"

# Table -> the variables that choose among its series; their name is also that of the label.
_CHOSEN_BY: dict[str, tuple[str, ...]] = {
    "gpu": ("host", "gpu"),
    "system": ("host",),
    "process": ("project", "run", "host"),
    "training": ("project", "run", "host"),
}
_LEGENDS = {
    "gpu": "{{host}} GPU {{gpu}}",
    "system": "{{host}}",
    "process": "{{run}} {{role}} rank {{rank}}",
    "training": "{{run}} {{role}} rank {{rank}}",
}


class Query(NamedTuple):
    """One line of a panel, or more: an expression and what its series are called."""

    expression: str
    legend: str
    is_limit: bool = False


def selector(table: str, *more: str) -> str:
    """`{host=~"$host",gpu=~"$gpu"}`."""
    chosen = [f'{name}=~"${name}"' for name in _CHOSEN_BY[table]]
    return "{" + ",".join([*chosen, *more]) + "}"


def once(expression: str) -> str:
    """Each GPU once, however many agents measure it: those of several users, one in a container and one beside it."""
    return f"max by (host, uuid) ({expression})"


_DURATION = "training_step_duration_seconds"


def mean_duration(window: str) -> str:
    """Of the steps in `{...}[5m]`, by rank. A server that asks for native histograms has only those."""
    native = f"rate({_DURATION}{window})"
    classic = f"rate({_DURATION}_sum{window}) / rate({_DURATION}_count{window})"
    return f"{classic} or histogram_sum({native}) / histogram_count({native})"


def durations(window: str) -> str:
    """How many steps a second took how long."""
    return f"{_classic_durations(window)} or {_native_durations(window)}"


def duration_quantile(share: float, window: str, *by: str) -> str:
    """Of the steps in `{...}[5m]`, by these labels."""
    classic, native = _classic_durations(window, *by), _native_durations(window, *by)
    return f"histogram_quantile({share}, {classic}) or histogram_quantile({share}, {native})"


def _classic_durations(window: str, *by: str) -> str:
    return f"sum by ({', '.join(('le', *by))}) (rate({_DURATION}_bucket{window}))"


def _native_durations(window: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) (rate({_DURATION}{window}))"


def series(table: str, metric: str, spelling: Spelling) -> str:
    """The name of the series of a catalog metric that is a number."""
    export = names.export_of(table, metric, spelling)
    if export is None:
        raise KeyError(f"{table}.{metric} has no series")
    return export.series


def queries_of(panel: Panel, spelling: Spelling) -> list[Query]:
    """What a panel asks Prometheus; the same metrics as the panel draws elsewhere."""
    chosen, legend = selector(panel.table), _LEGENDS[panel.table]
    if panel.chart == "states":
        return [Query(f"gpu_throttle_reason{chosen}", f"{legend}: {{{{reason}}}}")]
    if panel.metrics[0] in names.PHASES:
        return [Query(f"training_phase_duration_seconds{chosen}", f"{{{{phase}}}} ({legend})")]
    if panel.metrics == ("batch_time",):
        return [Query(mean_duration(f"{chosen}{RATE}"), legend)]
    columns = panel.without_validation  # Prometheus has validation under the names that were logged
    found = [
        Query(
            _curve(panel.table, metric, chosen, spelling),
            f"{legend} {catalog.short_name(metric)}" if len(columns) > 1 else legend,
        )
        for metric in columns
    ]
    if panel.limit is not None:
        limit = f"{series(panel.table, panel.limit, spelling)}{chosen}"
        found.append(Query(f"max({limit})", "limit", is_limit=True))
    return found


def _curve(table: str, metric: str, chosen: str, spelling: Spelling) -> str:
    """A gauge as it is, a counter as its rate. A column that is itself a rate is made from its counter, which knows
    what was between two scrapes, and taken as it is only where there is no counter."""
    row = catalog.find(table, metric)
    name = f"{series(table, metric, spelling)}{chosen}"
    if row is not None and row.kind == "counter":
        return f"rate({name}{RATE})"
    counter = next((item for item in catalog.COUNTERS.get(table, ()) if item.rate == metric), None)
    export = names.export_of(table, metric, spelling)
    if counter is None or export is None:
        return name
    rate = f"rate({series(table, counter.name, spelling)}{chosen}{RATE})"
    if counter.label:
        rate = f"{counter.over} without ({counter.label}) ({rate})"
    factor = counter.factor * export.factor
    return f"{rate}{'' if factor == 1 else f' * {factor!r}'} or {name}"


def factor_of(panel: Panel, spelling: Spelling) -> float:
    """What a number in the panel's own unit is multiplied by to be in the unit of its series."""
    export = names.export_of(panel.table, panel.metrics[0], spelling)
    return export.factor if export is not None else 1.0


def grafana_unit(panel: Panel, spelling: Spelling) -> str:
    """Grafana's word for the unit of the series."""
    if panel.is_rate:
        # A counter is drawn as its rate: joules a second are watts, seconds a second a share of the time.
        return {"J": "watt", "s": "percentunit"}.get(panel.unit, "cps")
    base = {"MB": "bytes", "MB/s": "binBps", "%": "percentunit", "MHz": "hertz"}
    plain = {
        "MB": "mbytes", "MB/s": "MiBs", "%": "percent", "MHz": "rotmhz", "°C": "celsius", "W": "watt", "s": "s",
        "ms": "s", "samples/s": "cps", "GB": "gbytes", "rpm": "rotrpm",
    }  # fmt: skip
    return (base if spelling == "base" else {}).get(panel.unit) or plain.get(panel.unit, "short")
