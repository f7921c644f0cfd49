"""docs/rules.md, written from the rows."""

from __future__ import annotations

from trainvitals.conditions.catalogue import GROUPS, ROWS
from trainvitals.conditions.row import Condition, LiveRule

_INTRODUCTION = """\
# Conditions: rules and thresholds

<!-- Written by `python -m trainvitals.conditions > docs/rules.md`. -->

What a leak, a divergence, an idle GPU, too hot and nearly full are. Alerts, [findings](diagnosis.md), the colours of
numbers in terminal, page and report, the events of [`watch`](watch.md) and the [Prometheus rules](prometheus.md) use
the same [thresholds](#thresholds): one that you change changes all of them.

```yaml
# trainvitals.yaml
alerts:
  thresholds: {gpu_temperature_celsius: 75, loss_divergence_percent: 30}
```

In a variable: `TRAINVITALS_ALERTS_THRESHOLDS='{"gpu_temperature_celsius": 75}'`. An unknown name is an error.

The rules below are on by default; `alerts.disable` switches one off, and a rule of your own with the same name takes
its place. `$name` is a threshold. How rules are written: [alerts.md](alerts.md).

Severity `info` is recorded and shown but not sent, unless `alerts.min_severity` is `info` or you set a threshold of the
rule yourself. How they do on healthy and faulty runs: see the table in [alerts.md](alerts.md#how-good-they-are).
"""
_CONDITIONS = """
## Where each condition is seen

| condition | what it is | alert | Prometheus | finding | colours | event of `watch` |
|---|---|---|---|---|---|---|
"""
_THRESHOLDS = """
## Thresholds

| name | default | unit | meaning | condition |
|---|---|---|---|---|
"""


def render_markdown() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for title, rows in GROUPS:
        parts.append(f"\n## {title}\n")
        parts.extend(_describe_rule(row, row.live) for row in rows if row.live is not None)
    parts.append(_CONDITIONS)
    parts.extend(map(_describe_places, ROWS))
    parts.append(_THRESHOLDS)
    parts.extend(
        f"| `{item.name}` | {item.default:g} | {item.unit} | {item.meaning} | `{row.id}` |\n"
        for row in ROWS
        for item in row.thresholds
    )
    return "".join(parts)


def _describe_rule(row: Condition, live: LiveRule) -> str:
    after = f", after {live.after}" if live.after else ""
    clear = f"clear: {live.clear}\n" if live.clear else ""
    return (
        f"\n### {row.id}\n\n"
        f"{row.severity}; waits: {live.wait or 'at once'}{after}\n\n"
        f"```\nwhen:  {live.when}\n{clear}```\n\n"
        f"> {live.message}. {live.advice or row.advice}\n"
    )


def _describe_places(row: Condition) -> str:
    cells = (
        f"`{row.id}`",
        row.title,
        row.severity if row.live is not None else "",
        "yes" if row.prometheus is not None else "",
        ", ".join(f"`{finding}`" for finding in row.findings),
        ", ".join(f"`{colour.metric}`" for colour in row.colours),
        "yes" if row.noticed_by_watch else "",
    )
    return "| " + " | ".join(cells) + " |\n"
