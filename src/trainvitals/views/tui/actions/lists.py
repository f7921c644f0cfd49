"""On the processes, alerts and runs pages."""

from __future__ import annotations

import getpass
import time
from functools import partial
from pathlib import Path

from trainvitals.alerts import records
from trainvitals.errors import TrainvitalsError
from trainvitals.views.tui.actions import Desk
from trainvitals.views.tui.actions.moving import show_page
from trainvitals.views.tui.pages.lists import shown_alerts, shown_processes, shown_runs
from trainvitals.views.tui.pages.machines import shown_machines
from trainvitals.views.tui.view import PAGES, PROCESS_SORTS, SIGNALS

SILENCE_SECONDS = 3600.0


def sort_by_next(desk: Desk) -> None:
    desk.view.sort = (desk.view.sort + 1) % len(PROCESS_SORTS)


def reverse_order(desk: Desk) -> None:
    desk.view.descending = not desk.view.descending


def ask_for_signal(desk: Desk) -> None:
    """Which signal to send to the selected process; `answer` sends it."""
    view = desk.view
    if view.readonly:
        view.show_message("signals are disabled by --readonly", "warning")
        return
    rows = shown_processes(desk.snapshot, view)
    if view.row < len(rows):
        view.asking = rows[view.row]


def answer(desk: Desk, key: str) -> None:
    """Send the signal of that key; any other key sends none."""
    from trainvitals.views.tui.processes import send

    view = desk.view
    process, view.asking = view.asking, None
    name = dict(SIGNALS).get(key)
    if process is None or name is None:
        view.show_message("no signal sent")
        return
    try:
        view.show_message(send(process, name), "warning")
    except TrainvitalsError as error:
        view.show_message(error.message, "critical")


def control_alert(desk: Desk, control: str, done: str, seconds: float | None = None) -> None:
    """Ask the agent to acknowledge or silence the rule of the selected alert, as `trainvitals alerts` does."""
    view, run = desk.view, desk.snapshot.run
    rows = shown_alerts(desk.snapshot, view)
    if view.row >= len(rows):
        return
    row = rows[view.row]
    if view.readonly:
        view.show_message("changing alerts is disabled by --readonly", "warning")
    elif row not in desk.snapshot.active:
        view.show_message(f"{row.rule} is no longer active")
    elif run is None or not run.live:
        view.show_message(f"nobody is notified of {row.rule}: no active run", "warning")
    elif desk.snapshot.machines and not Path(run.folder).is_dir():
        view.show_message("the run is on another machine: acknowledge it there", "warning")
    else:
        until = time.time() + seconds if seconds is not None else None
        try:
            records.ask(Path(run.folder), control, row.rule, getpass.getuser(), until)
        except (OSError, TrainvitalsError) as error:
            view.show_message(f"cannot change {row.rule}: {error}", "critical")
        else:
            view.show_message(f"{row.rule}: {done}")


acknowledge_alert = partial(control_alert, control="ack", done="acknowledged, no reminders")
silence_alert = partial(control_alert, control="silence", done="silenced for an hour", seconds=SILENCE_SECONDS)


def show_run(desk: Desk) -> None:
    """Show the selected run, or this machine."""
    view = desk.view
    rows = shown_runs(desk.snapshot, view)
    chosen = rows[view.row] if view.row < len(rows) else None
    desk.feed.choose(chosen)
    view.forget_zoom()
    show_page(desk, 0)
    view.show_message(f"showing {chosen.info.name}" if chosen is not None else "showing this machine")


def show_runs_of_machine(desk: Desk) -> None:
    """The list of runs, of the selected machine alone."""
    view = desk.view
    rows = shown_machines(desk.snapshot, view)
    if view.row >= len(rows):
        return
    name = rows[view.row].state.name
    show_page(desk, [page for page, _ in PAGES].index("runs"))
    view.set_filter(f"{name}:")
