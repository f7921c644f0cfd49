"""The real program in a real terminal (tmux)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE, pause, wait_until

from trainvitals.journal import registrations
from trainvitals.views.tui.keys import KEYS

TRAINING = """
import math, os, signal, sys, time
import trainvitals

quiet, die = sys.argv[1:]
run = trainvitals.init(project="story", name="watched", config={"total_steps": 400})
for step in range(60):
    loss = 2 * math.exp(-step / 20) + (3 if 30 <= step < 34 else 0)
    run.log({"loss": math.nan if step >= 50 else loss, "learning_rate": 1e-3, "batch_time": 0.01}, step=step)
    time.sleep(0.01)
step = 60
while not os.path.exists(quiet):
    run.log({"loss": math.nan, "learning_rate": 1e-3, "batch_time": 0.05}, step=step)
    step += 1
    time.sleep(0.05)
while not os.path.exists(die):  # nothing is logged any more: stalled
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""


class Terminal:
    """One window of a tmux server of its own."""

    def __init__(self, folder: Path, columns: int, lines: int, environ: dict[str, str]) -> None:
        self._tmux = ["tmux", "-L", f"trainvitals-{os.getpid()}-{folder.name}", "-f", "/dev/null"]
        self._environ = environ
        shell = ["env", "-u", "TMUX", "PS1=ready$ ", "/bin/sh"]
        self._call("new-session", "-d", "-x", str(columns), "-y", str(lines), *shell)

    def _call(self, *words: str) -> str:
        result = subprocess.run(
            [*self._tmux, *words], capture_output=True, text=True, env=self._environ, timeout=PATIENCE
        )
        return result.stdout

    def type(self, line: str) -> None:
        self._call("send-keys", "-l", line)
        self._call("send-keys", "Enter")

    def press(self, *keys: str) -> None:
        for key in keys:
            self._call("send-keys", key)

    def click(self, column: int, line: int) -> None:
        """What a terminal sends when the mouse is pressed and released there."""
        for way in "Mm":
            self._call("send-keys", "-l", f"\x1b[<0;{column + 1};{line + 1}{way}")

    def wants_mouse(self) -> bool:
        return self._call("display-message", "-p", "#{mouse_any_flag}#{mouse_sgr_flag}").strip() == "11"

    def resize(self, columns: int, lines: int) -> None:
        self._call("resize-window", "-x", str(columns), "-y", str(lines))

    def screen(self) -> str:
        return self._call("capture-pane", "-p")

    def until(self, ready: Callable[[str], object]) -> str:
        return wait_until(
            lambda: screen if ready(screen := self.screen()) else "", lambda: f"another screen than\n{self.screen()}"
        )

    def sees(self, *words: str) -> str:
        return self.until(lambda screen: all(word in screen for word in words))

    def close(self) -> None:
        self._call("kill-server")


Open = Callable[..., Terminal]
# Of the terminal the tests were started in: a parallel pytest hands its size to its workers.
STRANGE = ("TMUX", "NO_COLOR", "COLUMNS", "LINES")


@pytest.fixture
def open_terminal(tmp_path: Path) -> Iterator[Open]:
    assert shutil.which("tmux"), "this test needs tmux: apt-get install tmux"
    opened: list[Terminal] = []

    def make(columns: int = 100, lines: int = 30, **environ: str) -> Terminal:
        environment = {
            **{name: value for name, value in os.environ.items() if name not in STRANGE},
            "LC_ALL": "C.UTF-8",
            "TERM": "xterm-256color",
            **environ,
        }
        opened.append(Terminal(tmp_path, columns, lines, environment))
        return opened[-1]

    yield make
    for terminal in opened:
        terminal.close()


def top(*words: str) -> str:
    return " ".join((sys.executable, "-m", "trainvitals.views.cli.main", "top", *words, "; echo code''=$?"))


def find_top() -> int:
    """The process id of the dashboard in this test's world; 0 if there is none."""
    mine = os.environ["TRAINVITALS_RUNTIME_DIR"].encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            ours = b"trainvitals.views.cli.main" in words and b"top" in words
            if ours and mine in (folder / "environ").read_bytes():
                return int(folder.name)
        except OSError:
            continue
    return 0


def leave(terminal: Terminal) -> None:
    terminal.press("q")
    terminal.sees("code=0")
    is_sane(terminal)


def is_sane(terminal: Terminal) -> None:
    """The shell is back, echoes what is typed, and nothing of the dashboard is left."""
    terminal.press("Enter")
    terminal.type("stty -a | grep -o '[-]*icanon'; echo is''sane")
    screen = terminal.sees("issane")
    assert "-icanon" not in screen and "Overview" not in screen
    terminal.type("printf '%s\\n' ty''ped")
    terminal.sees("typed", "printf")


