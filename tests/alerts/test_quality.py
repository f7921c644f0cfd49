"""How good the built-in rules are: silent on healthy runs, and each fires once for its fault, and resolves.

The table that comes out is in docs/alerts.md; `TRAINVITALS_REWRITE=1 pytest tests/alerts/test_quality.py` rewrites it.
"""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import rl_runs

sys.path.insert(0, str(Path(__file__).parent))

import curves
from judging import RULES, judge

from trainvitals.alerts.engine import Change

PAGE = Path(__file__).parents[2] / "docs" / "alerts.md"
BEGIN, END = "<!-- quality: written by tests/alerts/test_quality.py -->", "<!-- /quality -->"

HEALTHY = {
    "power law, cosine, heavy tails": lambda: curves.synthetic(1, "cosine", 0.06, "power"),
    "exponential, restarts": lambda: curves.synthetic(2, "restarts", 0.05, "exp"),
    "very noisy, cosine": lambda: curves.synthetic(3, "cosine", 0.15, "power"),
    "noisy, restarts, heavy tails": lambda: curves.synthetic(5, "restarts", 0.12, "power"),
    "real: Adam, restarts": lambda: curves.real(3, "restarts"),
    "real: SGD, constant": lambda: curves.real(2, "constant", "sgd"),
}


@cache
def healthy_alarms() -> Counter[str]:
    alarms: Counter[str] = Counter()
    for seed, (name, make) in enumerate(HEALTHY.items()):
        curves.KEPT[name] = make()
        changes = judge(curves.play(seed, name))
        alarms.update(change.rule.name for change in changes if change.state == "firing")
    return alarms


def test_no_rule_fires_on_a_healthy_run() -> None:
    assert healthy_alarms() == Counter()


# -- faults

FAULT_STEP = 2000
AT = FAULT_STEP * curves.STEP_SECONDS
"""When a fault begins, in seconds; it ends a while later."""


def between(now: float, seconds: float) -> bool:
    return AT <= now < AT + seconds


def set_values(table: str, seconds: float, **values: Any) -> curves.Fault:
    """From the fault on, for so long, these values stand in the lines of that table (of GPU 0)."""

    def fault(found: str, labels: Any, row: Any, now: float, step: int) -> Any:
        if found == table and labels.get("gpu_index", 0) == 0 and between(now, seconds):
            for name, value in values.items():
                row[name] = value(now - AT, row) if callable(value) else value
        return row

    return fault


def training(seconds: float, **values: Any) -> curves.Fault:
    return set_values("training", seconds, **values)


def leave_out(table: str, seconds: float) -> curves.Fault:
    return lambda found, labels, row, now, step: None if found == table and between(now, seconds) else row


def counter(table: str, name: str, extra: dict[str, Any]) -> curves.Fault:
    """A counter that rises by one and stays there."""

    def fault(found: str, labels: Any, row: Any, now: float, step: int) -> Any:
        if found == table and labels.get("gpu_index", 0) == 0 and now >= AT:
            row[name] += 1
            row.update(extra)
        return row

    return fault


def low_learning_rate(found: str, labels: Any, row: Any, now: float, step: int) -> Any:
    if found == "training" and between(now, 400):
        row["learning_rate"] = 1e-9
    return row


def over_clip(found: str, labels: Any, row: Any, now: float, step: int) -> Any:
    """Gradients are clipped throughout; for a while their norms are far above that, and the loss jumps."""
    if found == "training":
        row["gradient_clip_norm"] = 1.0
        if between(now, 4):
            row.update(gradient_norm=60.0, loss=4 * row["loss"])
    return row


def hang(found: str, labels: Any, row: Any, now: float, step: int) -> Any:
    """The silence began some time before: it is found to be a stall, and then to be more."""
    if found == "run" and between(now, 400):
        row.update(state="stalled" if now - AT < 200 else "hung", seconds_since_step=61.0 + now - AT)
    return row


