"""`trainvitals config`: values and where they came from."""

from __future__ import annotations

import json
from typing import Any


def test_each_value_says_where_it_came_from(machine: Any) -> None:
    (machine.folder / "trainvitals.yaml").write_text("project: mnist\n")
    found = json.loads(machine.run("config", "--json", environ={"TRAINVITALS_INTERVAL": "0.5"}).stdout)
    assert found["project"] == {"value": "mnist", "origin": "trainvitals.yaml:1"}
    assert found["interval"] == {"value": "500ms", "origin": "TRAINVITALS_INTERVAL"}
    assert found["gpus"] == {"value": "all", "origin": "default"}


def test_the_table_has_every_setting(machine: Any) -> None:
    from trainvitals.settings import TABLE

    values, meanings = machine.run("config").stdout, machine.run("config", "--describe").stdout
    for row in TABLE:
        assert row.name in values
        assert row.help in meanings
        assert row.variable in meanings


def test_the_description_as_json(machine: Any) -> None:
    found = json.loads(machine.run("config", "--describe", "--json").stdout)
    assert found["interval"]["variable"] == "TRAINVITALS_INTERVAL"


def test_a_file_can_be_named(machine: Any) -> None:
    (machine.folder / "other.yaml").write_text("interval: 2s\n")
    found = json.loads(machine.run("config", "--config", "other.yaml", "--json").stdout)
    assert found["interval"] == {"value": "2s", "origin": "other.yaml:1"}


def test_a_file_that_is_not_yaml_is_a_usage_error(machine: Any) -> None:
    (machine.folder / "trainvitals.yaml").write_text("interval: [\n")
    done = machine.run("config")
    assert done.returncode == 2
    assert "trainvitals.yaml:2:1: not YAML" in done.stderr
    assert (
        "\n  lines of 'name: value', such as interval: 0.5; for all names: trainvitals config --describe\n"
        in done.stderr
    )
    assert machine.run("config", "--describe").returncode == 0


def test_an_unknown_key_suggests_the_nearest(machine: Any) -> None:
    (machine.folder / "trainvitals.yaml").write_text("intervall: 1\n")
    done = machine.run("config")
    assert done.returncode == 2
    assert "did you mean 'interval'?" in done.stderr


def test_a_variable_that_names_no_setting_is_said(machine: Any) -> None:
    done = machine.run("config", environ={"TRAINVITALS_INTREVAL": "1"})
    assert done.returncode == 0
    assert done.stderr.count("TRAINVITALS_INTREVAL is ignored: it is not a setting") == 1
    assert "did you mean 'TRAINVITALS_INTERVAL'?" in done.stderr


OLD = """
save_dir: logs
dashboard: {port: 8081}
monitoring: {interval: 30, alerting: {email_notifications: true, thresholds: {cpu_usage: 0.9}}}
"""


def test_a_file_of_an_older_monitor_works_as_it_is_and_converted(machine: Any) -> None:
    (machine.folder / "old.yaml").write_text(OLD)
    (machine.folder / "old.yaml").chmod(0o600)
    done = machine.run("config", "convert", "old.yaml", "-o", "new.yaml")
    assert done.returncode == 0
    assert done.stderr.count("'monitoring.alerting.email_notifications' has no effect") == 1
    new = machine.folder / "new.yaml"
    assert new.read_text() == (
        "dir: logs\nweb:\n  port: 8081\ninterval: 30s\nalerts:\n  thresholds:\n    cpu_usage_percent: 90.0\n"
    )
    assert new.stat().st_mode & 0o777 == 0o600
    before, after = (
        {name: row["value"] for name, row in json.loads(done.stdout).items()}
        for done in (machine.run("config", "--json", "--config", name) for name in ("old.yaml", "new.yaml"))
    )
    assert before == after
    assert machine.run("config", "convert", "old.yaml", "-o", "new.yaml").returncode == 1
    assert machine.run("config", "convert", "new.yaml").stdout == new.read_text()
