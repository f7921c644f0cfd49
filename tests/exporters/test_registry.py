"""Which exporters settings ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainvitals.errors import SettingError
from trainvitals.exporters.registry import REGISTRY, explain_unusable, wishes_of
from trainvitals.settings import TABLE, Settings, resolve


def settings(**values: Any) -> Settings:
    return resolve(values, environ={}, folder=Path("/"))


def test_nothing_is_asked_for_by_default() -> None:
    assert wishes_of(settings(), "families") == wishes_of(settings(), "rows") == []


def test_each_setting_asks_for_its_exporter() -> None:
    asked = settings(
        prometheus_port=9091,
        prometheus_remote_write="http://a/write",
        prometheus_pushgateway="http://b",
        prometheus_otlp="http://c/v1/metrics",
    )
    assert [wish.key for wish in wishes_of(asked, "families")] == [
        ("prometheus", "127.0.0.1:9091"),
        ("remote_write", "http://a/write"),
        ("pushgateway", "http://b"),
        ("otlp", "http://c/v1/metrics"),
    ]


def test_wishes_are_the_same_if_the_settings_that_matter_are() -> None:
    first, same, other = (
        wishes_of(settings(prometheus_port=9091, **more), "families")[0]
        for more in ({}, {"interval": 7}, {"prometheus_names": "base"})
    )
    assert first == same != other
    assert first.key == other.key


@pytest.mark.parametrize("row", REGISTRY.own, ids=lambda row: row.name)
def test_the_settings_of_an_exporter_exist_and_doctor_can_explain_it(row: Any) -> None:
    assert set(row.settings) <= {item.name for item in TABLE}
    assert row.usage and row.is_installed and (row.install or row.needs is None)


def test_a_name_that_is_no_exporter_is_explained() -> None:
    (unknown, ours) = explain_unusable(settings(export={"nothing": "x", "otlp": "x"}))
    assert "'nothing': no installed package provides it" in unknown
    assert "'otlp' is built in" in ours


def test_a_password_in_a_target_is_refused_and_a_reference_kept() -> None:
    assert settings(export={"a": "env:SECRET"}).export == {"a": "env:SECRET"}
    with pytest.raises(SettingError) as refused:
        settings(export={"a": "https://user:hunter2hunter2@host/x"})
    assert "hunter2" not in str(refused.value)