def test_every_key_in_a_real_terminal_and_a_clean_end(open_terminal: Open) -> None:
    terminal = open_terminal()
    terminal.type(top("--simulate-gpus 3 --interval 0.2 --readonly"))
    terminal.sees("SIMULATED", "UTIL", "CPU")
    names = {
        "question_mark": "?",
        "slash": "/",
        "plus": "+",
        "minus": "-",
        "comma": ",",
        "full_stop": ".",
        "equals_sign": "=",
    }
    named = {"up": "Up", "down": "Down", "left": "Left", "right": "Right", "tab": "Tab", "shift+tab": "BTab"}
    named |= {"pageup": "PageUp", "pagedown": "PageDown", "home": "Home", "end": "End", "space": "Space"}
    named |= {"enter": "Enter", "escape": "Escape", "f1": "F1"}
    for page in "1234567":
        for key in KEYS:
            name = key.keys[0]
            if key.shown != "q" and not name.isdigit():
                terminal.press(named.get(name, names.get(name, name)))
        terminal.press("Escape", "Escape", "Escape")
        pause(0.3)  # a key right after escape is another key: alt and that one
        terminal.press(page)

    def is_back() -> bool:
        # Read together with escape, as by a program that was held up, the key is another one: then once more.
        terminal.press("Escape")
        pause(0.3)
        terminal.press("1")
        pause(0.3)
        return "UTIL" in terminal.screen()

    wait_until(is_back, "the overview")
    terminal.sees("Overview", "SIMULATED")
    leave(terminal)


def test_the_mouse_in_a_real_terminal(open_terminal: Open) -> None:
    terminal = open_terminal()
    terminal.type(top("--simulate-gpus 3 --interval 0.2"))
    terminal.sees("SIMULATED", "UTIL")
    wait_until(terminal.wants_mouse, "the mouse to be asked for")
    terminal.click(terminal.screen().splitlines()[0].index("Proc"), 0)
    terminal.sees("COMMAND")
    terminal.click(terminal.screen().splitlines()[0].index("Overview"), 0)
    terminal.sees("SIMULATED", "UTIL")
    leave(terminal)
    assert not terminal.wants_mouse()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.promise("`top` is ended by a signal", "the terminal is as it was")
def test_a_signal_leaves_the_terminal_as_it_was(open_terminal: Open, number: signal.Signals) -> None:
    terminal = open_terminal(80, 24)
    terminal.type(top("--simulate-gpus 1 --interval 0.2"))
    terminal.sees("SIMULATED")
    os.kill(wait_until(find_top, "the dashboard's process"), number)
    terminal.sees("code=")
    is_sane(terminal)


@pytest.mark.parametrize("after", [0.2, 0.4, 0.6, 0.8])
def test_a_signal_while_it_starts_leaves_the_terminal_as_it_was(open_terminal: Open, after: float) -> None:
    terminal = open_terminal(80, 24)
    terminal.type(top("--simulate-gpus 1 --interval 0.2"))
    pid = wait_until(find_top, "the dashboard's process")
    time.sleep(after)
    os.kill(pid, signal.SIGTERM)
    terminal.sees("code=")
    is_sane(terminal)


def test_a_terminal_of_any_size_and_a_smooth_resize(open_terminal: Open) -> None:
    # Begun small, tmux itself mixes up the screens when it grows (less does it too): so begin at a usual size.
    terminal = open_terminal(80, 24)
    terminal.type(top("--simulate-gpus 2 --interval 0.2"))
    terminal.sees("SIMULATED")
    terminal.resize(20, 5)
    terminal.until(lambda screen: len(screen.splitlines()) <= 5 and "Overview" in screen and "%" in screen)
    terminal.resize(160, 45)
    terminal.sees("HISTORY", "GPU utilization", "MEM CLK")
    terminal.resize(80, 24)
    terminal.until(lambda screen: "every 0.2 s" in screen.splitlines()[-1])
    leave(terminal)


