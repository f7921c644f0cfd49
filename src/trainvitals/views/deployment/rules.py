"""Prometheus rules: recording rules for the expensive queries, and the built-in alert rules that make sense there.

Thresholds, severities, guards and waiting times are those of `alerts/builtin.py`; the condition is said again in
PromQL. Left out are rules that compare steps with each other (a spike of the loss, a plateau): the agent sees every
step, a scrape does not. Those reach Prometheus as `trainvitals_alert_active`, and `TrainvitalsAlert` passes on those
only: what has a rule here is judged here, also where no run is watched, and told once.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import yaml

from trainvitals.alerts import builtin
from trainvitals.exporters import names
from trainvitals.exporters.names import Spelling
from trainvitals.settings.kinds import parse_duration

_GPU = "GPU {{ $labels.gpu }} of {{ $labels.host }}"
_FORWARD = 'avg_over_time(training_phase_duration_seconds{phase="forward"}[1m])'
_RANK = "rank {{ $labels.rank }} of {{ $labels.run }}"


STEP_WINDOWS = ("2m", "1h")
"""A wait in steps is over when so many were done in one of these and the condition held in all of it: soon where steps
are quick, and within the hour where they are slow."""


def _correlation(series: str) -> str:
    """Of a value with time: 1 for a straight line. A jump and then nothing, as when a model is loaded, is 0.87 at most.

    It is the slope times the spread of the times over the spread of the values. At the newest sample the line stands
    the slope times half the window above the mean, and the spread of n evenly spaced times follows from that half.
    """
    values = f"{series}[<window>]"
    height = f"predict_linear({values}, 0) - deriv({values}) * (time() - timestamp({series})) - avg_over_time({values})"
    count = f"count_over_time({values})"
    return f"({height}) / stddev_over_time({values}) * sqrt(({count} + 1) / (3 * ({count} - 1)))"


class Row(NamedTuple):
    """A built-in rule in PromQL. `<table.metric>` is the series of a metric, `$name` a threshold; `<window>` the time
    over which the rule takes a slope, `<correlated>` and `<stepped>` what it asks of the correlation and the step,
    `<held>` a window of a wait in steps; a number behind a metric with `~` is in the metric's own unit and converted.
    """

    rule: str
    expression: str
    summary: str


ROWS: tuple[Row, ...] = (
    Row(
        "gpu_temperature_high",
        "<gpu.temperature_celsius> > $gpu_temperature_celsius",
        f"{_GPU} is hot: {{{{ $value }}}} °C",
    ),
    Row(
        "gpu_temperature_limit",
        "<gpu.temperature_celsius> >= <gpu.temperature_limit_celsius>",
        f"{_GPU} is at the temperature at which it slows itself down",
    ),
    Row(
        "gpu_memory_high",
        "<gpu.memory_percent> > ~gpu.memory_percent:$gpu_memory_percent",
        f"{_GPU}: memory is nearly full",
    ),
    Row(
        "gpu_throttled_heat", 'gpu_throttle_reason{reason=~".*thermal slowdown"} == 1', f"{_GPU} is slowed down by heat"
    ),
    Row(
        "gpu_throttled_power",
        'gpu_throttle_reason{reason=~".*power brake|.*hardware slowdown"} == 1',
        f"{_GPU} is slowed down by the hardware",
    ),
    Row("gpu_xid", "increase(<gpu.xid_errors_total>[10m]) > 0", f"{_GPU} reports Xid errors"),
    Row(
        "gpu_ecc_uncorrected",
        "increase(<gpu.ecc_uncorrected_total>[10m]) > 0",
        f"{_GPU}: ECC could not correct an error",
    ),
    Row("gpu_row_remap_failed", "<gpu.row_remap_failed> == 1", f"{_GPU}: a bad memory row could not be set aside"),
    Row("gpu_row_remap_pending", "<gpu.row_remap_pending> == 1", f"{_GPU}: a bad memory row waits for a reset"),
    Row("gpu_lost", 'gpu_state{state=~"lost|reset required"} == 1', f"{_GPU} is {{{{ $labels.state }}}}"),
    Row(
        "gpu_fan_stopped",
        "<gpu.fan_speed_percent> == 0 and <gpu.temperature_celsius> > $gpu_temperature_celsius - 10",
        f"The fan of {_GPU} stands still",
    ),
    Row(
        "gpu_idle",
        "max_over_time(<gpu.utilization_percent>[10m]) < ~gpu.utilization_percent:$gpu_idle_percent"
        " and <gpu.memory_percent> > ~gpu.memory_percent:2",
        f"{_GPU} has done nothing for over 10 minutes while somebody holds it",
    ),
    Row(
        "gpu_low_use",
        "avg_over_time(<gpu.utilization_percent>[30m]) < ~gpu.utilization_percent:$gpu_low_use_percent"
        " and <gpu.memory_percent> > ~gpu.memory_percent:2",
        f"{_GPU} is hardly used",
    ),
    Row(
        "gpu_oom_soon",
        "deriv(<gpu.memory_used_mb>[<window>])"
        " > (<gpu.memory_total_mb> - <gpu.memory_used_mb>) / (60 * $oom_minutes)"
        f" and {_correlation('<gpu.memory_used_mb>')} <correlated>"
        " and on (host) max by (host) (training_steps_total) <stepped>",
        f"{_GPU} runs out of memory at this rate",
    ),
    Row(
        "cpu_high",
        "avg_over_time(<system.cpu_usage_percent>[5m]) > ~system.cpu_usage_percent:$cpu_usage_percent",
        "The CPU of {{ $labels.host }} is fully used",
    ),
    Row(
        "memory_high",
        "<system.memory_usage_percent> > ~system.memory_usage_percent:$memory_usage_percent",
        "Memory of {{ $labels.host }} is nearly full",
    ),
    Row(
        "swap_used",
        "<system.swap_usage_percent> > ~system.swap_usage_percent:$swap_usage_percent"
        " and delta(<system.swap_used_mb>[5m]) > 0",
        "{{ $labels.host }} is swapping",
    ),
    Row(
        "disk_space_low",
        "<system.disk_usage_percent> > ~system.disk_usage_percent:$disk_usage_percent"
        " or <system.disk_free_gb> < ~system.disk_free_gb:$disk_free_gb",
        "The disk of the run folders of {{ $labels.host }} is nearly full",
    ),
    Row(
        "disk_full_soon",
        "deriv(<system.disk_free_gb>[<window>]) < - <system.disk_free_gb> / (3600 * $disk_full_hours)"
        f" and {_correlation('<system.disk_free_gb>')} <correlated>",
        "The disk of the run folders of {{ $labels.host }} is full soon at this rate",
    ),
    Row(
        "file_descriptors_high",
        "<process.fd_count> / <process.process_count> > <process.fd_limit> * $file_descriptor_percent / 100",
        f"{_RANK} is short of file descriptors",
    ),
    Row(
        "loss_not_finite",
        "<training.loss> != <training.loss> or abs(<training.loss>) == Inf",
        f"The loss of {_RANK} is {{{{ $value }}}}",
    ),
    Row(
        "learning_rate_high",
        "min_over_time(<training.learning_rate>[<held>]) > $learning_rate_too_high",
        f"The learning rate of {_RANK} is high",
    ),
    Row(
        "gradient_vanished",
        "max_over_time(<training.gradient_norm>[<held>]) < $grad_norm_vanished",
        f"The gradients of {_RANK} have vanished",
    ),
    Row(
        "straggler",
        f"{_FORWARD} > on (run, project) group_left $straggler_factor * quantile by (run, project) (0.5, {_FORWARD})"
        f" and on (run, project) count by (run, project) ({_FORWARD}) > 2",
        f"{_RANK} is slower than the others",
    ),
    Row(
        "training_stalled",
        'trainvitals_run_state{state=~"stalled|hung"} == 1',
        "{{ $labels.run }} is {{ $labels.state }}",
    ),
    Row("training_hung", 'trainvitals_run_state{state="hung"} == 1', "{{ $labels.run }} is hung"),
)


class Recording(NamedTuple):
    """A query worth keeping the answer of."""

    record: str
    expression: str


RECORDINGS: tuple[Recording, ...] = (
    Recording(
        "rank:training_step_duration_seconds:mean5m",
        "rate(training_step_duration_seconds_sum[5m]) / rate(training_step_duration_seconds_count[5m])",
    ),
    *(
        Recording(
            f"run:training_step_duration_seconds:p{round(share * 100)}_5m",
            f"histogram_quantile({share}, sum by (le, run, project) (rate(training_step_duration_seconds_bucket[5m])))",
        )
        for share in (0.5, 0.99)
    ),
    Recording("run:training_steps:rate5m", "max by (run, project) (rate(training_steps_total[5m]))"),
    Recording("host:<gpu.utilization_percent>:avg", "avg by (host) (<gpu.utilization_percent>)"),
    Recording("host:<gpu.power_draw_watts>:sum", "sum by (host) (<gpu.power_draw_watts>)"),
    Recording("host:gpu_energy_joules:increase1h", "sum by (host) (increase(gpu_energy_joules_total[1h]))"),
    Recording("gpu:<gpu.utilization_percent>:avg30m", "avg_over_time(<gpu.utilization_percent>[30m])"),
)


def fill(text: str, spelling: Spelling) -> str:
    """An expression with its series, thresholds and units."""
    text = re.sub(r"\$([a-z_]+)", lambda match: f"{builtin.THRESHOLDS[match[1]]:g}", text)
    text = re.sub(r"~(\w+)\.(\w+):([\d.]+)", lambda match: _convert(match, spelling), text)
    return re.sub(r"<(\w+)\.(\w+)>", lambda match: _export(match, spelling).series, text)


def _export(match: re.Match[str], spelling: Spelling) -> names.Export:
    export = names.export_of(match[1], match[2], spelling)
    if export is None:
        raise KeyError(match[0])
    return export


def _convert(match: re.Match[str], spelling: Spelling) -> str:
    return f"{float(match[3]) * _export(match, spelling).factor:.12g}"


def alert_name(rule: str) -> str:
    """`gpu_lost` -> `GpuLost`."""
    return "".join(word.capitalize() for word in rule.split("_"))


def build(spelling: Spelling) -> dict[str, Any]:
    """The rules file as data."""
    known = {str(rule["name"]): rule for rule in builtin.RULES}
    alerts = [_alert(row, known[row.rule], spelling) for row in ROWS]
    alerts += [
        _own(
            "TrainvitalsDown", 'up{job="trainvitals"} == 0', "1m", "critical", "{{ $labels.instance }} does not answer"
        ),
        _own(
            "TrainvitalsSourceDown",
            "trainvitals_source_up == 0",
            "2m",
            "warning",
            "{{ $labels.unit }} of {{ $labels.host }} is not measured",
        ),
        _own(
            "TrainvitalsAlert",
            f'trainvitals_alert_active{{severity!="info",rule!~"{"|".join(row.rule for row in ROWS)}"}} == 1',
            "0s",
            "{{ $labels.severity }}",
            "{{ $labels.rule }} ({{ $labels.run }} on {{ $labels.host }})",
        ),
    ]
    return {
        "groups": [
            {
                "name": "trainvitals-recording",
                "interval": "15s",
                "rules": [
                    {"record": fill(item.record, spelling), "expr": fill(item.expression, spelling)}
                    for item in RECORDINGS
                ],
            },
            {"name": "trainvitals-alerts", "interval": "15s", "rules": alerts},
        ]
    }


def _alert(row: Row, rule: builtin.Row, spelling: Spelling) -> dict[str, Any]:
    waits, expression = str(rule.get("for", "0s")), _guard(row.expression, str(rule["when"]))
    steps = re.fullmatch(r"(\d+) steps", waits)
    if steps is not None:
        expression = " or ".join(
            f"{expression} and increase(training_steps_total[<held>]) >= {steps[1]}".replace("<held>", window)
            for window in STEP_WINDOWS
        )
    seconds = 0 if steps is not None else int(parse_duration(waits))
    advice = re.sub(r"\{gpu_index\}", "{{ $labels.gpu }}", str(rule["advice"]))
    found: dict[str, Any] = {"alert": alert_name(row.rule), "expr": fill(expression, spelling)}
    if seconds:
        found["for"] = f"{seconds}s"
    found["labels"] = {"severity": rule.get("severity", "warning"), "rule": row.rule}
    found["annotations"] = {"summary": row.summary}
    if not re.search(r"(?<!\{)\{\w", advice):
        found["annotations"]["description"] = advice
    return found


_GUARDS = {
    "<window>": r"slope\([^,]+, (\w+)\)",
    "<correlated>": r"correlation\([^)]+\) ([<>] -?[\d.]+)",
    "<stepped>": r"rank\[\*\]\.step\) (> \d+)",
}


def _guard(expression: str, when: str) -> str:
    """The expression with what the rule itself says of its windows and guards."""
    for name, pattern in _GUARDS.items():
        if name in expression:
            (text,) = set(re.findall(pattern, when))
            expression = expression.replace(name, text)
    return expression


def _own(alert: str, expression: str, wait: str, severity: str, summary: str) -> dict[str, Any]:
    found: dict[str, Any] = {"alert": alert, "expr": expression}
    if wait != "0s":
        found["for"] = wait
    found["labels"] = {"severity": severity}
    found["annotations"] = {"summary": summary}
    return found


def render(spelling: Spelling) -> str:
    """The rules file as YAML."""
    head = "# Made from the built-in alert rules by `python -m trainvitals.views.deployment`.\n"
    return head + yaml.safe_dump(build(spelling), sort_keys=False, allow_unicode=True, width=1000)
