"""Run folders made line by line, for tests that read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import duckdb

import trainvitals
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.documents.status import Status
from trainvitals.journal.encoding import encode_line, format_time, parse_time
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.reader import RunReader
from trainvitals.journal.writer import LineWriter

START = 1_800_000_000.0


def write(
    folder: Path,
    rows: Iterable[Mapping[str, Any]],
    stem: str = "training_metrics_20260101_000000",
    at: float = START,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}.jsonl"
    with open(path, "ab") as file:
        for number, row in enumerate(rows):
            file.write(encode_line({"timestamp": format_time(at + number), **row}))
    return path


def write_alike(path: Path, rows: int, text: str | None = None) -> Path:
    """A sealed file of very few bytes with so many rows that are alike: numbers, or this text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    value, words = ("1.0", "NULL") if text is None else ("NULL", f"'{text}'")
    duckdb.connect().execute(
        "COPY (SELECT 'loss' AS name, '' AS label, 0::BIGINT AS row, 1::BIGINT AS step, 1::BIGINT AS time, "
        f"{value}::DOUBLE AS value, {words}::VARCHAR AS text FROM range({rows})) TO '{path}' "
        "(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 4000000)"
    )
    return path


def make_run(folder: Path, **more: Any) -> Path:
    run_folder.create(folder)
    run_folder.write_run(
        folder,
        RunFile.parse({"id": folder.name, "project": folder.parent.name, "name": folder.name, "status": "finished",
         "started": format_time(START), "attempt": 1, **more}),
    )  # fmt: skip
    return folder


def make_timed_run(root: Path, *attempts: dict[int, float]) -> tuple[RunReader, float]:
    """A run whose steps were logged at these seconds after its start, and that start."""
    run = trainvitals.init(project="p", dir=root, agent=False)
    run.finish()
    reader = RunReader(run.folder)
    began = parse_time(reader.info.started)
    assert began is not None
    for attempt, rows in enumerate(attempts, 1):
        writer = LineWriter(Path(run.folder), FileName("training", attempt, ""))
        for step, seconds in rows.items():
            row = {"loss": 1.0, "tokens": step * 100.0, "wave": float(step % 3)}
            writer.append(encode_line({"timestamp": format_time(began + seconds), "step": step, **row}))
        writer.close()
    return reader, began


ROLES = (Participant("trainer", 0), Participant("trainer", 1), Participant("rollout", 0), Participant("rollout", 1))
HOSTS = ("node7", "node8")


def make_run_of_roles(folder: Path, steps: int = 60, **more: Any) -> Path:
    """Trainers 0 and 1 and rollouts 0 and 1, one of each on two hosts; the loss tells who logged it, and rollouts take
    longer for a step. As the trainers and the agents of both hosts write it."""
    make_run(folder, kind="training", world_size=2, last_step=steps - 1, host={"name": HOSTS[0]}, **more)
    for place, participant in enumerate(ROLES):
        slowness = 1 if participant.is_trainer else 5
        logged = ({"step": step, "loss": place + 1.0, "batch_time": 0.1 * slowness} for step in range(steps))
        write(folder, logged, f"training_metrics_20260101_000000.{participant.file_part}")
    for rank, host in enumerate(HOSTS):
        mine = [participant for participant in ROLES if participant.rank == rank]
        for participant in mine:
            measured = {"run_id": folder.name, **participant.labels, "pid": 40 + ROLES.index(participant), "host": host}
            values = {"cpu_percent": 10.0 * (1 + ROLES.index(participant)), "rss_mb": 100.0}
            write(folder, [{**measured, **values}] * 3, f"process_metrics_20260101_000000.host-{host}")
            event = {"event": "rank_started", "message": f"{participant.title} is there", "host": host}
            data = {"pid": 40 + ROLES.index(participant), "kind": "training"}
            write(folder, [{**event, **participant.labels, "data": data}], f"events_20260101_000000.host-{host}")
        ranks = {str(participant): {"pid": 40, "state": "finished", "step": steps - 1} for participant in mine}
        status = {"host": host, "attempt": 1, "state": "finished", "ranks": ranks}
        run_folder.write_status(folder, Status.parse(status), host)
    return folder
