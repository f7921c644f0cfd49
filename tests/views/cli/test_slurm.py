"""The epilog, as slurmd would run it, with a `scontrol` and a `sacct` that answer as Slurm's do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, wait_until

from trainvitals.views.cli.slurm import is_first_node

TRAIN = """
import time, trainvitals
run = trainvitals.init()
run.log({"loss": 0.5})
print(run.folder, flush=True)
time.sleep(600)
"""
TEXT = "JobId=4711 JobName=train UserId=alice(1000) JobState={state} Reason={reason} Dependency=(null)\n"


def as_json(state: str | list[str], reason: str) -> str:
    """Of `scontrol --json`; a list from Slurm 23.02 on."""
    return json.dumps({"jobs": [{"job_state": state, "state_reason": reason}]})


class Slurm:
    """A machine in whose PATH these programs are."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.programs = machine.folder / "bin"
        self.programs.mkdir()

    def answer(self, program: str, *, json_text: str = "", text: str = "") -> None:
        """`json_text` if JSON is asked for; without either it fails, as for a job that is not known."""
        script = (
            '#!/bin/sh\nkind=text; for word in "$@"; do [ "$word" = --json ] && kind=json; done\n'
            '[ -s "$0.$kind" ] || { echo "slurm_load_jobs error" >&2; exit 1; }\ncat "$0.$kind"\n'
        )
        for name, content in ((f"{program}.json", json_text), (f"{program}.text", text), (program, script)):
            new = self.programs / "new"
            new.write_text(content)
            new.chmod(0o755)
            new.replace(self.programs / name)  # somebody may be asking

    def die(self) -> Path:
        """A training in the job is killed, and so is everything that could have said why."""
        process = subprocess.Popen(
            [sys.executable, "-c", TRAIN],
            env=self.machine.environ | {"SLURM_JOB_ID": "4711"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
        process.stdout.close()
        return folder

    def epilog(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        given = {"SLURM_JOB_ID": "4711", "SLURM_SCRIPT_CONTEXT": "epilog_slurmd", "SLURM_NODELIST": "vm"}
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        done: subprocess.CompletedProcess[str] = self.machine.run(
            "slurm", "epilog", *arguments, environ=given | environ | {"PATH": path}
        )
        return done


@pytest.fixture
def slurm(machine: Any) -> Slurm:
    return Slurm(machine)


def test_a_run_that_slurm_killed_knows_why_and_shows_it(slurm: Slurm) -> None:
    folder = slurm.die()
    slurm.machine.run("diagnose", folder.name, "--keep")
    slurm.answer("scontrol", json_text=as_json(["TIMEOUT", "COMPLETING"], "TimeLimit"))
    done = slurm.epilog()
    assert (done.returncode, done.stdout) == (0, f"{folder.name}: Slurm job 4711 reached its time limit\n")
    assert slurm.epilog().stdout == f"{folder.name}: its end is known already\n"
    listed = slurm.machine.run("runs", "slurm:4711", "status:killed").stdout
    assert "time limit" in listed
    shown = slurm.machine.run("runs", "show", folder.name).stdout
    assert "slurm     4711" in shown and "Slurm job 4711 reached its time limit" in shown
    assert "Time limit reached" in shown, "what was diagnosed before is not shown any more"
    found = json.loads(slurm.machine.run("diagnose", folder.name, "--json").stdout)
    assert "end.time_limit" in json.dumps(found)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"json_text": as_json("PREEMPTED", "None")}, "was preempted"),
        (
            {"json_text": as_json(["COMPLETING"], "OutOfMemory")},
            "ran out of memory",
        ),
        ({"json_text": "{}", "text": TEXT.format(state="NODE_FAIL", reason="NodeDown")}, "lost a node"),
        ({"text": TEXT.format(state="COMPLETING", reason="TimeLimit")}, "reached its time limit"),
        ({"text": TEXT.format(state="REQUEUED", reason="None")}, "was requeued"),
        ({"text": TEXT.format(state="COMPLETED", reason="None")}, None),
        ({}, None),
        ({"text": TEXT.format(state="FAILED", reason="NonZeroExitCode")}, None),
    ],
)
def test_every_way_in_which_scontrol_answers(slurm: Slurm, answers: dict[str, str], expected: str | None) -> None:
    folder = slurm.die()
    slurm.answer("scontrol", **answers)
    slurm.answer("sacct")
    told = slurm.epilog().stdout
    assert told == (f"{folder.name}: Slurm job 4711 {expected}\n" if expected else told)
    assert expected or "nothing to record in its runs" in told


