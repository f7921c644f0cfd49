"""`trainvitals run`: the program's terminal, signals and end are its own, and its run is written down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, wait_until

from trainvitals import runtime

PYTHON = sys.executable
TRAINVITALS = (PYTHON, "-m", "trainvitals")

# Counts a signal, leaves time for a second one to arrive, and tells the count as its exit code.
COUNT = textwrap.dedent(
    """
    import signal, sys, time
    counted = []
    signal.signal(int(sys.argv[1]), lambda number, frame: counted.append(number))
    print("ready", flush=True)
    while not counted:
        time.sleep(0.01)
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        time.sleep(0.01)
    print("counted", len(counted), flush=True)
    sys.exit(10 + len(counted))
    """
)

# All that a program can see of how it was started.
FINGERPRINT = textwrap.dedent(
    """
    import json, os, resource, signal, sys

    def is_open(number):
        try:
            os.fstat(number)
        except OSError:
            return False
        return True

    status = open("/proc/self/status").read().splitlines()
    print(json.dumps({
        "signals": [line for line in status if line.startswith(("SigBlk", "SigIgn", "SigPnd", "ShdPnd"))],
        "files": [number for number in range(256) if is_open(number)],
        "umask": [line for line in status if line.startswith("Umask")],
        "nice": os.nice(0),
        "cwd": os.getcwd(),
        "group_leader_is_parent_or_self": os.getpgrp() in (os.getpid(), os.getppid()),
        "session": os.getsid(0),
        "limits": [resource.getrlimit(number) for number in range(16)],
        "arguments": sys.argv,
        "terminals": [os.isatty(number) for number in range(3)],
    }))
    """
)


@pytest.mark.parametrize("code", [0, 1, 3, 255])
@pytest.mark.promise("a program ends in any way", "`run` ends with its exit code")
def test_the_exit_code_is_that_of_the_program(machine: Any, code: int) -> None:
    done = machine.run("run", "--", "sh", "-c", f"exit {code}")
    assert done.returncode == code
    _, run = machine.only_run()
    assert run["exit_code"] == code
    assert run["status"] == ("finished" if code == 0 else "failed")


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, "killed"),
        (signal.SIGKILL, "killed"),
        (signal.SIGSEGV, "crashed"),
        (signal.SIGABRT, "crashed"),
    ],
)
def test_a_program_killed_by_a_signal_is_followed_into_that_death(machine: Any, number: int, status: str) -> None:
    done = machine.run("run", "--", "sh", "-c", f"kill -{int(number)} $$")
    assert done.returncode == -number
    _, run = machine.only_run()
    assert (run["status"], run["signal"]) == (status, signal.Signals(number).name)


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, 40],
)
def test_a_signal_sent_to_the_wrapper_reaches_the_program_once(machine: Any, number: int) -> None:
    process = machine.start("run", "--", PYTHON, "-c", COUNT, str(int(number)))
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    output, errors = process.communicate(timeout=PATIENCE)
    assert output == "counted 1\n", errors
    assert process.returncode == 11


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_sent_to_the_whole_group_reaches_the_program_once(machine: Any, number: int) -> None:
    process = machine.start("run", "--", PYTHON, "-c", COUNT, str(int(number)))
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, number)
    output, errors = process.communicate(timeout=PATIENCE)
    assert output == "counted 1\n", errors
    assert process.returncode == 11


def test_ctrl_c_reaches_the_program_once(terminal: Callable[..., Any]) -> None:
    session = terminal([*TRAINVITALS, "run", "--", PYTHON, "-c", COUNT, str(int(signal.SIGINT))])
    session.wait_for("ready")
    session.press("\x03")
    assert session.wait() == 11
    assert "counted 1" in session.text


def test_ctrl_c_ends_a_program_that_does_not_mind_it(terminal: Callable[..., Any], machine: Any) -> None:
    program = "import signal, time; signal.signal(2, signal.SIG_DFL); print('ready', flush=True); time.sleep(600)"
    session = terminal([*TRAINVITALS, "run", "--", PYTHON, "-c", program])
    session.wait_for("ready")
    session.press("\x03")
    assert session.wait() == -signal.SIGINT
    assert machine.only_run()[1]["status"] == "killed"


def test_ctrl_z_gives_the_shell_its_terminal_back_and_fg_goes_on(terminal: Callable[..., Any]) -> None:
    session = terminal(["bash", "--norc", "-i"], PS1="prompt> ")
    program = "import time, sys; print('rea' + 'dy', flush=True); print('got ' + sys.stdin.readline())"
    session.wait_for("prompt> ")
    session.press(f'{" ".join(TRAINVITALS)} run --no-summary -- {PYTHON} -c "{program}"; echo "code $?"\n')
    session.wait_for("ready")
    session.press("\x1a")
    session.wait_for("Stopped")
    session.press("jobs\n")
    session.wait_for("Stopped", times=2)
    session.press("fg\n")
    session.wait_for("fg")
    session.press("a line\n")
    session.wait_for("got a line")
    session.press("exit\n")
    assert session.wait() == 0


def test_a_program_stopped_and_continued_in_the_background_goes_on(machine: Any) -> None:
    process = machine.start("run", "--", PYTHON, "-c", COUNT, str(int(signal.SIGTERM)))
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGSTOP)
    os.killpg(process.pid, signal.SIGCONT)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE)[0] == "counted 1\n"


def test_a_program_sees_what_it_would_see_without_the_wrapper(machine: Any) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    command = [PYTHON, "-c", FINGERPRINT, "--flag", "two words", ""]
    more: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
        "close_fds": False,
        "env": machine.environ,
        "cwd": machine.folder,
    }
    plain = subprocess.run(command, **more, check=True).stdout
    wrapped = subprocess.run([*TRAINVITALS, "run", "--", *command], **more, check=True).stdout
    os.close(reader)
    os.close(writer)
    expected = json.loads(plain)
    assert writer in expected["files"]
    expected["group_leader_is_parent_or_self"] = json.loads(wrapped)["group_leader_is_parent_or_self"]
    assert json.loads(wrapped) == expected


def test_ignored_signals_stay_ignored(machine: Any) -> None:
    def ignored(*wrapper: str) -> int:
        script = "trap '' HUP INT; exec \"$@\""
        command = ["sh", "-c", script, "sh", *wrapper, "grep", "SigIgn", "/proc/self/status"]
        done = subprocess.run(
            command, env=machine.environ, cwd=machine.folder, capture_output=True, text=True, check=True
        )
        return int(done.stdout.split()[1], 16)

    both = 1 << (signal.SIGHUP - 1) | 1 << (signal.SIGINT - 1)
    assert ignored(*TRAINVITALS, "run", "--") == ignored()
    assert ignored() & both == both


def test_standard_input_goes_through(machine: Any) -> None:
    assert machine.run("run", "--", "cat", input="one\ntwo\n").stdout == "one\ntwo\n"


def test_the_terminal_and_its_size_are_the_programs_own(terminal: Callable[..., Any]) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && echo is a terminal; stty size"
    session = terminal([*TRAINVITALS, "run", "--", "sh", "-c", script], rows=33, columns=111)
    assert session.wait() == 0
    assert "is a terminal" in session.text
    assert "33 111" in session.text


def test_a_new_window_size_reaches_the_program_once(terminal: Callable[..., Any]) -> None:
    session = terminal([*TRAINVITALS, "run", "--", PYTHON, "-c", COUNT, str(int(signal.SIGWINCH))])
    session.wait_for("ready")
    session.resize(40, 100)
    assert session.wait() == 11


@pytest.mark.promise("`kill -9` of `trainvitals run`", "the program goes on")
def test_only_the_program_is_left_when_the_wrapper_is_killed(machine: Any) -> None:
    process = machine.start("run", "--", "sleep", "600")
    wait_until(lambda: "sleep" in _names(_group_of(process.pid)), "the program")
    process.kill()
    process.wait()
    wait_until(lambda: len(_group_of(process.pid)) <= 1, "the end of the others")
    left = _names(_group_of(process.pid))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert left == ["sleep"]


def _names(pids: list[str]) -> list[str]:
    found = []
    for pid in pids:
        try:
            found.append((Path("/proc") / pid / "comm").read_text().strip())
        except OSError:
            continue
    return found


def _group_of(leader: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if fields[2] == str(leader) and fields[0] != "Z":
            found.append(path.parent.name)
    return found


def test_a_program_that_is_not_there_is_told_as_a_shell_does(machine: Any) -> None:
    done = machine.run("run", "--", "no-such-program")
    assert done.returncode == 127
    assert "program not found: 'no-such-program'" in done.stderr
    assert not machine.root.exists()


@pytest.mark.parametrize("typed", ["train.py", "./train.py"])
def test_a_script_without_its_interpreter_is_told_with_python(typed: str, machine: Any) -> None:
    (machine.folder / "train.py").write_text("print('hello')")
    done = machine.run("run", typed)
    assert done.returncode in (126, 127)
    assert f"trainvitals run -- python {typed}" in done.stderr and "chmod" not in done.stderr


def test_a_file_that_is_not_executable_is_told_as_a_shell_does(machine: Any) -> None:
    script = machine.folder / "train.sh"
    script.write_text("echo hello\n")
    done = machine.run("run", "--", str(script))
    assert done.returncode == 126
    assert f"chmod +x {script}" in done.stderr


def test_a_script_without_a_first_line_runs_as_in_a_shell(machine: Any) -> None:
    script = machine.folder / "train.sh"
    script.write_text('echo "hello $1"\n')
    script.chmod(0o755)
    done = machine.run("run", "--", str(script), "you")
    assert (done.returncode, done.stdout) == (0, "hello you\n")


def test_no_program_is_a_usage_error(machine: Any) -> None:
    done = machine.run("run", "--name", "x")
    assert done.returncode == 2
    assert "no program to run" in done.stderr


def test_flags_after_the_program_are_the_programs(machine: Any) -> None:
    assert machine.run("run", "echo", "--name", "x", "--", "--help").stdout == "--name x -- --help\n"


def test_a_misspelled_flag_is_an_error_before_anything_runs(machine: Any) -> None:
    done = machine.run("run", "--nmae", "x", "--", "echo", "hello")
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown flag '--nmae', did you mean '--name'?" in done.stderr


@pytest.mark.parametrize("code", [0, 7])
def test_a_run_folder_that_cannot_be_made_does_not_stop_the_program(machine: Any, code: int) -> None:
    machine.root.write_text("a file where the folder should be")
    done = machine.run("run", "--", "sh", "-c", f"echo hello; exit {code}")
    assert (done.returncode, done.stdout) == (code, "hello\n")
    assert "cannot create the run folder" in done.stderr
    assert "starting the program without" in done.stderr


def test_the_run_is_written_down(machine: Any) -> None:
    done = machine.run(
        *("run", "--project", "mnist", "--name", "First Try", "--tag", "b", "--tag", "a", "--notes", "small"),
        *("--", "sh", "-c", "true", "--token=s3cr3t-value"),
    )
    folder, run = machine.only_run()
    assert folder.parent.name == run["project"] == "mnist"
    assert "first-try" in folder.name
    assert (run["name"], run["tags"], run["notes"]) == ("First Try", ["a", "b"], "small")
    assert run["kind"] == "command"
    assert run["argv"][:3] == ["sh", "-c", "true"]
    assert "s3cr3t-value" not in (folder / "run.json").read_text()
    assert run["process"]["pid"] > 0
    assert run["attempts"][0]["status"] == "finished"
    assert run["ended"] >= run["started"]
    assert str(folder.name) in done.stderr


def test_secrets_in_name_tags_and_notes_do_not_reach_the_folder(machine: Any) -> None:
    token = "ghp_aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789"
    machine.run("run", "--name", token, "--tag", token, "--notes", f"token {token}", "--", "true")
    folder, run = machine.only_run()
    text = folder.name + "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    assert "ghp" not in text and "abcdefg" not in text.lower()
    assert run["notes"] == "token [redacted]"


@pytest.mark.promise("`run` on a full disk", "the program runs")
def test_on_a_full_disk_the_program_runs_and_the_place_and_the_flag_are_told(machine: Any, full_disk: Path) -> None:
    done = machine.run("run", "--dir", str(full_disk), "--", "sh", "-c", "echo hi; exit 3")
    assert (done.returncode, done.stdout) == (3, "hi\n")
    assert f"this run is not monitored: cannot write {full_disk}/default/" in done.stderr
    assert done.stderr.endswith(
        "run.json: No space left on device\n  choose another folder: --dir or TRAINVITALS_DIR\n"
    )


def test_without_a_runtime_folder_the_program_runs_and_the_variable_is_named(machine: Any, full_disk: Path) -> None:
    done = machine.run("run", "--", "sh", "-c", "exit 3", environ={"TRAINVITALS_RUNTIME_DIR": str(full_disk)})
    assert done.returncode == 3
    assert f"this run is not monitored: cannot write to the runtime folder {full_disk}: No space left" in done.stderr
    assert "set TRAINVITALS_RUNTIME_DIR" in done.stderr


def test_a_folder_that_cannot_be_made_is_told_with_what_to_do(machine: Any) -> None:
    done = machine.run("run", "--dir", "/proc/x", "--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    assert "cannot create the run folder /proc/x/default/" in done.stderr
    assert "--dir or TRAINVITALS_DIR" in done.stderr
    assert "starting the program without monitoring" in done.stderr


def test_a_gpu_that_is_not_there_is_said_once(watched_machine: Any) -> None:
    watched_machine.run("agent", "start", "--keep", "--simulate-gpus", "2")
    latest = watched_machine.runtime / "latest.json"
    done = watched_machine.run(
        *("run", "--gpus", "1,7", "--simulate-gpus", "2", "--"),
        *("sh", "-c", f"until grep -q '\"gpu_index\":1' {latest}; do sleep 0.05; done"),
    )
    assert done.returncode == 0
    assert done.stderr.count("no GPU 7; available: 0, 1\n") == 1


def test_further_runs_that_began_below_the_command_are_named_at_its_end(machine: Any, make_run: Any) -> None:
    make_run("stranger")
    train = f'{PYTHON} -c \'import trainvitals; trainvitals.init(name="$NAME").log({{"loss": 1.0}}, step=8)\''
    nested = f"{PYTHON} -m trainvitals run --name inner -- true"
    trainings = [train.replace("$NAME", name) for name in ("first", "second", "third")]
    trainings.insert(1, "sleep 1.1")  # the second begins in a later second than that in which the first has ended
    program = "; ".join([*trainings, nested])
    done = machine.run("run", "--name", "outer", "--", "sh", "-c", program)
    assert done.returncode == 0, done.stderr
    above = next(machine.root.glob("*/*-outer-*"))
    summary = done.stderr[done.stderr.rindex(f"{above.name}  finished") :]
    second, third, inner = (next(machine.root.glob(f"*/*-{name}-*")).name for name in ("second", "third", "inner"))
    lines = [line.strip() for line in summary.splitlines()]
    at = lines.index("nested  3 runs started inside this one")
    assert lines[at + 1].split()[:5] == [second, "finished", "last", "step", "8"]
    assert [line.split()[0] for line in lines[at + 2 : at + 4]] == [third, inner]
    assert "stranger" not in summary
    assert second in machine.run("runs", "show", above.name).stdout
    assert "below" not in machine.run("runs", "show", second).stdout


def test_the_program_is_told_which_run_it_is_in(machine: Any) -> None:
    names = ("RUN_DIR", "RUN_ID", "CORRELATION_ID", "INTERVAL", "DIR")
    script = "; ".join(f'echo "$TRAINVITALS_{name}"' for name in names) + '; echo "$TRACEPARENT"'
    done = machine.run("run", "--interval", "0.5", "--dir", "elsewhere", "--", "sh", "-c", script)
    run_dir, run_id, correlation_id, interval, root, trace = done.stdout.splitlines()
    assert Path(run_dir).parent.parent == machine.folder / "elsewhere" == Path(root)
    assert Path(run_dir).name == run_id
    assert json.loads((Path(run_dir) / "run.json").read_text())["correlation_id"] == correlation_id
    assert interval == "500ms"
    assert trace.split("-")[1] == correlation_id


def test_a_trace_that_is_given_is_kept(machine: Any) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    script = 'echo "$TRACEPARENT $TRAINVITALS_CORRELATION_ID"'
    done = machine.run("run", "--", "sh", "-c", script, environ={"TRACEPARENT": trace})
    assert done.stdout == f"{trace} 0af7651916cd43dd8448eb211c80319c\n"


TRAIN = """
import trainvitals
run = trainvitals.init(config={"lr": 0.1})
for step in range(5):
    run.log({"loss": 5.0 - step}, step=step)
