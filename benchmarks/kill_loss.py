"""Steps for which log() had returned and that cannot be read back after SIGKILL.

    python benchmarks/kill_loss.py [--kills 5]

A child logs in a tight loop and writes the number of each acknowledged step to a pipe; it is killed after a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import apart  # noqa: F401
from peers import PEERS
from table import Table

JUDGED = ("orjson + os.write (floor)", "trainvitals", "json, buffered file", "torch SummaryWriter", "W&B offline")


def child(peer: str, folder: Path) -> None:
    log, _ = PEERS[peer][0](folder)
    step = 0
    while True:
        log(step, {"metric_0": float(step), "metric_1": 1.0})
        os.write(1, step.to_bytes(8, "little"))
        step += 1


def count_readable(peer: str, folder: Path) -> int:
    """Steps that the tracker's own reader finds."""
    if peer == "trainvitals":
        from trainvitals.journal.reader import open_run

        series = open_run("latest", folder).series(["metric_0"])
        return len(series[0].x) if series else 0
    if peer == "torch SummaryWriter":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        events.Reload()
        return len(events.Scalars("metric_0"))
    if peer == "W&B offline":
        return count_wandb_history(next(folder.rglob("*.wandb")).read_bytes())
    name = "bare.jsonl" if peer.startswith("orjson") else "buffered.jsonl"
    count = 0
    for line in (folder / name).read_bytes().split(b"\n"):
        try:
            json.loads(line)
        except ValueError:
            continue
        count += 1
    return count


def count_wandb_history(data: bytes) -> int:
    """History records in a .wandb file: protobuf in a LevelDB log, blocks of 32 KiB, chunks with 7-byte heads."""
    count, offset, record = 0, 7, b""
    while offset + 7 <= len(data):
        if 32768 - offset % 32768 < 7:
            offset += 32768 - offset % 32768
            continue
        length, kind = int.from_bytes(data[offset + 4 : offset + 6], "little"), data[offset + 6]
        chunk = data[offset + 7 : offset + 7 + length]
        if len(chunk) < length or kind == 0:
            break
        offset += 7 + length
        record = chunk if kind in (1, 2) else record + chunk
        if kind in (1, 4):
            count += _has_field(record, 2)
    return count


def _has_field(record: bytes, wanted: int) -> bool:
    """Whether a protobuf message has the field at its top level."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = record[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(record):
        tag = varint()
        if tag >> 3 == wanted:
            return True
        if tag & 7 == 0:
            varint()
        else:
            length = {1: 8, 5: 4}.get(tag & 7) or varint()
            place += length
    return False


def log_until_killed(peer: str, folder: Path, seconds: float = 1.0) -> int:
    """Steps for which log() returned in a child that is killed so long after its first; 0 if it cannot log."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--child", peer, folder],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        env={**os.environ, "HOME": str(folder)},
    )  # fmt: skip
    assert process.stdout is not None
    acknowledged = len(process.stdout.read(8)) // 8
    end = time.monotonic() + seconds
    while acknowledged and time.monotonic() < end:
        acknowledged += len(os.read(process.stdout.fileno(), 1 << 16)) // 8
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    acknowledged += len(process.stdout.read()) // 8
    process.wait()
    return acknowledged


def bench(kills: int = 5) -> Table:
    rows, skipped = [], []
    for peer in JUDGED:
        logged = lost = 0
        for _ in range(kills):
            with tempfile.TemporaryDirectory() as place:
                acknowledged = log_until_killed(peer, Path(place))
                if not acknowledged:
                    skipped.append(peer)
                    break
                logged += acknowledged
                lost += max(0, acknowledged - count_readable(peer, Path(place)))
        else:
            rows.append([peer, f"{logged:,}", f"{lost:,}"])
    return Table(
        f"Acknowledged steps lost to SIGKILL ({kills} kills each)",
        ["tracker", "steps logged", "steps lost"],
        rows,
        goal="0 for trainvitals",
        note="; ".join(f"skipped: {peer} (not installed)" for peer in skipped),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child[0], Path(arguments.child[1]))
    else:
        print(bench(arguments.kills).markdown())
