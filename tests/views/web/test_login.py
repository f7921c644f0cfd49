"""Tokens, codes and cookies."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from trainvitals import guessing
from trainvitals.errors import TrainvitalsError
from trainvitals.views.web import login


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_a_user_has_one_token_however_often_it_is_read(folder: Path) -> None:
    token = login.read_token()
    assert len(token) >= 32 and login.read_token() == token
    assert (folder / login.TOKEN_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.promise("a token file that another user planted", "it is not used", area="Other users")
def test_a_token_file_that_somebody_else_put_there_is_not_used(folder: Path) -> None:
    path = folder / login.TOKEN_FILE
    path.write_text("known-to-an-attacker")
    os.chown(path, 12345, 12345)
    with pytest.raises(TrainvitalsError, match="belongs to user 12345"):
        login.read_token()
    path.unlink()
    path.symlink_to(folder / "elsewhere")
    with pytest.raises(TrainvitalsError, match="it is a symbolic link"):
        login.read_token()


def test_a_token_file_that_was_never_written_is_made_again(folder: Path) -> None:
    (folder / login.TOKEN_FILE).touch(0o600)
    assert login.read_token()


def test_a_token_that_a_cleaner_removed_is_put_back(folder: Path) -> None:
    token = login.read_token()
    (folder / login.TOKEN_FILE).unlink()
    login.keep_token(token)
    assert login.read_token() == token


@pytest.mark.promise("a code of a link is used again, elsewhere or late", "it is refused")
def test_a_code_is_for_one_visit_to_one_port_on_one_day() -> None:
    clock = Clock()
    codes = login.Codes("token", 8080, clock.now, clock)
    code = login.new_code("token", 8080, clock)
    assert codes.spend(code) is None and "already used" in (codes.spend(code) or "")
    for other in (login.new_code("token", 8081, clock), login.new_code("other", 8080, clock), "", "a~b~c", "~~", "é"):
        assert codes.spend(other) == "This link is not for this server"
    late = login.new_code("token", 8080, clock)
    clock.now += login.CODE_SECONDS + 1
    assert codes.spend(late) == "This link has expired"
    assert "before a restart" in (login.Codes("token", 8080, clock.now, clock).spend(late) or "")


def test_a_cookie_holds_for_a_month_and_is_not_a_code() -> None:
    clock = Clock()
    cookie = login.new_cookie("token", clock)
    assert login.is_cookie("token", cookie, clock) and not login.is_cookie("other", cookie, clock)
    for wrong in ("", "~", "9999999999~", cookie.replace("~", "0~"), login.new_code("token", 8080, clock)):
        assert not login.is_cookie("token", wrong, clock)
    clock.now += login.COOKIE_SECONDS + 1
    assert not login.is_cookie("token", cookie, clock)


@pytest.mark.promise("cookies and links signed with guesses of a short token", "none opens: they need a secret as well")
def test_who_guesses_a_short_token_cannot_try_it_with_cookies_and_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "ours"))
    for token in ("password1", login.new_token()):
        cookie, code, begun = login.new_cookie(token), login.new_code(token, 8080), time.time() - 1
        assert login.is_cookie(token, cookie) and login.Codes(token, 8080, begun).spend(code) is None
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "theirs"))
            is_enough = not guessing.can_be_guessed(token)
            assert login.is_cookie(token, login.new_cookie(token))
            assert login.is_cookie(token, cookie) is is_enough
            assert (login.Codes(token, 8080, begun).spend(code) is None) is is_enough


def test_wrong_tokens_are_counted_by_address_for_a_minute() -> None:
    clock = Clock()
    wrong = guessing.WrongTokens("password", clock)
    for _ in range(guessing.MOST_WRONG):
        assert wrong.wait("a") == 0
        wrong.note("a")
    assert wrong.wait("a") == guessing.WRONG_SECONDS and wrong.wait("b") == 0
    clock.now += guessing.WRONG_SECONDS
    assert wrong.wait("a") == 0


def test_a_token_that_cannot_be_guessed_locks_nobody_out() -> None:
    wrong = guessing.WrongTokens(login.new_token())
    for _ in range(100):
        wrong.note("a")
    assert wrong.wait("a") == 0
