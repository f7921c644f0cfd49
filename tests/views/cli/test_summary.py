"""The summary of a run, from its folder."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.status import Status
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.layout import FileName
from trainvitals.journal.reader import RunReader
from trainvitals.journal.run_info import shorten_path
from trainvitals.journal.writer import LineWriter
from trainvitals.settings import resolve
from trainvitals.views.cli.summary import MANY_GPUS, draw_summary, main_metrics, print_summary, read_summary
from trainvitals.views.cli.terminal import Paint

PLAIN = Paint(io.StringIO())


def gpu_rows(count: int, *, counter: bool = True, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "gpu_index": 0,
            "gpu_uuid": "GPU-a",
            "utilization_percent": 50.0,
            "power_draw_watts": 360.0,
            **({"energy_joules": 1e9 + 360.0 * place} if counter else {}),
            **more,
        }
        for place in range(count)
    ]


def test_metrics_are_found_under_any_of_their_names(make_run: Callable[..., Path]) -> None:
    row = {
        "step": 3,
        "train/loss": 0.5,
        "lr": 0.1,
        "grad_norm": 2.0,
        "acc": 0.9,
        "throughput": 100.0,
        "other": 1.0,
    }
    summary = read_summary(RunReader(make_run(rows=[row])))
    assert main_metrics(summary.metrics) == ["train/loss", "acc", "grad_norm", "throughput", "lr"]
    text = draw_summary(summary, PLAIN)
    assert "  other " in text and "more" not in text  # that one would take no less room


def test_metrics_that_are_left_out_are_counted(make_run: Callable[..., Path]) -> None:
    row = {"step": 3, "loss": 0.5, "one": 1.0, "two": 1.0}
    assert "  and 2 more\n" in draw_summary(read_summary(RunReader(make_run(rows=[row]))), PLAIN)


@pytest.mark.parametrize("stated", [{"last_step": 8}, {}])
def test_the_last_step_is_the_one_logged_last_where_steps_went_back(
    make_run: Callable[..., Path], stated: dict[str, int]
) -> None:
    rows = [{"step": 102, "loss": 1.0, "accuracy": 0.5}, {"step": 7, "loss": 0.5}, {"step": 8, "loss": 0.4}]
    assert read_summary(RunReader(make_run(rows=rows, **stated))).last_step == 8


def test_best_is_the_lowest_loss_and_the_highest_accuracy(make_run: Callable[..., Path]) -> None:
    rows = [{"step": step, "val_loss": abs(step - 5) + 1.0, "accuracy": 1 - abs(step - 7) / 10} for step in range(10)]
    text = " ".join(draw_summary(read_summary(RunReader(make_run(rows=rows))), PLAIN).split())
    assert "val_loss 5 best 1 at step 5" in text
    assert "accuracy 0.8 best 1 at step 7" in text


def test_values_that_are_not_finite_are_counted(make_run: Callable[..., Path]) -> None:
    rows = [{"step": 0, "loss": 1.0}, {"step": 1, "loss": float("nan")}]
    text = draw_summary(read_summary(RunReader(make_run(rows=rows))), PLAIN)
    assert "NaN" in text
    assert "1 not finite" in text


def test_a_run_with_metrics_of_its_own_names_shows_them(make_run: Callable[..., Path]) -> None:
    assert "widgets" in draw_summary(read_summary(RunReader(make_run(rows=[{"step": 0, "widgets": 7}]))), PLAIN)


@pytest.mark.parametrize("counter", [True, False])
def test_energy_is_the_counters_difference_or_power_over_time(make_run: Callable[..., Path], counter: bool) -> None:
    summary = read_summary(RunReader(make_run(gpus=gpu_rows(101, counter=counter))))
    assert summary.energy_joules == pytest.approx(36_000)
    assert "10 Wh" in draw_summary(summary, PLAIN)


def test_what_is_simulated_is_said_to_be(make_run: Callable[..., Path]) -> None:
    text = draw_summary(read_summary(RunReader(make_run(gpus=gpu_rows(3, simulated=True, gpu_name="H100")))), PLAIN)
    assert "simulated GPUs" in text
    assert "H100 (simulated)" in text
    assert "Wh (simulated)" in text


def test_a_gpu_that_told_nothing_is_a_dash(make_run: Callable[..., Path]) -> None:
    rows = [{"gpu_index": 0, "gpu_uuid": "GPU-a", "memory_used_mb": 1024.0}]
    text = draw_summary(read_summary(RunReader(make_run(gpus=rows))), PLAIN)
    (line,) = [line for line in text.splitlines() if line.strip().startswith("GPU 0")]
    assert line.split() == ["GPU", "0", "-", "1.0", "GB", "-", "-"]


def test_the_cause_of_a_failure_is_told_once(make_run: Callable[..., Path]) -> None:
    ended = {"event": "run_ended", "severity": "critical", "message": "the run is failed: boom"}
    text = draw_summary(read_summary(RunReader(make_run(status="failed", cause="boom", events=[ended]))), PLAIN)
    assert text.count("boom") == 1


def alert(rule: str, severity: str, state: str = "firing") -> dict[str, Any]:
    return {"state": state, "rule": rule, "severity": severity, "message": f"{rule} happened"}


def test_alerts_are_counted_when_they_begin_and_named_worst_first(make_run: Callable[..., Path]) -> None:
    rows = [
        alert("step_slow", "warning", "pending"),
        alert("step_slow", "warning"),
        alert("step_slow", "warning", "resolved"),
        alert("step_slow", "warning"),
        alert("process_died", "critical"),
        {"outgoing": "5fa9", "kind": "firing", "rule": "process_died", "channels": []},
        {"delivery": "5fa9", "channel": "bell", "result": "sent"},
        {"control": "silence", "rule": "step_slow"},
    ]
    folder = make_run(alerts=rows)
    text = draw_summary(read_summary(RunReader(folder)), PLAIN)
    assert "  alerts  critical  process_died happened\n          warning   step_slow happened (2 times)\n" in text
    assert f"trainvitals alerts history {shorten_path(folder)}\n" in text


def test_of_many_rules_that_fired_the_worst_are_named(make_run: Callable[..., Path]) -> None:
    text = draw_summary(
        read_summary(RunReader(make_run(alerts=[alert(f"rule_{place}", "info") for place in range(7)]))), PLAIN
    )
    assert "info      rule_3 happened\n          and 3 more rules\n" in text


def many_gpus(count: int) -> list[dict[str, Any]]:
    """One of them idle, one of them hot."""
    return [
        {
            "gpu_index": place,
            "gpu_uuid": f"GPU-{place}",
            "gpu_name": "H100",
            "utilization_percent": 33.0 if place == 3 else 78.0,
            "temperature_celsius": 91.0 if place == 5 else 61.0,
            "memory_used_mb": 40 * 1024.0,
            "memory_total_mb": 80 * 1024.0,
            "power_draw_watts": 600.0,
        }
        for place in range(count)
    ]


def test_many_gpus_are_one_line_and_those_that_are_unlike_the_others(make_run: Callable[..., Path]) -> None:
    text = draw_summary(read_summary(RunReader(make_run(gpus=many_gpus(64)))), PLAIN)
    lines = [" ".join(line.split()) for line in text.splitlines() if "H100" in line]
    assert lines == [
        "64 x H100 78 % (33 to 78) 40.0 GB of 80.0 GB 91 °C (GPU 5) 600 W",
        "GPU 3 33 % (max 33 %) 40.0 GB of 80.0 GB 61 °C 600 W H100",
        "GPU 5 78 % (max 78 %) 40.0 GB of 80.0 GB 91 °C 600 W H100",
    ]


def test_a_few_gpus_have_a_line_each(make_run: Callable[..., Path]) -> None:
    text = draw_summary(read_summary(RunReader(make_run(gpus=many_gpus(MANY_GPUS - 1)))), PLAIN)
    assert text.count("H100") == MANY_GPUS - 1 and " x H100" not in text


def test_the_end_of_a_command_says_what_was_found_wrong(make_run: Callable[..., Path], capsys: Any) -> None:
    rows = [{"step": step, "loss": float("nan") if step > 60 else 1.0 / (step + 1)} for step in range(100)]
    folder = make_run(rows=rows)
    print_summary(RunReader(folder), resolve())
    told = capsys.readouterr()
    assert told.out == ""
    assert "  found   critical  The loss became NaN at step 61" in told.err
    assert f"trainvitals diagnose {shorten_path(folder)}\n" in told.err


def test_a_cause_is_above_what_follows_from_it(make_run: Callable[..., Path]) -> None:
    finding = {"severity": "warning", "title": "It is hot", "subject": "GPU 5", "cause": None}
    follows = {**finding, "severity": "info", "title": "GPU 5 is slow", "cause": "gpu.hot"}
    summary = replace(read_summary(RunReader(make_run())), findings=[finding, follows])
    assert "found   warning   It is hot (GPU 5)\n          info        GPU 5 is slow\n" in draw_summary(summary, PLAIN)


def test_a_run_without_alerts_says_nothing_of_them(make_run: Callable[..., Path]) -> None:
    assert "  alerts  " not in draw_summary(read_summary(RunReader(make_run())), PLAIN)


def write_ranks(folder: Path, last_steps: Mapping[int, int], attempt: int = 1) -> None:
    for rank, last in last_steps.items():
        writer = LineWriter(folder, FileName("training", attempt, "", rank=rank))
        for step in range(last + 1):
            writer.append(encode_line({"timestamp": format_time(), "step": step, "loss": 1.0}))
        writer.close()


def ranks_line(folder: Path) -> str:
    text = draw_summary(read_summary(RunReader(folder)), PLAIN)
    return next((line.strip() for line in text.splitlines() if line.startswith("  ranks ")), "")


def test_ranks_that_came_equally_far_are_counted(make_run: Callable[..., Path]) -> None:
    folder = make_run(rows=[], world_size=2)
    write_ranks(folder, {0: 9, 1: 9})
    assert ranks_line(folder) == "ranks   2, all at step 9"


def test_ranks_that_differ_are_named(make_run: Callable[..., Path]) -> None:
    folder = make_run(rows=[], world_size=4, attempt=2)
    write_ranks(folder, {0: 30, 1: 30, 2: 30, 3: 30})
    write_ranks(folder, {0: 9, 1: 6, 2: 9}, attempt=2)
    ranks = {"2": {"step": 9, "state": "crashed", "kind": "training"}}
    run_folder.write_status(folder, Status.parse({"attempt": 2, "state": "crashed", "ranks": ranks}))
    expected = "ranks   4, up to step 9; rank 1 at step 6, rank 2 at step 9 (crashed), rank 3 logged nothing"
    assert ranks_line(folder) == expected


def test_what_an_agent_said_that_died_before_the_run_does_not_count(make_run: Callable[..., Path]) -> None:
    folder = make_run(rows=[], world_size=2)
    write_ranks(folder, {0: 9, 1: 9})
    run_folder.write_status(
        folder, Status.parse({"attempt": 1, "state": "running", "ranks": {"1": {"step": 2, "state": "running"}}})
    )
    assert ranks_line(folder) == "ranks   2, all at step 9"


def test_of_many_ranks_that_differ_some_are_named(make_run: Callable[..., Path]) -> None:
    folder = make_run(rows=[], world_size=8)
    write_ranks(folder, {0: 3, **dict.fromkeys(range(1, 8), 1)})
    assert ranks_line(folder).endswith("rank 4 at step 1, and 3 more differ")


def test_a_run_in_which_one_rank_writes_for_all_says_so(make_run: Callable[..., Path]) -> None:
    folder = make_run(rows=[], world_size=2)
    write_ranks(folder, {0: 3})
    assert ranks_line(folder) == "ranks   2; only rank 0 logged"


def test_a_run_of_one_process_says_nothing_of_ranks(make_run: Callable[..., Path]) -> None:
    assert ranks_line(make_run(world_size=1)) == ""


def test_what_to_type_next_works(machine: Any, make_run: Callable[..., Path]) -> None:
    folder = make_run("next")
    text = draw_summary(read_summary(RunReader(folder)), PLAIN)
    lines = text[text.index("next    ") :].splitlines()
    commands = [line.partition("trainvitals ")[2].split("  ")[0].split() for line in lines]
    assert [words[0] for words in commands] == ["runs", "top", "serve", "report", "export"]
    for words in commands:
        if words[0] != "serve":
            done = machine.run(*words, *(["--once"] if words[0] == "top" else []))
            assert done.returncode == 0, done.stderr
    assert folder.name in machine.run(*commands[0]).stdout


def test_a_program_that_the_shell_does_not_find_is_named_by_its_path(
    make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run("path")
    monkeypatch.chdir(folder)
    script = Path(sys.executable).with_name("trainvitals")
    assert script.is_file()
    monkeypatch.setenv("PATH", "/nowhere")
    assert f"{script} runs show" in draw_summary(read_summary(RunReader(folder)), PLAIN)
    monkeypatch.setenv("PATH", str(script.parent))
    assert "next    trainvitals runs show" in draw_summary(read_summary(RunReader(folder)), PLAIN)


def test_a_narrow_terminal_gets_the_commands_alone(make_run: Callable[..., Path]) -> None:
    folder = make_run("narrow")
    assert "shareable report" in draw_summary(read_summary(RunReader(folder)), PLAIN)
    narrow = draw_summary(read_summary(RunReader(folder)), PLAIN, 40)
    assert "shareable report" not in narrow and "trainvitals report" in narrow


def test_an_empty_run_has_a_summary_too(make_run: Callable[..., Path]) -> None:
    text = draw_summary(read_summary(RunReader(make_run(rows=[]))), PLAIN)
    assert "finished" in text
    assert "folder" in text
