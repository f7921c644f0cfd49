"""The pages that are lists: processes, ranks, alerts, events, runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from statistics import median
from typing import Any, TypeVar

from rich.segment import Segment
from rich.style import Style

from trainvitals.analysis.wording import count_of
from trainvitals.journal.documents.rows import AlertRow, EventRow
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.identity import Participant, gpu_title
from trainvitals.journal.run_info import RunInfo
from trainvitals.lab.places import machine_of
from trainvitals.views.data.participants import format_rank
from trainvitals.views.data.quantities import NONE, format_duration, format_measure, format_short
from trainvitals.views.data.run_rows import ListedRun
from trainvitals.views.tui.pages import Page, empty, row_hits, rule
from trainvitals.views.tui.paint import Line, fit, heat
from trainvitals.views.tui.snapshot import ProcessRow, RankRow, Snapshot
from trainvitals.views.tui.table import Column, draw_heading, draw_row, draw_table, lay_out
from trainvitals.views.tui.view import PROCESS_SORTS, View, key_of

T = TypeVar("T")

STRAGGLER = 1.2
"""A rank whose median step takes this many times the median of all is marked."""

MOST_GPU_NAMES = 16
"""Characters of the GPUs of one process on the overview; more of them are counted."""
LEAST_ON_GPUS = 5
"""Lines of the table of who is on the GPUs, if not all of them fit: heading, titles, two processes, the others."""

R = TypeVar("R", AlertRow, EventRow)


def text_column(
    title: str,
    least: int,
    importance: int,
    text: Callable[[T], str],
    style: Callable[[T], Style],
    *,
    most: int = 0,
    right: bool = False,
) -> Column[T]:
    """A column of plain words."""

    def draw(row: T, width: int) -> Line:
        return [Segment(fit(text(row), width, right=right), style(row))]

    return Column(title, least, importance, draw, most=most, right=right)


# -- processes


def shown_processes(snapshot: Snapshot, view: View) -> list[ProcessRow]:
    """Filtered and sorted as chosen; what has no value comes last."""
    words = view.filters.get("processes", "").casefold().split()
    key = PROCESS_SORTS[view.sort % len(PROCESS_SORTS)][0]
    rows = [row for row in snapshot.processes if all(word in _process_text(row) for word in words)]
    known = [row for row in rows if getattr(row, key) not in (None, "", ())]
    unknown = [row for row in rows if getattr(row, key) in (None, "", ())]
    known.sort(key=lambda row: getattr(row, key), reverse=view.descending)
    return known + unknown


def _process_text(row: ProcessRow) -> str:
    gpus = " ".join(f"gpu{index}" for index in row.gpus)
    return f"{row.pid} {row.command} {row.user} {row.run} {row.job} {gpus}".casefold()


def draw_processes(snapshot: Snapshot, view: View, width: int, height: int) -> Page:
    palette = view.palette
    rows = shown_processes(snapshot, view)
    view.rows = len(rows)
    if not rows:
        word = f"no processes match '{view.filter}'" if view.filter else "loading processes..."
        return Page(empty(word, width, palette), [])

    def plain(_: ProcessRow) -> Style:
        return palette.text

    def dim(_: ProcessRow) -> Style:
        return palette.dim

    def number(name: str, unit: str) -> Callable[[ProcessRow], str]:
        def text(row: ProcessRow) -> str:
            value = getattr(row, name)
            return format_measure(value, unit).replace(" ", "") if value is not None else NONE

        return text

    def run_of(row: ProcessRow) -> str:
        if row.participant is None:
            return ""
        part = f"r{row.participant.rank}" if row.participant.is_trainer else format_rank(row.participant)
        return f"{row.run} {part}"

    columns: list[Column[ProcessRow]] = [
        text_column("PID", 7, 1, lambda row: str(row.pid), plain, right=True),
        text_column("GPU", 3, 3, lambda row: ",".join(row.gpus), lambda _: palette.accent, most=7),
        text_column("USER", 8, 8, lambda row: row.user, dim),
        text_column("CPU", 5, 4, number("cpu_percent", "%"), plain, right=True),
        text_column("MEM", 6, 5, number("rss_mb", "MB"), plain, right=True),
        text_column("GPU MEM", 7, 6, number("gpu_memory_mb", "MB"), plain, right=True),
        text_column("SM", 4, 7, number("sm_percent", "%"), plain, right=True),
        text_column("THR", 4, 10, lambda row: str(row.threads or NONE), dim, right=True),
        text_column("AGE", 11, 9, lambda row: format_duration(row.age) if row.age is not None else "", dim, right=True),
        text_column("RUN", 12, 11, run_of, lambda _: palette.good, most=34),
        text_column("JOB", 12, 12, lambda row: row.job, dim, most=_longest((row.job for row in rows), 12, 40)),
        text_column("COMMAND", 24, 2, lambda row: row.command, plain, most=400),
    ]
    if not any(row.gpus for row in rows):
        columns = [column for column in columns if column.title not in ("GPU", "GPU MEM", "SM")]
    if not any(row.run for row in rows):
        columns = [column for column in columns if column.title != "RUN"]
    if not any(row.job for row in rows):
        columns = [column for column in columns if column.title != "JOB"]
    sort = PROCESS_SORTS[view.sort % len(PROCESS_SORTS)][1]
    word = "process" if len(rows) == 1 else "processes"
    if not any(row.gpus or row.run for row in rows):
        word = f"busiest {word} on this machine"
    order = f"by {sort} {'↓' if view.descending else '↑'}"
    return draw_list(columns, rows, view, width, height, rule(f"{len(rows)} {word}", width, palette, order))


def draw_on_gpus(rows: Sequence[ProcessRow], view: View, width: int, height: int) -> list[Line]:
    """Who is on which GPU, in at most `height` lines: a table, or one line if that is all there is room for."""
    palette = view.palette
    if not rows or height < 1:
        return []
    heading = f"{count_of(len(rows), 'process', 'processes')} on the GPUs"
    if height < min(len(rows) + 2, LEAST_ON_GPUS):
        return [[Segment(fit(f" {heading}: {_summarize(rows)}", width), palette.dim)]]

    def measure(name: str, unit: str) -> Callable[[ProcessRow], str]:
        return lambda row: format_measure(getattr(row, name), unit).replace(" ", "")

    def plain(_: ProcessRow) -> Style:
        return palette.text

    def gpus_of(row: ProcessRow) -> str:
        text = ",".join(row.gpus)
        return text if len(text) <= MOST_GPU_NAMES else f"{len(row.gpus)} GPUs"

    columns: list[Column[ProcessRow]] = [
        text_column("GPU", _longest(map(gpus_of, rows), 3, 16), 1, gpus_of, lambda _: palette.strong, right=True),
        text_column("USER", 8, 3, lambda row: row.user, plain, most=_longest((row.user for row in rows), 8, 16)),
        text_column("PID", 7, 2, lambda row: str(row.pid), plain, right=True),
        text_column("GPU MEM", 7, 4, measure("gpu_memory_mb", "MB"), plain, right=True),
        text_column("SM", 5, 5, measure("sm_percent", "%"), plain, right=True),
        text_column("JOB", 12, 7, lambda row: row.job, plain, most=_longest((row.job for row in rows), 12, 40)),
        text_column("COMMAND", 16, 6, lambda row: row.command, lambda _: palette.dim, most=400),
    ]
    if not any(row.job for row in rows):
        columns = [column for column in columns if column.title != "JOB"]
    placed = lay_out(columns, width - 2)
    shown = rows if len(rows) <= height - 2 else rows[: height - 3]
    lines = [rule(heading, width, palette), [Segment(" "), *draw_heading(placed, palette)]]
    lines += [[Segment(" "), *draw_row(placed, row, palette)] for row in shown]
    if len(shown) < len(rows):
        rest = rows[len(shown) :]
        lines.append(
            [Segment(fit(f" {len(rest)} more: {_summarize(rest)}; press {key_of('processes')}", width), palette.dim)]
        )
    return lines


def _summarize(rows: Sequence[ProcessRow]) -> str:
    """`alice 412.0 GB, bob 3.1 GB`: whose they are and the GPU memory of each, where it is known."""
    held: dict[str, list[float]] = {}
    for row in rows:
        held.setdefault(row.user or "unknown user", []).extend([] if row.gpu_memory_mb is None else [row.gpu_memory_mb])
    users = sorted(held.items(), key=lambda item: -sum(item[1]))
    return ", ".join(f"{user} {format_measure(sum(memory), 'MB')}" if memory else user for user, memory in users)


# -- ranks


def shown_ranks(snapshot: Snapshot, view: View) -> list[RankRow]:
    """Those that match the filter: a number, or part of the role or host name."""
    ranks = snapshot.run.ranks if snapshot.run is not None else ()
    words = view.filters.get("ranks", "").casefold().split()
    return [rank for rank in ranks if all(_is_meant(word, rank) for word in words)]


def _is_meant(word: str, rank: RankRow) -> bool:
    if word.isdigit():
        return word == str(rank.participant.rank)
    return word in rank.host.casefold() or word in rank.participant.role


def draw_ranks(snapshot: Snapshot, view: View, width: int, height: int) -> Page:
    palette = view.palette
    ranks = snapshot.run.ranks if snapshot.run is not None else ()
    rows = shown_ranks(snapshot, view)
    view.rows = len(rows)
    if ranks and not rows:
        return Page(empty(f"no ranks match '{view.filter}'", width, palette, "esc to clear the filter"), [])
    if not ranks:
        hint = (
            f"press {key_of('runs')} to select a run"
            if snapshot.run is None
            else "ranks appear with their first logged step"
        )
        word = "no run selected" if snapshot.run is None else "no rank has logged a step yet"
        return Page(empty(word, width, palette, hint), [])
    # Within a role: rollouts and trainers count different steps.
    peers: dict[str, list[RankRow]] = {}
    for rank in ranks:
        peers.setdefault(rank.participant.role, []).append(rank)
    usual = {role: _median_step(those) for role, those in peers.items()}
    newest = {
        role: max((rank.step for rank in those if rank.step is not None), default=0) for role, those in peers.items()
    }

    def slow(rank: RankRow) -> float | None:
        others = usual[rank.participant.role]
        return rank.step_time / others if rank.step_time is not None and others else None

    def title_of(rank: RankRow) -> str:
        return format_rank(rank.participant)

    def time_style(rank: RankRow) -> Style:
        ratio = slow(rank)
        if ratio is None or len(peers[rank.participant.role]) == 1 or ratio < STRAGGLER:
            return palette.text
        return palette.critical if ratio >= 1.5 else palette.warning

    def step_text(rank: RankRow) -> str:
        if rank.step is None:
            return NONE
        behind = newest[rank.participant.role] - rank.step
        return f"{rank.step:,}" + (f" (-{behind:,})" if behind > 1 else "")

    def heat_row(rank: RankRow, size: int) -> Line:
        shown = rank.ratios[-size:]
        return [Segment("·" * (size - len(shown)), palette.faint), *heat(shown, palette)]

    def plain(_: RankRow) -> Style:
        return palette.text

    def dim(_: RankRow) -> Style:
        return palette.dim

    def ago(rank: RankRow) -> str:
        return format_duration(snapshot.time - rank.seen) if rank.seen is not None else NONE

    width_of_rank = _longest(map(title_of, ranks), 4, 20)
    columns: list[Column[RankRow]] = [
        text_column("RANK", width_of_rank, 1, title_of, lambda _: palette.strong, right=True),
        text_column("HOST", 10, 8, lambda rank: rank.host, dim),
        text_column("PID", 7, 9, lambda rank: str(rank.pid or NONE), dim, right=True),
        text_column("STEP", 13, 4, step_text, plain, right=True),
        text_column("STEP TIME", 9, 2, lambda rank: format_measure(rank.step_time, "s"), time_style, right=True),
        Column("NEWEST STEPS", 12, 3, heat_row, most=120),
        text_column("CPU", 5, 6, lambda rank: format_measure(rank.cpu_percent, "%"), plain, right=True),
        text_column("MEM", 7, 7, lambda rank: format_measure(rank.rss_mb, "MB"), plain, right=True),
        text_column("SILENT FOR", 11, 5, ago, dim, right=True),
    ]
    for title, name in (("PID", "pid"), ("CPU", "cpu_percent"), ("MEM", "rss_mb")):
        if all(getattr(rank, name) is None for rank in ranks):
            columns = [column for column in columns if column.title != title]
    lowest = usual[ranks[0].participant.role]
    right = f"median step {format_measure(lowest, 's')}" if lowest is not None else ""
    return draw_list(columns, rows, view, width, height, rule(count_of(len(ranks), "rank"), width, palette, right))


def _median_step(ranks: Sequence[RankRow]) -> float | None:
    times = [rank.step_time for rank in ranks if rank.step_time is not None]
    return median(times) if times else None


# -- alerts


def shown_alerts(snapshot: Snapshot, view: View) -> list[AlertRow]:
    """Active alerts first, then the history, newest first."""
    now = {id(row) for row in snapshot.active}
    rows = [*snapshot.active, *(row for row in reversed(snapshot.alerts) if id(row) not in now)]
    return _filtered(rows, view.filters.get("alerts", ""))


def place_of(row: AlertRow) -> str:
    """The device or rank of an alert, if its message does not name it: `rank 3`, `GPU 0`; empty for the whole run."""
    place = f"GPU {row.labels['gpu']}" if "gpu" in row.labels else ""  # of a scraped page
    if "gpu_index" in row.labels:
        place = gpu_title(row.labels)
    if "rank" in row.labels:
        place = Participant.of(row.labels).title
    return place if place.casefold() not in row.message.casefold() else ""


def grouped_alerts(rows: Sequence[AlertRow]) -> list[tuple[AlertRow, str]]:
    """(alert, places); alerts with the same message for several ranks or GPUs are one, in their order."""
    groups: dict[tuple[str, str, object], list[AlertRow]] = {}
    for row in rows:
        groups.setdefault((row.rule, row.message, row.labels.get("role")), []).append(row)
    return [(group[0], _places(group)) for group in groups.values()]


def _places(group: Sequence[AlertRow]) -> str:
    """`rank 3`, `ranks 0, 1, 5`, `ranks 0 to 15`."""
    found = [place.split(" ", 1) for row in group if (place := place_of(row))]
    if len(found) < 2:
        return " ".join(found[0]) if found else ""
    word, names = found[0][0], [name for _, name in found]
    if not all(name.isdigit() for name in names):
        return f"{word}s {', '.join(names)}"
    numbers = sorted({int(name) for name in names})
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{word}s {numbers[0]} to {numbers[-1]}"
    return f"{word}s {', '.join(map(str, numbers))}"


def draw_alerts(snapshot: Snapshot, view: View, width: int, height: int) -> Page:
    palette = view.palette
    rows = shown_alerts(snapshot, view)
    view.rows = len(rows)
    if not rows:
        word = "no alerts so far" if snapshot.run is not None else "no run selected"
        return Page(empty(word, width, palette), [])

    def state_of(row: AlertRow) -> str:
        return next((word for word in ("silenced", "acknowledged") if getattr(row, word)), row.state_text)

    def rule_of(row: AlertRow) -> str:
        return row.rule

    def colour(row: AlertRow) -> Style:
        state = state_of(row)
        if state == "resolved":
            return palette.good
        if state in ("silenced", "acknowledged", "pending"):
            return palette.dim
        return palette.severity(row.severity or "warning")

    def message_of(row: AlertRow) -> str:
        place = place_of(row)
        return f"{place}: {row.message}" if place else row.message

    columns: list[Column[AlertRow]] = [
        _time_column(snapshot, rows, 3, palette.dim),
        text_column("STATE", _longest(map(state_of, rows), 5, 18), 2, state_of, colour),
        text_column("SEVERITY", 8, 5, lambda row: row.severity or "", colour),
        text_column("RULE", 14, 4, rule_of, lambda _: palette.strong, most=_longest(map(rule_of, rows), 14, 30)),
        text_column("MESSAGE", 24, 1, message_of, colour, most=400),
    ]
    title = f"{len(snapshot.firing)} active, {count_of(len(snapshot.alerts), 'change')} in total"
    if snapshot.run is None:
        title = f"{len(snapshot.firing)} active on this machine"
    return draw_list(columns, rows, view, width, height, rule(title, width, palette))


# -- events and output


def shown_events(snapshot: Snapshot, view: View) -> list[EventRow]:
    """Newest first."""
    return _filtered(list(reversed(snapshot.events)), view.filters.get("events", ""))


def draw_events(snapshot: Snapshot, view: View, width: int, height: int) -> Page:
    palette = view.palette
    rows = shown_events(snapshot, view)
    view.rows = len(rows)
    room = height
    pane: list[Line] = []
    if snapshot.output and height >= 4:
        room = height // 2
        pane = [rule("Output", width, palette)]
        for text in snapshot.output[-(height - room - 1) :]:
            pane.append([Segment(fit(f" {text}", width), palette.text)])

    def event_of(row: EventRow) -> str:
        return row.event

    def rank_of(row: EventRow) -> str:
        return "" if row.participant is None else format_rank(row.participant)

    columns: list[Column[EventRow]] = [
        _time_column(snapshot, rows, 2, palette.dim),
        text_column("EVENT", 14, 3, event_of, lambda _: palette.strong, most=_longest(map(event_of, rows), 14, 24)),
        text_column("RANK", _longest(map(rank_of, rows), 4, 20), 5, rank_of, lambda _: palette.dim, right=True),
        text_column("STEP", 8, 4, lambda row: _step(row.step), lambda _: palette.dim, right=True),
        text_column(
            "MESSAGE",
            16,
            1,
            lambda row: row.message,
            lambda row: palette.severities.get(row.severity, palette.text) if row.severity != "info" else palette.text,
            most=400,
        ),
    ]
    for title, name in (("RANK", "rank"), ("STEP", "step")):
        if all(getattr(row, name) is None for row in rows):
            columns = [column for column in columns if column.title != title]
    if not rows:
        page = Page(empty("no events yet", width, palette), [])
    else:
        page = draw_list(
            columns, rows, view, width, room, rule(count_of(len(rows), "event"), width, palette, "newest first")
        )
    lines = page.lines + [[] for _ in range(room - len(page.lines))] if pane else page.lines
    return Page(lines + pane, page.hits)


def _step(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and value >= 0 else ""


# -- runs


def shown_runs(snapshot: Snapshot, view: View) -> list[ListedRun | None]:
    """None is this machine, live."""
    words = view.filters.get("runs", "").casefold().split()

    def fits(info: RunInfo) -> bool:
        # Where it is kept begins with its machine, if that is another one.
        place = info.place.partition("/")[0] if snapshot.machines else ""
        text = f"{info.id} {info.name} {info.project} {info.status} {place}".casefold()
        return all(word in text for word in words)

    return [None, *(row for row in snapshot.runs if fits(row.info))]


def draw_runs(snapshot: Snapshot, view: View, width: int, height: int) -> Page:
    palette = view.palette
    rows = shown_runs(snapshot, view)
    view.rows = len(rows)
    shown = snapshot.run.folder if snapshot.run is not None else ""

    def state_style(row: ListedRun | None) -> Style:
        if row is not None and (severity := row.health.severity) in ("warning", "critical"):
            return palette.severity(severity)
        return palette.good if row is not None and row.info.status == "finished" else palette.accent

    def name(row: ListedRun | None) -> str:
        if row is None:
            return "this machine, live"
        return row.info.name + (" (simulated)" if row.info.simulated else "")

    names = [machine.state.name for machine in snapshot.machines]

    def host(row: ListedRun) -> str:
        """The machine, under the name that the user gave it."""
        return machine_of(row.key, names) if names else row.host

    def column(
        title: str, size: int, importance: int, text: Callable[[ListedRun], str], style: Style, **more: Any
    ) -> Column[ListedRun | None]:
        return text_column(title, size, importance, lambda row: text(row) if row else "", lambda _: style, **more)

    columns: list[Column[ListedRun | None]] = [
        column("", 1, 2, lambda row: "●" if row.info.place == shown else "", palette.accent),
        column("STARTED", 12, 5, lambda row: _day(row.started), palette.dim),
        text_column("STATUS", 8, 3, lambda row: row.info.status if row else "live", state_style),
        text_column("PROBLEMS", 16, 4, lambda row: row.problems if row else "", state_style, most=44),
        column("DURATION", 11, 6, lambda row: _lasted(row, snapshot.time), palette.text, right=True),
        column("STEP", 9, 9, lambda row: _step(row.last_step), palette.text, right=True),
        column("LOSS", 8, 10, _loss, palette.text, right=True),
        column("PROJECT", 8, 7, lambda row: row.info.project, palette.dim, most=20),
        text_column("NAME", 14, 1, name, lambda _: palette.strong, most=44),
        column("HOST", 8, 11, host, palette.dim, most=20),
        column("CAUSE", 16, 8, lambda row: row.info.cause_text, palette.dim, most=200),
    ]
    return draw_list(
        columns, rows, view, width, height, rule(count_of(len(rows) - 1, "run"), width, palette, "enter to show")
    )


def _lasted(row: ListedRun, now: float) -> str:
    seconds = row.seconds(now)
    return format_duration(seconds) if seconds is not None else ""


def _loss(row: ListedRun) -> str:
    value = row.last_value("loss")
    return format_short(value) if value is not None else ""


# -- shared


def draw_list(
    columns: Sequence[Column[T]], rows: Sequence[T], view: View, width: int, height: int, heading: Line
) -> Page:
    """A table with a selected row below a heading."""
    view.selected[view.page] = min(view.row, max(len(rows) - 1, 0))
    head = [heading] if height >= 6 else []
    lines, first = draw_table(columns, rows, width, height - len(head), view.palette, view.row)
    view.visible = max(len(lines) - 1, 1)
    return Page(head + lines, row_hits(first, len(lines) - 1, len(head) + 1, width))


def _longest(words: Iterable[str], least: int, most: int) -> int:
    """The width that shows all of them, within limits."""
    return min(max(least, max(map(len, words), default=0)), most)


def _filtered(rows: list[R], filter: str) -> list[R]:
    words = filter.casefold().split()
    if not words:
        return rows
    return [row for row in rows if all(word in " ".join(map(str, row.as_json().values())).casefold() for word in words)]


def clock(timestamp: object, now: float) -> str:
    """A journal time as local time of day; the day instead of the seconds if it is not that of `now`."""
    seconds = parse_time(timestamp)
    return format_clock(seconds, now) if seconds is not None else ""


def format_clock(seconds: float, now: float) -> str:
    """The same of seconds since 1970."""
    moment = datetime.fromtimestamp(seconds)
    return moment.strftime("%H:%M:%S" if moment.date() == datetime.fromtimestamp(now).date() else "%d %b %H:%M")


def _time_column(snapshot: Snapshot, rows: Sequence[R], importance: int, style: Style) -> Column[R]:
    """When it was; as wide as the oldest row needs."""
    oldest = min((row.timestamp for row in rows), default="")
    size = max(len(clock(oldest, snapshot.time)), 8)
    return text_column("TIME", size, importance, lambda row: clock(row.timestamp, snapshot.time), lambda _: style)


def _day(seconds: float | None) -> str:
    return time.strftime("%d %b %H:%M", time.localtime(seconds)) if seconds is not None else ""
