"""Runs that somebody asked to stop."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from waiting import wait_until

from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import Origin
from trainvitals.journal.stop_requests import STOP_FILE, find_request, request_stop

if TYPE_CHECKING:
    from conftest import Machine

SAVING = """
    def save(number, frame):
        run.event("checkpoint", "saved")
        run.finish()
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("ready", flush=True)
    while True:
        run.log({"loss": 1.0})
        time.sleep(0.05)
"""


def test_a_run_that_is_asked_to_stop_gets_one_sigterm_and_may_save(machine: Machine) -> None:
    machine.start_agent()
    training = machine.train(SAVING)
    training.wait_until_ready()
    request_stop(training.folder)
    training.process.wait()
    assert training.process.returncode == 0 and training.events("checkpoint")
    assert training.wait_for_end()["status"] == "finished"
    assert "SIGTERM sent" in training.wait_for_event("stop")["message"] and len(training.events("stop")) == 1
    assert find_request(training.folder) is None, "another agent must not send it again"


def test_a_request_for_an_earlier_attempt_is_not_taken(machine: Machine) -> None:
    training = machine.train(SAVING)
    training.wait_until_ready()
    request_stop(training.folder)
    long_ago = time.time() - 1000
    os.utime(training.folder / STOP_FILE, (long_ago, long_ago))
    machine.start_agent()
    wait_until(lambda: training.status.get("summary"), "the agent")
    os.utime(training.folder / STOP_FILE)
    training.process.wait()
    training.wait_for_end()  # the agent writes the event after the signal
    assert len(training.events("stop")) == 1


def test_a_program_that_goes_on_after_its_run_has_ended_is_not_stopped(machine: Machine) -> None:
    training = machine.train('run.log({"loss": 1.0})\nrun.finish()\nprint("ready", flush=True)\ntime.sleep(600)')
    training.wait_until_ready()
    request_stop(training.folder)
    machine.start_agent()
    assert training.wait_for_end()["status"] == "finished"
    assert training.process.poll() is None and not training.events("stop")


def test_the_process_that_receives_a_run_of_another_tracker_is_never_signalled(machine: Machine) -> None:
    training = machine.train(SAVING)
    training.wait_until_ready()
    file = run_folder.read_run(training.folder)
    run_folder.write_run(training.folder, replace(file, origin=Origin(tool="wandb", place="", key="a/b/c")))
    request_stop(training.folder)
    machine.start_agent()
    assert "its client is asked" in training.wait_for_event("stop")["message"]
    assert training.process.poll() is None and find_request(training.folder) is not None
