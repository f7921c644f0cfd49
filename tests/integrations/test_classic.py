"""The classic monitors, on simulated GPUs, a fake NVIDIA driver and the real host."""

from __future__ import annotations

import json
import re
import socket
import struct
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import wandb
from fake_nvml import FakeNvml
from waiting import PATIENCE, free_port, wait_until
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


def test_a_gpu_monitor_keeps_its_newest_readings() -> None:
    with trainvitals.GPUMonitor(sample_interval=0.01, history_size=3, world=TWO_GPUS) as monitor:
        wait_until(lambda: monitor.summary()["samples"] >= 5)
    history = monitor.history()
    assert len(history) == 3 and history[-1] == monitor.latest()
    assert [row["timestamp"] for row in history] == sorted(row["timestamp"] for row in history)


def test_a_gpu_monitor_writes_a_run_folder_that_every_command_reads(tmp_path: Path) -> None:
    for attempt in (1, 2):
        with trainvitals.GPUMonitor(1, 0.01, log_dir=tmp_path / "gpu", world=TWO_GPUS) as monitor:
            wait_until(lambda monitor=monitor: monitor.summary()["samples"] >= 3)
        run = trainvitals.open_run(tmp_path / "gpu")
        assert (run.info.status, run.info.file.kind, run.info.file.attempt) == ("finished", "monitor", attempt)
    rows = list(run.rows("gpu"))
    assert len(rows) >= 6 and {row["gpu_index"] for row in rows} == {1}
    # A line is written to the millisecond.
    assert rows[-1]["power_draw_watts"] == monitor.history()[-1]["power_draw_watts"]


def test_a_gpu_monitor_serves_its_gpu_to_prometheus() -> None:
    port = free_port()
    with trainvitals.GPUMonitor(1, 0.01, prometheus_port=port, world=TWO_GPUS) as monitor:
        wait_until(lambda: monitor.summary()["samples"] >= 2)
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    found = re.findall(r'^gpu_temperature_celsius{.*gpu="(\d+)".*} ', page, re.MULTILINE)
    assert found == ["1"], page
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_where_readings_cannot_go_is_reported_and_they_are_there_all_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monitor = trainvitals.GPUMonitor(0, 1, log_dir=tmp_path / "file", prometheus_port=port, world=TWO_GPUS)
        with monitor:
            assert monitor.latest() is not None
    said = capfd.readouterr().err
    assert said.count("log_dir has no effect: ") == said.count("prometheus_port has no effect: Address already") == 1


def test_each_reading_is_a_line_on_the_console(capfd: pytest.CaptureFixture[str]) -> None:
    monitor = trainvitals.GPUResourceMonitor(0.01, log_to_console=True, world=TWO_GPUS)
    with monitor.monitoring():
        wait_until(lambda: monitor._sampler.rounds >= 3)
    line = re.compile(r"GPU Monitor \(simulated\) - GPU0: \d+\.\d%/\d+\.\d% \| GPU1: \d+\.\d%/\d+\.\d%")
    said = capfd.readouterr().err.splitlines()
    assert len(said) >= 3 and all(line.fullmatch(text) for text in said)


def test_of_nvidia_cards_the_line_is_as_ever(fake_nvml: FakeNvml, capfd: pytest.CaptureFixture[str]) -> None:
    fake_nvml.load()
    with trainvitals.GPUResourceMonitor(5, log_to_console=True, device_ids=[0]).monitoring():
        pass
    assert re.fullmatch(r"GPU Monitor - GPU0: \d+\.\d%/\d+\.\d%\n", capfd.readouterr().err)


def test_without_a_gpu_the_line_is_about_the_host(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    world = World(sysfs_root=str(tmp_path))
    monitor = trainvitals.GPUResourceMonitor(0.01, log_to_console=True, world=world)
    with monitor.monitoring():
        wait_until(lambda: monitor._sampler.rounds >= 3)
    assert re.search(r"^System Monitor - CPU: \d+\.\d% \| memory: \d+\.\d%$", capfd.readouterr().err, re.MULTILINE)


class FakeCuda:
    """torch.cuda with one visible GPU, which is the second of the machine."""

    def __init__(self) -> None:
        self.ready = True

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.ready

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, place: int) -> Any:
        return SimpleNamespace(uuid="fa4e0000-0000-4000-8000-000000000001")

    def memory_stats(self, device: Any) -> dict[str, int]:
        return {"allocated_bytes.all.current": 3 << 30, "reserved_bytes.all.current": 4 << 30}