FAULTS: dict[str, tuple[str, curves.Fault]] = {
    "gpu_temperature_high": ("85 °C for 2 min", set_values("gpu", 120, temperature_celsius=85)),
    "gpu_temperature_limit": ("92 °C, limit 90", set_values("gpu", 20, temperature_celsius=92)),
    "gpu_memory_high": ("96 % of memory", set_values("gpu", 120, memory_percent=96.0)),
    "gpu_throttled_heat": (
        "thermal slowdown",
        set_values("gpu", 60, throttle_reasons="power cap, hardware thermal slowdown"),
    ),
    "gpu_throttled_power": ("power brake", set_values("gpu", 60, throttle_reasons="hardware power brake")),
    "gpu_xid": ("Xid 79", counter("gpu", "xid_errors_total", {"xid_last": 79})),
    "gpu_ecc_uncorrected": ("one more error", counter("gpu", "ecc_uncorrected_total", {})),
    "gpu_row_remap_failed": ("remap failed", set_values("gpu", 60, row_remap_failed=1)),
    "gpu_row_remap_pending": ("remap pending", set_values("gpu", 60, row_remap_pending=1)),
    "gpu_link_narrow": (
        "half of the lanes",
        set_values("gpu", 120, pcie_link_width=8, utilization_percent=95),
    ),
    "gpu_lost": ("GPU lost for 1 min", set_values("gpu", 60, state="lost")),
    "gpu_hung": ("driver does not return for 1 min", set_values("gpu", 60, state="unresponsive")),
    "gpu_fan_stopped": (
        "fan at 0 at 76 °C",
        set_values("gpu", 60, fan_speed_percent=0, temperature_celsius=76),
    ),
    "gpu_idle": ("0 % for 17 min", set_values("gpu", 1020, utilization_percent=0)),
    "gpu_low_use": ("12 % from the start", None),  # type: ignore[dict-item]
    "gpu_memory_leak": (
        "2 MB a step",
        training(500, memory_allocated_mb=lambda t, row: row["memory_allocated_mb"] + 10 * t),
    ),
    "gpu_oom_soon": (
        "4 MB a second",
        set_values("gpu", 600, memory_used_mb=lambda t, row: row["memory_used_mb"] + 4 * t),
    ),
    "cpu_high": ("97 % for 6 min", set_values("system", 360, cpu_usage_percent=97)),
    "memory_high": ("94 % for 1 min", set_values("system", 60, memory_usage_percent=94)),
    "memory_oom_soon": (
        "100 MB a second",
        set_values("system", 500, memory_available_mb=lambda t, row: max(66000 - 100 * t, 100.0)),
    ),
    "swap_used": (
        "swap fills",
        set_values("system", 200, swap_usage_percent=70.0, swap_used_mb=lambda t, row: 200 + 10 * t),
    ),
    "disk_space_low": ("1 GB left", set_values("system", 60, disk_free_gb=1.0)),
    "disk_full_soon": (
        "150 MB a second",
        set_values("system", 1200, disk_free_gb=lambda t, row: row["disk_free_gb"] - 0.15 * t),
    ),
    "file_descriptors_high": ("5 x 950 of 1,024", set_values("process", 60, fd_count=4750.0)),
    "host_memory_leak": (
        "6 MB a second",
        set_values("process", 1100, rss_mb=lambda t, row: row["rss_mb"] + 6 * t),
    ),
    "loss_not_finite": ("NaN for 5 steps", training(1, loss="NaN")),
    "loss_spike": ("3 x for 10 steps", training(2, loss=lambda t, row: row["loss"] * 3)),
    "loss_diverging": (
        "rises slowly by 40 %",
        training(300, loss=lambda t, row: row["loss"] * (1 + min(t / 100, 0.4))),
    ),
    "loss_diverged": (
        "doubles slowly",
        training(300, loss=lambda t, row: row["loss"] * (1 + min(t / 100, 1.2))),
    ),
    "loss_above_baseline": ("slowly to 8.5", training(300, loss=lambda t, row: 2 + min(t / 40, 6.5))),
    "loss_plateau": ("flat from step 1,500", None),  # type: ignore[dict-item]
    "gradient_exploded": ("norm 40 for 20 steps", training(4, gradient_norm=40.0)),
    "gradient_outlier": ("norm 9, usually 0.6", training(4, gradient_norm=9.0)),
    "gradient_over_clip": ("norm 60, clipped to 1, and 4 x the loss", over_clip),
    "gradient_vanished": ("norm 1e-9", training(10, gradient_norm=1e-9)),
    "learning_rate_low": ("1e-9 for 2,000 steps", low_learning_rate),
    "learning_rate_high": ("rate 3", training(10, learning_rate=3.0)),
    "throughput_low": ("a third", training(60, throughput_samples_per_sec=lambda t, row: 50.0)),
    "steps_slower": ("6 % longer", training(150, batch_time=lambda t, row: row["batch_time"] * 1.06)),
    "step_time_uneven": (
        "every 4th step 4 x",
        training(150, batch_time=lambda t, row: row["batch_time"] * (4 if round(t * 5) % 4 == 0 else 1)),
    ),
    "straggler": ("one of four ranks 1.6 x", None),  # type: ignore[dict-item]
    "data_bound": ("two fifths of the step", training(120, data_time=0.08)),
    "data_starved": ("two thirds of the step", training(120, data_time=0.13)),
    "transfer_bound": ("half of the step", training(120, transfer_time=0.1)),
    "communication_bound": ("half of the step", training(120, communication_time=0.1)),
    "training_stalled": (
        "no step for 2 min",
        set_values("run", 120, state="stalled", cause="the main thread is in write()", seconds_since_step=61.0),
    ),
    "training_hung": ("no step for 10 min", hang),
    "process_died": ("killed", set_values("run", 60, state="killed", cause="SIGKILL, out of memory")),
    "rank_lost": (
        "rank killed",
        set_values("run", 60, state="killed", cause="SIGKILL", world_size=4.0),
    ),
    "checkpoint_overdue": ("none for 12 min", leave_out("event", 700)),
}
# The fault of one rule is seen by these too, rightly.
ALSO = {
    "gpu_temperature_high": {"gpu_temperature_high"},
    "gpu_idle": {"gpu_low_use"},
    "gpu_low_use": set(),
    "loss_diverging": {"loss_above_baseline"},
    "loss_diverged": {"loss_diverging", "loss_above_baseline"},
    "loss_above_baseline": {"loss_diverging", "loss_diverged", "loss_spike"},
    "data_starved": {"data_bound"},
    "gradient_exploded": {"gradient_outlier"},
    "gradient_over_clip": {"loss_spike"},
    "training_hung": {"training_stalled"},
    "gpu_oom_soon": set(),
    "disk_full_soon": set(),
    "gpu_lost": set(),
    "gpu_hung": set(),
    "host_memory_leak": set(),
}


