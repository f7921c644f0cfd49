"""Images and tables of MLflow's runs, which are files among their artifacts: those of `log_image`, `log_figure`,
`log_table` and `log_artifact`. Other artifacts are counted. Tested in tests/trackers/test_mlflow_store.py."""

from __future__ import annotations

import hashlib
import json
import os
import re
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals import runtime
from trainvitals.journal.media import MOST_FILE_BYTES, MOST_FILES, image_suffix
from trainvitals.plain_json import parse_json, parse_object
from trainvitals.trackers.importing import Medium, Piece

PIECE_BYTES = 64 << 20
LEFT_OUT = "artifacts"
_IMAGES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".bmp"})
_LOGGED_TABLES = "mlflow.loggedArtifacts"
_KEYED = re.compile(r"images/(.+?)[+%]step[+%](\d{1,15})[+%]timestamp[+%](\d{1,15})[+%][^/]*\.png")
"""As `log_image(key=, step=)` names a file; older clients had `%` for `+` and `#` for `~`."""
_SMALL = re.compile(r"images/.+[+%]compressed\.webp")
"""The same image again, smaller."""


class _File(NamedTuple):
    path: Path
    name: str
    size: int
    modified: int


class LocalArtifacts:
    """The artifacts of one run in a folder of this machine."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int]] = {}
        """By name, size and time of what was read."""

    def read(self, folder: Path, tags: Mapping[str, str], position: dict[str, Any]) -> Iterator[Piece]:
        """What is there and not at the position, which moves."""
        files = sorted(_list_files(folder))
        digest = hashlib.sha256(repr(files).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        before, counted = position.get("artifacts") or ["", 0]
        if not files or digest == before:
            return
        tables, left = _read_tables(tags), 0
        media, size = list[Medium](), 0
        for file in files:
            is_medium = file.path.suffix.lower() in _IMAGES or file.name in tables
            if not is_medium or file.size > MOST_FILE_BYTES:
                left += _SMALL.fullmatch(file.name) is None
                continue
            if self._known.get(file.name) == (file.size, file.modified):
                continue
            medium = _read_medium(file, is_table=file.name in tables)
            if medium is None:
                left += 1
                continue
            self._known[file.name] = (file.size, file.modified)
            media.append(medium)
            size += len(medium.data)
            if size >= PIECE_BYTES:
                yield Piece(position={**position}, media=media)
                media, size = [], 0
        position["artifacts"] = [digest, max(left, counted)]
        new = Counter({LEFT_OUT: left - counted} if left > counted else {})
        yield Piece(position={**position}, media=media, left_out=new)


def find_folder(address: object, within: Path) -> Path | None:
    """The folder that an address of artifacts means, if it is below `within`: somebody else's store may name any."""
    parts = urllib.parse.urlsplit(address) if isinstance(address, str) else None
    if parts is None or parts.scheme not in ("", "file"):
        return None
    folder = Path(urllib.parse.unquote(parts.path) if parts.scheme else str(address)).resolve()
    return folder if folder.is_relative_to(within.resolve()) else None


def _list_files(folder: Path) -> Iterator[_File]:
    """Links are not followed."""
    found = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not Path(place, name).is_symlink())
        for name in sorted(names):
            path = Path(place, name)
            try:
                status = path.lstat()
            except OSError:
                continue
            found += 1
            if found > 2 * MOST_FILES:
                return
            yield _File(path, path.relative_to(folder).as_posix(), status.st_size, status.st_mtime_ns)


def _read_tables(tags: Mapping[str, str]) -> frozenset[str]:
    try:
        found = parse_json(tags.get(_LOGGED_TABLES, "[]"))
    except ValueError:
        return frozenset()
    items = found if isinstance(found, list) else []
    return frozenset(str(item.get("path")) for item in items if isinstance(item, dict) and item.get("type") == "table")


def _read_medium(file: _File, *, is_table: bool) -> Medium | None:
    """None for what is not what its name says."""
    try:
        data = runtime.read_regular(file.path, MOST_FILE_BYTES)
    except (OSError, ValueError):
        return None
    seconds = file.modified / 1e9
    if is_table:
        try:
            table = parse_object(data)
        except ValueError:
            return None
        if not isinstance(table.get("columns"), list) or not isinstance(table.get("data"), list):
            return None
        kept = json.dumps({"columns": table["columns"], "data": table["data"]}).encode()
        return Medium("table", file.name, kept, "json", None, seconds)
    suffix = image_suffix(data)
    if suffix is None:
        return None
    keyed = _KEYED.fullmatch(file.name)
    if keyed is None:
        return Medium("image", file.name, data, suffix, None, seconds)
    key = re.sub("[~#]", "/", keyed[1])
    return Medium("image", key, data, suffix, int(keyed[2]), int(keyed[3]) / 1000)
