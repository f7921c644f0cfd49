"""The desktop channel with a real notification daemon (dunst), on a session bus and a screen of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE, wait_until

sys.path.insert(0, str(Path(__file__).parent))

from test_outbox import carry_patiently, message

NEEDED = {"Xvfb": "xvfb", "dbus-daemon": "dbus", "dbus-send": "dbus", "dunst": "dunst", "notify-send": "libnotify-bin"}


class Desktop:
    """A screen, a bus, and who shows notifications. `shown` is what dunst says it shows."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = folder / "shown"
        self.processes: list[subprocess.Popen[str]] = []
        screen = self.start("Xvfb", "-displayfd", "1", "-screen", "0", "640x480x24", "-nolisten", "tcp")
        assert screen.stdout is not None
        monkeypatch.setenv("DISPLAY", f":{screen.stdout.readline().strip()}")
        monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
        bus = self.start("dbus-daemon", "--session", "--nofork", "--print-address=1", f"--address=unix:dir={folder}")
        assert bus.stdout is not None
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", bus.stdout.readline().strip())
        with open(self.log, "w", encoding="utf-8") as log:
            self.processes.append(
                subprocess.Popen(["dunst", "-print"], stdout=log, stderr=subprocess.DEVNULL, text=True)
            )
        wait_until(self.is_ready, "the notification daemon")

    def start(self, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.processes.append(process)
        return process

    def is_ready(self) -> bool:
        ask = ["dbus-send", "--session", "--print-reply=literal", "--dest=org.freedesktop.DBus", "/"]
        ask += ["org.freedesktop.DBus.NameHasOwner", "string:org.freedesktop.Notifications"]
        done = subprocess.run(ask, capture_output=True, text=True, check=False)
        return "boolean true" in done.stdout

    @property
    def shown(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def end(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
            process.wait(PATIENCE)
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def desktop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desktop]:
    missing = [package for program, package in NEEDED.items() if shutil.which(program) is None]
    if missing:
        pytest.fail(f"no desktop to notify: apt-get install --no-install-recommends {' '.join(sorted(set(missing)))}")
    found = Desktop(tmp_path, monkeypatch)
    yield found
    found.end()


def test_a_message_is_shown_on_the_desktop_with_its_urgency(desktop: Desktop) -> None:
    result = carry_patiently("desktop:", message().body)
    assert result.sent, result.reason
    wait_until(lambda: desktop.shown.rstrip().endswith("}"), "the notification")
    assert "urgency: CRITICAL" in desktop.shown
    assert "appname: 'trainvitals'" in desktop.shown
    assert "message 1" in desktop.shown


def test_what_a_message_says_is_shown_as_text_and_is_neither_markup_nor_an_option(desktop: Desktop) -> None:
    evil = "--urgency=low loss < 3 <a href='file:///etc/passwd'>here</a> $(touch x) & more"
    assert carry_patiently("desktop:", message(message=evil).body).sent
    wait_until(lambda: desktop.shown.rstrip().endswith("}"), "the notification")
    drawn = desktop.shown.partition("formatted:")[2]
    assert "loss &lt; 3" in drawn and "<a href" not in drawn
    assert "&amp;lt;" not in drawn, "escaped twice"
    assert "urgency: CRITICAL" in desktop.shown


def test_without_a_desktop_it_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", f"unix:path={os.devnull}")
    monkeypatch.delenv("DISPLAY", raising=False)
    result = carry_patiently("desktop:", message().body)
    assert not result.sent
    assert "notify-send: " in result.reason
