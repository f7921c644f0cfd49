"""Pictures, tables, texts and histograms of a run, as plain values: the page and the report show the same.
Tested in tests/views/test_media.py."""

from __future__ import annotations

import base64
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, BinaryIO, get_args

from trainvitals.analysis.wording import count_of
from trainvitals.errors import JournalError
from trainvitals.journal.contracts import MediaItem, MediaKind, Reader
from trainvitals.journal.encoding import format_time, spell_all
from trainvitals.journal.identity import Participant
from trainvitals.journal.media import image_suffix
from trainvitals.plain_json import parse_object
from trainvitals.redaction import redact, redact_text
from trainvitals.views.data.shapes import (
    MediaGroupJson,
    MediaItemJson,
    MediaJson,
    MediaTableJson,
    MediaTextJson,
    Plain,
    ReportMediaJson,
)
from trainvitals.views.data.wire import encode

KINDS: tuple[MediaKind, ...] = get_args(MediaKind)
"""In the order in which they are shown."""
IMAGE_TYPES = {"png": "image/png", "jpg": "image/jpeg", "gif": "image/gif", "webp": "image/webp", "bmp": "image/bmp"}
TABLE_BYTES = 16 << 20
TABLE_ROWS = 10_000
TEXT_CHARACTERS = 1 << 20
REPORT_BYTES = 6 << 20
"""Of all media in a report."""
REPORT_ITEM_BYTES = 2 << 20
REPORT_ROWS = 200
REPORT_ITEMS = 8
"""Of one name."""


def count_media(media: Iterable[MediaItem]) -> dict[str, int]:
    """How many of each kind there are; of histograms, how many names."""
    names = {item.name for item in media if item.kind == "histogram"}
    found = Counter(item.kind for item in media if item.kind != "histogram")
    return {kind: count for kind in KINDS if (count := len(names) if kind == "histogram" else found[kind])}


def format_media(counts: Mapping[str, int]) -> str:
    """`12 images, 1 table`."""
    return ", ".join(count_of(count, kind) for kind, count in counts.items())


# -- for the page


def describe_media(reader: Reader) -> MediaJson:
    """Everything by kind and name, with its steps but without its content."""
    groups: dict[tuple[MediaKind, str], MediaGroupJson] = {}
    for item in reader.media():
        key = (item.kind, item.name)
        group = groups.setdefault(key, {"kind": item.kind, "name": item.name, "items": []})
        if item.kind != "histogram":
            group["items"].append(_describe_item(item))
    return {"groups": sorted(groups.values(), key=lambda group: KINDS.index(group["kind"])), "left_out": 0}


def _describe_item(item: MediaItem) -> MediaItemJson:
    caption = item.facts.get("caption")
    return {
        "step": item.step,
        "time": item.time,
        "file": item.file,
        "caption": caption if isinstance(caption, str) else "",
        "owner": "" if item.participant == Participant() else item.participant.title,
    }


def find_item(reader: Reader, kind: MediaKind, file: str) -> MediaItem:
    """Looked up, so that no text of a request becomes part of a path. Raises JournalError."""
    found = next((item for item in reader.media() if item.kind == kind and item.file == file), None)
    if found is None:
        raise JournalError(f"no {kind} '{file[:100]}' in this run")
    return found


def read_image(item: MediaItem) -> tuple[bytes, str]:
    """The file and its media type, which is that of its content, whatever its name is. Raises JournalError."""
    data = item.read()
    suffix = image_suffix(data)
    if suffix is None:
        raise JournalError(f"'{item.file[:100]}' is not a PNG, JPEG, GIF, WebP or BMP file")
    return data, IMAGE_TYPES[suffix]


