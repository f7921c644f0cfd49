"""docs/rules.md, written from the rows."""

from __future__ import annotations

from trainvitals.conditions.catalogue import GROUPS, ROWS
from trainvitals.conditions.row import Condition, LiveRule

_INTRODUCTION = """\
# Conditions: rules and thresholds

<!-- Written by `python -m trainvitals.conditions > docs/rules.md`. -->

Everything that trainvitals treats as a problem. Alerts, [findings](diagnosis.md), the colors of numbers in the
terminal, the page and the report, the events of [`watch`](watch.md) and the [Prometheus rules](prometheus.md) share the
same [thresholds](#thresholds), so changing one changes all of them.

```yaml
# trainvitals.yaml
alerts:
  thresholds: {gpu_temperature_celsius: 75, loss_divergence_percent: 30}
```

As an environment variable: `TRAINVITALS_ALERTS_THRESHOLDS='{"gpu_temperature_celsius": 75}'`. An unknown name is an
error.

All rules below are on by default; `alerts.disable` turns one off, and your own rule of the same name replaces it.
`$name` is a threshold. The rule syntax is described in [alerts.md](alerts.md).

Severity `info` is recorded and shown but not sent, unless `alerts.min_severity` is `info` or you changed a threshold of
the rule. For results on healthy and faulty runs see [alerts.md](alerts.md#how-good-they-are).
"""
_CONDITIONS = """
## Where each condition is used

| condition | what it is | alert | Prometheus | finding | colors | event of `watch` |
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
    named = f"\nWith a threshold of your own: `{row.named.when}`{_describe_wait(row.named)}.\n" if row.named else ""
    return (
        f"\n### {row.id}\n\n"
        f"{row.severity}{_describe_wait(live)}{after}\n\n"
        f"```\nwhen:  {live.when}\n{clear}```\n{named}\n"
        f"> {live.message}. {live.advice or row.advice}\n"
    )


def _describe_wait(live: LiveRule) -> str:
    return f", must hold for {live.wait}" if live.wait else ", fires at once"


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
