"""What is wrong with the GPUs while no run is shown: rules are evaluated for runs only, so this is judged by the levels
that color the numbers. Tested in tests/views/tui/test_feed.py."""

from __future__ import annotations

from collections.abc import Sequence

from trainvitals import catalog
from trainvitals.alerts import template
from trainvitals.conditions import Condition, Conditions
from trainvitals.journal.documents.rows import AlertRow, new_alert_row
from trainvitals.views.data.quantities import format_measure
from trainvitals.views.tui.snapshot import Gpu


def find_machine_alerts(gpus: Sequence[Gpu], conditions: Conditions) -> tuple[AlertRow, ...]:
    """Worst first, then by GPU. Conditions that are only informative, such as a full memory, are no alert."""
    judged = [
        (condition, colour.metric)
        for condition in conditions
        for colour in condition.colours
        if colour.table == "gpu" and condition.severity != "info"
    ]
    found = []
    for gpu in gpus:
        for condition, metric in judged if not gpu.problem else ():
            value = gpu.number(metric)
            severity = conditions.severity_of("gpu", metric, value) if value is not None else None
            if value is not None and severity is not None:
                found.append(_make_alert(gpu, condition, metric, value, severity, conditions))
    return tuple(sorted(found, key=lambda row: -row.weight))


def _make_alert(
    gpu: Gpu, condition: Condition, metric: str, value: float, severity: str, conditions: Conditions
) -> AlertRow:
    level = next(level for level in conditions.levels_of("gpu", metric) if level.severity == severity)
    fields = {**gpu.values, "gpu": f"GPU {gpu.index}", "gpu_index": gpu.index, "threshold": level.value, "value": value}
    message, missing = template.fill(condition.live.message if condition.live is not None else "", fields)
    if missing or not message:
        known = catalog.find("gpu", metric)
        assert known is not None  # a metric with a level is in the catalog
        message = f"GPU {gpu.index}: {known.help[:1].lower()}{known.help[1:]}: {format_measure(value, known.unit)}"
    return new_alert_row(
        gpu.time,
        state="firing",
        rule=condition.id,
        severity=severity,
        labels={"gpu_index": gpu.index},
        message=message,
        advice=template.fill(condition.advice, fields)[0],
        value=value,
        threshold=level.value,
    )
