"""A report of one run or of several, in any format."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from trainvitals.conditions import Conditions
from trainvitals.errors import TrainvitalsError
from trainvitals.journal.contracts import Reader
from trainvitals.journal.encoding import format_time
from trainvitals.prices import Prices
from trainvitals.redaction import redact_text
from trainvitals.settings import Settings
from trainvitals.views.data import quantities
from trainvitals.views.data.comparison import describe_comparison
from trainvitals.views.data.diagnosis import read_findings
from trainvitals.views.data.run_details import describe_run as describe_details
from trainvitals.views.data.run_rows import read_row_of
from trainvitals.views.data.shapes import ReportDataJson
from trainvitals.views.report.data import make_data
from trainvitals.views.report.svg import SvgChart, SvgNote

SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md", ".json": "json"}
SUFFIXES |= {".png": "png", ".svg": "svg"}
MAX_FINDINGS = 5
MAX_ALERTS = 3
MAX_INLINE = 6
"""Charts below a cell of a notebook, and their height: a glance, not a report."""
INLINE_HEIGHT = 240
NamedRun = tuple[str, Reader]
"""A run under a name that is unique in the report."""


def draw_report(
    runs: Sequence[NamedRun], format: str, settings: Settings, *, theme: str = "light", width: int = 1200
) -> bytes:
    """The report in one of the formats of SUFFIXES; Markdown without pictures."""
    if format in ("png", "svg"):
        return draw_picture(runs, format, notes=_describe_notes(runs, settings), theme=theme, width=width)
    data = _make_data(runs, settings)
    if format == "html":
        from trainvitals.views.report.html import draw_html

        return draw_html(data)
    if format == "json":
        from trainvitals.views.report.summary import draw_json

        return draw_json(data)
    from trainvitals.views.report.markdown import draw_markdown

    return draw_markdown(data).encode()


def draw_markdown_with_pictures(
    runs: Sequence[NamedRun], target: Path, settings: Settings, theme: str
) -> dict[Path, bytes]:
    """The Markdown file and one PNG beside it for each run."""
    from trainvitals.views.report.markdown import draw_markdown

    files: dict[Path, bytes] = {}
    pictures = []
    for place, run in enumerate(runs, 1):
        name = f"{target.stem}.png" if len(runs) == 1 else f"{target.stem}-{place}.png"
        files[target.with_name(name)] = draw_picture([run], "png", theme=theme)  # the text is beside it
        pictures.append((run[0], name))
    files[target] = draw_markdown(_make_data(runs, settings), pictures).encode()
    return files


def _make_data(runs: Sequence[NamedRun], settings: Settings) -> ReportDataJson:
    return make_data(runs, Conditions(settings.alerts_thresholds), Prices.of(settings))


def _describe_notes(runs: Sequence[NamedRun], settings: Settings, *, with_alerts: bool = False) -> list[SvgNote]:
    """How a single run is doing or ended, what was found wrong with it, and what it cost."""
    if len(runs) != 1:
        return []
    key, reader = runs[0]
    run = describe_details(reader, key, Prices.of(settings))
    health, findings = run["health"], read_findings(reader, settings)["findings"]
    parts = [run["status"]]
    parts += [f"last step {run['step']:,}"] if run["step"] is not None else []
    parts += [f"cost {quantities.format_cost(run['cost'])}"] if run["cost"] is not None else []
    notes = [SvgNote(", ".join(parts), health["severity"])]
    notes += [SvgNote(health["reason"], health["severity"])] if health["severity"] != "ok" else []
    if with_alerts:
        notes += _describe_alerts(reader, key, health["reason"])
    shown = findings if len(findings) <= MAX_FINDINGS + 1 else findings[:MAX_FINDINGS]
    for item in shown:
        follows = "    " if item["cause"] else ""
        notes.append(SvgNote(f"{follows}{item['severity']}: {item['title']}", item["severity"]))
    if len(shown) < len(findings):
        notes.append(SvgNote(f"and {len(findings) - len(shown)} more findings"))
    notes += [SvgNote("No problems found.")] if not findings else []
    return [note._replace(text=redact_text(note.text)) for note in notes]


def _describe_alerts(reader: Reader, key: str, said: str) -> list[SvgNote]:
    """Those that fire now, but for the worst, which has been `said`."""
    firing = [row for row in read_row_of(reader, key).firing if (row.message or "") not in said]
    notes = [SvgNote(f"{row.severity} alert: {row.message}", row.severity or "") for row in firing[:MAX_ALERTS]]
    return notes + ([SvgNote(f"alerts not shown: {len(firing) - len(notes)}")] if len(firing) > len(notes) else [])


def draw_picture(
    runs: Sequence[NamedRun],
    format: str,
    *,
    names: Sequence[str] = (),
    notes: Sequence[SvgNote] = (),
    theme: str = "light",
    width: int = 1200,
) -> bytes:
    """Charts of a run, or of several in one chart, as `svg` or `png`, below the notes."""
    charts = _make_charts(runs, names)
    if not charts:
        raise TrainvitalsError(
            f"nothing to draw: run {runs[0][0]} has no values", hint="to see what it has: trainvitals runs show"
        )
    svg = _draw_sheet(runs, charts, notes, theme, width)
    if format == "svg":
        return svg.encode()
    from trainvitals.views.report.png import draw_png

    return draw_png(svg)


def draw_inline(runs: Sequence[NamedRun], settings: Settings, *, theme: str, width: int) -> str:
    """The same as SVG for a notebook, with the alerts that fire; also of a run that has no values yet."""
    notes = _describe_notes(runs, settings, with_alerts=True)
    return _draw_sheet(runs, _make_charts(runs)[:MAX_INLINE], notes, theme, width, chart_height=INLINE_HEIGHT)


def _make_charts(runs: Sequence[NamedRun], names: Sequence[str] = ()) -> list[SvgChart]:
    from trainvitals.views.report.charts import make_charts, make_comparison

    if len(runs) == 1:
        return make_charts(runs[0][1], names)
    named = zip(_name_apart(runs), (reader for _, reader in runs), strict=True)
    return make_comparison(list(named), list(names) or _shared(runs))


def _draw_sheet(
    runs: Sequence[NamedRun],
    charts: Sequence[SvgChart],
    notes: Sequence[SvgNote],
    theme: str,
    width: int,
    chart_height: int = 320,
) -> str:
    from trainvitals.views.report.svg import draw_svg

    if len(runs) == 1:
        title, subtitle = describe_run(runs[0][1])
    else:
        title = comparison_title(_name_apart(runs))
        subtitle = ", ".join(key for key, _ in runs)
        subtitle += "; simulated GPUs" if any(is_simulated(reader) for _, reader in runs) else ""
    columns = 1 if len(charts) == 1 or width < 700 else 2
    return draw_svg(
        charts,
        title=title,
        subtitle=subtitle,
        notes=notes,
        theme=theme,
        width=width,
        chart_height=chart_height,
        columns=columns,
    )


def _name_apart(runs: Sequence[NamedRun]) -> list[str]:
    """Their names; where several share one, their ids."""
    names = [reader.info.name for _, reader in runs]
    return [name if names.count(name) == 1 else key for (key, _), name in zip(runs, names, strict=True)]


def comparison_title(names: Sequence[str]) -> str:
    """A title for runs beside each other, the first being the baseline."""
    others = names[1] if len(names) == 2 else f"{len(names) - 1} runs"
    return f"{others} vs. {names[0]}"


def describe_run(reader: Reader) -> tuple[str, str]:
    """A title and a line about the run."""
    info = reader.info
    words = [info.id, info.status, f"started {info.started[:16].replace('T', ' ')} UTC" if info.started else ""]
    words.append(f"as of {format_time(time.time())[:16].replace('T', ' ')} UTC" if info.is_live else "")
    words.append("simulated GPUs" if is_simulated(reader) else "")
    return info.name, ", ".join(word for word in words if word)


def is_simulated(reader: Reader) -> bool:
    """Whether any GPU of the run is not there."""
    return reader.info.simulated or any(label.get("simulated") for label in reader.labels("gpu"))


def _shared(runs: Sequence[NamedRun]) -> list[str]:
    """The metrics worth comparing, as the comparison chooses them."""
    return list(describe_comparison(runs, [], points=4)["names"])
