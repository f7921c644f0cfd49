"""`trainvitals run -- CMD`: watch a program from outside, with no change to it.

The program comes first: whatever goes wrong on our side is a warning, and the program runs anyway, with its own
exit code.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainvitals import runtime
from trainvitals.errors import SettingError, TrainvitalsError
from trainvitals.journal import folder as run_folder
from trainvitals.journal import registrations
from trainvitals.journal.documents.registration import new_registration
from trainvitals.journal.documents.run import COMMAND, Process, RunFile, new_run
from trainvitals.redaction import redact_text
from trainvitals.settings import Settings
from trainvitals.settings.table import find
from trainvitals.stderr import print_below, print_line
from trainvitals.trackers.intake.keys import STATE_FILE
from trainvitals.trackers.intake.process import ensure_intake, has_clients
from trainvitals.trackers.program_files.notes import NOTES
from trainvitals.trainer import autostart, console, dashboard
from trainvitals.views.cli.arguments import Parser, UsageError, resolve_settings
from trainvitals.views.cli.exporter_flags import add_exporter_flags, add_mirror_flags, check_exporter
from trainvitals.views.cli.program import CannotStart, Ended, Program, check_program, end_like
from trainvitals.views.cli.start_run import FLAG, create_folder, explain_unknown_gpus, register, write_run

if TYPE_CHECKING:
    from trainvitals.trainer.ranks import Rank

DESCRIPTION = (
    "Run a program and monitor it: hardware, processes, and training, which is detected automatically with PyTorch "
    "or logged by the program with trainvitals.init(), which joins this run. Terminal, signals and exit code are "
    "passed through."
)
EXAMPLES = """
trainvitals run -- python train.py --lr 1e-3
trainvitals run --project mnist --name baseline --tag small -- torchrun --nproc-per-node 8 train.py
trainvitals run --simulate-gpus 2 -- python train.py       # no GPU? try two simulated ones
"""

WATCH_SECONDS = 5.0
FINAL_SECONDS = 3.0
NO_TRAINING_TEXT = (
    "no training was detected: no supported framework made a step (docs/integrations.md). In your own loop: "
    'run = trainvitals.init(), then run.log({"loss": loss})'
)


def add_arguments(parser: Parser) -> None:
    parser.add_settings("project")
    parser.add_argument("--name", metavar="NAME", help="run name (default: the program's name)")
    parser.add_settings("dir")
    parser.add_argument("--tag", metavar="TAG", action="append", default=[], help="tag; may be repeated")
    parser.add_argument("--notes", metavar="TEXT", default="", help="note")
    parser.add_settings("interval", "gpus", "simulate_gpus", "openmetrics", "agent", "summary", "dashboard", "console")
    add_mirror_flags(parser)
    add_exporter_flags(parser)
    parser.add_argument(
        "--top", action="store_true", help="run inside the terminal dashboard, with the program's output in a pane"
    )
    parser.add_config()
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the program and its arguments")


def execute(arguments: argparse.Namespace) -> int:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UsageError("no program to run", hint="such as: trainvitals run -- python train.py")
    settings = resolve_settings(arguments)
    if arguments.top:
        from trainvitals.views.tui.with_program import run_with_top

        words = list(arguments.words)
        words.remove("--top")
        return run_with_top(words, settings)
    watched: CommandRun | None = None
    try:
        check_program(command[0])
        watched = prepare(arguments, settings, command)
        program = Program(command, watched.environ if watched else os.environ)
        if watched:
            watched.begin(program.pid)
            if settings.dashboard:
                dashboard.start(settings, watched.folder.name)
        program.release()
    except CannotStart as error:
        if watched:
            watched.withdraw(error.code)
        print_line(error.message)
        if error.hint:
            print_below(error.hint)
        return error.code
    ended = program.wait(watched.look if watched else _do_nothing, WATCH_SECONDS)
    if watched:
        try:
            program.allow_interrupt()
            watched.finish(ended)
        except KeyboardInterrupt:
            pass  # no patience for the summary; the run is written
    return end_like(ended)


def _do_nothing() -> None:
    pass


def prepare(arguments: argparse.Namespace, settings: Settings, command: list[str]) -> CommandRun | None:
    """The run folder; None, with a warning, if there can be none: then the program runs unwatched."""
    try:
        check_exporter(settings)
    except SettingError as error:
        print_line(f"{error}\n  starting the program without serving metrics")
    try:
        return CommandRun(arguments, settings, command)
    except Exception as error:  # noqa: BLE001 - the boundary around the user's program: it runs, watched or not
        reason = str(error) if isinstance(error, TrainvitalsError) else repr(error)
        print_line(f"{reason}\n  starting the program without monitoring")
        return None


class CommandRun:
    """The run of the program, as seen from outside."""

    def __init__(self, arguments: argparse.Namespace, settings: Settings, command: list[str]) -> None:
        from trainvitals.trainer import facts, join
        from trainvitals.trainer.ranks import find_rank

        name = redact_text(arguments.name or name_of(command))
        self._settings = settings
        self._registered: Path | None = None
        self._written = False
        self._warned_unknown = settings.gpus is None
        self._mode = settings.file_mode
        project = Path(settings.dir).absolute() / run_folder.project_folder(settings.project)
        rank = find_rank(os.environ)
        launch = self._launch = join.find_wrapped_launch(settings, command, rank)
        self._leads = launch is None or rank.rank == 0
        self.folder = self._find_folder(project, name, command, rank, launch)
        self._before = run_folder.find_run(self.folder) if self._leads else None
        self._attempt = self._before.attempt + 1 if self._before is not None else 1
        self._correlation_id = facts.correlation_id(os.environ)
        self.environ = make_environment(arguments, self.folder, self._correlation_id)
        if launch is not None:
            self.environ[join.LAUNCH_VARIABLE] = launch
        if settings.dashboard:
            self.environ[dashboard.RUNNING] = "1"
        if settings.autostart:
            self.environ["PYTHONPATH"] = autostart.python_path(self.environ.get("PYTHONPATH"))
        self._file = new_run(
            self.folder.name,
            kind=COMMAND,
            project=settings.project,
            name=name,
            facts=facts.capture(settings, config=None, argv=command, environ=os.environ, cwd=Path.cwd()),
            pid=None,
            attempt=self._attempt,
            before=self._before,
            launch=launch,
            correlation_id=self._correlation_id,
            tags=[redact_text(tag) for tag in arguments.tag],
            notes=redact_text(arguments.notes),
            below=os.environ.get("TRAINVITALS_RUN_ID") or None,
            simulated=settings.simulate_gpus > 0,
        )
        create_folder(self.folder, settings, FLAG)

    def _find_folder(self, project: Path, name: str, command: list[str], rank: Rank, launch: str | None) -> Path:
        """A new one, unless another rank of the launch, or the job before Slurm requeued it, has begun the run."""
        from trainvitals.trainer import join

        requeued = join.find_requeued(self._settings, project, name, command, launch)
        if requeued is not None:
            return requeued
        if launch is not None:
            return join.join_launch(project, name, launch, rank, self._settings.shared)
        return project / run_folder.new_run_id(name)

    def begin(self, pid: int) -> None:
        """Write the run down and have it watched, before the program does anything. Of several ranks, the first does
        so; the program of each other one joins the run itself."""
        try:
            if self._leads:
                self._write(pid)
            elif self._launch is not None:
                from trainvitals.trainer import join

                join.wait_for_lead(self.folder, self._launch)
            if self._settings.agent and not runtime.ensure_agent():
                print_line("the agent could not be started, so hardware is not monitored: trainvitals doctor")
        except Exception as error:  # noqa: BLE001 - the boundary around the user's program: it runs, watched or not
            print_line(f"this run is not monitored: {error}")

    def _write(self, pid: int) -> None:
        file = replace(self._file, process=Process.of(pid))
        write_run(self.folder, file, self._settings, FLAG, self._before)
        self._written = True
        self._registered = register(
            new_registration(
                self.folder,
                pid,
                kind=COMMAND,
                attempt=self._attempt,
                correlation_id=self._correlation_id,
                settings=self._settings.as_json(),
                console=console.find_files() if self._settings.console != "off" else (),
            )
        )

    def look_after_agent(self) -> None:
        """Start the agent again if it died; it catches up from the folder."""
        if self._settings.agent:
            try:
                runtime.ensure_agent()
                self._warn_unknown_gpus()
            except Exception:  # noqa: BLE001, S110 - the boundary around the user's program: the next look may succeed
                pass

    def look_after_intake(self) -> None:
        """Start the process that the program's clients log to again, if it died: they wait for it."""
        try:
            if (self.folder / STATE_FILE).exists() or has_clients():
                ensure_intake(wait=0.0)
        except Exception:  # noqa: BLE001, S110 - the boundary around the user's program: the next look may succeed
            pass

    def look(self) -> None:
        """Now and then while the program runs."""
        self.look_after_agent()
        self.look_after_intake()

    def _warn_unknown_gpus(self) -> None:
        """Warn once about selected GPUs that do not exist, as soon as the agent has seen any."""
        text = "" if self._warned_unknown else explain_unknown_gpus(self._settings)
        if text:
            self._warned_unknown = True
            print_line(text)

    def withdraw(self, code: int) -> None:
        """The program could not be started: there was no run, or no other attempt of it."""
        import shutil

        if self._registered is not None:
            self._registered.unlink(missing_ok=True)
        if self._before is None and self._leads:
            shutil.rmtree(self.folder, ignore_errors=True)
        elif self._written:
            write_end(self.folder, Ended(code, None), self._mode)

    def finish(self, ended: Ended) -> None:
        """Write how it ended, wait a moment for the agent to finish, and print a summary."""
        if not self._written:
            return
        try:
            agent = self._registered is not None and runtime.agent_is_alive()
            asked = agent and ended.signal_name == "SIGKILL"
            write_end(self.folder, ended, self._mode, ask_agent=asked)
            if agent:
                self._warn_unknown_gpus()
                wait_for_agent(self.folder, FINAL_SECONDS)
            elif self._registered is not None:
                self._registered.unlink(missing_ok=True)  # nobody is there to do it, and nothing is left to watch
            if asked:
                write_end(self.folder, ended, self._mode)
            if self._settings.autostart and not ended.code:
                note_no_training(self.folder, self._mode)
            if self._settings.summary:
                from trainvitals.journal.folder_runs import FolderRuns
                from trainvitals.journal.reader import RunReader
                from trainvitals.views.cli.summary import print_summary

                print_summary(RunReader(self.folder), self._settings, FolderRuns(Path(self._settings.dir)))
        except Exception as error:  # noqa: BLE001 - the boundary around the user's program: its exit code counts
            print_line(f"cannot summarize run {self.folder.name}: {error}")


