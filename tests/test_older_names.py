"""Configuration files of older monitors: every key does what it meant, or is reported with what takes its place."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainvitals.conditions import Conditions
from trainvitals.errors import SettingError
from trainvitals.settings import Settings, resolve
from trainvitals.settings.addresses import read_address
from trainvitals.settings.older_names import KEYS, THRESHOLDS, convert_mail, convert_thresholds
from trainvitals.settings.table import find, find_row


def read(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "old.yaml"
    path.write_text(text)
    return resolve(config=path, environ={}, folder=tmp_path)


def nested(name: str, value: object) -> dict[str, Any]:
    for part in reversed(name.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


BASIC = """
dashboard:
  enabled: true
  host: "127.0.0.1"
  port: 8081
  refresh_interval: 5
alert_system:
  enabled: true
  thresholds:
    cpu_usage_percent: 90.0
    grad_norm_exploded: 5
metrics_collection:
  buffer_size: 500
"""


def test_a_file_of_an_older_monitor_does_what_it_meant(tmp_path: Path) -> None:
    found = read(tmp_path, BASIC)
    assert (found.dashboard, found.web_host, found.web_port, found.alerts_enabled) == (True, "127.0.0.1", 8081, True)
    assert found.alerts_thresholds == {"cpu_usage_percent": 90, "grad_norm_exploded": 5}
    assert found.origin("web.port") == "old.yaml:5"
    assert [note.partition(" has no effect")[0] for note in found.ignored_files] == [
        "old.yaml:6: 'dashboard.refresh_interval'",
        "old.yaml:13: 'metrics_collection.buffer_size'",
    ]


def test_shares_become_percentages(tmp_path: Path) -> None:
    shares = "{loss_increase: 0.07, training_speed: 0.7, memory_usage: 0.8, cpu_usage: 95, gpu_memory: 0.85}"
    found = read(tmp_path, f"monitoring: {{alerting: {{thresholds: {shares}}}}}")
    assert found.alerts_thresholds == {
        "loss_up_percent": 7,
        "throughput_drop_percent": 70,
        "memory_usage_percent": 80,
        "cpu_usage_percent": 95,  # a percentage already
        "gpu_memory_percent": 85,
    }
    assert convert_thresholds({"loss_increase": 1.5}) == {"loss_up_percent": 150}


def test_every_older_threshold_becomes_one_that_exists() -> None:
    known = Conditions().thresholds
    assert {row.becomes for row in THRESHOLDS} <= set(known)
    assert not {row.name for row in THRESHOLDS} & set(known)


VALUES: dict[str, Any] = {
    "dir": "there",
    "tensorboard": "/there",
    "web.host": "127.0.0.1",
    "web.port": 8051,
    "interval": "2s",
    "max_size_gb": 3,
    "alerts.thresholds": {"cpu_usage": 0.9},
    "watch.track_layers": ["encoder"],
}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_every_key_sets_what_its_row_names_or_is_reported(tmp_path: Path, key: Any) -> None:
    assert find_row(key.name) is None, "our own name would be taken for an older one"
    outcomes = []
    for value in (True, False, *(VALUES[name] for name in key.sets if name in VALUES)):
        with contextlib.suppress(SettingError):  # not a value of this key
            outcomes.append(read(tmp_path, yaml.safe_dump(nested(key.name, value))))
    reported = [any(f"'{key.name}' has no effect: {key.meaning}" in note for note in found.ignored_files)
                for found in outcomes]  # fmt: skip
    changed = [{row.name for row in found if row.origin != "default"} for found in outcomes]
    assert all(names in (set(key.sets), set()) for names in changed)
    assert any(changed) or any(reported)
    if key.sets != ("alerts.notify",):
        assert any(changed) == bool(key.sets)


def test_what_rows_name_exists() -> None:
    from trainvitals.views.cli.main import COMMANDS

    commands = {name for name, _, _ in COMMANDS}
    for key in KEYS:
        assert all(find(name, key.name) for name in key.sets)
        assert set(re.findall(r"`trainvitals (\w+)", key.meaning)) <= commands
        assert all(find(name, key.name) for name in re.findall(r"`((?:alerts|prometheus)\.\w+)`", key.meaning))


def test_a_switch_for_mails_never_passes_for_mails(tmp_path: Path) -> None:
    found = read(tmp_path, "alerting: {email_notifications: true, slack_notifications: yes}")
    assert found.alerts_notify == ()
    assert len(found.ignored_files) == 2
    assert "'alerting.email_notifications' has no effect: mails need a server" in found.ignored_files[0]
    assert read(tmp_path, "alerting: {email_notifications: false}").ignored_files == ()


def test_addresses_of_people_become_channels_and_are_read_again_from_the_file(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
alerting:
  slack_notifications: {webhook_url: https://hooks.slack.com/services/T000/B000/secret}
  email_notifications:
    smtp_server: smtp.example.org
    smtp_port: 587
    username: me@example.org
    password: p@ss/word
    from: me@example.org
    to: [you@example.org, boss@example.org]
""",
    )
    assert "p%40ss" not in str(found.alerts_notify)
    urls = {address.name: read_address(address.reference) for address in found.alerts_notify}
    assert urls == {
        "slack": "https://hooks.slack.com/services/T000/B000/secret",
        "mail": "mailtos://me%40example.org:p%40ss%2Fword@smtp.example.org:587"
        "?to=you%40example.org,boss%40example.org&from=me%40example.org",
    }
    assert found.ignored_files == ()


