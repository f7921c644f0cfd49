"""The metrics page: how long a scrape takes and how large it is, with and without a GPU that hangs; what scrapes cost
beside nvitop-exporter on the same fake driver, with 8 and 64 GPUs; how many series a GPU and a rank have, how large a
push of them is, and how fast remote write is to Debian's Prometheus.

    python benchmarks/exporter.py [--seconds 20]

Needs gcc (fake driver) and, for the last table, prometheus.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
from agent_cost import build, watch
from prometheus_client.metrics_core import Metric
from table import Table

from trainvitals import catalog
from trainvitals.exporters import families
from trainvitals.exporters.families import FamilyOptions, FamilySeries, MetricsSnapshot
from trainvitals.exporters.page import SharedPage
from trainvitals.exporters.push_queue import Destination, PushQueue
from trainvitals.exporters.remote_write import RemoteWrite
from trainvitals.exporters.runs import RunView
from trainvitals.exporters.server import PageServer, ServedAddress
from trainvitals.exporters.training import RankTraining
from trainvitals.exporters.write_messages import compress, convert_to_first, count_samples, decompress
from trainvitals.journal.identity import Participant
from trainvitals.newest import Thing


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_snapshot(gpus: int, runs: int, metrics: int, ranks: int = 1) -> MetricsSnapshot:
    """A machine on which everything there is to know is known, of `ranks` ranks of each run."""
    values = {row.name: 50.0 for row in catalog.GPU if row.kind != "text"} | {"state": "ok", "throttle_reasons": "none"}
    things = [
        Thing(
            "gpu", {"gpu_index": index, "gpu_uuid": f"GPU-{index:036d}", "gpu_name": "H100", "vendor": "nvidia"}, values
        )
        for index in range(gpus)
    ]
    things.append(Thing("system", {}, {row.name.replace("<N>", "0"): 1.0 for row in catalog.SYSTEM}))
    trained = []
    for number in range(runs):
        own = {f"layer/{index}/norm": 1.0 for index in range(metrics // max(runs, 1))}
        row = {item.name: 0.5 for item in catalog.TRAINING} | own
        mine = {Participant(rank=rank): RankTraining() for rank in range(ranks)}
        for training in mine.values():
            for step in range(2):
                training.take({"timestamp": f"2026-01-01T00:00:0{step}Z", **row, "step": step})
        view = RunView(f"run-{number}", Path("/"), "project", f"run-{number}", "running")
        trained.append((view, mine))
        things += [
            Thing(
                "process", {"run_id": view.run_id, "rank": rank},
                {item.name: 50.0 for item in catalog.PROCESS if item.kind != "text"},
            )
            for rank in range(ranks)
        ]  # fmt: skip
    return MetricsSnapshot("box", time.time(), tuple(things), tuple(trained))


def scrape(port: int, times: int, pause: float = 0.0) -> tuple[list[float], int]:
    """(milliseconds of each, sorted; bytes of the last), each on a connection of its own as a fresh scraper would."""
    took, size = [], 0
    for _ in range(times):
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/metrics")
        size = len(connection.getresponse().read())
        took.append((time.perf_counter() - began) * 1000)
        connection.close()
        time.sleep(pause)
    return sorted(took), size


def bench_sizes(times: int = 200) -> Table:
    rows = []
    for gpus, runs, metrics in ((8, 1, 0), (8, 8, 1000), (64, 1, 0), (64, 50, 1000)):
        snapshot = make_snapshot(gpus, runs, metrics)
        options = FamilyOptions()
        make = SharedPage(lambda s=snapshot, o=options: families.build(s, o))
        work = []
        for _ in range(times):
            began = time.process_time()
            make("")
            work.append((time.process_time() - began) * 1000)
        server = PageServer(ServedAddress(port=0), make)
        took, size = scrape(server.port, times)
        server.close()
        rows.append(
            [
                f"{gpus} GPUs, {runs} runs, {metrics} user metrics",
                f"{size / 1024:.0f} KB",
                sorted(work)[times // 2],
                took[times // 2],
                took[int(times * 0.99)],
            ]
        )
    return Table(
        "One scrape of the metrics page",
        ["what", "size", "CPU ms to make", "p50 ms", "p99 ms"],
        rows,
        goal="p99 under 20 ms with 8 GPUs",
        note="Every metric of the catalog has a value; each scrape is a connection of its own.",
    )


def bench_crowd(times: int = 20) -> Table:
    """Many scrapers in processes of their own would only fight for the two cores, so they are threads of one."""
    snapshot, options = make_snapshot(8, 1, 0), FamilyOptions()
    server = PageServer(ServedAddress(port=0), SharedPage(lambda: families.build(snapshot, options)))
    rows = []
    for clients in (1, 10, 100):
        began = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            found = list(pool.map(lambda _: scrape(server.port, times)[0], range(clients)))
        per_second = clients * times / (time.perf_counter() - began)
        took = sorted(one for many in found for one in many)
        rows.append([clients, f"{per_second:,.0f}", took[len(took) // 2], took[int(len(took) * 0.99)]])
    server.close()
    return Table(
        "Scrapers at the same time, 8 GPUs, each as fast as it can",
        ["scrapers", "scrapes/s", "p50 ms", "p99 ms"],
        rows,
        note="The scrapers run in the same process and take half of the time themselves.",
    )


@contextmanager
def machine(script: str, gpus: int = 8) -> Iterator[tuple[dict[str, str], Path]]:
    """(environment, folder) of a machine with so many fake GPUs."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        build(folder)
        (folder / "script").write_text(f"count = {gpus}\n{script}\n")
        yield (
            {
                **os.environ,
                "LD_LIBRARY_PATH": place,
                "FAKE_NVML_SCRIPT": str(folder / "script"),
                "TRAINVITALS_RUNTIME_DIR": f"{place}/runtime",
                "TRAINVITALS_DIR": f"{place}/runs",
            },
            folder,
        )