def name_of(command: list[str]) -> str:
    """What the program is called: the script after an interpreter, else the program itself."""
    words = [Path(word).name for word in command]
    if words[0].startswith(("python", "torchrun", "accelerate", "bash", "sh")):
        for place, word in enumerate(command[1:], 1):
            if word in ("-m", "--module") and place + 1 < len(command):
                return command[place + 1].rpartition(".")[2]
            if word.endswith((".py", ".sh")):
                return Path(word).stem
            if word in ("-c", "--"):
                break
    return Path(words[0]).stem or "run"


def make_environment(arguments: argparse.Namespace, folder: Path, correlation_id: str) -> dict[str, str]:
    """What the program's own init() must find: this run, and the settings that were given here as flags."""
    environ = dict(os.environ)
    for name in arguments.setting_names:
        value = getattr(arguments, name)
        if value is not None:
            row = find(name, "flag")
            environ[row.variable] = row.kind.format(row.kind.parse(value))
    if arguments.dir is not None:
        environ[find("dir", "flag").variable] = str(Path(arguments.dir).expanduser().absolute())
    if arguments.config is not None:
        environ["TRAINVITALS_CONFIG"] = str(arguments.config.absolute())
    environ["TRAINVITALS_RUN_DIR"] = str(folder)
    environ["TRAINVITALS_RUN_ID"] = folder.name
    environ["TRAINVITALS_CORRELATION_ID"] = correlation_id
    if "TRACEPARENT" not in environ and len(correlation_id) == 32 and set(correlation_id) <= set("0123456789abcdef"):
        environ["TRACEPARENT"] = f"00-{correlation_id}-{os.urandom(8).hex()}-01"
    return environ