"""


def test_a_training_inside_joins_the_run(machine: Any) -> None:
    done = machine.run("run", "--name", "outer", "--", PYTHON, "-c", TRAIN + "run.finish()")
    assert done.returncode == 0, done.stderr
    _, run = machine.only_run()
    assert (run["name"], run["status"], run["exit_code"]) == ("outer", "finished", 0)
    assert run["config"] == {"lr": 0.1}
    assert "last step 4" in done.stderr
    assert "loss" in done.stderr


def test_a_training_that_names_another_project_is_there_and_knows_where_it_began(machine: Any) -> None:
    begin = "import trainvitals; trainvitals.init(project='vision', agent=False).finish()"
    machine.run("run", "--", PYTHON, "-c", begin)
    _, run = machine.only_run()
    assert (run["project"], run["project_before"]) == ("vision", "default"), "a gateway may have its beginning there"


def test_an_exit_code_corrects_a_training_that_thought_it_had_finished(machine: Any) -> None:
    machine.run("run", "--", PYTHON, "-c", TRAIN + "import sys; sys.exit(3)")
    _, run = machine.only_run()
    assert (run["status"], run["cause"], run["exit_code"]) == ("failed", "exit code 3", 3)
    assert "tentative" not in run


def test_what_the_training_says_of_its_end_is_kept(machine: Any) -> None:
    machine.run("run", "--", PYTHON, "-c", TRAIN + "raise ValueError('loss exploded')")
    _, run = machine.only_run()
    assert (run["status"], run["exit_code"]) == ("failed", 1)
    assert "loss exploded" in run["cause"]


def test_no_summary_prints_nothing_of_ours(machine: Any) -> None:
    done = machine.run("run", "--no-summary", "--", "echo", "hello")
    assert (done.stdout, done.stderr) == ("hello\n", "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full", ">/dev/full 2>/dev/full"])
def test_closed_or_full_streams_do_not_change_the_end(machine: Any, closed: str) -> None:
    script = f'"$@" {closed}'
    command = ["sh", "-c", script, "sh", *TRAINVITALS, "run", "--", "sh", "-c", "exit 5"]
    done = subprocess.run(command, env=machine.environ, cwd=machine.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert machine.only_run()[1]["exit_code"] == 5


def test_without_its_witness_signals_are_still_passed_on(machine: Any) -> None:
    process = machine.start("run", "--", PYTHON, "-c", COUNT, str(int(signal.SIGTERM)))
    assert process.stdout.readline() == "ready\n"
    program = machine.only_run()[1]["process"]["pid"]
    (witness,) = {int(pid) for pid in _group_of(process.pid)} - {process.pid, program}
    os.kill(witness, signal.SIGKILL)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE)[0] == "counted 1\n"


# -- with the agent


def test_the_hardware_is_watched_while_the_program_runs(watched_machine: Any) -> None:
    process = watched_machine.start("run", "--simulate-gpus", "1", "--interval", "0.2", "--", "sleep", "600")
    wait_for_rows(watched_machine, "gpu_metrics", 3)
    wait_for_rows(watched_machine, "process_metrics", 1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGTERM
    assert "GPU 0" in errors
    assert "simulated GPUs" in errors
    folder, run = watched_machine.only_run()
    assert (run["status"], run["signal"]) == ("killed", "SIGTERM")
    # The command gives the agent a moment for this and then leaves: on a busy machine it comes later.
    wait_until(
        lambda: (runtime.read_json(folder / "status.json") or {}).get("state") == "killed", "the agent's last word"
    )
    wait_until(lambda: not list((watched_machine.runtime / "runs").glob("*.json")), "the registration to go")


def test_the_agent_says_why_a_program_was_killed(watched_machine: Any) -> None:
    process = watched_machine.start("run", "--", "sh", "-c", "echo ready; read line; kill -9 $$", stdin=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    wait_for_rows(watched_machine, "events", 2)
    process.communicate("go\n", timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: "cause" in watched_machine.only_run()[1], "the agent's last word")
    _, run = watched_machine.only_run()
    assert (run["status"], run["signal"]) == ("killed", "SIGKILL")
    assert run["cause"].startswith("killed by SIGKILL")
    assert "ended" in run


def test_an_agent_that_dies_is_started_again(watched_machine: Any) -> None:
    process = watched_machine.start("run", "--simulate-gpus", "1", "--interval", "0.2", "--", "sleep", "600")
    wait_for_rows(watched_machine, "gpu_metrics", 1)
    about = json.loads((watched_machine.runtime / "agent.json").read_text())
    os.kill(about["pid"], signal.SIGKILL)

    def status() -> dict[str, Any]:
        return json.loads(watched_machine.run("agent", "status", "--json").stdout) or {}

    wait_until(lambda: status().get("pid") not in (None, about["pid"]), "another agent")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)


def test_signals_reach_the_program_also_while_an_agent_was_started_beside_it(watched_machine: Any) -> None:
    process = watched_machine.start("run", "--", PYTHON, "-c", COUNT, str(int(signal.SIGTERM)))
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE)[0] == "counted 1\n"
    assert json.loads(watched_machine.run("agent", "status", "--json").stdout) is not None


def wait_for_rows(machine: Any, table: str, count: int) -> None:
    wait_until(
        lambda: sum(path.read_bytes().count(b"\n") for path in machine.root.glob(f"*/*/{table}_*.jsonl")) >= count,
        f"{count} lines of {table}",
    )
