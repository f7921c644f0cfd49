"""Who may do what at a gateway."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainvitals.fleet import tokens
from trainvitals.fleet.tokens import Tokens, TokensError


def test_a_token_is_for_its_projects_and_role_only(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    writer = tokens.add(file, "cluster", "write", ["vision"])
    reader = tokens.add(file, "alice", "read", ["vision", "speech"])
    admin = tokens.add(file, "root", "admin", ["*"])
    assert oct(file.stat().st_mode & 0o777) == "0o600"
    assert not any(token in file.read_text() for token in (writer, reader, admin))
    known = Tokens(file)
    found = {name: known.find(f"Bearer {token}") for name, token in (("w", writer), ("r", reader), ("a", admin))}
    assert all(found.values())
    may = {
        (who, role, project)
        for who, access in found.items()
        for role in ("write", "read", "admin")
        for project in ("vision", "speech")
        if access is not None and access.may(role, project)  # type: ignore[arg-type]
    }
    assert {item for item in may if item[0] == "w"} == {("w", "write", "vision")}
    assert {item for item in may if item[0] == "r"} == {("r", "read", "vision"), ("r", "read", "speech")}
    assert len({item for item in may if item[0] == "a"}) == 6


def test_a_token_that_is_replaced_keeps_its_tenant(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    with pytest.raises(TokensError, match="no header can hold"):
        tokens.add(file, "cluster", "write", ["vision"], "one\r\ntwo")
    tokens.add(file, "cluster", "write", ["vision"], "ml")
    again = tokens.add(file, "cluster", "write", ["vision"])
    found = Tokens(file).find(f"Bearer {again}")
    assert found is not None and found.find_metrics_tenant("finance") == "ml"


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic x", "Bearer x", "Bearer \ud800"])
def test_anything_else_is_nobody(header: str, tmp_path: Path) -> None:
    tokens.add(tmp_path / "tokens.json", "cluster", "write", ["*"])
    assert Tokens(tmp_path / "tokens.json").find(header) is None


def test_a_changed_file_has_the_rights_that_it_had(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    tokens.add(file, "cluster", "write", ["*"])
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)  # for the gateway in a container
    tokens.set_limits(file, tokens.Limits(runs=5), token="cluster")
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_change_of_the_file_counts_at_once(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    first = tokens.add(file, "cluster", "write", ["*"])
    known = Tokens(file)
    second = tokens.add(file, "cluster", "write", ["*"])
    assert known.find(f"Bearer {first}") is None
    assert known.find(f"Bearer {second}") is not None
    file.write_text("{")  # half-written by somebody's editor: what was known stays
    assert known.find(f"Bearer {second}") is not None
    os.remove(file)
    assert known.find(f"Bearer {second}") is not None
    third = tokens.add(file, "other", "write", ["*"])
    assert tokens.remove(file, "other") and not tokens.remove(file, "other")
    assert known.find(f"Bearer {third}") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "tokens"),
        (
            '{"tokens": [{"name": "a", "role": "boss", "projects": [], "sha256": ""}]}',
            "entry 1 (a) has the role 'boss'",
        ),
        ('{"tokens": [{"name": "a", "role": "read", "projects": "x", "sha256": ""}]}', "no list of projects"),
        ('{"tokens": [{"name": "a", "role": "read", "projects": [], "sha256": "zz"}]}', "no sha256"),
        (
            '{"tokens": [{"name": "a", "role": "read", "projects": [], "sha256": "%s", "metrics_tenant": "a b"}]}'
            % ("0" * 64),
            "has the metrics_tenant 'a b'",
        ),
        ('{"tokens": [], "limits": {"vision": {"gb_a_day": 5}}}', "project 'vision' has the limit 'gb_a_day'"),
        ('{"tokens": [], "limits": {"vision": {"runs": true}}}', "runs True, which is not a number"),
        ('{"tokens": [], "limits": {"vision": 5}}', "has the limit ''"),
    ],
)
def test_a_file_that_cannot_be_used_is_said_at_the_start(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text(text)
    with pytest.raises(TokensError) as caught:
        Tokens(tmp_path / "tokens.json")
    assert reason in caught.value.message
    with pytest.raises(TokensError, match="No such file"):
        Tokens(tmp_path / "none.json")
