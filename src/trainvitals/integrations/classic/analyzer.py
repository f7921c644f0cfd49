"""PerformanceAnalyzer and PerformanceAlerting: the analysis of a run and its thresholds, for lists of numbers in hand.

`trainvitals runs show` and the rules of the agent do the same for any run without a line of code.
Tested in tests/integrations/test_classic_analyzer.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from trainvitals import runtime
from trainvitals.alerts import messages
from trainvitals.alerts.outbox import carry
from trainvitals.analysis.anomalies import find_anomalies
from trainvitals.analysis.comparison import compare_metric
from trainvitals.analysis.robust import Floats, rises, slope_of
from trainvitals.analysis.spread import spread_of
from trainvitals.conditions import Conditions
from trainvitals.errors import SettingError
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.encoding import format_time
from trainvitals.settings.older_names import THRESHOLDS, convert_mail, convert_thresholds
from trainvitals.stderr import print_line

SIGNIFICANT = 0.05
History = Sequence[Mapping[str, Any]]
"""One mapping per step or sample: `loss`, `timestamp` or `step`, `cpu_percent`, `gpu_memory` and so on."""


class PerformanceAnalyzer:
    """What a history of metrics shows."""

    def __init__(self, metrics_history: History) -> None:
        self.metrics_history = metrics_history

    def analyze_loss_trend(self, metric: str = "loss") -> dict[str, Any]:
        """`slope` (the median one, per unit of `timestamp` or `step`), `trend` (`decreasing`, `increasing` or `flat`),
        `p_value` (that a trend like this one is chance, by Mann and Kendall) and `significance`."""
        x, y = _curve(self.metrics_history, metric)
        slope = slope_of(x, y) if len(x) > 1 else 0.0
        p_value = min(rises(x, y), rises(x, -y), 0.5) * 2
        significant = p_value < SIGNIFICANT
        return {
            "slope": slope,
            "trend": "decreasing" if slope < 0 else "increasing" if slope > 0 else "flat",
            "p_value": p_value,
            "significance": "significant" if significant else "not_significant",
        }

    def analyze_resource_usage(self) -> dict[str, dict[str, float]]:
        """`mean`, `std`, `min` and `max` as `cpu_stats` (of `cpu_percent`) and `gpu_stats` (of `gpu_memory`); a key
        without values is absent."""
        found = {}
        for key, names in {"cpu_stats": ("cpu_percent", "cpu_usage_percent"), "gpu_stats": ("gpu_memory",)}.items():
            values = next((y for name in names if len(y := _curve(self.metrics_history, name)[1])), np.empty(0))
            spread = spread_of(values)
            if spread.mean is not None and spread.low is not None and spread.high is not None:
                deviation = float(values[np.isfinite(values)].std())
                found[key] = {"mean": spread.mean, "std": deviation, "min": spread.low, "max": spread.high}
        return found

    def detect_anomalies(self, metric: str = "loss") -> list[dict[str, Any]]:
        """Where something unusual begins: `index`, `timestamp`, the value under its name, `kind` and `score`
        (trainvitals.analysis.anomalies)."""
        places = [place for place, row in enumerate(self.metrics_history) if _number(row.get(metric)) is not None]
        values = [_number(self.metrics_history[place][metric]) or 0.0 for place in places]
        return [
            {
                "index": places[item.place],
                "timestamp": self.metrics_history[places[item.place]].get("timestamp"),
                metric: item.value,
                "kind": item.kind,
                "score": item.score,
            }
            for item in find_anomalies(values)
        ]

    def performance_regression(self, baseline: History, metric: str = "loss") -> dict[str, Any]:
        """The end of this history beside the end of another, by step (or by place): `regression`, the `verdict`
        (`better`, `worse`, `same`, `different`, `uncertain`), `baseline`, `value`, `change`, `confidence`, `reason`."""
        axis = "step" if all("step" in row for row in (*self.metrics_history, *baseline)) else ""
        verdict = compare_metric(metric, _curve(baseline, metric, axis), _curve(self.metrics_history, metric, axis))
        return {
            "regression": verdict.word == "worse",
            "verdict": verdict.word,
            **{name: getattr(verdict, name) for name in ("baseline", "value", "change", "confidence", "reason")},
        }


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _curve(history: Iterable[Mapping[str, Any]], metric: str, axis: str | None = None) -> tuple[Floats, Floats]:
    """(x, y), ascending in x: the `axis`, or else the first of time and step that every row has, or else the place."""
    rows = [(place, row) for place, row in enumerate(history) if _number(row.get(metric)) is not None]
    axes = ("timestamp", "step") if axis is None else (axis,)
    known = next((name for name in axes if all(_number(row.get(name)) is not None for _, row in rows)), None)
    points = sorted((float(row[known]) if known else float(place), float(row[metric])) for place, row in rows)
    return np.array([x for x, _ in points]), np.array([y for _, y in points])


class PerformanceAlerting:
    """Compares numbers with a baseline. `alert_thresholds` are shares, as ever: `{"loss_increase": 0.1}`."""

    def __init__(
        self, email_config: Mapping[str, Any] | None = None, alert_thresholds: Mapping[str, float] | None = None
    ) -> None:
        """`email_config` has `smtp_server`, `smtp_port`, `username`, `password`, `from` and `to`."""
        defaults = Conditions().thresholds
        self.email_config = email_config
        self.alert_thresholds = {row.name: defaults[row.becomes] / 100 for row in THRESHOLDS} | dict(
            alert_thresholds or {}
        )

    def check_alerts(
        self, current_metrics: Mapping[str, Any], baseline_metrics: Mapping[str, Any]
    ) -> list[dict[str, str]]:
        """What is wrong, each with `type`, `message` and `severity`. A number that is not there is not judged.

        Looks at `loss` and `training_speed` beside the baseline, and at `cpu_percent`, `memory_percent`,
        `disk_percent` and `gpu_memory`: percentages, or for each GPU `memory_allocated` and `memory_reserved`.
        """
        limits = convert_thresholds(dict(self.alert_thresholds))
        found = []
        loss, usual = _number(current_metrics.get("loss")), _number(baseline_metrics.get("loss"))
        if loss is not None and usual:
            rise = 100 * (loss - usual) / abs(usual)
            if rise > limits["loss_up_percent"]:
                found.append(_alert("loss_increase", f"Training loss increased by {rise:.1f}%"))
        speed, usual = (_number(metrics.get("training_speed")) for metrics in (current_metrics, baseline_metrics))
        if speed is not None and usual:
            drop = 100 * (usual - speed) / usual
            if drop > limits["throughput_drop_percent"]:
                found.append(_alert("training_speed", f"Training speed dropped by {drop:.1f}%"))
        for kind, title, threshold in (
            ("cpu", "CPU", "cpu_usage_percent"),
            ("memory", "Memory", "memory_usage_percent"),
            ("disk", "Disk", "disk_usage_percent"),
        ):
            used = _number(current_metrics.get(f"{kind}_percent", current_metrics.get(threshold)))
            if used is not None and used > limits[threshold]:
                found.append(_alert(f"{kind}_usage", f"{title} usage is {used:.1f}%"))
        for gpu, used in _gpu_memory(current_metrics.get("gpu_memory")):
            if used > limits["gpu_memory_percent"]:
                found.append(_alert("gpu_memory", f"GPU {gpu} memory usage is {used:.1f}%".replace("GPU  ", "GPU ")))
        return found

    def send_alert(self, alert: Mapping[str, str]) -> bool:
        """Mail it, by `email_config`; whether it was sent. The rules of the agent do so without waiting."""
        address = convert_mail(self.email_config)
        if address is None:
            raise SettingError(
                "email_config has no mail server and recipient",
                hint="give smtp_server, smtp_port, username, password, from and to",
            )
        now = format_time()
        row = AlertRow(timestamp=now, since=now, severity=alert["severity"], message=alert["message"])
        about = {"host": runtime.host_name()}
        result = carry(
            address["mail"], messages.build("firing", alert["type"], [row], about, os.urandom(12).hex(), now)
        )
        if not result.sent:
            print_line(f"the alert '{alert['type']}' was not sent: {result.reason}")
        return result.sent


def _alert(kind: str, message: str) -> dict[str, str]:
    return {"type": kind, "message": message, "severity": "warning"}


def _gpu_memory(value: object) -> list[tuple[str, float]]:
    """(GPU, percent) of whatever form it has."""
    if not isinstance(value, Mapping):
        number = _number(value)
        return [("", number)] if number is not None else []
    found = []
    for gpu, item in value.items():
        percent = _number(item)
        if isinstance(item, Mapping):
            used, reserved = _number(item.get("memory_allocated")), _number(item.get("memory_reserved"))
            percent = 100 * used / reserved if used is not None and reserved else None
        if percent is not None:
            found.append((str(gpu).removeprefix("gpu_"), percent))
    return found
