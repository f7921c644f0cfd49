"""What `wandb.Api()` reads back: runs, their history, summary, configuration and files.

Answers have more fields than a query may ask for: clients take those that they know.
Tested in tests/trackers/intake/test_wandb.py.
"""

from __future__ import annotations

import functools
import itertools
import json
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals import runtime
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import dump_json, format_time, number, parse_time, spell_all
from trainvitals.plain_json import parse_json
from trainvitals.trackers.intake.runs import IntakeRuns
from trainvitals.trackers.intake.uploads import BadName, list_files
from trainvitals.trackers.intake.wandb_filters import find_value, holds
from trainvitals.trackers.intake.wandb_references import ENTITY, TOOL, RunReference, read_texts, refer
from trainvitals.trackers.wandb_conventions import FILES, SUMMARY

MOST_PER_PAGE = 1000
MOST_SAMPLES = 10_000
MOST_SPECS = 50
"""Lists of keys in one question: for each the run is read twice."""
MOST_OF_A_PAGE = 64 << 20
"""Characters of the rows of a range of steps, which are in memory together."""
MOST_SCANS = 8
"""Histories that are being read page by page."""
_OWN = ("timestamp", "step", "rank", "role", "attempt")

MakeUrl = Callable[[str, RunReference, str], str]


class _Found(NamedTuple):
    reference: RunReference
    folder: Path
    file: RunFile


class WandbReading:
    """Answers the operations about runs that are there. Called from several threads."""

    def __init__(self, runs: IntakeRuns, make_url: MakeUrl) -> None:
        self._runs = runs
        self._make_url = make_url
        self._lock = threading.Lock()
        self._scans: dict[tuple[str, int], Iterator[dict[str, Any]]] = {}
        """Where to go on, by run and the step at which the next page begins."""

    def read_run(self, given: Mapping[str, Any], base: str) -> Any:
        found = self._find(given)
        return _within(given, _describe(found) if found is not None else None)

    def read_runs(self, given: Mapping[str, Any], base: str) -> Any:
        reference = refer(given, run="-")
        filters = _parse(given.get("filters"))
        described = [_describe(item) for item in self._list(reference)]
        chosen = [item for item in described if holds(filters, item)]
        for key in reversed(str(given.get("order") or "-created_at").split(",")):
            chosen.sort(key=functools.partial(_rank, key.lstrip("+-")), reverse=key.startswith("-"))
        page, info = _page(chosen, given.get("cursor"), given.get("perPage"))
        edges = [{"node": item, "cursor": str(place)} for place, item in page]
        runs = {"edges": edges, "pageInfo": info, "totalCount": len(chosen)}
        return {"project": {**_describe_project(reference), "runCount": len(chosen), "runs": runs}}

    def read_projects(self, given: Mapping[str, Any], base: str) -> Any:
        entity = str(given.get("entity") or ENTITY)
        names = {RunReference(*parts) for key, _ in self._runs.list_keys(TOOL) if len(parts := key.split("/")) == 3}
        projects = sorted({item.project for item in names if item.entity == entity})
        page, info = _page(projects, given.get("cursor"), given.get("perPage"))
        edges = [{"node": _describe_project(RunReference(entity, name, "-")), "cursor": str(at)} for at, name in page]
        return {"models": {"edges": edges, "pageInfo": info}}

    def read_project(self, given: Mapping[str, Any], base: str) -> Any:
        reference = refer({**given, "project": given.get("project") or given.get("name")}, run="-")
        return {"project": _describe_project(reference) if next(self._list(reference), None) is not None else None}

    # -- history

    def read_history(self, given: Mapping[str, Any], base: str) -> Any:
        """As many rows as are asked for, evenly over the run, as lines of JSON; none of the hardware."""
        found = self._find(given)
        lines = [] if found is None else [json.dumps(row) for row in _sample(found, _whole(given.get("samples"), 500))]
        return _within(given, {"history": lines, "events": []} if found is not None else None)

    def read_sampled(self, given: Mapping[str, Any], base: str) -> Any:
        """For each list of keys: rows that have them all."""
        found = self._find(given)
        specs = [_parse(text) for text in read_texts(given.get("specs") or [given.get("spec")])]
        if len(specs) > MOST_SPECS:
            raise BadName(f"more than {MOST_SPECS} lists of keys in one request")
        sampled = [] if found is None else [list(_choose(found, spec)) for spec in specs]
        return _within(given, {"sampledHistory": spell_all(sampled)} if found is not None else None)

    def read_page(self, given: Mapping[str, Any], base: str) -> Any:
        """Rows of a range of steps. The next range goes on where this one ended, without reading the run again."""
        found = self._find(given)
        if found is None:
            return _within(given, None)
        first, end = _whole(given.get("minStep"), 0), _whole(given.get("maxStep"), 2**62)
        key = found.reference.key
        with self._lock:
            rows = self._scans.pop((key, first), None)
        if rows is None:
            rows = (row for row in _read_rows(found) if row["_step"] >= first)
        lines: list[str] = []
        size = 0
        for row in rows:
            if row["_step"] >= end:
                with self._lock:
                    self._scans[key, end] = itertools.chain([row], rows)
                    while len(self._scans) > MOST_SCANS:
                        self._scans.pop(next(iter(self._scans)))
                break
            lines.append(json.dumps(row))
            size += len(lines[-1])
            if size > MOST_OF_A_PAGE:
                raise BadName(f"more than {MOST_OF_A_PAGE >> 20} MB of rows in one page: set a smaller page_size")
        return _within(given, {"history": lines})

    def read_exports(self, given: Mapping[str, Any], base: str) -> Any:
        """Nothing is exported as Parquet: the client reads pages."""
        found = self._find({**given, "name": given.get("runName")})
        return _within(
            given, {"parquetHistory": {"parquetUrls": [], "liveData": [{"_step": 0}]}} if found is not None else None
        )

    # -- files

    def read_files(self, given: Mapping[str, Any], base: str) -> Any:
        found = self._find(given)
        if found is None:
            return _within(given, None)
        wanted = set(read_texts(given.get("fileNames")))
        files = [item for item in _list_all(found.folder) if not wanted or item[0] in wanted]
        page, info = _page(files, given.get("fileCursor"), given.get("fileLimit"))
        edges = []
        for place, (name, path) in page:
            about = path.stat()
            url = self._make_url(base, found.reference, name)
            node = {"id": name, "name": name, "url": url, "directUrl": url, "sizeBytes": about.st_size}
            node |= {"mimetype": None, "updatedAt": None, "md5": None}
            edges.append({"node": node, "cursor": str(place)})
        return _within(given, {"fileCount": len(files), "files": {"edges": edges, "pageInfo": info}})

    # -- runs

    def _find(self, given: Mapping[str, Any]) -> _Found | None:
        reference = refer(given, run=given.get("name") or given.get("run") or given.get("runName") or "-")
        folder = self._runs.find_folder(TOOL, reference.key)
        file = run_folder.find_run(folder) if folder is not None else None
        return _Found(reference, folder, file) if folder is not None and file is not None else None

    def _list(self, owner: RunReference) -> Iterator[_Found]:
        for key, folder in self._runs.list_keys(TOOL):
            parts = key.split("/")
            if tuple(parts[:2]) == owner[:2] and len(parts) == 3 and (file := run_folder.find_run(folder)) is not None:
                yield _Found(RunReference(*parts), folder, file)


