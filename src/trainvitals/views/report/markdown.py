"""The report as Markdown, for wikis, tickets and pull requests. Tested in tests/views/report/test_document.py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from trainvitals.analysis.wording import count_of
from trainvitals.journal.documents.run import GitState
from trainvitals.safe_text import one_line
from trainvitals.views.data import quantities
from trainvitals.views.data.comparison_matrix import (
    FROM_RUNS,
    MatrixCell,
    explain_matrix,
    make_matrix,
    name_seeds,
)
from trainvitals.views.data.run_details import format_git
from trainvitals.views.data.shapes import (
    AlertsJson,
    BenchmarksJson,
    ComparisonJson,
    CostJson,
    DiagnosisJson,
    ReportDataJson,
    ReportRunJson,
    ResourceJson,
    RunJson,
)
from trainvitals.views.report.document import comparison_title

MAX_METRICS = 40
MAX_CONFIG = 60
MAX_ALERTS = 20
MANY = 4
"""Devices beyond which their statistics are one row."""
_RESCALED = ("s", "MB", "MB/s")
_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]#|~!"})


def text(value: object) -> str:
    """Anything as text on one line that Markdown and HTML leave alone: names are anybody's."""
    return one_line(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").translate(_SPECIAL)


def value(number: Any, unit: str = "") -> str:
    """A number of the API, in the unit that reads best: NaN is a string there."""
    if number is None:
        return "-"
    if not isinstance(number, (int, float)):
        return text(number)
    if unit in _RESCALED:
        return text(quantities.format_measure(float(number), unit))
    return text(f"{quantities.format_value(float(number))} {unit}".strip())


def moment(value: object) -> str:
    """A time of the journal for people: `2026-11-16 00:21:47 UTC`."""
    found = re.match(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z$", str(value))
    return f"{found[1]} {found[2]} UTC" if found else text(value)


def setting(item: object) -> str:
    """A value of the configuration, without the noise at the end of a float."""
    return text(f"{item:.8g}" if isinstance(item, float) else "-" if item is None else item)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """A table; cells are Markdown already."""
    lines = ["| " + " | ".join(header) + " |"]
    lines.append("|" + "|".join("---:" if at in right else "---" for at in range(len(header))) + "|")
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def draw_markdown(data: ReportDataJson, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """The whole report. `pictures` are (title, file name) of charts beside it."""
    lines: list[str] = []
    if "comparison" in data:
        lines += _comparison(data["comparison"])
    for key, item in data["runs"].items():
        lines += _run(item, "##" if "comparison" in data else "#")
        lines += [f"![{text(title)}]({name})\n" for title, name in pictures if title == key]
        lines += _findings(item["diagnosis"])
        lines += _metrics(item["run"])
        lines += _resources(item["diagnosis"]["resources"])
        lines += _benchmarks(item["benchmarks"])
        lines += _alerts(item["alerts"])
        lines += _config(item["run"])
    lines.append(f"Written {moment(data['written'])} by trainvitals {text(data['about']['version'])}.")
    return "\n".join(lines) + "\n"


def is_simulated(item: ReportRunJson) -> bool:
    """Whether any number of this run is of hardware that is not there."""
    resources = item["diagnosis"]["resources"]
    return bool(item["run"]["simulated"]) or any(row["simulated"] for row in resources)


def _run(item: ReportRunJson, mark: str) -> list[str]:
    run = item["run"]
    health = run["health"]
    facts = [
        ("status", text(run["status"]) + (f": {text(run['cause'])}" if run["cause"] else "")),
        ("health", f"**{text(health['word'])}**" + (f": {text(health['reason'])}" if health["reason"] else "")),
        ("what to do", text(health["advice"])),
        ("run", f"{text(run['id'])} in project {text(run['project'])}"),
        ("started", moment(run["started"] or "-")),
        ("took", text(quantities.format_duration(run["seconds"])) if run["seconds"] is not None else ""),
        ("last step", f"{run['step']:,}" if run["step"] is not None else ""),
        ("GPU energy", _energy(item)),
        ("cost", _cost(run["cost"])),
        ("tags", ", ".join(text(tag) for tag in run["tags"])),
    ]
    lines = [f"{mark} {text(run['name'])}", ""]
    if is_simulated(item):
        lines += ["> **The GPUs of this run are simulated**: their values are not from real hardware.", ""]
    return [*lines, *table(("", ""), [(name, fact) for name, fact in facts if fact])]


def _energy(item: ReportRunJson) -> str:
    joules = item["run"]["energy_joules"]
    if joules is None:
        return ""
    return text(quantities.format_energy(joules)) + (" (simulated)" if is_simulated(item) else "")


def _cost(cost: CostJson | None) -> str:
    return text(quantities.format_cost(cost)) if cost else ""


def _benchmarks(found: BenchmarksJson) -> list[str]:
    """The newest one: its table, and what makes it less sure."""
    if not found["benchmarks"]:
        return []
    newest = found["benchmarks"][-1]
    rows = [[*map(text, row["cells"][:-1]), text(row["text"])] for row in newest["rows"]]
    notes = [f"- {text(note)}" for note in (*newest["remarks"], *newest["warnings"])]
    return ["## Benchmark", "", *table(list(map(text, newest["titles"])), rows), *notes, *([""] if notes else [])]


def _findings(diagnosis: DiagnosisJson) -> list[str]:
    lines = ["### Findings", ""]
    titles = {finding["rule"]: finding["title"] for finding in reversed(diagnosis["findings"])}
    for finding in diagnosis["findings"]:
        lines.append(f"- **{text(finding['title'])}** ({finding['severity']}, `{finding['rule']}`)")
        lines += [f"  - {text(line)}" for line in finding["evidence"]]
        if finding["named_at"] is not None and finding["named_at"] != finding["step"]:
            lines.append(f"  - Known at step {finding['named_at']:,}")
        if finding["cause"] is not None:
            lines.append(f"  - Follows from: {text(titles[finding['cause']])}")
        lines.append(f"  - What to do: {text(finding['advice'])}")
    if not diagnosis["findings"]:
        lines.append(f"No problems found. {count_of(len(diagnosis['fine']), 'check')} passed.")
    lines.append("")
    if diagnosis["from_step"] is not None:
        lines += [f"Only steps from {diagnosis['from_step']:,} on were checked.", ""]
    if diagnosis["not_judged"]:
        lines += ["Checks skipped (missing data):", ""]
        lines += [f"- {text(gap['title'])}: needs {text(gap['needs'])}" for gap in diagnosis["not_judged"]]
        lines.append("")
    return lines


def _metrics(run: RunJson) -> list[str]:
    shown = [m for m in run["metrics"] if m["name"].partition("/")[0] not in run["layers"] or "/" not in m["name"]]
    if not shown:
        return []
    rows = [
        (
            text(metric["name"]),
            value(metric["last"], metric["unit"]),
            value(metric["low"], metric["unit"]),
            value(metric["high"], metric["unit"]),
            f"{metric['nonfinite']:,}" if metric["nonfinite"] else "",
        )
        for metric in shown[:MAX_METRICS]
    ]
    more = [f"And {len(shown) - MAX_METRICS:,} more.", ""] if len(shown) > MAX_METRICS else []
    header = ("metric", "last", "min", "max", "not finite")
    return ["### Metrics", "", *table(header, rows, right=(1, 2, 3, 4)), *more]


def _resources(resources: Sequence[ResourceJson]) -> list[str]:
    if not resources:
        return []
    rows = [
        (
            text(row["metric"]),
            text(row["subject"]) + (" (simulated)" if row["simulated"] else ""),
            *(value(item, row["unit"]) for item in (row["low"], row["mean"], row["p95"], row["high"])),
        )
        for row in _together(resources)
    ]
    header = ("metric", "device", "min", "mean", "p95", "max")
    return ["### Resource usage", "", *table(header, rows, right=(2, 3, 4, 5))]


def _together(resources: Sequence[ResourceJson]) -> list[ResourceJson]:
    """By table and metric; of many devices one row: the means of their means, the ends of their ends."""
    groups: dict[tuple[str, str], list[ResourceJson]] = {}
    for row in resources:
        groups.setdefault((row["table"], row["metric"]), []).append(row)
    found: list[ResourceJson] = []
    for _, rows in sorted(groups.items()):
        if len(rows) <= MANY:
            found += rows
            continue
        found.append(
            {
                **rows[0],
                "subject": f"all {len(rows)}",
                "low": min(row["low"] for row in rows),
                "mean": sum(row["mean"] for row in rows) / len(rows),
                "median": sum(row["median"] for row in rows) / len(rows),
                "p95": sum(row["p95"] for row in rows) / len(rows),
                "high": max(row["high"] for row in rows),
            }
        )
    return found


def _alerts(alerts: AlertsJson) -> list[str]:
    fired = [row for row in alerts["history"] if row.get("state") == "firing"]
    if not fired:
        return ["### Alerts", "", "No alerts fired.", ""]
    rows = [
        (
            moment(row.get("timestamp", "")),
            text(row.get("severity", "")),
            text(row.get("rule", "")),
            text(row.get("message", "")),
        )
        for row in fired[:MAX_ALERTS]
    ]
    return ["### Alerts", "", *table(("time", "severity", "rule", "message"), rows)]


def _config(run: RunJson) -> list[str]:
    config = run["config"]
    lines = []
    if config:
        rows = [(text(key), setting(item)) for key, item in list(config.items())[:MAX_CONFIG]]
        lines += ["### Configuration", "", *table(("key", "value"), rows)]
    details = run["details"]
    python, host = (details.get(name) or {} for name in ("python", "host"))
    facts = [
        ("command", details["command"] if isinstance(details.get("command"), str) else ""),
        ("host", host.get("name", "") if isinstance(host, dict) else ""),
        ("python", python.get("version", "") if isinstance(python, dict) else ""),
        ("git", format_git(GitState.parse(details.get("git")))),
        ("packages", _packages(details.get("packages"))),
    ]
    known = [(name, text(fact).strip()) for name, fact in facts if str(fact).strip()]
    return [*lines, "### Environment", "", *table(("", ""), known)] if known else lines


def _packages(packages: object) -> str:
    return ", ".join(f"{name} {version}" for name, version in packages.items()) if isinstance(packages, dict) else ""


def _comparison(comparison: ComparisonJson) -> list[str]:
    runs = comparison["runs"]
    titles = [f"{row['name']} ({row['id']})" for row in runs]
    lines = [f"# {text(comparison_title([row['name'] for row in runs]))}", ""]
    lines += [f"The baseline is {text(titles[0])}.", "", "## Verdicts", ""]
    if comparison["verdicts"] and len(runs) >= FROM_RUNS:
        lines += _matrix(comparison, titles)
    elif comparison["verdicts"]:
        verdicts = [
            (
                text(item["metric"]),
                f"**{item['word']}**",
                value(item["baseline"]),
                value(item["value"]),
                quantities.format_change(item["change"]),
                quantities.format_confidence(item["confidence"]),
            )
            for item in comparison["verdicts"]
        ]
        lines += table(("metric", "verdict", "baseline", "now", "change", "confidence"), verdicts)
    else:
        lines += ["The runs share no metric with a known better direction.", ""]
    if comparison["config"]:
        rows = [(text(row["key"]), *(setting(item) for item in row["values"])) for row in comparison["config"]]
        lines += ["## Configuration differences", "", *table(("key", *map(text, titles)), rows)]
    else:
        lines += ["The configurations are identical.", ""]
    for group in comparison["others"]:
        rows = [(text(row["key"]), *(setting(item) for item in row["values"])) for row in group["rows"]]
        lines += [f"## {group['title'].capitalize()} differences", "", *table(("", *map(text, titles)), rows)]
    return lines


def _matrix(comparison: ComparisonJson, titles: Sequence[str]) -> list[str]:
    matrix, seeds = make_matrix(comparison), name_seeds(comparison, titles)
    rows = []
    for place, cells in enumerate(matrix.rows):
        note = f" ({seeds[place]})" if place in seeds else ""
        rows.append([text(titles[place] + note), *map(_matrix_cell, cells)])
    notes = [f"- {text(line)}" for line in explain_matrix(comparison, titles)]
    return [*table(("run", *map(text, matrix.metrics)), rows), *notes, ""]


def _matrix_cell(cell: MatrixCell) -> str:
    parts = (
        value(cell.value),
        cell.change,
        f"**{cell.mark}**" if cell.mark else "",
        cell.note,
        text("*") if cell.is_best else "",
    )
    return " ".join(filter(None, parts))
