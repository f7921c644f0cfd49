"""What somebody else's package adds is seen wherever ours is, and a broken one hurts nothing."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import free_port, wait_until

TRAINING = """
import sys, time
from pathlib import Path
import trainvitals

run = trainvitals.init(project="p", name="plugged")
callback = trainvitals.AcmeCallback()
step = 0
while not Path("stop").exists():
    callback.on_step(step, 1.0 / (step + 1))
    step += 1
    time.sleep(0.05)
run.finish()
"""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Those that are whole: somebody may be writing another one."""
    whole, _, _ = read_text(path).rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def read_text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


class Story:
    """A training on two Acme cards, one of them too hot, with every plugin asked for, the broken ones too."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.port = free_port()
        self.metrics, self.rows, self.notes = (machine.folder / name for name in ("acme.prom", "acme.jsonl", "notes"))
        exported = {
            "acme_metrics": str(self.metrics),
            "acme_rows": str(self.rows),
            "raising_metrics": "somewhere",
            "raising_rows": "somewhere",
            "missing": "somewhere",
        }
        machine.environ |= {
            "TRAINVITALS_EXPORT": json.dumps(exported),
            "TRAINVITALS_PROMETHEUS_PORT": str(self.port),
            "TRAINVITALS_ALERTS_NOTIFY": f"acme:{self.notes} quitting:somewhere",
            "TRAINVITALS_INTERVAL": "0.2",
        }
        machine.add_cards(50.0, 95.0)
        self.training = subprocess.Popen([sys.executable, "-c", TRAINING], env=machine.environ, cwd=machine.folder)

    @property
    def folder(self) -> Path:
        wait_until(lambda: any(self.machine.root.glob("p/*/run.json")), "the run")
        (found,) = self.machine.root.glob("p/*/run.json")
        return Path(found).parent

    def rows_of(self, kind: str) -> list[dict[str, Any]]:
        return [row for path in self.folder.glob(f"{kind}_*.jsonl") for row in read_lines(path)]

    def page(self) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def finish(self) -> None:
        (self.machine.folder / "stop").touch()
        assert self.training.wait() == 0


@pytest.fixture(scope="module")
def story(make_machine: Callable[[], Any]) -> Iterator[Story]:
    """While it goes on."""
    found = Story(make_machine())
    yield found
    found.training.kill()


@pytest.fixture(scope="module")
def finished(make_machine: Callable[[], Any]) -> Iterator[Story]:
    """Another one, when it is over."""
    found = Story(make_machine())
    try:
        wait_until(lambda: "ACME-card1" in read_text(found.rows) and '"step": 5' in read_text(found.rows), "some rows")
        found.finish()
        wait_until(lambda: '"close"' in read_text(found.rows), "the end of the rows")
        yield found
    finally:
        found.training.kill()


# -- a GPU vendor: one file, one entry point


def test_doctor_finds_the_cards_of_a_plugin(machine: Any) -> None:
    machine.add_cards(50.0, 51.0)
    found = {item["subject"]: item for item in machine.findings()}["acme"]
    assert (found["state"], found["text"]) == ("ok", "2 x Acme Rocket; driver 7.0")


def test_doctor_explains_the_absence_of_a_plugins_cards(machine: Any) -> None:
    found = {item["subject"]: item for item in machine.findings()}["acme"]
    assert found["state"] == "none"
    machine.add_pci("0x1ace")
    found = {item["subject"]: item for item in machine.findings()}["acme"]
    assert (found["state"], found["text"], found["fix"]) == ("fail", "no Acme card in sysfs", "sudo acme-setup")


def test_monitor_prints_the_cards_of_a_plugin(machine: Any) -> None:
    machine.add_cards(50.0)
    done = machine.run("monitor", "--duration", "3", "--interval", "0.2")
    assert done.returncode == 0, done.stderr
    assert "Acme Rocket" in done.stdout or "50" in done.stdout
    assert "no GPUs" not in done.stderr


def test_monitor_gives_the_reason_of_the_vendor_whose_hardware_is_there(machine: Any) -> None:
    machine.add_pci("0x1ace")
    done = machine.run("monitor", "--duration", "2", "--interval", "0.2")
    assert "no GPUs: no Acme card in sysfs" in done.stderr


def test_the_terminal_shows_the_cards_of_a_plugin(machine: Any) -> None:
    machine.add_cards(50.0)

    def read() -> list[dict[str, Any]]:
        found = json.loads(machine.run("top", "--json", "--interval", "0.2").stdout)["gpus"]
        return [gpu for gpu in found if gpu["name"] == "Acme Rocket"]

    (gpu,) = wait_until(read, "a frame that came after the first reading of the card")
    assert gpu["values"]["temperature_celsius"] == 50.0
    wait_until(
        lambda: "Acme Rocket" in machine.run("top", "--once", "--interval", "0.2", COLUMNS="120").stdout, "the same"
    )


def test_the_classic_monitors_read_the_cards_of_a_plugin(machine: Any) -> None:
    machine.add_cards(50.0)
    script = "import trainvitals\nwith trainvitals.GPUMonitor(0) as monitor:\n print(monitor.latest()['gpu_name'])"
    done = machine.python("-c", script)
    assert done.stdout == "Acme Rocket\n", done.stderr


def test_the_variable_of_a_plugin_hides_its_cards(machine: Any) -> None:
    machine.add_cards(50.0, 51.0)
    script = (
        "from trainvitals import sources\n"
        "row = sources.REGISTRY['acme']\n"
        f"gpus = sources.create('acme', sources.World(sysfs_root={str(machine.sysfs)!r})).describe()['gpus']\n"
        "print(row.visible_devices({'ACME_VISIBLE_DEVICES': '1'}, gpus), row.visible_devices({}, gpus))"
    )
    assert machine.python("-c", script).stdout == "['ACME-card1'] ['ACME-card0', 'ACME-card1']\n"


def test_prometheus_gets_the_cards_of_a_plugin(story: Story) -> None:
    wait_until(lambda: re.search(r'gpu_temperature_celsius\{gpu="1".*uuid="ACME-card1"\} 95', story.page()), "the page")
    wait_until(
        lambda: re.search(r'gpu_info\{[^}]*driver_version="7.0"[^}]*uuid="ACME-card1"', story.page()), "its driver"
    )


def test_the_pages_api_has_the_cards_and_the_panel_of_a_plugin(story: Story) -> None:
    wait_until(lambda: story.page(), "the agent")
    port = free_port()
    command = [sys.executable, "-m", "trainvitals", "serve", "--port", str(port), "--no-token"]
    server = subprocess.Popen(command, env=story.machine.environ, cwd=story.machine.folder)

    def ask(path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1{path}") as answer:
                return json.loads(answer.read())
        except OSError:
            return None

    try:
        panels = wait_until(lambda: ask("/panels"), "the server")["panels"]
        assert "acme_spin" in [panel["id"] for panel in panels]
        wait_until(lambda: "ACME-card1" in json.dumps(ask("/machine")), "the cards in the API")
        path = "/runs/latest/series?table=gpu&name=acme_spin_rpm&x=time"
        wait_until(lambda: "4711" in json.dumps(ask(path)), "the series")
    finally:
        server.terminate()
        server.wait()


def test_an_alert_fires_for_a_card_of_a_plugin(story: Story) -> None:
    def fired() -> list[dict[str, Any]]:
        return [row for row in story.rows_of("alerts") if row.get("rule") == "gpu_temperature_limit"]

    (row, *_) = wait_until(fired, "the alert")
    assert row["labels"]["gpu_uuid"] == "ACME-card1"


# -- the other kinds


def test_the_rule_of_a_plugin_fires(story: Story) -> None:
    wait_until(lambda: any(row.get("rule") == "acme_warm" for row in story.rows_of("alerts")), "the alert")


def test_the_channel_of_a_plugin_is_notified(story: Story) -> None:
    wait_until(lambda: "is at 95 °C" in read_text(story.notes), "the message")


def test_an_exporter_of_metrics_gets_families(story: Story) -> None:
    wait_until(lambda: 'uuid="ACME-card0"' in read_text(story.metrics), "the metrics")


def test_the_callback_of_a_plugin_logs(story: Story) -> None:
    wait_until(lambda: any("loss" in row for row in story.rows_of("training_metrics")), "a line")


@pytest.mark.promise("a broken exporter plugin", "an event; nothing else fails")
def test_a_broken_exporter_is_an_event_of_the_run_and_hurts_nothing(story: Story) -> None:
    def troubles() -> str:
        return "\n".join(row["message"] for row in story.rows_of("events") if row["event"] == "exporter_trouble")

    for text in ("exporter raising_rows failed", "cannot start exporter raising_metrics", "'missing'"):
        wait_until(lambda text=text: text in troubles(), text)  # type: ignore[misc]
    assert troubles().count("raising_rows") == 1
    assert story.training.poll() is None


def test_broken_plugins_are_logged_once_by_the_agent(story: Story) -> None:
    def disabled() -> list[str]:
        log = read_lines(story.machine.folder / "runtime/agent.log")
        return [row["name"] for row in log if row["message"] == "plugin disabled"]

    wait_until(lambda: len(disabled()) >= 5, "the plugins that are disabled")
    assert sorted(disabled()) == ["astray", "broken_rule", "nvidia", "wide_rule", "wrong"]


def test_what_a_source_gives_and_nobody_can_write_is_its_own_trouble(story: Story) -> None:
    def is_told() -> bool:
        troubles = [row["message"] for row in story.rows_of("events") if row["event"] == "source_trouble"]
        return any(text.startswith("garbled:0: TypeError") for text in troubles)

    def samples() -> dict[str, Any]:
        found = json.loads((story.machine.folder / "runtime/latest.json").read_text())["samples"]
        return dict(found) if {"acme:ACME-card0", "acme:ACME-card1"} <= set(found) else {}

    wait_until(is_told, "the trouble")
    assert "garbled-0" not in json.dumps(wait_until(samples, "the cards"))


def test_a_broken_channel_is_a_message_that_was_not_sent(story: Story) -> None:
    wait_until(lambda: "plugin failed to load" in json.dumps(story.rows_of("alerts")), "the reason")


def test_an_exporter_of_rows_gets_every_row_in_order_and_the_end(finished: Story) -> None:
    first, *rows, last = read_lines(finished.rows)
    assert first == {"open": finished.folder.name, "project": "p"}
    assert last == {"close": "finished"}
    steps = [row["step"] for row in rows if row["table"] == "training"]
    assert steps == list(range(len(steps)))
    assert len(steps) == len(finished.rows_of("training_metrics"))
    cards = [row["gpu_uuid"] for row in rows if row["table"] == "gpu"]
    assert set(cards) == {"ACME-card0", "ACME-card1"}
    assert len(cards) == len(finished.rows_of("gpu_metrics"))


def test_after_an_agent_was_killed_the_next_one_misses_no_row(make_machine: Callable[[], Any]) -> None:
    story = Story(make_machine())

    def steps() -> list[int]:
        return [row["step"] for row in read_lines(story.rows) if row.get("table") == "training"]

    try:
        wait_until(lambda: len(steps()) > 5, "some rows")
        os.kill(story.machine.agent_pid(), signal.SIGKILL)
        before = len(story.rows_of("training_metrics"))
        wait_until(lambda: len(story.rows_of("training_metrics")) > before + 5, "rows that no agent sees")
        story.machine.python("-c", "from trainvitals import runtime; runtime.ensure_agent()")
        story.finish()
        wait_until(lambda: '{"close": "finished"}' in read_text(story.rows), "the end of the rows")
    finally:
        story.training.kill()
    assert set(steps()) == set(range(len(story.rows_of("training_metrics"))))
    assert [row["open"] for row in read_lines(story.rows) if "open" in row] == [story.folder.name] * 2


def test_the_report_shows_the_cards_and_the_panel_of_a_plugin(finished: Story) -> None:
    done = finished.machine.run("report", "latest", "--output", "report.html")
    assert done.returncode == 0, done.stderr
    packed = re.search(r'data-encoding="gzip">([^<]*)<', (finished.machine.folder / "report.html").read_text())
    assert packed is not None
    text = gzip.decompress(base64.b64decode(packed[1])).decode()
    assert "Acme Rocket" in text and "Acme spin" in text and "acme_spin_rpm" in text


def test_a_command_of_a_plugin_is_a_command(machine: Any) -> None:
    assert "acme        from acme-vitals" in machine.run("--help").stdout
    done = machine.run("acme", "--loud")
    assert (done.returncode, done.stdout) == (3, "HELLO FROM ACME\n")
    assert "in capital letters" in machine.run("acme", "--help").stdout


# -- what is broken


def test_a_broken_command_says_why_and_takes_no_name_of_ours(machine: Any) -> None:
    done = machine.run("shatter")
    assert done.returncode == 1
    assert "RuntimeError: cannot be imported" in done.stderr
    assert machine.run("runs").returncode == 0


def test_an_importer_of_another_package_imports_what_is_new(machine: Any) -> None:
    path = machine.folder / "acme.txt"
    path.write_text("1 0.5\n2 0.25\n")
    assert "2 rows  acme" in machine.run("import", "acme", str(path)).stdout
    path.write_text("1 0.5\n2 0.25\n3 nan\n")
    assert "1 of 3 rows  acme" in machine.run("import", "acme", str(path)).stdout


def test_a_broken_integration_says_why_and_takes_no_name_of_ours(machine: Any) -> None:
    done = machine.python("-c", "import trainvitals; trainvitals.BrokenCallback")
    assert "RuntimeError: cannot be imported" in done.stderr
    done = machine.python("-c", "import trainvitals; print(trainvitals.TransformersCallback.__module__)")
    assert done.stdout == "trainvitals.integrations.transformers\n"


def test_doctor_lists_every_plugin_with_its_package_version_and_state(machine: Any) -> None:
    found = [item for item in machine.findings() if item["subject"] == "plugin"]
    well = {item["text"] for item in found if item["state"] == "ok"}
    assert {text for text in well if "acme-vitals" in text} == {
        f"{row}, from acme-vitals 1.2.3"
        for row in (
            "sources: acme",
            "exporters: acme_metrics",
            "exporters: acme_rows",
            "importers: acme",
            "channels: acme",
            "integrations: AcmeCallback",
            "rules: acme_warm",
            "panels: acme_spin",
            "commands: acme",
        )
    }
    broken = {item["text"] for item in found if item["state"] == "fail"}
    for name, reason in (
        ("sources: nvidia", "the name 'nvidia' is taken by trainvitals"),
        ("sources: wrong", "the object must be a SourceRow, not a dict"),
        ("sources: astray", "unknown setting 'no_such_setting'"),
        ("exporters: aimless", "unknown setting no.such.setting"),
        ("exporters: missing", "No module named 'broken_missing'"),
        ("channels: quitting", "SystemExit: a program, not a plugin"),
        ("integrations: TransformersCallback", "is taken by trainvitals"),
        ("rules: broken_rule", "RuleError"),
        ("rules: wide_rule", "has only a live rule"),
        ("panels: loss", "is taken by trainvitals"),
        ("panels: broken_panel", "the object must be a Panel"),
        ("commands: runs", "is taken by trainvitals"),
        ("commands: shatter", "RuntimeError: cannot be imported"),
    ):
        assert any(text.startswith(f"{name}, from broken-vitals 0.0.1") and reason in text for text in broken), name


def test_doctor_says_which_names_in_export_are_no_exporters(machine: Any) -> None:
    asked = json.dumps({"acme_rows": "/x", "missing": "/x", "nothing": "/x"})
    found = machine.findings(TRAINVITALS_EXPORT=asked)
    texts = [item["text"] for item in found if item["subject"] == "export"]
    assert len(texts) == 2
    assert "No module named 'broken_missing'" in texts[0]
    assert "no installed package provides it" in texts[1]
    rows = {item["subject"]: item for item in found}["acme_rows"]
    assert (rows["state"], rows["text"]) == ("ok", "exports rows of runs to /x")


@pytest.mark.parametrize("arguments", [("-c", "import trainvitals"), ("-m", "trainvitals", "runs")])
def test_nothing_is_looked_up_where_no_plugin_is_needed(machine: Any, arguments: tuple[str, ...]) -> None:
    done = machine.python("-X", "importtime", *arguments)
    assert done.returncode == 0
    assert "importlib.metadata" not in done.stderr
    assert "acme" not in done.stderr


def test_a_training_imports_no_plugin_that_it_does_not_ask_for(machine: Any) -> None:
    script = (
        "import sys, trainvitals\n"
        "with trainvitals.init(agent=False, alerts_disable=['gpu_memory_high']) as run:\n"
        "    run.log({'loss': 1.0})\n"
        "print([name for name in sys.modules if name.startswith(('acme', 'broken'))])"
    )
    assert machine.python("-c", script, TRAINVITALS_SUMMARY="0").stdout == "[]\n"


def test_a_rule_of_a_plugin_can_be_switched_off_by_a_training(machine: Any) -> None:
    script = "import trainvitals\ntrainvitals.init(agent=False, alerts_disable=['{}']).finish()"
    assert machine.python("-c", script.format("acme_warm")).returncode == 0
    assert "unknown rule 'acme_worm'" in machine.python("-c", script.format("acme_worm")).stderr


def test_the_docs_show_the_package_that_is_tested_here() -> None:
    text = (Path(__file__).parents[2] / "docs/plugins.md").read_text()
    blocks = dict(re.findall(r"`([\w.]+)`:\n\n```\w+\n(.*?)\n```", text, re.DOTALL))
    files = {path.name: path.read_text().strip() for path in (Path(__file__).parent / "acme").glob("*.*")}
    assert blocks == files