def _within(given: Mapping[str, Any], run: dict[str, Any] | None) -> dict[str, Any]:
    return {"project": {**_describe_project(refer(given, run="-")), "run": run}}


def _describe_project(reference: RunReference) -> dict[str, Any]:
    return {
        "id": reference.project,
        "internalId": _make_number(reference),
        "name": reference.project,
        "entityName": reference.entity,
        "entity": {"id": reference.entity, "name": reference.entity},
        "createdAt": format_time(0.0),
        "isBenchmark": False,
        "readOnly": False,
        "user": None,
    }


def _make_number(reference: RunReference) -> str:
    """Clients want that of a project to be a number."""
    return str(zlib.crc32("/".join(reference[:2]).encode("utf-8", "replace")))


def _describe(found: _Found) -> dict[str, Any]:
    reference, folder, file = found
    config = {key: {"value": value} for key, value in (file.config or {}).items()}
    keys = {name: {"typeCounts": [{"type": "number"}]} for name in (file.origin.renamed if file.origin else ())}
    return {
        "id": reference.key,
        "projectId": _make_number(reference),
        "name": reference.run,
        "displayName": file.name or reference.run,
        "state": file.status,
        "config": dump_json(spell_all(config)).decode(),
        "summaryMetrics": _read_summary(folder),
        "systemMetrics": "{}",
        "historyKeys": {"lastStep": -1 if file.last_step is None else file.last_step, "sets": [], "keys": keys},
        "historyLineCount": file.origin.rows if file.origin is not None else 0,
        "tags": list(file.tags),
        "notes": file.notes,
        "description": file.notes,
        "group": None,
        "jobType": None,
        "commit": None,
        "readOnly": False,
        "sweepName": None,
        "createdAt": file.created,
        "heartbeatAt": file.ended or file.created,
        "user": {"name": ENTITY, "username": ENTITY},
    }


