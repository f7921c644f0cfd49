"""What shipping a run to a gateway costs the agent: beside one that does not ship, in alternating rounds, and when much
lies behind.

    python benchmarks/shipping.py [--seconds 20] [--rounds 3]

The gateway is tests/honest_gateway.py, in another process, over TLS; it only writes files. What it takes is not in
these figures.
"""

from __future__ import annotations

import apart  # isort: skip  # noqa: F401

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import trustme
from table import Table, machine

TESTS = Path(__file__).parent.parent / "tests"
TRAINING = """
import sys, time, trainvitals
with trainvitals.init(capture_git=False, simulate_gpus=8) as run:
    step, end = 0, time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        time.sleep(0.02)
        run.log({"loss": 1 / (step + 1), "learning_rate": 1e-3, "gradient_norm": 1.0}, step=step)
        step += 1
"""
GATEWAY = """
import ssl, sys, threading
from pathlib import Path
from honest_gateway import HonestGateway
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2])
gateway = HonestGateway(Path(sys.argv[1]), context=context)
gateway.requests = type("Nothing", (list,), {"append": lambda self, item: None})()
print(gateway.address, flush=True)
threading.Event().wait()
"""
SETTLING = 5.0


def start_gateway(place: Path) -> tuple[subprocess.Popen[str], dict[str, str]]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(place / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(place / "gateway.pem")
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", GATEWAY, str(place / "copies"), str(place / "gateway.pem")]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    return process, {"TRAINVITALS_GATEWAY": address, "TRAINVITALS_GATEWAY_CA": str(place / "ca.pem")}


def find_agent(runtime: Path) -> psutil.Process:
    while not (runtime / "agent.json").exists():
        time.sleep(0.1)
    return psutil.Process(json.loads((runtime / "agent.json").read_text())["pid"])


def used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def measure_live(place: Path, gateway: dict[str, str], seconds: float) -> tuple[float, float]:
    """(per cent of a core, MB resident) of an agent beside a training."""
    runtime = place / "runtime"
    env = {**os.environ, "TRAINVITALS_DIR": str(place / "runs"), "TRAINVITALS_RUNTIME_DIR": str(runtime), **gateway}
    training = subprocess.Popen([sys.executable, "-c", TRAINING, str(seconds + SETTLING + 3)], env=env)
    agent = find_agent(runtime)
    time.sleep(SETTLING)
    before, began = used(agent), time.monotonic()
    time.sleep(seconds)
    share = (used(agent) - before) / (time.monotonic() - began)
    memory = agent.memory_info().rss / (1 << 20)
    training.wait()
    agent.terminate()
    psutil.wait_procs([agent], timeout=30)
    shutil.rmtree(runtime)
    shutil.rmtree(place / "runs")
    return 100 * share, memory


def measure_backlog(place: Path, gateway: dict[str, str], megabytes: int = 100) -> tuple[float, float, float]:
    """(MB/s, seconds of processor time per GB, MB resident) of an agent with a run of which nothing was shipped."""
    import trainvitals
    from trainvitals import settings
    from trainvitals.agent.log import Log
    from trainvitals.agent.shipping import Shipping

    run = trainvitals.init(project="p", dir=place / "runs", agent=False, capture_git=False, rotate_size_mb=16)
    folder, step = Path(run.folder), 0
    while step * 110 < megabytes << 20:
        run.log({"loss": 1 / (step + 1), "learning_rate": 1e-3, "gradient_norm": 1.0 + step}, step=step)
        step += 1
    run.finish()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    given = settings.resolve(environ=gateway, folder=Path("/"))
    shipping = Shipping(run_host(folder), Log(Path(os.devnull)).bind())
    own = psutil.Process()
    before, began = used(own), time.monotonic()
    shipping.add(folder, given, {}, print, watched=False)
    while shipping.busy:
        time.sleep(0.05)
    taken = time.monotonic() - began
    return size / taken / (1 << 20), (used(own) - before) / size * (1 << 30), own.memory_info().rss / (1 << 20)


def run_host(folder: Path) -> str:
    host = json.loads((folder / "run.json").read_text())["process"]["host"]
    assert isinstance(host, str)
    return host


def bench(seconds: float, rounds: int) -> list[Table]:
    with tempfile.TemporaryDirectory() as where:
        place = Path(where)
        process, gateway = start_gateway(place)
        try:
            figures: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
            for _ in range(rounds):
                figures["without"].append(measure_live(place, {}, seconds))
                figures["with"].append(measure_live(place, gateway, seconds))
            rate, cost, memory = measure_backlog(place, gateway)
        finally:
            process.kill()
            process.wait()
    rows = []
    for name, found in figures.items():
        shares = [share for share, _ in found]
        spread = f"{min(shares):.2f} to {max(shares):.2f}"
        rows.append([f"{name} a gateway", f"{statistics.median(shares):.2f} %", spread, f"{found[-1][1]:.0f}"])
    note = f"{rounds} rounds of {seconds:g} s each, in turn; load {os.getloadavg()[1]:.1f}; {machine()}"
    return [
        Table(
            "An agent that ships, 50 steps/s and 8 simulated GPUs at 1 Hz",
            ["agent", "of one core", "from, to", "MB resident"],
            rows,
            note=note,
        ),
        Table(
            "A run of 100 MB of which nothing was shipped",
            ["MB/s", "processor seconds per GB", "MB resident"],
            [[f"{rate:.1f}", f"{cost:.1f}", f"{memory:.0f}"]],
            note=f"Three quarters of the time it rests, so that a training may have the processor. {note}",
        ),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for table in bench(arguments.seconds, arguments.rounds):
        print(table.markdown())