@pytest.mark.parametrize(
    ("accounting", "after", "expected"),
    [
        ("", "CANCELLED", "was cancelled"),
        ("", "PENDING", "was requeued"),
        ("PREEMPTED\nPENDING\n", "PENDING", "was preempted"),
        ("PREEMPTED\nTIMEOUT\n", "COMPLETED", "reached its time limit"),
    ],
)
def test_what_slurm_says_only_after_the_epilog_is_waited_for(
    slurm: Slurm, accounting: str, after: str, expected: str
) -> None:
    """As Debian's Slurm 22.05 did: COMPLETING, and no more, until the epilog is over."""
    folder = slurm.die()
    slurm.answer("scontrol", text=TEXT.format(state="COMPLETING", reason="None"))
    slurm.answer("sacct")
    done = slurm.epilog()
    assert (done.returncode, done.stdout) == (0, "")
    slurm.answer("sacct", text=accounting)
    slurm.answer("scontrol", text=TEXT.format(state=after, reason="None"))
    wait_until(lambda: expected in (folder / "run.json").read_text(), f"{expected} in run.json")


def test_afterwards_anybody_may_ask_what_the_accounting_knows(slurm: Slurm) -> None:
    folder = slurm.die()
    slurm.answer("scontrol")
    slurm.answer("sacct", text="CANCELLED by 1000\n")
    done = slurm.epilog("4711", SLURM_SCRIPT_CONTEXT="", SLURM_JOB_ID="")
    assert done.stdout == f"{folder.name}: Slurm job 4711 was cancelled\n"


def test_a_run_elsewhere_is_found_by_what_it_registered(slurm: Slurm) -> None:
    folder = slurm.die()
    done = slurm.epilog("--state", "node_fail", TRAINVITALS_DIR=str(slurm.machine.folder / "other"))
    assert done.stdout == f"{folder.name}: Slurm job 4711 lost a node\n"


def test_an_epilog_never_fails_for_slurm_would_drain_the_node(slurm: Slurm) -> None:
    assert slurm.epilog(SLURM_JOB_ID="").returncode == 0
    assert slurm.epilog("--state", "TIMEOUT", TRAINVITALS_CONFIG="/nowhere.yaml").returncode == 0
    assert slurm.epilog("nonsense", SLURM_SCRIPT_CONTEXT="").returncode == 2


@pytest.mark.parametrize(
    ("node", "nodes", "expected"),
    [
        ("gpu01", "gpu[01-04]", True),
        ("gpu02", "gpu[01-04]", False),
        ("gpu3", "gpu[3,5],cpu1", True),
        ("box", "box", True),
        ("b", "a,b", False),
        ("gpu1-ib", "gpu[1-2]-ib", True),
        ("", "gpu[1-2]", True),
    ],
)
def test_only_the_first_node_of_a_job_asks(node: str, nodes: str, expected: bool) -> None:
    environ = {"SLURMD_NODENAME": node, "SLURM_JOB_NODELIST": nodes, "SLURM_SCRIPT_CONTEXT": "epilog_slurmd"}
    assert is_first_node(environ) is expected
    assert is_first_node(environ | {"SLURM_SCRIPT_CONTEXT": "epilog_slurmctld"})


def test_as_root_it_becomes_the_user_of_the_job() -> None:
    user = 65_534 if os.geteuid() == 0 else os.geteuid()
    program = (
        "import os; from trainvitals.views.cli.slurm import become_user\n"
        f"become_user({{'SLURM_JOB_UID': '{user}', 'SLURM_JOB_GID': '{user}', 'SLURM_JOB_WORK_DIR': '/'}})\n"
        "print(os.getuid(), os.geteuid(), 0 in os.getgroups(), os.getcwd())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(user), str(user), "False", "/"]