def _read_summary(folder: Path) -> str:
    try:
        return runtime.read_regular(folder / FILES / SUMMARY, 16 << 20).decode("utf-8", "replace")
    except OSError:
        return "{}"


def _read_rows(found: _Found) -> Iterator[dict[str, Any]]:
    """As W&B has them: steps that another attempt logged again are those of the last one."""
    from trainvitals.journal.reader import RunReader

    reader = RunReader(found.folder)
    firsts: dict[int, int] = {}
    for row in reader.rows("training") if found.file.attempt > 1 else ():
        attempt, step = int(row.get("attempt") or 1), int(row.get("step") or 0)
        firsts[attempt] = min(step, firsts.get(attempt, step))

    theirs = {mine: name for name, mine in (found.file.origin.renamed.items() if found.file.origin else ())}
    started = parse_time(found.file.started or found.file.created) or 0.0
    for row in reader.rows("training"):
        step, attempt = int(row.get("step") or 0), int(row.get("attempt") or 1)
        if any(step >= first for later, first in firsts.items() if later > attempt):
            continue
        moment = parse_time(row.get("timestamp")) or 0.0
        made = {"_step": step, "_timestamp": moment, "_runtime": max(moment - started, 0.0)}
        for name, value in row.items():
            if name not in _OWN:
                known = number(value)
                made[theirs.get(name, name)] = value if known is None or not isinstance(value, str) else known
        yield made


def _sample(
    found: _Found, most: int, keys: tuple[str, ...] = (), first: int = -(2**62), end: int = 2**62
) -> Iterator[dict[str, Any]]:
    """At most so many rows with all of `keys`, evenly over a range of steps: they are counted first, and never all in
    memory."""

    def read() -> Iterator[dict[str, Any]]:
        rows = (row for row in _read_rows(found) if first <= row["_step"] < end)
        return (row for row in rows if all(key in row for key in keys))

    count, most = sum(1 for _ in read()), min(max(most, 1), MOST_SAMPLES)
    chosen = {place * count // most for place in range(most)} if count > most else range(count)
    return (row for place, row in enumerate(read()) if place in chosen)


def _choose(found: _Found, spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    keys = tuple(read_texts(spec.get("keys")))
    first, end = _whole(spec.get("minStep"), -(2**62)), _whole(spec.get("maxStep"), 2**62)
    samples = _whole(spec.get("samples"), 500)
    if end - first + 1 == samples:
        end += 1  # newer clients name the last step, older ones the first that they do not want
    for row in _sample(found, samples, keys, first, end):
        yield {key: row[key] for key in keys} if keys else row


def _list_all(folder: Path) -> list[tuple[str, Path]]:
    """Files that a client has uploaded, by the name that it gave them."""
    found: list[tuple[str, Path]] = []
    for top, prefix in ((FILES, ""), (layout.MEDIA, f"{layout.MEDIA}/")):
        waiting = [folder / top]
        while waiting:
            place = waiting.pop()
            for path, is_folder, _ in list_files(place):
                if is_folder:
                    waiting.append(path)
                else:
                    found.append((prefix + path.relative_to(folder / top).as_posix(), path))
    return sorted(found)


def _parse(text: object) -> dict[str, Any]:
    """Raises BadName."""
    try:
        found = parse_json(text) if isinstance(text, str) and text else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BadName("what is asked for is not a JSON object")
    return found


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) else default


def _rank(key: str, run: Mapping[str, Any]) -> tuple[bool, float, str]:
    """For sorting by a key of W&B's, such as `created_at` or `summary_metrics.loss`."""
    value = find_value(run, key)
    amount = number(value)
    return (amount is not None, amount if amount is not None and amount == amount else 0.0, str(value))


def _page(items: list[Any], cursor: object, size: object) -> tuple[list[tuple[int, Any]], dict[str, Any]]:
    """Of a list: (place, item) behind the cursor, and what the client is told of the page."""
    first = int(cursor) + 1 if isinstance(cursor, str) and cursor.isdecimal() and len(cursor) < 12 else 0
    end = first + min(max(_whole(size, 50), 1), MOST_PER_PAGE)
    page = list(enumerate(items[first:end], first))
    info = {"endCursor": str(page[-1][0]) if page else None, "hasNextPage": end < len(items)}
    return page, {"__typename": "PageInfo", **info}
