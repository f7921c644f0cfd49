"""A report of one run or of several, in any format."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from trainvitals.conditions import Conditions
from trainvitals.errors import TrainvitalsError
from trainvitals.journal.contracts import Reader
from trainvitals.journal.encoding import format_time
from trainvitals.redaction import redact_text
from trainvitals.settings import Settings
from trainvitals.views.data import quantities
from trainvitals.views.data.comparison import describe_comparison
from trainvitals.views.data.cost import prices_of
from trainvitals.views.data.diagnosis import read_findings
from trainvitals.views.data.run_details import describe_run as describe_details
from trainvitals.views.data.shapes import ReportDataJson
from trainvitals.views.report.data import make_data
from trainvitals.views.report.svg import SvgNote

SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md", ".json": "json"}
SUFFIXES |= {".png": "png", ".svg": "svg"}
MAX_FINDINGS = 5
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
    return make_data(runs, Conditions(settings.alerts_thresholds), prices_of(settings))


def _describe_notes(runs: Sequence[NamedRun], settings: Settings) -> list[SvgNote]:
    """How a single run is doing or ended, what was found wrong with it, and what it cost."""
    if len(runs) != 1:
        return []
    key, reader = runs[0]
    run = describe_details(reader, key, prices_of(settings))
    health, findings = run["health"], read_findings(reader, settings)["findings"]
    parts = [run["status"]]
    parts += [f"last step {run['step']:,}"] if run["step"] is not None else []
    parts += [f"cost {quantities.format_cost(run['cost'])}"] if run["cost"] is not None else []
    notes = [SvgNote(", ".join(parts), health["severity"])]
    notes += [SvgNote(health["reason"], health["severity"])] if health["severity"] != "ok" else []
    shown = findings if len(findings) <= MAX_FINDINGS + 1 else findings[:MAX_FINDINGS]
    for item in shown:
        follows = "    " if item["cause"] else ""
        notes.append(SvgNote(f"{follows}{item['severity']}: {item['title']}", item["severity"]))
    if len(shown) < len(findings):
        notes.append(SvgNote(f"and {len(findings) - len(shown)} more findings"))
    notes += [SvgNote("No problems found.")] if not findings else []
    return [note._replace(text=redact_text(note.text)) for note in notes]


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
    from trainvitals.views.report.charts import make_charts, make_comparison
    from trainvitals.views.report.svg import draw_svg

    if len(runs) == 1:
        charts = make_charts(runs[0][1], names)
        title, subtitle = describe_run(runs[0][1])
    else:
        wanted = list(names) or _shared(runs)
        charts = make_comparison([(reader.info.name, reader) for _, reader in runs], wanted)
        title = comparison_title([reader.info.name for _, reader in runs])
        subtitle = ", ".join(key for key, _ in runs)
        subtitle += "; simulated GPUs" if any(is_simulated(reader) for _, reader in runs) else ""
    if not charts:
        raise TrainvitalsError(
            f"nothing to draw: run {runs[0][0]} has no values", hint="to see what it has: trainvitals runs show"
        )
    columns = 1 if len(charts) == 1 or width < 700 else 2
    svg = draw_svg(charts, title=title, subtitle=subtitle, notes=notes, theme=theme, width=width, columns=columns)
    if format == "svg":
        return svg.encode()
    from trainvitals.views.report.png import draw_png

    return draw_png(svg)


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
