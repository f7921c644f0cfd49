"""`trainvitals report`, and `export` to a page or a picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MakeRun = Callable[..., Path]


def test_the_name_of_the_file_says_the_format(machine: Any, make_run: MakeRun) -> None:
    make_run()
    starts = {"html": b"<!doctype html>", "md": b"# baseline", "json": b"{", "png": b"\x89PNG", "svg": b"<svg"}
    for suffix, start in starts.items():
        done = machine.run("report", "latest", "-o", f"out-{suffix}.{suffix}")
        assert done.returncode == 0, done.stderr
        assert (machine.folder / f"out-{suffix}.{suffix}").read_bytes().startswith(start)
        assert f"out-{suffix}.{suffix}" in done.stderr and done.stdout == ""
    assert (machine.folder / "out-md.png").is_file()


def test_without_a_name_it_is_report_html_and_is_not_replaced(machine: Any, make_run: MakeRun) -> None:
    make_run()
    assert machine.run("report", "latest").returncode == 0
    again = machine.run("report", "latest")
    assert again.returncode == 1 and "--force" in again.stderr
    assert machine.run("report", "latest", "--force").returncode == 0


def test_without_a_name_the_format_is_the_suffix(machine: Any, make_run: MakeRun) -> None:
    make_run()
    done = machine.run("report", "latest", "--format", "md")
    assert done.returncode == 0, done.stderr
    assert (machine.folder / "report.md").is_file() and not (machine.folder / "report.html").exists()


@pytest.mark.parametrize("name", ["report.pdf", "report.docx", "report"])
def test_a_suffix_of_another_format_is_an_error_and_no_html(name: str, machine: Any, make_run: MakeRun) -> None:
    make_run()
    done = machine.run("report", "latest", "-o", name)
    assert (done.returncode, (machine.folder / name).exists()) == (2, False)
    assert ".html, .md" in done.stderr and ("printed from the HTML" in done.stderr) == name.endswith(".pdf")
    assert machine.run("report", "latest", "-o", name, "--format", "html").returncode == 0


def test_json_to_standard_output(machine: Any, make_run: MakeRun) -> None:
    make_run(config={"lr": 0.1})
    done = machine.run("report", "latest", "-o", "-", "--format", "json")
    (run,) = json.loads(done.stdout)["runs"]
    assert run["config"] == {"lr": 0.1}
    assert {gap["rule"] for gap in run["diagnosis"]["not_judged"]} >= {"data.bound", "gpu.low_use"}


def test_a_price_makes_a_cost(machine: Any, make_run: MakeRun) -> None:
    make_run(gpus=[{"gpu_index": 0, "gpu_uuid": "G", "utilization_percent": 0.0} for _ in range(100)])
    done = machine.run(
        "report", "latest", "-o", "-", "--format", "json", "--price-gpu-hour", "36", "--price-currency", "EUR"
    )
    (run,) = json.loads(done.stdout)["runs"]
    cost = run["cost"]
    assert (cost["amount"], cost["currency"], cost["of"]) == (pytest.approx(1.0, abs=0.01), "EUR", "GPU hours")
    waste = next(item for item in run["diagnosis"]["findings"] if item["rule"] == "gpu.waste")
    assert waste["values"]["money"] == pytest.approx(0.99, abs=0.02)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("report", "nothing"), "no run 'nothing'"),
        (("report", "latest", "-o", "-"), "--format md"),
        (("report", "latest", "-o", "x.doc"), "'.doc' is not a report format"),
        (("report", "latest", "latest"), "given twice"),
        (("report", "latest", "--format", "pdf"), "'pdf' is not one of"),
        (("export", "latest", "--format", "png", "--panel", "los", "-o", "x.png"), "did you mean 'loss'"),
        (("export", "latest", "--format", "png", "--panel", "gpu_power", "-o", "x.png"), "power_draw_watts"),
    ],
)
def test_mistakes_are_answered_with_what_to_type(
    machine: Any, make_run: MakeRun, words: tuple[str, ...], complaint: str
) -> None:
    make_run()
    done = machine.run(*words)
    assert done.returncode in (1, 2) and complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_ends_with_a_report(machine: Any) -> None:
    done = machine.run("demo", "--steps", "30", "--seconds", "0.2")
    assert done.returncode == 0, done.stderr
    folder, _ = machine.only_run()
    assert (folder / "reports" / "report.html").read_bytes().startswith(b"<!doctype html>")
    assert "reports/report.html" in done.stderr


def test_export_draws_pages_and_pictures(machine: Any, make_run: MakeRun) -> None:
    make_run()
    page = machine.run("export", "latest", "--format", "html", "-o", "page.html")
    assert page.returncode == 0, page.stderr
    assert (machine.folder / "page.html").read_bytes().startswith(b"<!doctype html>")
    picture = machine.run("export", "latest", "--format", "svg", "--panel", "loss", "--theme", "dark")
    assert picture.stdout.startswith("<svg") and "Loss" in picture.stdout
