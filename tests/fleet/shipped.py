"""A run folder, shipped through a gateway as an agent would, without one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from same_answers import START
from starlette.testclient import TestClient

from trainvitals.fleet import gateway, wire
from trainvitals.fleet.gateway import Gateway
from trainvitals.fleet.store import Store
from trainvitals.fleet.wire import FileRange, Held
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.folder import write_run
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.journal.segment_writer import seal


def address_of(project: str, run: str) -> str:
    return f"{wire.PREFIX}/runs/{project}/{run}"


def frames_of(folder: Path, held: Mapping[str, Held], chance: random.Random) -> Iterator[FileRange]:
    """What lies behind, in pieces of any size."""
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        kind = wire.kind_of(name) if path.is_file() else None
        if kind is None:
            continue
        data = path.read_bytes()
        known = held.get(name, Held())
        about: dict[str, Any] = {"path": name, "kind": kind, "modified": path.stat().st_mtime}
        if kind == "lines":
            place = known.end
            complete = data.rfind(b"\n") + 1
            while place < complete and not known.sealed:
                end = data.find(b"\n", min(place + chance.randrange(1, 200_000), complete - 1)) + 1
                yield FileRange(data=data[place:end], offset=place, **about)
                place = end
        elif kind == "bytes":
            place = known.end if known.generation == "1" else 0
            while place < len(data):
                end = place + chance.randrange(1, 100_000)
                yield FileRange(data=data[place:end], offset=place, generation="1", **about)
                place = min(end, len(data))
        elif kind == "document":
            if wire.digest_of(data) != known.digest:
                yield FileRange(data=data, generation=known.digest, **about)
        elif not known.end:
            yield FileRange(data=data, **about)


def ship(client: httpx.Client, folder: Path, *, seed: int = 1) -> None:
    """All of a run folder."""
    run = run_folder.read_run(folder)
    address = address_of(run.project or folder.parent.name, folder.name)
    held = parse(client.get(address))
    chance = random.Random(seed)
    waiting: list[FileRange] = []
    for frame in frames_of(folder, held, chance):
        waiting.append(frame)
        if chance.random() < 0.3:
            send(client, address, waiting)
            waiting = []
    send(client, address, waiting)


def send(client: httpx.Client, address: str, frames: list[FileRange]) -> dict[str, Held]:
    body = wire.encode_frames(frames)
    answer = client.post(address, content=body, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 200, answer.text
    return parse(answer)


def parse(answer: httpx.Response) -> dict[str, Held]:
    assert answer.status_code in (200, 409), answer.text
    return {path: Held.parse(found) for path, found in answer.json()["files"].items()}


def ship_all(store: Store, folders: FolderRuns) -> None:
    """Every run of a folder, in pieces of any size, through a gateway in this process."""
    with pytest.MonkeyPatch.context() as patch, TestClient(Gateway(store, None).make_app()) as client:
        patch.setattr(gateway, "GATHER_SECONDS", 0.0)  # nobody else sends
        for seed, key in enumerate(folders.list_keys()):
            ship(client, folders.folder(key), seed=seed)
            ship(client, folders.folder(key))  # nothing is left


NAMES = ("loss", "it's \\ größe", "'; DROP TABLE points; --")


def make_long_run(folder: Path) -> None:
    """Sealed and open files, two attempts of which the second logs steps again, NaN, texts, torn lines, a console."""
    folder.mkdir(parents=True)
    start = START
    chance = random.Random(5)
    run = {"format": 1, "id": folder.name, "project": "long", "name": "long", "status": "finished", "attempt": 2}
    write_run(folder, RunFile.parse({**run, "created": format_time(start), "started": format_time(start)}))
    for attempt, stamp, first, count in ((1, "20260115_120000", 0, 10_000), (1, "20260115_130000", 10_000, 3_000),
                                         (2, "20260115_140000", 11_000, 1_000)):  # fmt: skip
        name = layout.FileName("training", attempt, stamp, rank=0)
        lines = []
        for step in range(first, first + count):
            row: dict[str, Any] = {"timestamp": format_time(start + step / 10), "step": step}
            row |= {name: chance.gauss(1, 0.1) for name in NAMES}
            if step % 997 == 0:
                row["loss"] = (float("nan"), float("inf"), float("-inf"))[step % 3]
                row["phase"] = f"phase {step // 2000}"
            lines.append(encode_line(row))
        lines.insert(50, b'{"timestamp": "2026-01-15T1\n')
        lines.insert(60, b"[1, 2]\n")
        (folder / name.jsonl).write_bytes(b"".join(lines))
        if count == 10_000:
            seal(folder / name.jsonl)
    (folder / "console.rank0.log").write_bytes(b"".join(b"line %d\n" % number for number in range(20_000)))
