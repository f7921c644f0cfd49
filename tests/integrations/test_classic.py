"""The classic monitors, on simulated GPUs, a fake NVIDIA driver and the real host."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from fake_nvml import FakeNvml
from waiting import wait_until
from watching import lines, steps

import trainvitals
from trainvitals.errors import SettingError
from trainvitals.integrations.classic import configuration
from trainvitals.integrations.classic.configuration import read_configuration
from trainvitals.settings.addresses import read_address
from trainvitals.sources import World

torch.set_num_threads(1)
TWO_GPUS = World(simulated_gpus=2)


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRAINVITALS_AGENT", "0")
    monkeypatch.setenv("TRAINVITALS_WATCH_BUDGET_PERCENT", "0")  # four steps on a busy machine may exceed any other
    monkeypatch.setenv("TRAINVITALS_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr(configuration, "_warned", set())
    yield
    trainvitals.finish()


def test_a_gpu_monitor_reads_its_gpu_until_it_is_stopped() -> None:
    monitor = trainvitals.GPUMonitor(gpu_index=1, sample_interval=0.01, world=TWO_GPUS)
    assert monitor.latest() is None
    monitor.start()
    wait_until(lambda: monitor.summary()["samples"] >= 3)
    monitor.stop()
    reading, summary = monitor.latest(), monitor.summary()
    assert reading is not None
    assert reading["gpu_index"] == 1
    assert {"timestamp", "utilization_percent", "memory_used_mb", "temperature_celsius"} <= set(reading)
    power = summary["power_draw_watts"]
    assert power["min"] <= power["mean"] <= power["max"]
    assert power["count"] == summary["samples"]
    time.sleep(0.05)
    assert monitor.summary()["samples"] == summary["samples"]


def test_a_gpu_monitor_reads_nvidia_cards_through_the_driver(fake_nvml: FakeNvml) -> None:
    fake_nvml.load()
    with trainvitals.GPUMonitor(gpu_index=3, sample_interval=5) as monitor:
        reading = monitor.latest()
    assert reading is not None
    assert reading["gpu_index"] == 3
    assert reading["memory_total_mb"] > 0


def test_a_gpu_that_is_not_there_is_said_and_has_no_readings(capfd: pytest.CaptureFixture[str]) -> None:
    with trainvitals.GPUMonitor(gpu_index=7, sample_interval=0.01, world=TWO_GPUS) as monitor:
        assert monitor.latest() is None
    assert capfd.readouterr().err == "trainvitals: no GPU 7; available: 0, 1\n"
    assert set(monitor.summary()) == {"samples", "duration_seconds"}


def test_of_several_gpus_those_that_are_not_there_are_said(capfd: pytest.CaptureFixture[str]) -> None:
    with trainvitals.GPUResourceMonitor(0.01, device_ids=[1, 5, 6], world=TWO_GPUS).monitoring():
        pass
    assert capfd.readouterr().err == "trainvitals: no GPUs 5, 6; available: 0, 1\n"


def test_a_machine_without_gpus_is_said_to_have_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with trainvitals.GPUMonitor(sample_interval=0.01, world=World(sysfs_root=str(tmp_path))):
        pass
    assert "no GPU responds (run trainvitals doctor)" in capfd.readouterr().err


@pytest.mark.parametrize("index", ["x", "0", -1, 1.5, None])
def test_what_is_no_index_of_a_gpu_is_refused(index: Any) -> None:
    with pytest.raises(ValueError, match="gpu_index must be an integer such as 0, not"):
        trainvitals.GPUMonitor(gpu_index=index)
    with pytest.raises(ValueError, match="device_ids must be integers such as 0, not"):
        trainvitals.GPUResourceMonitor(device_ids=[index])


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="interval"):
        trainvitals.GPUMonitor(sample_interval=0)


def test_a_resource_monitor_gives_flat_names_in_their_units() -> None:
    monitor = trainvitals.GPUResourceMonitor(monitor_interval=0.01, device_ids=[0], world=TWO_GPUS)
    monitor.start_monitoring()
    wait_until(lambda: "cpu_utilization_pct" in monitor.get_latest_metrics())
    monitor.stop_monitoring()
    metrics = monitor.get_latest_metrics()
    expected = """gpu_0_gpu_utilization_pct gpu_0_memory_utilization_pct gpu_0_memory_allocated_gb
        gpu_0_memory_total_gb gpu_0_temperature_c gpu_0_power_usage_w gpu_0_graphics_clock_mhz gpu_0_memory_clock_mhz
        cpu_utilization_pct system_memory_used_gb system_memory_utilization_pct"""
    assert set(expected.split()) <= set(metrics)
    assert metrics["gpu_0_memory_total_gb"] == 80
    assert not [key for key in metrics if key.startswith("gpu_1")]


def test_reserved_memory_is_what_the_driver_keeps(fake_nvml: FakeNvml) -> None:
    fake_nvml.load()
    monitor = trainvitals.GPUResourceMonitor(monitor_interval=5)
    with monitor.monitoring():
        assert monitor.get_latest_metrics()["gpu_0_memory_reserved_gb"] >= 0


def test_numbers_go_to_the_console_and_a_missing_wandb_run_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    monitor = trainvitals.GPUResourceMonitor(0.01, log_to_wandb=True, log_to_console=True, world=TWO_GPUS)
    monitor.start_monitoring()
    wait_until(lambda: monitor._sampler.rounds >= 3)
    monitor.stop_monitoring()
    said = capfd.readouterr().err
    assert said.count("gpu_0_power_usage_w") >= 3
    assert said.count("no active W&B run") == 1


def test_numbers_go_to_the_wandb_run_of_the_program_with_its_own_next_step(tmp_path: Path) -> None:
    options = wandb.Settings(console="off", silent=True)
    with wandb.init(mode="offline", dir=str(tmp_path), settings=options) as theirs:
        monitor = trainvitals.GPUResourceMonitor(0.01, log_to_wandb=True, world=TWO_GPUS)
        monitor.start_monitoring()

        def has_come() -> bool:
            theirs.log({"loss": 0.5})
            return "gpu_1_power_usage_w" in theirs.summary.keys()  # noqa: SIM118 - it has no __contains__

        wait_until(has_come)
        monitor.stop_monitoring()


def test_a_system_monitor_has_the_host_and_every_gpu() -> None:
    with trainvitals.SystemMonitor(update_interval=0.01, world=TWO_GPUS) as monitor:
        wait_until(lambda: "cpu_usage_percent" in monitor.latest().get("system", {}))
        latest = monitor.latest()
    assert {"system", "gpu_0", "gpu_1"} <= set(latest)
    assert latest["system"]["memory_total_mb"] > 0
    assert monitor.summary()["gpu_1"]["temperature_celsius"]["max"] > 0


def test_a_training_monitor_callback_logs_each_step_with_the_fixed_names() -> None:
    monitor = trainvitals.GPUMonitor(sample_interval=0.05, world=TWO_GPUS)
    callback = trainvitals.TrainingMonitorCallback(monitor, project="loop")
    callback.on_train_begin()
    for step in range(3):
        callback.on_step_begin()
        callback.on_step_end(step, epoch=0, loss=1.0 / (step + 1), lr=0.1, grad_norm=2.0, throughput=64.0)
    run = callback.run
    callback.on_train_end()
    assert run is not None
    rows = lines(run)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[1] == {
        **rows[1],
        "loss": 0.5,
        "learning_rate": 0.1,
        "gradient_norm": 2.0,
        "throughput_samples_per_sec": 64.0,
    }
    assert all(row["batch_time"] >= 0 for row in rows)
    assert json.loads((run.folder / "run.json").read_text())["status"] == "finished"
    assert monitor.latest() is not None
    assert monitor._sampler._thread is None


def test_a_training_monitor_watches_the_model_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "monitor.yaml"
    path.write_text(f"save_dir: {tmp_path / 'there'}\ngradient_monitoring:\n  track_layers: ['0']\n")
    monitor = trainvitals.TrainingMonitor(path)
    monitor.start_monitoring()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alerts: list[Any] = []
    monitor.alert_system.add_alert_rule("high", lambda m: m.loss > 0, action=alerts.append)
    for step in range(4):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.log_training_step(
            model=model, optimizer=optimizer, loss=loss, accuracy=0.5, learning_rate=0.1, custom_metrics={"mine": step}
        )
    run = monitor.run
    assert run is not None
    monitor.stop_monitoring()
    assert run.folder.is_relative_to(tmp_path / "there")
    assert [row["mine"] for row in lines(run) if "mine" in row] == [0, 1, 2, 3]
    assert [row["step"] for row in lines(run) if "loss" in row] == [0, 1, 2, 3]
    assert any("gradient_norm" in row for row in steps(run))
    layers = {key for row in steps(run) for key in row if key.startswith("gradient_norm/")}
    assert layers == {"gradient_norm/0"}
    assert len(alerts) == 1
    assert "memory_total_mb" in monitor.system_monitor.latest()["system"]


def test_a_training_monitor_that_is_switched_off_does_nothing(tmp_path: Path) -> None:
    monitor = trainvitals.TrainingMonitor({"monitoring": {"enabled": False}})
    monitor.start_monitoring()
    monitor.alert_system.add_alert_rule("high", lambda m: m.loss > 0, action=pytest.fail)
    monitor.log_training_step(loss=1.0)
    monitor.stop_monitoring()
    assert not (tmp_path / "runs").exists()


def test_a_rule_that_is_added_before_monitoring_starts_waits_for_it() -> None:
    monitor = trainvitals.TrainingMonitor()
    target = 0.5
    alerts: list[Any] = []
    monitor.alert_system.add_alert_rule("high", lambda m: m.loss > 0, message="above {target}", action=alerts.append)
    monitor.start_monitoring()
    monitor.log_training_step(loss=1.0)
    monitor.stop_monitoring()
    assert [alert.message for alert in alerts] == [f"above {target}"]


def test_a_key_without_effect_is_reported_once(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        trainvitals.TrainingMonitor({"performance_tuning": {"buffer_size": 100}, "monitoring": {"analysis": True}})
    said = capfd.readouterr().err
    assert said.count("'performance_tuning.buffer_size' has no effect") == 1
    assert said.count("trainvitals runs show") == 1


def test_a_configuration_becomes_settings_and_options_of_watch() -> None:
    given: dict[str, Any] = {
        "save_dir": "there",
        "enable_dashboard": False,
        "dashboard_port": 8051,
        "enable_alerts": False,
        "tensorboard_dir": None,
        "track_gradients": False,
        "gradient_monitoring": {"track_layers": ["encoder"]},
        "distributed_monitoring": True,
        "track_rank_0_only": True,
        "performance_tuning": {"high_frequency_mode": True, "auto_cleanup": True, "max_database_size_gb": 2},
        "monitoring": {"interval": 0.5, "metrics": [], "visualization": {}, "alerting": {"enabled": False}},
    }
    found = read_configuration(given)
    assert found.settings == {
        "dir": "there",
        "dashboard": False,
        "web_port": 8051,
        "alerts_enabled": False,
        "rank_zero_only": True,
        "max_size_gb": 2,
        "interval": 0.5,
    }
    assert found.watch == {"track_layers": ["encoder"], "gradients_every": 0, "layers_every": 0}
    assert found.enabled and found.notes == ()
    trainvitals.TrainingMonitor(given)  # every value is one that the setting takes


def test_a_configuration_may_have_our_own_names() -> None:
    found = read_configuration({"interval": "2s", "alerts": {"cooldown": "1m"}, "monitoring": {"enabled": "off"}})
    assert found.settings == {"interval": "2s", "alerts_cooldown": "1m"}
    assert not found.enabled


def test_an_address_in_the_file_of_a_configuration_is_read_from_there_when_it_is_needed(tmp_path: Path) -> None:
    secret = "https://hooks.slack.com/services/T00000000/B00000000/abcdefghijklmnopqrstuvwx"
    path = tmp_path / "monitor.yaml"
    path.write_text(f"monitoring:\n  alerting:\n    slack_notifications: {secret}\n")
    monitor = trainvitals.TrainingMonitor(path)
    monitor.start_monitoring()
    assert monitor.run is not None
    (address,) = monitor.run.settings.alerts_notify
    folder = monitor.run.folder
    monitor.stop_monitoring()
    assert read_address(address.reference) == secret
    assert not [file for file in folder.rglob("*") if file.is_file() and b"abcdefghijklmnop" in file.read_bytes()]
    with pytest.raises(SettingError, match="put it in an environment variable"):
        trainvitals.TrainingMonitor({"alerting": {"slack_notifications": secret}})


@pytest.mark.parametrize(("text", "words"), [("interval: [", "not YAML"), (None, "no configuration file")])
def test_a_configuration_that_cannot_be_read_says_what_to_do(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "monitor.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingError, match=words) as caught:
        trainvitals.TrainingMonitor(path)
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_a_key_that_never_was_one_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingError, match="did you mean 'save_dir'"):
        trainvitals.TrainingMonitor({"save_dri": "there"})
    with pytest.raises(SettingError, match="not a mapping"):
        trainvitals.TrainingMonitor(["save_dir"])  # type: ignore[arg-type]