def wait_for(port: int) -> None:
    """Until somebody serves a page there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            scrape(port, 1)
            break
        except OSError:
            time.sleep(0.2)


@contextmanager
def agent(env: dict[str, str], port: int) -> Iterator[psutil.Process]:
    command = [sys.executable, "-P", "-m", "trainvitals.agent", "--keep"]
    process = subprocess.Popen(command, env={**env, "TRAINVITALS_PROMETHEUS_PORT": str(port)})
    try:
        wait_for(port)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


def bench_hang(times: int = 60) -> Table:
    """The whole agent, not only the page: one of eight GPUs takes three seconds a call."""
    rows = []
    for what, script in (
        ("8 healthy GPUs", ""),
        ("one of them hangs 3 s in every reading", "delay_us.nvmlDeviceGetPowerUsage.3 = 3000000"),
        ("one of them hangs for ever", "delay_us.nvmlDeviceGetPowerUsage.3 = 600000000"),
    ):
        with machine(script) as (env, _folder), agent(env, port := free_port()):
            time.sleep(5)
            took, _size = scrape(port, times, 0.05)
        rows.append([what, took[times // 2], took[int(times * 0.99)]])
    return Table(
        "A scrape of a living agent while a GPU hangs",
        ["what", "p50 ms", "p99 ms"],
        rows,
        goal="unaffected by a hung GPU",
    )


def watch_scraped(process: psutil.Process, port: int, seconds: float) -> tuple[float, float, float, int]:
    """(per cent of a core, MB resident, median milliseconds of a scrape, bytes of a page) at one scrape a second."""
    command = [sys.executable, __file__, "--scrape", str(port), str(int(seconds) + 10)]
    scraper = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    cpu, memory = watch(process, seconds)
    scraper.terminate()
    scraper.wait()
    took, size = scrape(port, 21, 0.1)
    return cpu, memory, took[10], size


def bench_cost(seconds: float = 20.0) -> Table:
    """The peer is measured right after the agent, on the same machine."""
    rows = []
    program = shutil.which("nvitop-exporter", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for gpus in (8, 64):
        with machine("", gpus) as (env, _folder):
            with agent(env, port := free_port()) as process:
                cpu, memory = watch(process, seconds)
                rows.append([f"{gpus} GPUs: trainvitals, nobody scrapes", f"{cpu:.2f} %", f"{memory:.0f}", "", ""])
                rows.append([f"{gpus} GPUs: trainvitals", *_describe(watch_scraped(process, port, seconds))])
            if program is None:
                rows.append(["nvitop-exporter", "not installed", "", "", ""])
                continue
            port = free_port()
            command = [program, "--bind-address", "127.0.0.1", "--port", str(port), "--interval", "1"]
            peer = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_for(port)
            figures = watch_scraped(psutil.Process(peer.pid), port, seconds)
            rows.append([f"{gpus} GPUs: nvitop-exporter", *_describe(figures)])
            peer.terminate()
            peer.wait()
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return Table(
        "The exporter at one scrape a second",
        ["what", "of one core", "MB resident", "p50 ms of a scrape", "page"],
        rows,
        note="Fake GPUs, read every second; both also read the host, the agent in more detail. "
        f"Load averages at the end: {load}.",
    )


def _describe(figures: tuple[float, float, float, int]) -> list[str]:
    cpu, memory, took, size = figures
    return [f"{cpu:.2f} %", f"{memory:.0f}", f"{took:.1f}", f"{size / 1024:.0f} KB"]


def collect_all(gpus: int, ranks: int) -> list[Metric]:
    return families.build(make_snapshot(gpus, 1, 0, ranks), FamilyOptions())


def bench_series() -> Table:
    """Of which there is one more with every GPU and every rank."""

    def count(gpus: int, ranks: int) -> int:
        samples = (sample for family in collect_all(gpus, ranks) for sample in family.samples)
        return sum(1 for sample in samples if not sample.name.endswith("_created"))

    base, step = count(8, 8), "training_step_duration_seconds"
    buckets = sum(sample.name.startswith(step) for family in collect_all(0, 1) for sample in family.samples)
    return Table(
        "Series",
        ["of", "series"],
        [
            ["the host and the agent", count(0, 0)],
            ["each GPU", count(9, 8) - base],
            ["each rank", count(8, 9) - base],
            [f"of these `{step}` (one with native histograms)", buckets],
        ],
        note="Every metric of the catalog has a value, which no real machine has. "
        "User metrics and the programs on a GPU are extra.",
    )


def bench_push_sizes() -> Table:
    rows = []
    for gpus, ranks in ((8, 8), (64, 8), (64, 64)):
        dialect = RemoteWrite({"job": "trainvitals", "instance": "box:user"})
        second = [decompress(body) or b"" for body in dialect.encode(collect_all(gpus, ranks), 1_800_000_000_000)]
        first = [convert_to_first(message) for message in second]
        sizes = [
            sum(map(len, messages)) / 1024 for messages in (first, map(compress, first), second, map(compress, second))
        ]
        series = sum(map(count_samples, second))
        rows.append([f"{gpus} GPUs, {ranks} ranks", series, *(f"{size:,.1f}" for size in sizes)])
    return Table(
        "KB of a push by remote write",
        ["what", "series", "1.0", "1.0 in snappy, as sent", "2.0", "2.0 in snappy, as sent"],
        rows,
        note="2.0 has type, unit and help of every series in it.",
    )


def bench_remote_write(samples: int = 200_000) -> Table:
    def collect() -> list[Metric]:
        series = FamilySeries("bench", "A number", ("gpu", "host"))
        for number in range(2000):
            series.add((str(number % 8), f"host-{number // 8}"))
        return [series.family]

    rows = []
    dialect = RemoteWrite()
    began = time.perf_counter()
    for turn in range(samples // 2000):
        dialect.encode(collect(), turn)
    rows.append(["families to requests of 2.0", f"{samples / (time.perf_counter() - began):,.0f}"])
    with tempfile.TemporaryDirectory() as place:
        port = free_port()
        (Path(place) / "prometheus.yml").write_text("{}\n")
        server = subprocess.Popen(
            [
                "prometheus", f"--config.file={place}/prometheus.yml", f"--storage.tsdb.path={place}/data",
                f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver", "--log.level=error",
            ]
        )  # fmt: skip
        time.sleep(4)
        url = f"http://127.0.0.1:{port}/api/v1/write"
        writer = PushQueue(RemoteWrite(), Destination(url, Path(place) / "spool"), collect, interval=3600)
        began = time.perf_counter()
        for _ in range(samples // 2000):
            writer.write_now()
        while writer.pending_bytes:
            time.sleep(0.01)
        took = time.perf_counter() - began
        rows.append(
            ["the same by 1.0, through the spool (fsync each), to Prometheus' answer", f"{samples / took:,.0f}"]
        )
        writer.close()
        server.terminate()
        server.wait()
    return Table("Remote write, 2,000 series a request", ["what", "samples/s"], rows)


def bench(seconds: float = 20.0) -> list[Table]:
    return [
        bench_sizes(), bench_crowd(), bench_hang(), bench_cost(seconds), bench_series(), bench_push_sizes(),
        bench_remote_write(),
    ]  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--scrape", nargs=2, type=int, metavar=("PORT", "TIMES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.scrape:
        scrape(*arguments.scrape, pause=1.0)
    else:
        for table in bench(arguments.seconds):
            print(table.markdown(), flush=True)
