"""Secrets by reference, each from a real place: an environment, a file, a keyring."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

sys.path.insert(0, str(Path(__file__).parent))

from receivers import Receiver
from test_outbox import Box, message

from trainvitals import settings
from trainvitals.errors import SettingError
from trainvitals.settings.addresses import Address, read_address
from trainvitals.settings.secrets import read_secret


@pytest.fixture
def keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A keyring that is a file (keyrings.alt), filled by the real `keyring` command, read by the real package."""
    import keyring as package

    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyrings.alt.file.PlaintextKeyring")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    before = package.get_keyring()
    package.core.init_backend()
    yield
    package.set_keyring(before)


def store(service: str, user: str, secret: str) -> None:
    words = [sys.executable, "-m", "keyring", "set", service, user]
    subprocess.run(words, input=secret, text=True, check=True, env=dict(os.environ), capture_output=True)


def test_a_secret_from_the_keyring_reaches_the_channel_and_nothing_else(keyring: None) -> None:
    receiver = Receiver()
    store("team", "hook", f"{receiver.url}?token=verysecrettokenvalue")
    box = Box(Address("hook", "keyring:team/hook"))
    box.outbox.add(message())
    wait_until(lambda: box.results() == ["delivered"], "delivery")
    assert receiver.requests[0][0] == "/hook?token=verysecrettokenvalue"
    assert "verysecrettokenvalue" not in repr(box.rows)
    receiver.close()


def test_a_part_of_an_address_may_stand_in_the_keyring(keyring: None) -> None:
    store("trainvitals", "smtp", "pa55")
    assert read_address("mailto://me:${keyring:smtp}@host") == "mailto://me:pa55@host"


def test_an_entry_that_is_not_in_the_keyring_is_told_with_the_command_that_makes_it(keyring: None) -> None:
    with pytest.raises(SettingError, match="no entry 'team/nobody'") as caught:
        read_secret("keyring:team/nobody")
    assert caught.value.hint == "keyring set team nobody"


def test_a_keyring_that_cannot_be_asked_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import keyring as package

    before = package.get_keyring()
    package.set_keyring(package.backends.fail.Keyring())
    try:
        with pytest.raises(SettingError, match="cannot read 'team/hook' from the keyring: NoKeyringError"):
            read_secret("keyring:team/hook")
    finally:
        package.set_keyring(before)


def test_every_setting_that_is_a_secret_takes_the_same_references(tmp_path: Path) -> None:
    for reference in ("env:TOKEN", f"file:{tmp_path / 'token'}", "keyring:team/token"):
        found = settings.resolve({"prometheus.token": reference}, environ={}, folder=tmp_path)
        assert found.prometheus_token == reference
    with pytest.raises(SettingError, match="keyring:SERVICE/USER"):
        settings.resolve({"prometheus.token": "hunter2"}, environ={}, folder=tmp_path)


def test_a_file_that_cannot_be_used_is_named_and_its_content_is_not(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfehunter2")
    for name, says in (("none", "No such file"), ("empty", "is empty"), ("binary", "not text")):
        with pytest.raises(SettingError, match=says) as caught:
            read_secret(f"file:{tmp_path / name}")
        assert name in str(caught.value) and "hunter2" not in str(caught.value)
