"""What a training needs of its interpreter, tried with the one that runs this: see tools/try-python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAINER = """
import atexit, signal, sys, threading, time
import trainvitals

run = trainvitals.init(dir="runs", project="p", name=sys.argv[1], simulate_gpus=1, interval=0.2, summary=False)
run.event("begun", "x")
handled = 0

def handle(*_):
    global handled
    run.log({"handled": handled}, step=handled)
    handled += 1

class Late:
    def __del__(self):
        run.log({"finalized": 1.0}, step=0)

def work(number):
    for step in range(2000):
        run.log({f"thread{number}": float(step)}, step=step)

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
late = Late()
del late
for thread in threads:
    thread.join()
for step in range(500):
    run.log({"loss": 1 / (step + 1)}, step=step)
    time.sleep(0.002)
signal.setitimer(signal.ITIMER_REAL, 0)
print(run.folder, handled, flush=True)
if sys.argv[1] == "killed":
    signal.pause()
run.finish()
"""


def main() -> None:
    import trainvitals

    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"Python {sys.version.split()[0]}, {'with' if gil else 'without'} its global lock, {trainvitals.__version__}")
    with tempfile.TemporaryDirectory(prefix="trainvitals-trial-", ignore_cleanup_errors=True) as place:
        os.chdir(place)
        os.environ["TRAINVITALS_RUNTIME_DIR"] = f"{place}/runtime"
        try:
            for name in ("finished", "killed"):
                try_training(name)
            try_commands()
        finally:
            command("agent", "stop")
    print("all is well")


def try_training(name: str) -> None:
    from trainvitals.journal.reader import RunReader

    process = subprocess.Popen([sys.executable, "-W", "error", "-c", TRAINER, name], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder, handled = process.stdout.readline().split()
    if name == "killed":
        process.kill()
    assert process.wait() == (-signal.SIGKILL if name == "killed" else 0)
    rows = list(RunReader(Path(folder)).rows())
    counts = {key: sum(key in row for row in rows) for key in ("handled", "loss", "finalized")}
    counts |= {f"thread{number}": sum(f"thread{number}" in row for row in rows) for number in range(4)}
    expected = {
        "handled": int(handled),
        "loss": 500,
        "finalized": 1,
        **{f"thread{number}": 2000 for number in range(4)},
    }
    assert counts == expected, (counts, expected)
    status = Path(folder) / "status.json"
    while not status.exists() or json.loads(status.read_bytes()).get("state") not in ("finished", "killed", "crashed"):
        time.sleep(0.1)  # the agent writes how it ended
    print(f"{name}: {len(rows):,} rows of 4 threads, {handled} signals and a finalizer, none lost or doubled;", end=" ")
    print(f"the agent says {json.loads(status.read_bytes())['state']}, with samples: {any(Path(folder).glob('gpu_*'))}")


def try_commands() -> None:
    script = "import sys; sys.exit(7)"
    ended = subprocess.run(
        [sys.executable, "-m", "trainvitals", "run", "--", sys.executable, "-c", script], check=False
    )
    assert ended.returncode == 7
    for words in (
        ("runs", "--dir", "runs"),
        ("runs", "show", "finished", "--dir", "runs"),
        ("diagnose", "finished", "--dir", "runs"),
        ("analyze", "finished", "--dir", "runs"),
        ("compare", "finished", "killed", "--dir", "runs"),
        ("runs", "seal", "finished", "--dir", "runs"),
        ("runs", "check", "--dir", "runs"),
        ("export", "finished", "--dir", "runs", "--format", "csv", "-o", "rows.csv"),
        ("report", "finished", "--dir", "runs", "-o", "report.html"),
        ("doctor",),
    ):
        command(*words)
        print("trainvitals", *words)


def command(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "trainvitals", *words], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, (words, done.returncode, done.stderr)


if __name__ == "__main__":
    main()