def base(name: str) -> str:
    """The run into which this fault is put."""
    if name == "loss_plateau":
        rows = curves.synthetic(0, "constant", 0.02, "power")
        flat = [{**row, "loss": row["loss"] if n < 1500 else 2.5 + 0.01 * math.sin(n)} for n, row in enumerate(rows)]
        curves.KEPT.setdefault("plateau", flat)
        return "plateau"
    if "base" not in curves.KEPT:
        curves.KEPT["base"] = curves.synthetic(4, "constant", 0.06, "power")
    if name == "checkpoint_overdue":  # so often that there is a rhythm when the fault begins
        curves.KEPT["checkpoints"] = curves.KEPT["base"]
        curves.WORLDS["checkpoints"] = curves.World(checkpoint=30.0)
        return "checkpoints"
    return "base"


@cache
def run_fault(name: str) -> list[Change]:
    fault = FAULTS[name][1]
    if name == "gpu_low_use":
        fault = lambda table, labels, row, now, step: (  # noqa: E731
            {**row, "utilization_percent": 12.0} if table == "gpu" and labels["gpu_index"] == 0 else row
        )
    if name == "straggler":
        return judge(four_ranks())
    medium = (
        *(
            "gpu_memory_leak",
            "gpu_oom_soon",
            "cpu_high",
            "memory_oom_soon",
            "loss_diverging",
            "loss_diverged",
            "loss_above_baseline",
            "steps_slower",
        ),
        *("learning_rate_low", "swap_used", "gpu_xid", "gpu_ecc_uncorrected", "training_hung"),
    )
    long = (
        "gpu_idle",
        "gpu_low_use",
        "disk_full_soon",
        "host_memory_leak",
        "loss_plateau",
        "checkpoint_overdue",
    )
    until = math.inf if name in long else AT + (800 if name in medium else 300)
    # A fault of the machine is seen in the machine's own lines: one a second of the training's will do.
    lead = next(rule.lead for rule in RULES if rule.name == name)
    return judge(curves.play(7, base(name), fault, until, every=1 if lead and lead[0] == "training" else 5))


