"""With the real agent: real trainings that go wrong, a real receiver, faults of fake GPUs, an agent that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, wait_until

sys.path.insert(0, str(Path(__file__).parent))

from fake_nvml import FakeNvml
from receivers import Receiver
from stopping_programs import stop_until_stalled

from trainvitals import runtime
from trainvitals.alerts import records

TRAINING = """
import os, signal, sys, time
import trainvitals
run = trainvitals.init(project="p", summary=False)
print(run.folder, flush=True)
"""
STEPS = "for step in range(100000):\n    run.log({'loss': 1.0 / (step + 1)}, step=step)\n    time.sleep(0.02)\n"


class Place:
    """A machine of its own: an agent, a training, and somebody who is told."""

    def __init__(self, folder: Path, receiver: Receiver) -> None:
        self.folder = folder
        self.receiver = receiver
        self.config: dict[str, Any] = {"alerts": {"notify": {"hook": receiver.url}}}
        self.environment: dict[str, str] = {}
        self.processes: list[subprocess.Popen[str]] = []
        self.run = Path()

    def env(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TRAINVITALS_")}
        config = self.folder / "trainvitals.yaml"
        if not config.exists():
            config.write_text(json.dumps(self.config))
        return {
            **kept,
            **self.environment,
            "TRAINVITALS_CONFIG": str(config),
            "TRAINVITALS_RUNTIME_DIR": str(self.folder / "runtime"),
            "TRAINVITALS_DIR": str(self.folder / "runs"),
            "TRAINVITALS_AGENT": "0",
        }

    def spawn(self, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *words],
            env=self.env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def agent(self) -> subprocess.Popen[str]:
        process = self.spawn("-P", "-m", "trainvitals.agent")
        wait_until(lambda: (runtime.read_agent_file() or {}).get("pid") == process.pid, "an agent")
        return process

    def train(self, script: str) -> subprocess.Popen[str]:
        process = self.spawn("-c", TRAINING + textwrap.dedent(script))
        assert process.stdout is not None
        self.run = Path(process.stdout.readline().strip())
        return process

    def messages(self, rule: str, kind: str = "firing") -> list[dict[str, Any]]:
        return [body for body in self.receiver.bodies if (body["rule"], body["kind"]) == (rule, kind)]

    def wait_for_message(self, rule: str, kind: str = "firing") -> dict[str, Any]:
        found: list[dict[str, Any]] = wait_until(lambda: self.messages(rule, kind), f"the message {kind} of {rule}")
        return found[0]

    def rows(self) -> list[dict[str, Any]]:
        return [row.as_json() for row in records.read_rows(self.run)]

    def rank(self) -> dict[str, Any]:
        """What the agent knows of rank 0."""
        status = runtime.read_json(self.run / "status.json") or {}
        return dict(status.get("ranks", {}).get("0", {}))

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    receiver = Receiver()
    found = Place(tmp_path, receiver)
    yield found
    found.end()
    receiver.close()


def test_nan_is_told_once_with_what_to_do_and_a_killed_training_too(place: Place) -> None:
    place.environment["SLURM_JOB_ID"] = "4711"
    place.agent()
    training = place.train(
        "for step in range(60):\n"
        "    run.log({'loss': float('nan') if step == 30 else 1.0}, step=step)\n"
        "    time.sleep(0.02)\n"
        "print('ready', flush=True)\ntime.sleep(600)\n"
    )
    told = place.wait_for_message("loss_not_finite")
    assert (told["step"], told["severity"], told["run"]) == (30, "critical", place.run.name)
    assert "checkpoint" in told["advice"]
    training.kill()
    training.wait()
    died = place.wait_for_message("process_died")
    assert "SIGKILL" in died["message"]
    assert (died["job"], died["job_labels"]) == ("Slurm job 4711", {"slurm_job_id": "4711"})
    # The receiver has the message before the agent has written so.
    wait_until(
        lambda: Counter(row["result"] for row in place.rows() if "delivery" in row)["delivered"] >= 2,
        "the records",
    )
    assert len(place.messages("loss_not_finite")) == 1
    firing = next(row for row in place.rows() if (row["rule"], row.get("state")) == ("loss_not_finite", "firing"))
    assert firing["values"]["loss"] == "NaN"


def test_a_condition_in_python_sees_what_the_agent_reads_and_every_line_has_the_id_that_was_asked_for(
    place: Place,
) -> None:
    place.config |= {"simulate_gpus": 2, "interval": 0.2, "correlation_ids": True}
    place.environment["TRAINVITALS_CORRELATION_ID"] = "0af7651916cd43dd8448eb211c80319c"
    place.agent()
    place.train(
        "def warm(m):\n"  # not all readings come at once
        "    return m.gpu_temperature > 0 and m.gpu_1_temperature_celsius > 0 and m.memory_usage_percent > 0\n"
        "run.alerts.add_rule('warm', lambda m: warm(m) and m.cpu_usage_percent >= 0,\n"
        "    message='{gpu_temperature} {gpu_1_temperature_celsius} {memory_usage_percent}')\n" + STEPS
    )
    told = place.wait_for_message("warm")
    highest, second, memory = map(float, told["message"].split())
    assert highest >= second > 0 and 0 < memory <= 100
    tables = ("training", "gpu", "system")
    wait_until(lambda: all(list(place.run.glob(f"{table}_metrics_*.jsonl")) for table in tables), "lines of all kinds")
    place.end()  # nothing is half written or moved while it is read
    for table in tables:
        rows = [json.loads(line) for path in place.run.glob(f"{table}_metrics_*.jsonl") for line in path.open()]
        assert rows and {row["correlation_id"] for row in rows} == {"0af7651916cd43dd8448eb211c80319c"}


def test_a_stopped_process_is_a_stalled_training_and_recovers(place: Place) -> None:
    place.config["stall_after"] = "1s"
    place.config["alerts"]["cooldown"] = "0s"
    place.agent()
    training = place.train(STEPS)
    wait_until(lambda: (place.rank().get("step") or 0) > 5, "a few steps")
    stop_until_stalled(training, place.run)

    def of_the_stop(rule: str) -> list[dict[str, Any]]:
        # On a busy machine it may have been silent for a second before: that was another stall, and over.
        return [body for body in place.messages(rule) if "(the process is stopped" in body["message"]]

    told = wait_until(lambda: of_the_stop("training_stalled"), "the message of the stall")[-1]
    assert told["severity"] == "warning"
    assert "has logged no step for" in told["message"] and "evaluation or a checkpoint" in told["message"]
    hung = wait_until(lambda: of_the_stop("training_hung"), "the message of the hang")[-1]
    assert hung["severity"] == "critical"
    training.send_signal(signal.SIGCONT)
    place.wait_for_message("training_stalled", "resolved")
    place.wait_for_message("training_hung", "resolved")


@pytest.mark.promise("`kill -9` of the agent while an alert fires", "no message is lost or sent twice")
def test_an_agent_killed_while_firing_tells_nothing_twice_and_loses_nothing(place: Place) -> None:
    """The channel is down when it fires; the agent is killed; another agent delivers it, once."""
    place.receiver.answers = [503]
    place.config["alerts"]["disable"] = "all"  # on a busy machine others may have something to tell
    place.config["alerts"]["rules"] = [{"name": "mine", "when": "loss < 0.5", "message": "loss {loss:.3f}"}]
    agent = place.agent()
    place.train(STEPS)
    wait_until(lambda: any(row.get("result") == "failed" for row in place.rows()), "a failed delivery")
    os.killpg(agent.pid, signal.SIGKILL)  # with the child that may be about to try again
    agent.wait()
    place.receiver.settle()
    attempts = len(place.receiver.requests)
    place.receiver.answers = [200]
    place.agent()
    wait_until(lambda: any(row.get("result") == "delivered" for row in place.rows()), "delivery by the next agent")
    time.sleep(2)  # would another one come?
    delivered = place.receiver.bodies[attempts:]
    assert [body["rule"] for body in delivered] == ["mine"]
    states = [
        row["state"] for row in place.rows() if row["rule"] == "mine" and row.get("state", "pending") != "pending"
    ]
    assert states == ["firing"]


def test_what_happens_while_there_is_no_agent_is_told_by_the_next(place: Place) -> None:
    agent = place.agent()
    place.train(
        "for step in range(100000):\n"
        "    run.log({'loss': float('inf') if (run.folder / 'now').exists() else 1.0}, step=step)\n"
        "    time.sleep(0.02)\n"
    )
    wait_until(lambda: list(place.run.glob("status*.json")), "the agent's watch")
    agent.kill()
    agent.wait()
    (place.run / "now").touch()
    wait_until(
        lambda: any(b"Infinity" in path.read_bytes() for path in place.run.glob("training_metrics_*.jsonl")),
        "an infinite loss",
    )
    (place.run / "now").unlink()
    place.agent()
    assert place.wait_for_message("loss_not_finite")["message"].startswith("Loss became inf")


FAULTS = {
    "gpu_temperature_limit": ("gpu.*.temp_gpu = 60", "gpu.0.temp_gpu = 95"),
    "gpu_xid": ("", "gpu.0.xid = 48@1"),
    "gpu_lost": ("", "err.*.0 = 15"),
    "gpu_hung": ("", "delay_us.nvmlDeviceGetPowerUsage.0 = 600000000"),
}


@pytest.mark.parametrize("rule", FAULTS)
def test_a_fault_of_the_hardware_is_told(rule: str, place: Place, fake_nvml: FakeNvml) -> None:
    healthy, faulty = FAULTS[rule]
    fake_nvml.script(f"count = 2\n{healthy}")
    kept = fake_nvml.env()
    place.environment = {key: kept[key] for key in ("LD_LIBRARY_PATH", "FAKE_NVML_SCRIPT")}
    place.agent()
    place.train(STEPS)
    wait_until(lambda: list(place.run.glob("gpu_metrics_*.jsonl")), "samples of the GPUs")
    fake_nvml.script(f"count = 2\n{healthy}\n{faulty}")
    told = place.wait_for_message(rule)
    assert told["severity"] == "critical"
    assert told["alerts"][0]["labels"]["gpu_index"] == 0
    assert len(place.messages(rule)) == 1
    if rule == "gpu_xid":
        assert "48" in told["message"] and "checkpoint" in told["advice"]


def test_conditions_of_the_training_are_sent_by_the_agent(place: Place) -> None:
    place.agent()
    place.train(
        "run.alerts.add_rule(name='Target missed', condition=lambda m: m.loss < 0.1, message='Loss is {loss:.2f}')\n"
        + STEPS
    )
    assert place.wait_for_message("Target missed")["message"] == "Loss is 0.09"
    assert len(place.messages("Target missed")) == 1


def test_silence_and_acknowledgement_by_command_reach_the_agent(place: Place) -> None:
    place.config["alerts"]["rules"] = [
        {"name": "mine", "when": "loss < 0.02", "cooldown": "0s"},
        {"name": "other", "when": "loss < 0.019"},
    ]
    place.agent()
    training = place.train(
        "for step in range(100000):\n"
        "    run.log({'loss': 0.01 if (run.folder / 'now').exists() else 1.0}, step=step)\n"
        "    time.sleep(0.02)\n"
    )
    wait_until(lambda: list(place.run.glob("status*.json")), "the agent's watch")
    done = subprocess.run(
        [str(Path(sys.executable).parent / "trainvitals"), "alerts", "silence", "mine", "--for", "2h"],
        env=place.env(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "silenced until" in done.stdout, done.stderr
    wait_until(lambda: any(row.get("state") == "silenced" for row in place.rows()), "the silence in the record")
    (place.run / "now").touch()
    wait_until(
        lambda: any(row.get("state") == "firing" and row["rule"] == "mine" for row in place.rows()),
        "the alert",
    )
    place.wait_for_message("other")
    done = subprocess.run(
        [str(Path(sys.executable).parent / "trainvitals"), "alerts", "ack", "other"],
        env=place.env(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = wait_until(
        lambda: [row for row in place.rows() if row.get("state") == "acknowledged"],
        "the acknowledgement in the record",
    )
    assert found[0]["rule"] == "other" and found[0]["by"]
    training.kill()
    training.wait()
    place.wait_for_message("process_died")
    assert place.messages("mine") == []


def test_actions_stop_a_run_cleanly_and_are_recorded(place: Place) -> None:
    place.config["alerts"]["actions"] = {"loss_not_finite": ["checkpoint", "dump_stacks", "stop"]}
    place.agent()
    training = place.train(
        "saved = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: saved.append(1))\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0 if saved else 3))\n"
        "for step in range(100000):\n"
        "    run.log({'loss': float('nan') if step > 50 else 1.0}, step=step)\n"
        "    time.sleep(0.02)\n"
    )
    assert training.wait(PATIENCE) == 0

    def read_results() -> dict[str, str]:
        return {row["action"]: row["result"] for row in place.rows() if "action" in row}

    # The training may be gone before the agent has written that it sent the signal.
    wait_until(lambda: "stop" in read_results(), "the records of the actions")
    results = read_results()
    assert results["checkpoint"] == "SIGUSR1 sent"
    assert results["stop"] == "SIGTERM sent"
    assert "stacks" in results["dump_stacks"]


def test_a_checkpoint_signal_that_nobody_expects_is_not_sent(place: Place) -> None:
    place.config["alerts"]["actions"] = {"loss_not_finite": ["checkpoint"]}
    place.config["alerts"]["checkpoint_signal"] = "SIGUSR2"
    place.agent()
    training = place.train(
        "for step in range(100000):\n"
        "    run.log({'loss': float('nan') if step > 20 else 1.0}, step=step)\n"
        "    time.sleep(0.02)\n"
    )
    found = wait_until(lambda: [row for row in place.rows() if "action" in row], "the action's record")
    assert "skipped" in found[0]["result"]
    assert training.poll() is None


@pytest.mark.promise("a notification address with a password", "it is not written anywhere")
def test_no_secret_of_an_address_is_written_anywhere(place: Place) -> None:
    secret = "verysecrettokenvalue"
    place.config["alerts"]["notify"] = {
        "hook": place.receiver.url,
        "ours": f"ntfy://127.0.0.1:{place.receiver.port}/{secret}",
        "theirs": "env:PLACE_SECRET",
    }
    place.environment = {"PLACE_SECRET": f"http://127.0.0.1:{place.receiver.port}/{secret}?token={secret}"}
    place.agent()
    place.train("for step in range(100000):\n    run.log({'loss': float('nan')}, step=step)\n    time.sleep(0.02)\n")
    wait_until(lambda: sum(row.get("result") == "delivered" for row in place.rows()) >= 3, "three deliveries")
    place.end()  # what is left stays as it is while it is read
    for root in (place.folder / "runs", place.folder / "runtime"):
        for path in root.rglob("*"):
            if path.is_file():
                assert secret.encode() not in path.read_bytes(), path


def test_the_agent_imports_nothing_heavy_for_alerts(tmp_path: Path) -> None:
    script = "import sys; import trainvitals.agent.loop, trainvitals.alerts.session; print(sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    for heavy in ("'numpy'", "'apprise'", "'requests'", "'duckdb'", "'yaml'", "'resvg_py'"):
        assert heavy not in found


def test_a_run_that_its_user_interrupts_is_no_alert_and_one_that_fails_is_with_its_reason(place: Place) -> None:
    place.agent()
    interrupted = place.train(STEPS)
    wait_until(lambda: list(place.run.glob("status*.json")), "the agent's watch")
    interrupted.send_signal(signal.SIGINT)
    interrupted.wait()
    failed = place.train("run.log({'loss': 1.0}, step=1)\nraise ValueError('the data is not there')\n")
    failed.wait()
    told = place.wait_for_message("process_died")
    assert "ValueError: the data is not there" in told["message"]
    assert len(place.messages("process_died")) == 1
    assert told["run"] == place.run.name


@pytest.mark.promise(
    "a run is resumed in a folder of another user", "it is watched; nothing is sent or run", area="Other users"
)
def test_a_run_resumed_in_a_folder_of_another_user_is_watched_and_sends_nothing(place: Place) -> None:
    mark = place.folder / "ran"
    place.config["alerts"]["rules"] = [
        {"name": "mine", "when": "training.loss > 5", "actions": ["exec"], "command": f"touch {mark}"}
    ]
    place.train("run.log({'loss': 1.0}, step=0)\nrun.finish()\n").wait()
    os.chown(place.run, 12345, 12345)
    place.agent()
    resumed = place.spawn(
        "-c",
        "import time, trainvitals\n"
        f"run = trainvitals.init(resume={str(place.run)!r}, summary=False)\n"
        "for step in range(1, 100000):\n    run.log({'loss': 9.0}, step=step)\n    time.sleep(0.02)\n",
    )
    wait_until(lambda: any(row.get("result", "").startswith("given up") for row in place.rows()), "a refused message")
    wait_until(lambda: any(row.get("action") == "exec" for row in place.rows()), "a refused action")

    def read_events() -> str:
        return "".join(path.read_text() for path in place.run.glob("events_*.jsonl"))

    wait_until(lambda: "folder_not_trusted" in read_events() and "it belongs to user 12345" in read_events(), "why")
    resumed.kill()
    assert place.receiver.bodies == [] and not mark.exists()