def test_allocated_and_reserved_memory_are_torch_s_where_it_uses_the_gpu(
    fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.load()
    cuda = FakeCuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    monitor = trainvitals.GPUResourceMonitor(5, device_ids=[0, 1])
    with monitor.monitoring():
        metrics = monitor.get_latest_metrics()
        cuda.ready = False
        before = monitor.get_latest_metrics()
    assert (metrics["gpu_1_memory_allocated_gb"], metrics["gpu_1_memory_reserved_gb"]) == (3, 4)
    assert metrics["gpu_0_memory_allocated_gb"] == before["gpu_0_memory_allocated_gb"]
    assert before["gpu_1_memory_allocated_gb"] != 3  # of the card, as the driver reports it


def test_a_callback_alone_logs_what_torch_s_allocator_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    callback = trainvitals.TrainingMonitorCallback(project="loop")
    callback.on_train_begin()
    callback.on_step_end(0, loss=1.0)
    monkeypatch.setattr(torch, "cuda", FakeCuda())
    callback.on_step_end(1, loss=1.0)
    run = callback.run
    callback.on_train_end()
    assert run is not None
    first, second = lines(run)
    assert "memory_allocated_mb" not in first
    assert (second["memory_allocated_mb"], second["memory_reserved_mb"]) == (3072, 4096)


def read_wandb(folder: Path) -> list[Any]:
    """Every record of an offline run: LevelDB's log format, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.rglob("*.wandb")
    data = path.read_bytes()
    found, place, whole = [], 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        size, kind = struct.unpack_from("<HB", data, place + 4)
        if place + 7 + size > len(data):
            break  # still being written
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            found.append(record)
            whole = b""
    return found


def test_every_sample_is_in_the_wandb_run_though_it_begins_later_and_its_steps_stay_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monitor = trainvitals.GPUResourceMonitor(0.01, log_to_wandb=True, world=TWO_GPUS)
    monitor.start_monitoring()
    wait_until(lambda: monitor._sampler.rounds >= 3)
    assert capfd.readouterr().err.count("no active W&B run yet") == 1
    options = wandb.Settings(console="off", silent=True, x_disable_stats=True, x_service_wait=PATIENCE)
    with wandb.init(mode="offline", dir=str(tmp_path), settings=options) as theirs:
        begun = monitor._sampler.rounds
        for step in range(3):
            count = monitor._sampler.rounds
            wait_until(lambda count=count: monitor._sampler.rounds >= count + 8)
            theirs.log({"loss": 0.5}, step=step * 10)
        ended = monitor._sampler.rounds
        monitor.stop_monitoring()
    # Its process may still be writing when finish() has returned.
    wait_until(lambda: read_wandb(tmp_path)[-1].WhichOneof("record_type") == "exit")
    records = read_wandb(tmp_path)
    samples = [record.stats for record in records if record.WhichOneof("record_type") == "stats"]
    mine = [item for item in samples if any(value.key == "gpu_1_power_usage_w" for value in item.item)]
    assert len(mine) >= ended - begun - 1
    steps = [record.history.step.num for record in records if record.WhichOneof("record_type") == "history"]
    assert steps[:3] == [0, 10, 20]


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


def test_a_system_monitor_that_is_replaced_is_started_and_the_old_one_stopped() -> None:
    monitor = trainvitals.TrainingMonitor()
    before = trainvitals.SystemMonitor(update_interval=0.01, world=TWO_GPUS)
    monitor.system_monitor = before
    assert before._sampler._thread is None
    monitor.start_monitoring()
    assert before._sampler._thread is not None
    monitor.system_monitor = after = trainvitals.SystemMonitor(update_interval=0.01, world=TWO_GPUS)
    assert before._sampler._thread is None and after._sampler._thread is not None
    assert "gpu_1" in monitor.system_monitor.latest()
    monitor.stop_monitoring()
    assert after._sampler._thread is None


def test_recorded_metrics_and_their_statistics() -> None:
    monitor = trainvitals.TrainingMonitor()
    assert monitor.get_training_stats() == {}
    monitor.record_metrics(0, torch.tensor(4.0), 0.1, 32)
    monitor.record_metrics(step=1, loss=2.0, learning_rate=0.2, batch_size=32, accuracy=0.5)
    monitor.record_metrics(trainvitals.TrainingMetrics(step=2, loss=3.0, batch_size=32, custom_metrics={"mine": 7}))
    run = monitor.run
    monitor.stop_monitoring()
    assert run is not None
    assert [(row["step"], row["loss"], row["batch_size"]) for row in lines(run)] == [(0, 4, 32), (1, 2, 32), (2, 3, 32)]
    stats = monitor.get_training_stats()
    expected = {"current_loss": 3, "avg_loss": 3, "min_loss": 2, "max_loss": 4, "total_steps": 3, "avg_mine": 7}
    assert {key: stats[key] for key in expected} == expected
    assert stats["avg_learning_rate"] == pytest.approx(0.15)
    assert stats["samples_per_second"] == pytest.approx(96 / stats["training_time"])
    assert stats["steps_per_second"] == pytest.approx(3 / stats["training_time"])


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
    with pytest.raises(SettingError, match="must be a mapping"):
        trainvitals.TrainingMonitor(["save_dir"])  # type: ignore[arg-type]