def four_ranks() -> Any:
    for step in range(1500):
        for rank in range(4):
            slow = 1.6 if rank == 2 and 500 <= step < 1000 else 1.0
            seconds = 0.05 * slow * math.exp(0.03 * math.sin(step * (rank + 3)))
            now = curves.START + step * curves.STEP_SECONDS + rank * 0.01
            yield curves.Point("training", {"rank": rank}, {"forward_time": seconds}, now, step)


def first_alarm(name: str) -> tuple[Change, float]:
    """The first alarm about a fault, and how many seconds after the fault it came."""
    first = next(change for change in run_fault(name) if change.rule.name == name)
    start = {"gpu_low_use": 0.0, "loss_plateau": 300.0, "straggler": 100.0, "training_hung": AT + 200}.get(name, AT)
    return first, first.time - curves.START - start


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_once_under_its_name_and_resolved(name: str) -> None:
    changes = run_fault(name)
    mine = [change.state for change in changes if change.rule.name == name]
    fired = Counter(change.rule.name for change in changes if change.state == "firing")
    others = set(fired) - {name} - ALSO.get(name, set())
    assert mine[:1] == ["firing"], f"{name} did not fire: {fired}"
    assert fired[name] == 1, fired
    assert others == set(), others
    if name not in ("gpu_low_use", "loss_plateau"):  # these last to the end of the run
        assert mine == ["firing", "resolved"]
    first, delay = first_alarm(name)
    assert delay >= -1
    assert "?}" not in first.message + first.advice


def test_a_gpu_that_somebody_else_holds_is_not_accused() -> None:
    def idle(now: float, held: float) -> curves.Point:
        values = {"utilization_percent": 0.0, "memory_percent": 3.0, "held_by_run": held}
        return curves.Point("gpu", {"gpu_index": 1, "gpu_uuid": "GPU-1"}, values, curves.START + now)

    for held, fired in ((0.0, set()), (1.0, {"gpu_idle", "gpu_low_use"})):
        assert {change.rule.name for change in judge(idle(now, held) for now in range(3000))} == fired


def test_every_built_in_rule_has_a_fault() -> None:
    assert {*FAULTS, *rl_runs.FAULTS} == {rule.name for rule in RULES}  # those of RL are in test_rl.py


def test_the_table_in_the_documentation_is_what_was_measured() -> None:
    steps = len(HEALTHY) * curves.STEPS
    lines = [
        BEGIN,
        "",
        f"{len(HEALTHY)} healthy runs ({steps:,} steps) by which the rules were tuned, and one fault each:",
        "",
        "| rule | fault put in | fired | false alarms, tuning set | after |",
        "|---|---|---|---|---|",
    ]
    for name in FAULTS:
        fired = sum(change.rule.name == name and change.state == "firing" for change in run_fault(name))
        wrong, (_, delay) = healthy_alarms()[name], first_alarm(name)
        shown = "at once" if delay < 1.5 else f"{delay:.0f} s"
        lines.append(f"| `{name}` | {FAULTS[name][0]} | {fired} | {wrong} | {shown} |")
    table = "\n".join([*lines, "", END])
    page = PAGE.read_text(encoding="utf-8")
    start, end = page.index(BEGIN), page.index(END) + len(END)
    if os.environ.get("TRAINVITALS_REWRITE"):
        PAGE.write_text(page[:start] + table + page[end:], encoding="utf-8")
    else:
        assert page[start:end] == table, "TRAINVITALS_REWRITE=1 pytest tests/alerts/test_quality.py"