@pytest.mark.parametrize(
    "environ",
    [
        {"TERM": "xterm"},
        {"NO_COLOR": "1"},
        {"TERM": "dumb"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_terminals_with_few_colours_or_few_characters(open_terminal: Open, environ: dict[str, str]) -> None:
    terminal = open_terminal(80, 24)
    words = " ".join(f"{name}={value}" for name, value in environ.items())
    terminal.type(f"{words} {top('--simulate-gpus 1 --interval 0.2')}")
    screen = terminal.sees("SIMULATED", "CPU")
    if environ.get("LC_ALL") == "C":
        assert screen.isascii()
    colours = subprocess.run(
        [*terminal._tmux, "capture-pane", "-p", "-e"], capture_output=True, text=True, timeout=PATIENCE
    ).stdout
    if "NO_COLOR" in environ:
        assert "\x1b[3" not in colours.replace("\x1b[39", "") and "\x1b[4" not in colours.replace(
            "\x1b[4m", ""
        ).replace("\x1b[49", "")
    if environ.get("TERM") == "xterm":
        assert "38;2;" not in colours and "38;5;" not in colours
    terminal.press("q")
    terminal.sees("code=0")


def test_eight_gpus_one_lost_one_hung_one_in_slices(open_terminal: Open, fake_nvml) -> None:  # type: ignore[no-untyped-def]
    fake_nvml.script(
        "count = 8\ngpu.6.mig = 1\ngpu.6.mig_count = 2\nerr.*.3 = 15@5-9999\n"
        "delay_us.nvmlDeviceGetUtilizationRates.5 = 600000000\ngpu.2.xid = 79@1\ngpu.1.temp_gpu = 91\n"
    )
    environ = {name: value for name, value in fake_nvml.env().items() if os.environ.get(name) != value}
    terminal = open_terminal(120, 40, **environ)
    terminal.type(top("--interval 0.3"))
    terminal.sees("HBM3: lost", "91°C", "Xid 79", "└0", "└1")
    terminal.until(lambda screen: "no response for" in screen)
    for key, word in (("2", "GPU temperature"), ("?", "Keys")):
        terminal.press(key)
        terminal.sees(word)
    terminal.press("Escape")
    terminal.until(lambda screen: "Keys" not in screen)  # a key right after escape is another key
    leave(terminal)


def test_a_run_that_starts_spikes_goes_nan_stalls_and_dies_while_watched(open_terminal: Open, tmp_path: Path) -> None:
    script, quiet, die = tmp_path / "train.py", tmp_path / "quiet", tmp_path / "die"
    script.write_text(TRAINING)
    environ = {"TRAINVITALS_STALL_AFTER": "1", "TRAINVITALS_STALL_FACTOR": "1"}
    environ |= {"TRAINVITALS_DIR": str(tmp_path / "runs"), "TRAINVITALS_INTERVAL": "0.2"}
    terminal = open_terminal(120, 36, **environ)
    terminal.type(top())
    terminal.sees("CPU")
    training = subprocess.Popen([sys.executable, str(script), str(quiet), str(die)], env={**os.environ, **environ})
    try:
        terminal.sees("watched", "of 400", "Loss")
        terminal.sees("CRITICAL", "Loss became NaN", "✕")
        quiet.touch()
        # Five seconds later it is hung, and on a busy machine that may be the first to be seen.
        terminal.until(lambda screen: ("STALLED" in screen or "HUNG" in screen) and "no step for" in screen)
        die.touch()
        assert training.wait(PATIENCE) == -signal.SIGKILL
        terminal.sees("KILLED", "SIGKILL")
    finally:
        training.kill()
        training.wait()
        subprocess.run(
            [sys.executable, "-m", "trainvitals.views.cli.main", "agent", "stop"], check=True, timeout=PATIENCE
        )
    leave(terminal)


def test_the_dashboard_around_a_program(open_terminal: Open, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import itertools, sys, time, trainvitals\n"
        "run = trainvitals.init(name='around')\n"
        "for step in itertools.count():\n"
        "    run.log({'loss': 1.0}, step=step); time.sleep(0.02)\n"
        "    if step == 20: print('hello from the program', flush=True)\n"
        "    if step > 60 and __import__('os').path.exists(sys.argv[1]): break\n"
        "run.finish(); print('goodbye'); sys.exit(3)\n"
    )
    environ = {"TRAINVITALS_AGENT": "0", "TRAINVITALS_DIR": str(tmp_path / "runs")}
    terminal = open_terminal(110, 40, **environ)
    go = tmp_path / "go"
    run = f"{sys.executable} -m trainvitals.views.cli.main run --top --interval 0.2 -- {sys.executable} {script} {go}"
    terminal.type(f"{run}; echo code''=$?")
    terminal.sees("around", "Output", "hello from the program")
    terminal.press("q")
    terminal.until(lambda screen: "Overview" not in screen and "hello from the program" in screen)
    go.touch()
    terminal.sees("goodbye", "code=3")
    is_sane(terminal)


def test_without_the_extra_both_ways_to_the_dashboard_say_what_to_install(open_terminal: Open, tmp_path: Path) -> None:
    (tmp_path / "textual").mkdir()
    (tmp_path / "textual" / "__init__.py").write_text("raise ImportError('not installed')")
    terminal = open_terminal(100, 30, PYTHONPATH=str(tmp_path))
    for number, words in enumerate(("top", "run --top -- true")):
        terminal.type(f"clear; {sys.executable} -m trainvitals.views.cli.main {words}; echo code{number}''=$?")
        screen = terminal.sees("pip install 'trainvitals[top]'", f"code{number}=1")
        assert "Traceback" not in screen


def test_no_registration_is_left_behind() -> None:
    assert registrations.read_all() == []
