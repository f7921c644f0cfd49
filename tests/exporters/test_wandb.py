"""The mirror in W&B: the real client, offline, and what it wrote read back."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from mirrored import START, make_rows, make_run
from wandb_log import CONFIG, HISTORY, RUN, SUMMARY, read_all, read_fields, read_records

from trainvitals.exporters import wandb
from trainvitals.exporters.rows import RunDescription, RunEnd, RunRow
from trainvitals.exporters.wandb import SYSTEM_NAMES, SentRows, WandbMirror
from trainvitals.settings import resolve

SETTINGS = resolve({"wandb_offline": True}, environ={}, folder=Path("/"))
END = RunEnd("finished")


def open_mirror(run: RunDescription) -> WandbMirror:
    mirror = wandb.create("mirrored", SETTINGS)
    mirror.open(run)
    return mirror


def mirror_all(run: RunDescription, rows: Sequence[RunRow], end: RunEnd | None = END) -> None:
    mirror = open_mirror(run)
    mirror.write(rows)
    mirror.close(end)


def history(folder: Path) -> list[dict[str, Any]]:
    return sorted(read_all(folder / "wandb", HISTORY), key=lambda row: int(row["_step"]))


def test_what_was_logged_is_the_history_value_by_value(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", config={"lr": 0.1, "m": {"n": 2}}, tags=["small"], notes="a *note*")
    logged = make_rows([{"loss": 1.0 / (step + 1), "val/acc": 0.1 * step, "_step": 5.0} for step in range(50)])
    odd = [{"bad": "NaN"}, {"bad": "Infinity"}, {"bad": "-Infinity"}]
    mirror_all(run, [*logged, *make_rows(odd, first=51)])
    rows = history(tmp_path / "r")
    assert [row["_step"] for row in rows] == list(range(53))
    assert [(row["step"], row["loss"], row["val/acc"], row["user_step"], row["_timestamp"]) for row in rows[:50]] == [
        (step, 1.0 / (step + 1), 0.1 * step, 5.0, START + step) for step in range(50)
    ]
    assert math.isnan(rows[50]["bad"]) and [row["bad"] for row in rows[51:]] == [math.inf, -math.inf]
    config: dict[str, Any] = {}
    for update in read_all(tmp_path / "r" / "wandb", CONFIG):
        config |= update
    assert config["lr"] == 0.1 and config["m"] == {"n": 2}
    (path,) = (tmp_path / "r" / "wandb").rglob("*.wandb")
    described = [value for record in read_records(path) for number, value in read_fields(record) if number == RUN]
    facts = {number: value for item in described for number, value in read_fields(item)}
    assert (facts[1], facts[3], facts[8], facts[9], facts[10]) == (b"r", b"mirrored", b"base", b"a *note*", b"small")
    summary: dict[str, Any] = {}
    for update in read_all(tmp_path / "r" / "wandb", SUMMARY):
        summary |= update
    assert summary["loss"] == 1.0 / 50 and summary["trainvitals/status"] == "finished"


def test_hardware_has_the_promised_names(tmp_path: Path) -> None:
    gpu = {name: 2048.0 for table, name in SYSTEM_NAMES if table == "gpu"}
    host = {name: 2048.0 for table, name in SYSTEM_NAMES if table == "system"}
    rows = make_rows([{"gpu_index": 1, "gpu_uuid": "G", **gpu, "fan_speed_percent": 3.0}], "gpu", file="gpu")
    rows += make_rows([{"host": "box", **host}], "system", file="system")
    mirror_all(make_run(tmp_path / "r"), rows)
    first, second = history(tmp_path / "r")
    assert {key: value for key, value in first.items() if not key.startswith("_") and key != "step"} == {
        "gpu_1_gpu_utilization_pct": 2048.0,
        "gpu_1_memory_utilization_pct": 2048.0,
        "gpu_1_memory_allocated_gb": 2.0,
        "gpu_1_memory_reserved_gb": 2.0,
        "gpu_1_memory_total_gb": 2.0,
        "gpu_1_temperature_c": 2048.0,
        "gpu_1_power_usage_w": 2048.0,
        "gpu_1_graphics_clock_mhz": 2048.0,
        "gpu_1_memory_clock_mhz": 2048.0,
    }
    assert {key: value for key, value in second.items() if not key.startswith("_") and key != "step"} == {
        "cpu_utilization_pct": 2048.0,
        "system_memory_used_gb": 2.0,
        "system_memory_utilization_pct": 2048.0,
    }


@pytest.mark.promise("W&B's client is killed", "W&B has every row once")
def test_a_killed_client_is_followed_by_one_that_sends_what_was_lost(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    rows = make_rows([{"loss": float(step)} for step in range(900)])
    mirror = open_mirror(run)
    mirror.write(rows[:500])
    assert mirror._child is not None
    os.killpg(mirror._child.pid, signal.SIGKILL)
    with pytest.raises(OSError, match="its process ended"):
        mirror.write(rows[500:600])
    mirror.write(rows[500:600])
    mirror.close(None)  # the agent ends
    mirror_all(run, rows)  # and another one gets some rows again
    found = history(tmp_path / "r")
    assert [(row["_step"], row["step"], row["loss"]) for row in found] == [(n, n, float(n)) for n in range(900)]


def test_the_process_of_the_training_s_own_client_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B's client passes its process on to programs below in WANDB_SERVICE; this one would not answer."""
    monkeypatch.setenv("WANDB_SERVICE", "3-1-tcp-localhost-9")
    run = make_run(tmp_path / "r", {"WANDB_SERVICE": "3-1-tcp-localhost-9"})
    mirror_all(run, make_rows([{"loss": 1.0}]))
    assert [row["loss"] for row in history(tmp_path / "r")] == [1.0]


def test_a_client_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = open_mirror(make_run(tmp_path / "r"))
    assert mirror._child is not None
    os.kill(mirror._child.pid, signal.SIGSTOP)
    monkeypatch.setattr(wandb, "LOG_SECONDS", 0.5)
    rows = make_rows([{"loss": float(step)} for step in range(10)])
    with pytest.raises(OSError, match="did not answer"):
        mirror.write(rows)
    monkeypatch.undo()
    mirror.write(rows)
    mirror.close(END)
    assert [row["loss"] for row in history(tmp_path / "r")] == [float(n) for n in range(10)]


def test_an_unusable_account_is_the_reason_and_no_key_is_kept(tmp_path: Path) -> None:
    key = "hunter2" * 6
    variables = {"WANDB_API_KEY": key, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_INIT_TIMEOUT": "1"}
    run = make_run(tmp_path / "r", variables)
    mirror = WandbMirror("mirrored", None, offline=False)
    with pytest.raises(OSError, match="Error"):
        mirror.open(run)
    kept = b"".join(path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file())
    assert key.encode() not in kept


def test_only_the_newest_rows_are_kept_and_those_that_were_not_given_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "sent"
    sent = SentRows(path, 0o600, 0)
    for first in range(0, 50_000, 1000):
        sent.add(first, [{"loss": float(number)} for number in range(first, first + 1000)])
    assert len(path.read_bytes().splitlines()) <= wandb.MOST_SENT
    with open(path, "ab") as file:
        file.write(b'{"number":50000,"li')
    again = SentRows(path, 0o600, 49_990)
    (piece,) = again.read(49_980)
    assert piece == (49_980, [{"loss": float(number)} for number in range(49_980, 49_990)])
    again.clear()
    assert list(again.read(0)) == []