def read_table(item: MediaItem) -> MediaTableJson:
    """Raises JournalError."""
    data = item.read()
    if len(data) > TABLE_BYTES:
        raise JournalError(f"'{item.file[:100]}' is larger than {TABLE_BYTES >> 20} MB: too large to show")
    try:
        content = parse_object(data)
    except ValueError as error:
        raise JournalError(f"'{item.file[:100]}' is not a table: {error}") from error
    columns, rows = content.get("columns"), content.get("data")
    if not isinstance(columns, list) or not isinstance(rows, list):
        raise JournalError(f"'{item.file[:100]}' is not a table")
    total = item.facts.get("rows")
    return {
        "columns": [str(name) for name in columns],
        "rows": spell_all([row for row in rows[:TABLE_ROWS] if isinstance(row, list)]),
        "total": max(total if type(total) is int else 0, len(rows)),
    }


def read_text(item: MediaItem) -> MediaTextJson:
    """Raises JournalError."""
    text = item.read().decode("utf-8", "replace")
    return {"text": text[:TEXT_CHARACTERS], "cut": len(text) > TEXT_CHARACTERS}


# -- for a report


def collect_media(reader: Reader) -> ReportMediaJson:
    """The newest of each name with its content, as far as there is room for it in one file."""
    found: ReportMediaJson = {"groups": [], "images": {}, "tables": {}, "texts": {}, "left_out": 0}
    newest: dict[tuple[MediaKind, str], list[MediaItem]] = {}
    total = 0
    for item in reader.media():
        total += item.kind != "histogram"
        same = newest.setdefault((item.kind, item.name), [])
        if same and same[0].step != item.step:
            same.clear()
        same.append(item)
    room = REPORT_BYTES
    for kind in KINDS:
        for (of, name), items in newest.items():
            if of != kind:
                continue
            kept = []
            for item in items[:REPORT_ITEMS] if kind != "histogram" else ():
                size = _embed(item, found, min(room, REPORT_ITEM_BYTES))
                room -= size
                kept += [_describe_item(item)] if size else []
            if kept or kind == "histogram":
                found["groups"].append({"kind": kind, "name": name, "items": redact(kept)})
    found["left_out"] = total - sum(len(group["items"]) for group in found["groups"])
    return found


def _embed(item: MediaItem, report: ReportMediaJson, most: int) -> int:
    """Put the content into the report; how many bytes it takes there, 0 if it does not fit or cannot be read."""
    content: Any
    try:
        if item.kind == "image":
            data, kind = read_image(item)
            content = f"data:{kind};base64,{base64.b64encode(data).decode()}" if len(data) < most else ""
        elif item.kind == "table":
            table = read_table(item)
            content = redact({**table, "rows": table["rows"][:REPORT_ROWS]})
        else:
            text = read_text(item)
            content = {**text, "text": redact_text(text["text"])}
    except JournalError:
        return 0
    size = len(content if isinstance(content, str) else encode(content))
    if not content or size > most:
        return 0
    places: dict[str, dict[str, Any]]
    places = {"image": report["images"], "table": report["tables"], "text": report["texts"]}
    places[item.kind][item.file] = content
    return size


# -- for other programs


def write_zip(reader: Reader, file: BinaryIO) -> None:
    """All media as files, with `index.json`, which has name and step of each, and the histograms."""
    index: list[Plain] = []
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        names: set[str] = set()
        for item in reader.media():
            if item.kind == "histogram" or (path := _clean_path(item.file)) in names:
                continue
            row: Plain = {"kind": item.kind, "name": item.name, "step": item.step, "file": path, **item.facts}
            row |= {} if item.time is None else {"timestamp": format_time(item.time)}
            try:
                archive.writestr(path, item.read(), zipfile.ZIP_DEFLATED if item.kind != "image" else None)
            except JournalError as error:
                row["error"] = error.message
            names.add(path)
            index.append(row)
        for name in reader.histogram_names():
            index += [{"kind": "histogram", **row} for row in reader.histograms(name)]
        archive.writestr("index.json", encode(index), zipfile.ZIP_DEFLATED)


def _clean_path(file: str) -> str:
    """The path within an archive, which stays below the folder where it is unpacked."""
    parts = [part for part in PurePosixPath(file.replace("\\", "/")).parts if part not in ("/", "..", ".")]
    return "/".join(parts) or "file"