def test_a_mail_server_without_a_reader_is_not_enough_and_one_that_is_off_is_off() -> None:
    assert convert_mail({"smtp_server": "smtp.example.org"}) is None
    assert convert_mail({"enabled": "false", "smtp_server": "s", "to": "you"}) is None
    assert convert_mail({"smtp_server": "s", "to": "you", "username": "me", "password": "${env:PASSWORD}"}) == {
        "mail": "mailtos://me:${env:PASSWORD}@s?to=you"
    }


def test_our_own_name_counts_before_an_older_one(tmp_path: Path) -> None:
    found = read(tmp_path, "web: {port: 1}\ndashboard: {port: 2}\nalerts: {thresholds: {cpu_usage_percent: 70}}\n"
                 "alert_system: {thresholds: {cpu_usage: 0.9, memory_usage: 0.8}}\n")  # fmt: skip
    assert found.web_port == 1
    assert found.ignored_files == ("old.yaml:2: 'dashboard.port' has no effect: 'web.port' is set too (old.yaml:1)",)
    assert found.alerts_thresholds == {"cpu_usage_percent": 70, "memory_usage_percent": 80}


def test_two_keys_that_contradict_each_other_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"'dashboard_port' \(old.yaml:1\) and 'dashboard.port' \(old.yaml:2\) set"):
        read(tmp_path, "dashboard_port: 1\ndashboard: {port: 2}\n")
    assert read(tmp_path, "dashboard_port: 2\ndashboard: {port: 2}\n").web_port == 2


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("distributed_monitoring: false\ntrack_rank_0_only: false\n", "rank_zero_only", False),
        ("distributed_monitoring: false\n", "rank_zero_only", True),
        ("monitoring: {visualization: {tensorboard: true}}\n", "tensorboard", "on"),
        ("monitoring: {visualization: {tensorboard: false}}\n", "tensorboard", None),
        ("tensorboard_dir: /logs\nmonitoring: {visualization: {tensorboard: true}}\n", "tensorboard", "/logs"),
        ("performance_tuning: {high_frequency_mode: true}\n", "interval", 0.1),
        ("performance_tuning: {high_frequency_mode: true}\nmonitoring: {interval: 30}\n", "interval", 30.0),
        ("performance_tuning: {max_database_size_gb: 5, auto_cleanup: false}\n", "max_size_gb", None),
        ("performance_tuning: {max_database_size_gb: 5, auto_cleanup: true}\n", "max_size_gb", 5.0),
    ],
)
def test_of_keys_that_belong_together_the_stronger_counts(tmp_path: Path, text: str, name: str, value: object) -> None:
    found = read(tmp_path, text)
    assert getattr(found, name) == value
    assert found.ignored_files == ()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("alert_system", "alerts"),
        ("alert_system.cooldown_seconds", "alerts.cooldown"),
        ("slack_webhook_url", "alerts.notify"),
        ("monitoring.log_dir", "dir"),
        ("dashboard.prot", "web.port"),
        ("sampling_interval", "interval"),
        ("intervall", "interval"),
        ("save_dri", "save_dir"),
    ],
)
def test_an_unknown_name_gets_a_suggestion_by_meaning_or_by_letters(name: str, meant: str) -> None:
    with pytest.raises(SettingError, match=f"unknown setting '{name}' .*, did you mean '{meant}'"):
        find(name, "here")


def test_a_value_that_cannot_be_converted_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"'track_gradients' \(old.yaml:1\): 'maybe' is not true or false"):
        read(tmp_path, "track_gradients: maybe\n")