def write_end(folder: Path, ended: Ended, mode: int, *, ask_agent: bool = False) -> None:
    """Complete run.json: the program may have ended its run itself, and then its word counts.

    With `ask_agent` only the bare fact is written, and the agent, which watched the memory, adds why.
    """
    from trainvitals.agent.exit_causes import ExitStatus, judge
    from trainvitals.journal.failures import explain_exit_code

    verdict = judge(ExitStatus(ended.code, ended.signal_name))
    if ended.code:
        verdict = replace(verdict, cause=explain_exit_code(folder, ended.code) or verdict.cause)

    def end(run: RunFile) -> RunFile:
        is_final = run.is_over and (not run.tentative or verdict.status == "finished")
        if not ask_agent:
            run = replace(run, tentative=False) if is_final else run.end(verdict.status, verdict.cause)
        return replace(run, exit_code=ended.code) if ended.signal is None else replace(run, signal=ended.signal_name)

    run_folder.change_run(folder, end, mode)


def note_no_training(folder: Path, mode: int) -> None:
    """Write an event if no program of the command began to train or log, as far as could be seen."""
    if run_folder.read_run(folder).kind != COMMAND or any((folder / name).exists() for name in (STATE_FILE, NOTES)):
        return
    from trainvitals.journal.documents.rows import new_event
    from trainvitals.journal.encoding import encode_line
    from trainvitals.journal.layout import FileName
    from trainvitals.journal.writer import LineWriter
    from trainvitals.views.cli.summary import NO_TRAINING

    writer = LineWriter(folder, FileName("events", 1, "", pid=os.getpid()), mode=mode)
    writer.append(encode_line(new_event(NO_TRAINING, NO_TRAINING_TEXT, host=runtime.host_name()).as_json()))
    writer.close()


def wait_for_agent(folder: Path, seconds: float) -> None:
    """Give the agent time to write what it knows of the end; it then takes the registrations away."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and runtime.agent_is_alive():
        if not any(Path(item.folder) == folder for _, item in registrations.read_all()):
            return
        time.sleep(0.05)
