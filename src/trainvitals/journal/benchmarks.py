"""The benchmarks of a run: `benchmarks/<step>-<stamp>.json`, one file for each measurement."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from trainvitals import runtime
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.benchmark import Benchmark
from trainvitals.journal.encoding import dump_json, encode_line, format_time, spell_all
from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import LineWriter


def write_benchmark(folder: Path, found: Benchmark) -> Path:
    """Add one to a run folder. Raises OSError."""
    place = run_folder.make_within(folder, layout.BENCHMARKS)
    stamp = layout.next_stamp(path.stem.partition("-")[2] for path in place.glob("*.json"))
    path = place / f"{found.step or 0:09d}-{stamp}.json"
    runtime.write_atomically(path, dump_json(spell_all(found.as_json())), run_folder.file_rights(folder))
    return path


def write_rows(folder: Path, found: Benchmark) -> None:
    """The median of each round as rows of metrics, `latency_ms/int8-ort/b8/t1` with the round as its step, so that
    charts and exports of runs show them. Raises OSError."""
    writer = LineWriter(folder, FileName("training", 1, ""), mode=run_folder.file_rights(folder))
    ranked = [row for row in found.results if row.rounds]
    for number in range(max((len(row.rounds) for row in ranked), default=0)):
        values = {
            f"latency_ms/{row.name}": median(row.rounds[number])
            for row in ranked
            if number < len(row.rounds) and row.rounds[number]
        }
        writer.append(encode_line({"timestamp": format_time(digits=3), "step": number, **values}))
    writer.close()


def list_benchmarks(folder: Path) -> list[Path]:
    """Their files, by step and time."""
    return sorted((folder / layout.BENCHMARKS).glob("*.json"))


def read_benchmarks(folder: Path) -> list[Benchmark]:
    """By step and time; a file that cannot be read is left out."""
    found = (runtime.read_json(path) for path in list_benchmarks(folder))
    return [Benchmark.parse(item) for item in found if item is not None]
