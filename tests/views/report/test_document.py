"""Markdown, JSON and the data of a report."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt

from trainvitals.conditions import Conditions
from trainvitals.journal.encoding import format_time
from trainvitals.journal.folder_runs import name_runs
from trainvitals.settings import resolve
from trainvitals.views.report import data
from trainvitals.views.report.document import draw_inline, draw_markdown_with_pictures, draw_report

from .conftest import BEGAN, HOSTILE, gpu_rows, rows_of

Write = Callable[..., Path]


def markdown(*folders: Path) -> str:
    return draw_report(name_runs(folders), "md", resolve({})).decode()


def test_markdown_tells_what_was_found_and_what_is_simulated(write: Write) -> None:
    alert = {"state": "firing", "rule": "hot", "severity": "warning", "message": "GPU 1 is at 91 °C"}
    text = markdown(write("spiral", gpus=gpu_rows(100), simulated=True, alerts=[alert], config={"lr": 0.1}))
    assert text.startswith("# spiral\n")
    assert "The GPUs of this run are simulated" in text
    assert "**The loss became NaN at step 60 and recovered** (warning, `loss.nonfinite`)" in text
    assert "| lr | 0.1 |" in text and "GPU 1 is at 91 °C" in text
    assert "GPU 0 (simulated)" in text


def test_a_finding_names_what_it_follows_from_and_when_it_was_known(write: Write) -> None:
    random = np.random.default_rng(1)
    rows = [
        {
            "step": step,
            "loss": (2.0 if step < 600 else 3.0) + float(random.normal(0, 0.02)),
            "lr": 0.001 if step < 595 else 0.1,
        }
        for step in range(900)
    ]
    text = markdown(write(rows=rows))
    assert "- **The learning rate jumped from 0.001 to 0.1 at step 595**" in text
    rise = text[text.index("**The loss has been rising") :]
    assert "  - Known at step 6" in rise
    assert "  - Follows from: The learning rate jumped from 0.001 to 0.1 at step 595" in rise


def test_a_picture_for_a_notebook_has_the_alerts_that_fire(write: Write) -> None:
    firing = {"timestamp": format_time(BEGAN), "since": format_time(BEGAN), "state": "firing", "severity": "warning"}
    alerts = [{**firing, "rule": f"rule{n}", "message": f"message {n}"} for n in range(6)]
    alerts.append({**alerts[5], "state": "resolved"})
    folder = write(status="running", ended=None, alerts=alerts)
    svg = draw_inline(name_runs([folder]), resolve({}), theme="light", width=800)
    told = [words for words in re.findall(r"<text[^>]*>([^<]*)", svg) if re.search(r"message|alerts", words)]
    assert told == [
        "message 0 (and 4 more)",
        "warning alert: message 1",
        "warning alert: message 2",
        "warning alert: message 3",
        "alerts not shown: 1",
    ]


def test_the_command_of_a_run_is_told_without_its_secrets(write: Write) -> None:
    text = markdown(write(command="python train.py --lr 0.1 --api-key hf_0123456789abcdefghij"))
    assert "| command | python train.py --lr 0.1 --api-key " in text and "hf_0123456789" not in text


def test_the_code_of_a_run_is_named_by_a_short_hash(write: Write) -> None:
    folder = write()
    file = json.loads((folder / "run.json").read_text())
    file["git"] = {"commit": "1a2b3c4d5e6f" + "0" * 28, "branch": "main", "dirty": True}
    (folder / "run.json").write_text(json.dumps(file))
    assert "| git | 1a2b3c4d5e6f on main, uncommitted changes |" in markdown(folder)


def test_numbers_and_times_of_markdown_are_for_people(write: Write) -> None:
    text = markdown(write(gpus=gpu_rows(100, 8), gpu_count=8, config={"lr": 0.1 + 0.2}))
    assert "| batch\\_time | 20 ms | 20 ms | 20 ms |" in text
    assert "| memory\\_used\\_mb | all 8 (simulated) | 40.0 GB |" in text
    assert "| lr | 0.3 |" in text
    assert "| started | 2026-09-21 14:13:20 UTC |" in text


def test_hostile_names_stay_text_when_markdown_becomes_html(write: Write) -> None:
    text = markdown(write(HOSTILE, config={HOSTILE: HOSTILE}))
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    assert "<img" not in html and "<script" not in html and "</script>" not in html
    assert "&lt;/script&gt;&lt;img src=x" in html
    assert html.count("<h1>") == 1


def test_a_comparison_has_verdicts_and_differences(write: Write) -> None:
    text = markdown(write("a", rows_of(400), config={"lr": 1}), write("b", rows_of(400, 9.0), config={"lr": 2}))
    assert "| lr | 1 | 2 |" in text
    assert "| loss | **worse** |" in text


def test_a_comparison_of_many_runs_is_one_matrix(write: Write) -> None:
    runs = [
        write(name, rows_of(400, level), config={"lr": level}) for name, level in (("a", 3.0), ("b", 9.0), ("c", 3.0))
    ]
    text = markdown(*runs)
    assert "| run | loss |" in text
    (worse,) = re.findall(r"^\| b .*$", text, re.MULTILINE)
    assert "**worse**" in worse and "%" in worse
    assert text.count("last 20 % of the common steps") == 1 and "| metric | verdict |" not in text


def test_markdown_with_a_picture_beside_it(write: Write, tmp_path: Path) -> None:
    files = draw_markdown_with_pictures(name_runs([write()]), tmp_path / "out.md", resolve({}), "light")
    assert [path.name for path in files] == ["out.png", "out.md"]
    assert b"](out.png)" in files[tmp_path / "out.md"]
    assert files[tmp_path / "out.png"].startswith(b"\x89PNG")


def test_json_is_strict_and_keeps_nan(write: Write) -> None:
    rows = [{"step": step, "loss": math.nan} for step in range(3)]
    found = json.loads(draw_report(name_runs([write(rows=rows)]), "json", resolve({})), parse_constant=pytest.fail)
    (run,) = found["runs"]
    assert run["metrics"][0]["last"] == "NaN"
    assert run["diagnosis"]["findings"][0]["rule"] == "loss.nonfinite"
    assert run["health"]["word"] == "critical"


def test_two_runs_of_one_name_in_two_projects_keep_apart(write: Write, tmp_path: Path) -> None:
    first = write()
    second = tmp_path / "runs" / "q" / first.name
    second.parent.mkdir()
    first.rename(second)
    third = write()
    third.rename(third.with_name(second.name))
    names = [name for name, _ in name_runs([second, third.with_name(second.name)])]
    assert names == [f"q~{second.name}", f"p~{second.name}"]


def test_the_clock_knows_when_a_step_was(write: Write) -> None:
    found = data.make_data(name_runs([write()]), Conditions())
    (run,) = found["runs"].values()
    assert run["clock"]["step"][:3].tolist() == [0, 1, 2]
    assert run["clock"]["time"][100] == BEGAN + 100


def test_many_metrics_are_limited_and_the_rest_is_counted(write: Write) -> None:
    row = {"step": 0, "loss": 1.0, **{f"m{at}": at for at in range(data.MAX_NAMES + 50)}}
    (run,) = data.make_data(name_runs([write(rows=[row])]), Conditions())["runs"].values()
    table = run["run"]["tables"]["training"]
    assert len(table["names"]) == data.MAX_NAMES and table["left_out"] == 51
    assert "loss" in table["names"]


@pytest.mark.parametrize("value", [0.0, 1.0, -math.pi, 1e300, 1e-300, 5e-324, 1.7e308, math.inf, -math.inf])
def test_rounding_keeps_seven_digits(value: float) -> None:
    (found,) = data.round_digits(np.array([value]))
    assert found == value or abs(found - value) <= abs(value) * 1e-6


def test_rounding_keeps_nan() -> None:
    assert math.isnan(data.round_digits(np.array([math.nan]))[0])


def read_sheet(folder: Path) -> str:
    return draw_report(name_runs([folder]), "svg", resolve({"price_gpu_hour": 2.0})).decode()


def test_a_sheet_of_charts_says_how_the_run_ended_what_was_found_and_what_it_cost(write: Write) -> None:
    rows = [{"step": step, "loss": math.nan if step > 60 else 1 / (step + 1)} for step in range(100)]
    sheet = read_sheet(write(rows=rows, gpus=gpu_rows(100)))
    assert ">finished, last step 99, cost " in sheet and ">critical: The loss became NaN at step 61<" in sheet
    assert "as of" not in sheet


def test_a_sheet_of_a_run_that_is_alive_says_of_when_it_is(write: Write) -> None:
    assert re.search(r", as of \d{4}-\d\d-\d\d \d\d:\d\d UTC", read_sheet(write(status="running", ended=None)))
