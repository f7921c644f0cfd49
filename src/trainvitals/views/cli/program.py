"""Running a user's program as if nothing was in between: same terminal, same signals, same end.

The program is a plain child: same session, process group, standard streams, open files, limits and signal
dispositions as if the shell had started it. Signals of the terminal reach it directly. What is sent to us alone
(`kill PID`) is passed on; what was sent to the whole group, or to every process of a batch job, is not, because the
program has it already and would see it twice. Tested in tests/views/cli/test_run.py.
"""

from __future__ import annotations

import errno
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from trainvitals.errors import TrainvitalsError

NOT_FOUND = 127
NOT_EXECUTABLE = 126
WITNESS_SECONDS = 0.05

_FAULTS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")
_KEPT = ("SIGKILL", "SIGSTOP", "SIGCHLD", "SIGPIPE", "SIGXFSZ", "SIGPROF", "SIGVTALRM", *_FAULTS)
_TERMINAL_STOPS = ("SIGTSTP", "SIGTTIN", "SIGTTOU")


class CannotStart(TrainvitalsError):
    """The program could not be started; `code` is what a shell would return."""

    def __init__(self, message: str, code: int, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class Ended(NamedTuple):
    """How the program ended: one of the two is set."""

    code: int | None
    signal: int | None

    @property
    def signal_name(self) -> str | None:
        if self.signal is None:
            return None
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"


def flush_streams() -> None:
    """Whatever we printed is out, as far as that is possible: a stream may be closed or its disk full."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            continue


def cannot_start(name: str, error: OSError) -> CannotStart:
    """What is wrong with the program, and what to do."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        is_python = name.endswith(".py") and os.path.isfile(name)  # noqa: PTH113 - a name as typed
        typed = f"to run it with Python: trainvitals run -- python {shlex.quote(name)}"
        return CannotStart(
            f"program not found: '{name}'",
            NOT_FOUND,
            hint=typed if is_python else "check its name, or use its path: ./train.sh",
        )
    if error.errno == errno.EACCES:
        if os.path.isdir(name):  # noqa: PTH112 - a name as typed
            return CannotStart(f"'{name}' is a folder, not a program", NOT_EXECUTABLE)
        way = f"trainvitals run -- python {shlex.quote(name)}" if name.endswith(".py") else f"chmod +x {name}"
        return CannotStart(f"'{name}' is not executable", NOT_EXECUTABLE, hint=f"try: {way}")
    return CannotStart(f"cannot start '{name}': {error.strerror or error}", NOT_EXECUTABLE)


def check_program(name: str) -> None:
    """Raises CannotStart if there is no such program, before anything is written down about it."""
    import shutil

    if shutil.which(name) is not None:
        return
    path = name if os.path.dirname(name) else None  # noqa: PTH120 - a bare name is looked up, './name' is not
    number = errno.EACCES if path and os.path.exists(path) else errno.ENOENT  # noqa: PTH110
    raise cannot_start(name, OSError(number, os.strerror(number)))


if sys.platform == "win32":

    class Program:
        """The program on Windows: Ctrl-C reaches it by itself, other signals do not exist."""

        def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
            try:
                self._process = subprocess.Popen(list(command), env=dict(environ))
            except OSError as error:
                raise cannot_start(command[0], error) from error
            self.pid = self._process.pid

        def release(self) -> None:
            """It runs already: Windows has no way to hold it."""

        def wait(self, tick: Callable[[], None], every: float) -> Ended:
            """Wait for the end, calling `tick` every so often."""
            while True:
                try:
                    return Ended(self._process.wait(timeout=every), None)
                except subprocess.TimeoutExpired:
                    tick()
                except KeyboardInterrupt:
                    continue  # the program got it too and decides

        def allow_interrupt(self) -> None:
            """Ctrl-C is ours already."""

    def end_like(ended: Ended) -> NoReturn:
        """End with the same exit code."""
        flush_streams()
        os._exit(ended.code or 0)

else:

    class Program:
        """The program, forked and held until `release`, so that its process id can be written down before it runs."""

        def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
            self._command = list(command)
            self._signals = _forwarded_signals()
            self._wakeup = _Pipe()
            go, failure = _Pipe(), _Pipe()
            flush_streams()  # or the forked processes would have our text as well
            watched = {*self._signals, signal.SIGCHLD}
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
            self.pid = os.fork()
            if self.pid == 0:
                _become(self._command, environ, go, failure, mask)
            # After the program: what comes in between is at worst delivered twice, not lost.
            self._witness = Witness(watched, mask)
            go.close_reader()
            failure.close_writer()
            self._go, self._failure = go, failure
            os.set_blocking(self._wakeup.writer, False)
            signal.set_wakeup_fd(self._wakeup.writer, warn_on_full_buffer=False)
            for number in watched:
                signal.signal(number, _do_nothing)  # the wake-up file tells; exec gives children the default back
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        def release(self) -> None:
            """Let it run. Raises CannotStart if it cannot."""
            os.write(self._go.writer, b"!")
            self._go.close_writer()
            report = b""
            while part := os.read(self._failure.reader, 16):  # closed by a successful exec
                report += part
            self._failure.close_reader()
            if report:
                os.waitpid(self.pid, 0)
                self._witness.dismiss()
                number = int(report)
                raise cannot_start(self._command[0], OSError(number, os.strerror(number)))

        def wait(self, tick: Callable[[], None], every: float) -> Ended:
            """Wait for the end, passing signals on and calling `tick` every so often."""
            next_tick = time.monotonic() + every
            while True:
                ended = self._look()
                if ended is not None:
                    self._witness.dismiss()
                    return ended
                readable, _, _ = select.select([self._wakeup.reader], [], [], max(next_tick - time.monotonic(), 0.0))
                if readable:
                    for number in os.read(self._wakeup.reader, 4096):
                        if number != signal.SIGCHLD:
                            self._pass_on(number)
                elif time.monotonic() >= next_tick:
                    tick()
                    next_tick = time.monotonic() + every

        def allow_interrupt(self) -> None:
            """The program has ended; from now on Ctrl-C is ours again, as KeyboardInterrupt."""
            signal.signal(signal.SIGINT, signal.default_int_handler)

        def _look(self) -> Ended | None:
            while True:
                pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
                if pid == 0:
                    return None
                if os.WIFSTOPPED(status):
                    _stop_like(os.WSTOPSIG(status))
                elif os.WIFSIGNALED(status):
                    return Ended(None, os.WTERMSIG(status))
                else:
                    return Ended(os.WEXITSTATUS(status), None)

        def _pass_on(self, number: int) -> None:
            if self._witness.saw(number):
                return
            try:
                os.kill(self.pid, number)  # not waited for yet, so this is not another process
            except PermissionError:
                pass  # the program changed its user (sudo): whoever may, must signal it directly

    class Witness:
        """A process beside us in the same group that does nothing but notice signals.

        Neither the kernel nor the sender reports whether a signal was meant for one process or for all of a group or
        job. If this one got it as well, it was for all.
        """

        def __init__(self, watched: set[int], mask: set[int] | set[signal.Signals]) -> None:
            """Called with `watched` blocked; `mask` is what is blocked otherwise."""
            self._report, self._life = _Pipe(), _Pipe()
            self._seen: list[tuple[int, float]] = []
            os.set_blocking(self._report.writer, False)
            os.set_blocking(self._report.reader, False)
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    self._watch(watched, mask)
                finally:
                    os._exit(0)
            self._report.close_writer()
            self._life.close_reader()

        def _watch(self, watched: set[int], mask: set[int] | set[signal.Signals]) -> None:
            keep = (self._report.writer, self._life.reader)
            # Whoever waits for the end of our output must not wait for this process.
            for descriptor in [int(name) for name in os.listdir("/dev/fd")]:  # noqa: PTH208 - only the numbers matter
                if descriptor not in keep:
                    try:
                        os.close(descriptor)
                    except OSError:
                        pass  # it was the listing itself
            signal.set_wakeup_fd(self._report.writer, warn_on_full_buffer=False)
            for number in watched:
                signal.signal(number, _do_nothing)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.read(self._life.reader, 1)  # ends when the other end is closed: by us, or with us

        def saw(self, number: int) -> bool:
            """Whether the signal came here as well."""
            deadline = time.monotonic() + WITNESS_SECONDS
            is_last_look = False
            while True:
                now = time.monotonic()
                self._seen = [item for item in self._seen if item[1] > now - 1.0]
                for item in self._seen:
                    if item[0] == number:
                        self._seen.remove(item)
                        return True
                if is_last_look:
                    return False
                patience = deadline - now
                if patience <= 0:
                    is_pending, is_at_work = self._ask_kernel(number)
                    if is_pending:
                        return True
                    # It, or we, may have been held up: what it had reported by the time it slept is still to be read.
                    is_last_look, patience = not is_at_work, WITNESS_SECONDS if is_at_work else 0.0
                readable, _, _ = select.select([self._report.reader], [], [], patience)
                if readable:
                    numbers = os.read(self._report.reader, 4096)
                    if not numbers:
                        return False  # somebody ended the witness: forward rather than lose
                    self._seen.extend((item, now) for item in numbers)

        def _ask_kernel(self, number: int) -> tuple[bool, bool]:
            """Whether the signal waits for it, and whether it is doing something: on a busy machine it may have the
            signal and not have had its turn, or not all of it."""
            try:
                with open(f"/proc/{self.pid}/status") as file:
                    found = dict(line.split(":", 1) for line in file.read().splitlines())
            except OSError:
                return False, False
            masks = [int(found.get(name, "0"), 16) for name in ("SigPnd", "ShdPnd")]
            return any(mask >> (number - 1) & 1 for mask in masks), found.get("State", "").strip()[:1] in ("R", "D")

        def dismiss(self) -> None:
            """End it and forget it."""
            self._life.close_writer()
            os.waitpid(self.pid, 0)
            self._report.close_reader()

    class _Pipe:
        """Both ends of a pipe, each closed once."""

        def __init__(self) -> None:
            self.reader, self.writer = os.pipe()

        def close_reader(self) -> None:
            os.close(self.reader)

        def close_writer(self) -> None:
            os.close(self.writer)

    def _become(
        command: list[str],
        environ: Mapping[str, str],
        go: _Pipe,
        failure: _Pipe,
        mask: set[int] | set[signal.Signals],
    ) -> None:
        """In the forked child: wait for the word, then be the program. Never returns."""
        try:
            go.close_writer()
            failure.close_reader()
            # Python ignores these two for itself; a program started by a shell does not find them ignored.
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
            if not os.read(go.reader, 1):
                os._exit(1)  # our parent is gone: the program is no longer wanted
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            try:
                os.execvpe(command[0], command, dict(environ))
            except OSError as error:
                if error.errno == errno.ENOEXEC:  # a script without a first line: shells, env and nice run it so
                    os.execve("/bin/sh", ["/bin/sh", _path_of(command[0]), *command[1:]], dict(environ))
                raise
        except OSError as error:
            os.write(failure.writer, str(error.errno).encode())
        finally:
            os._exit(NOT_FOUND)

    def _path_of(name: str) -> str:
        import shutil

        return shutil.which(name) or name

    def _forwarded_signals() -> set[int]:
        """All that can be sent to a process, but faults, and those that we were started to ignore."""
        kept = {getattr(signal, name) for name in _KEPT if hasattr(signal, name)}
        return {
            int(number)
            for number in signal.valid_signals()
            if number not in kept and signal.getsignal(number) is not signal.SIG_IGN
        }

    def _do_nothing(number: int, frame: object) -> None:
        pass

    def _stop_like(number: int) -> None:
        """The program was stopped from the terminal: stop as well, so that the shell takes the terminal back. After
        SIGCONT we are here again. A program stopped by SIGSTOP is nobody's job control and is waited for."""
        if number not in {getattr(signal, name) for name in _TERMINAL_STOPS} or not _has_terminal():
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, _do_nothing)

    def _has_terminal() -> bool:
        try:
            os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
        except OSError:
            return False
        return True

    def end_like(ended: Ended) -> NoReturn:
        """End with the same exit code; a program that died by a signal is followed into that death."""
        flush_streams()
        if ended.signal is not None:
            import resource

            _, hard = resource.getrlimit(resource.RLIMIT_CORE)
            # One byte: no core file of ours, and none handed to a crash reporter either (core(5)).
            resource.setrlimit(resource.RLIMIT_CORE, (1 if hard == resource.RLIM_INFINITY else min(1, hard), hard))
            if ended.signal != signal.SIGKILL:
                signal.signal(ended.signal, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [ended.signal])
            os.kill(os.getpid(), ended.signal)
        # Python would change the code if a stream cannot be flushed.
        os._exit(ended.code if ended.signal is None and ended.code is not None else 128 + (ended.signal or 0))
