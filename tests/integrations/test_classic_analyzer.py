"""PerformanceAnalyzer and PerformanceAlerting, on numbers of known outcome."""

from __future__ import annotations

import random
from typing import Any

import pytest

import trainvitals
from trainvitals.errors import SettingError


def history(count: int = 200, slope: float = -0.01, seed: int = 0) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "timestamp": 1000.0 + place,
            "step": place,
            "loss": 5 + slope * place + chance.gauss(0, 0.05),
            "cpu_percent": 50.0 + place % 2,
            "gpu_memory": 1000.0,
        }
        for place in range(count)
    ]


@pytest.mark.parametrize(
    ("slope", "trend", "significance"),
    [(-0.01, "decreasing", "significant"), (0.01, "increasing", "significant"), (0.0, None, "not_significant")],
)
def test_the_trend_of_a_loss(slope: float, trend: str | None, significance: str) -> None:
    found = trainvitals.PerformanceAnalyzer(history(slope=slope)).analyze_loss_trend()
    assert found["significance"] == significance
    if trend is not None:
        assert found["trend"] == trend
        assert found["slope"] == pytest.approx(slope, rel=0.1)
    assert 0 <= found["p_value"] <= 1


def test_a_history_of_nothing_has_no_trend_and_no_usage() -> None:
    analyzer = trainvitals.PerformanceAnalyzer([])
    assert analyzer.analyze_loss_trend()["trend"] == "flat"
    assert analyzer.analyze_resource_usage() == {}
    assert analyzer.detect_anomalies() == []
    assert analyzer.performance_regression([])["verdict"] == "uncertain"


def test_usage_of_cpu_and_gpu_memory() -> None:
    found = trainvitals.PerformanceAnalyzer(history()).analyze_resource_usage()
    assert found["cpu_stats"] == {"mean": 50.5, "std": 0.5, "min": 50.0, "max": 51.0}
    assert found["gpu_stats"] == {"mean": 1000.0, "std": 0.0, "min": 1000.0, "max": 1000.0}


def test_a_loss_that_jumps_is_an_anomaly_with_its_place() -> None:
    rows = history(400, slope=0.0)
    rows[300]["loss"] = 50.0
    del rows[10]["loss"]
    (found,) = trainvitals.PerformanceAnalyzer(rows).detect_anomalies()
    assert (found["index"], found["timestamp"], found["loss"], found["kind"]) == (300, 1300.0, 50.0, "high")


def test_a_worse_end_is_a_regression() -> None:
    worse = [{**row, "loss": row["loss"] + 1} for row in history(slope=0.0, seed=1)]
    found = trainvitals.PerformanceAnalyzer(worse).performance_regression(history(slope=0.0))
    assert found["regression"] and found["verdict"] == "worse"
    assert found["change"] == pytest.approx(1 / found["baseline"], rel=0.1)
    assert not trainvitals.PerformanceAnalyzer(history()).performance_regression(history())["regression"]


def types(current: dict[str, Any], baseline: dict[str, Any], **thresholds: float) -> list[str]:
    return [
        alert["type"] for alert in trainvitals.PerformanceAlerting(None, thresholds).check_alerts(current, baseline)
    ]


def test_numbers_are_compared_with_the_baseline() -> None:
    baseline = {"loss": 1.0, "training_speed": 100.0}
    worse = {
        "loss": 1.2,
        "training_speed": 40.0,
        "cpu_percent": 96.0,
        "memory_percent": 95.0,
        "gpu_memory": {"gpu_0": {"memory_allocated": 95, "memory_reserved": 100}, "gpu_1": 50.0},
    }
    assert types(worse, baseline) == ["loss_increase", "training_speed", "cpu_usage", "memory_usage", "gpu_memory"]
    assert types({"loss": 1.05, "cpu_percent": 10.0}, baseline) == []
    assert types({"loss": 1.05}, baseline, loss_increase=0.01) == ["loss_increase"]
    assert types({"cpu_percent": 92.0}, {}, cpu_usage=0.95) == []


def test_a_negative_loss_that_rises_is_an_increase_too() -> None:
    assert types({"loss": -1.0}, {"loss": -2.0}) == ["loss_increase"]
    assert types({"loss": -3.0}, {"loss": -2.0}) == []


def test_an_alert_has_a_message_for_people() -> None:
    (alert,) = trainvitals.PerformanceAlerting().check_alerts({"gpu_memory": {0: 97.25}}, {})
    assert alert == {"type": "gpu_memory", "message": "GPU 0 memory usage is 97.2%", "severity": "warning"}


def test_without_a_mail_server_an_alert_cannot_be_sent() -> None:
    with pytest.raises(SettingError, match="has no mail server"):
        trainvitals.PerformanceAlerting().send_alert({"type": "x", "message": "y", "severity": "warning"})


def test_a_mail_server_that_is_not_there_is_reported_without_the_password(capfd: pytest.CaptureFixture[str]) -> None:
    config = {
        "smtp_server": "127.0.0.1",
        "smtp_port": 9,
        "username": "me",
        "password": "hunter2hunter2",
        "to": "a@b.org",
    }
    alert = {"type": "loss_increase", "message": "y", "severity": "warning"}
    assert trainvitals.PerformanceAlerting(config).send_alert(alert) is False
    said = capfd.readouterr().err
    assert "the alert 'loss_increase' was not sent" in said and "hunter2" not in said
