"""What an agent and a gateway say to each other.

    GET  /fleet/v1/runs/<project>/<run>    how far the gateway has each file: {"files": {path: Held}}
    POST /fleet/v1/runs/<project>/<run>    more of some files, as frames; answers the same for these files
    DELETE /fleet/v1/runs/<project>/<run>  remove the run, which has ended

The gateway's answer is the only state there is, and the files are the only queue. An agent asks once and then sends
what lies behind; whatever was killed, cut or lost in between, it asks again. A frame that does not begin where the
gateway's copy ends is not taken, and the answer says where that is. So nothing is lost and nothing doubled.

A body is a sequence of frames, and may be compressed as a whole (`Content-Encoding: gzip`). A frame is a line of JSON
(`Frame`) and the bytes that it announces. What a file is decides how it is shipped:

- `lines`: complete lines of a JSONL file of the journal, from `offset` on. The gateway counts the rows itself.
- `segment`: a sealed file as Parquet. The gateway takes the rows that it does not have yet, so it does not matter how
  much of the JSONL file had been shipped when it was sealed, and makes the extremes of all of them, from which long
  charts are drawn. Side tables are not shipped.
- `bytes`: more of any other file that only grows, from `offset` on. A file that was begun anew under the same name has
  another `generation`, and begins at 0.
- `document`: a small file that is replaced as a whole, such as run.json. Its `generation` is the digest of what the
  agent takes the gateway's copy to be, empty for none: a gateway that knows of another one asks the engine, so one that
  is behind never puts an older document in the place of a newer one.

A refusal is `{"error": reason}`. With 429 and `"quota": true` it is for this run only: its project or the token has had
its share, and the agent goes on with its other runs. 410 is final: the run was removed, and is not taken again.

Tested in tests/fleet/test_wire.py.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import orjson

from trainvitals.errors import TrainvitalsError
from trainvitals.journal import layout

PREFIX = "/fleet/v1"
VERSION = 1
VERSION_HEADER = "X-Trainvitals-Fleet"
"""Sent with every request and answer; a gateway answers 426 to a version that it does not know."""

Kind = Literal["lines", "segment", "bytes", "document"]
KINDS: tuple[str, ...] = get_args(Kind)

MOST_BYTES = 32 << 20
"""Of a request, after decompression. A segment of a file of the usual size is a tenth of it."""
GOOD_BYTES = 4 << 20
"""An agent sends about so much at once."""
MOST_DOCUMENT = 8 << 20
MOVED, NOT_MOVED = b'{"moved":true}\n', b'{"moved":false}\n'
"""What moved.json says in a project: viewers do not show a run that has moved to another one."""
LONGEST_HEADER = 4096
LONGEST_PATH = 400
LONGEST_KEY = 200

_SAFE_PART = re.compile(r"[^/\\\x00-\x1f\x7f]+")
_NEVER_SHIPPED = (layout.REPORTS, "exports", "tensorboard", "wandb", layout.REMOVED_FILE)


class WireError(TrainvitalsError):
    """A request or answer that breaks the rules above."""


class TooLong(WireError):
    """A request with too many bytes: the same in parts may pass."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """Some bytes of one file."""

    path: str
    """Within the run folder, with `/`."""
    kind: Kind
    data: bytes
    offset: int = 0
    generation: str = ""
    """Of `bytes`: which file of this name it is. Of a document: the digest of the one that it replaces."""
    modified: float = 0.0
    """Of the file, in seconds since 1970, by the clock of its host."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the gateway has of one file."""

    end: int = 0
    """Bytes. Of a document or a segment: its size."""
    rows: int = 0
    """Of a file of the journal; the same however it came."""
    generation: str = ""
    digest: str = ""
    """Of a document: `digest_of` its bytes."""
    sealed: bool = False
    """Whether all rows came from a segment."""

    def as_json(self) -> dict[str, Any]:
        """Without what is not known."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in fields.items() if value}

    @classmethod
    def parse(cls, data: object) -> Self:
        """Anything that makes no sense is left out."""
        found = data if isinstance(data, Mapping) else {}
        known: dict[str, Any] = {}
        for name, default in (("end", 0), ("rows", 0), ("generation", ""), ("digest", ""), ("sealed", False)):
            value = found.get(name, default)
            known[name] = value if type(value) is type(default) and (type(value) is not int or value >= 0) else default
        return cls(**known)


def digest_of(data: bytes) -> str:
    """Tells whether a document is the one that the gateway has."""
    import hashlib

    return hashlib.blake2b(data, digest_size=16).hexdigest()


def kind_of(path: str) -> Kind | None:
    """How a file of a run folder is shipped; None: it is not."""
    parts = path.split("/")
    name = parts[-1]
    if any(part.startswith(".") for part in parts) or parts[0] in _NEVER_SHIPPED or not is_safe_path(path):
        return None
    parsed = layout.parse_name(name)
    if parsed is not None and len(parts) == 1:
        return "lines" if parsed[1] == ".jsonl" else None
    if parsed is not None and parts[:-1] == [layout.SEGMENTS]:
        return "segment" if parsed[1] == ".parquet" else None
    if name.endswith(".json"):
        return "document"
    return "bytes"


def is_safe_path(path: str) -> bool:
    """Whether it stays within the run folder, on any system."""
    parts = path.split("/")
    return (
        0 < len(path.encode("utf-8", "replace")) <= LONGEST_PATH
        and len(parts) <= 4
        and all(_SAFE_PART.fullmatch(part) is not None and part not in (".", "..") for part in parts)
    )


def check_key(what: str, text: str) -> str:
    """A project or a run as part of an address; raises WireError."""
    if (
        not 0 < len(text.encode("utf-8", "replace")) <= LONGEST_KEY
        or _SAFE_PART.fullmatch(text) is None
        or text in (".", "..")
        or (what == "run" and "~" in text)  # `project~run` is how a viewer tells two projects' runs apart
    ):
        raise WireError(f"{what} {text[:50]!r} is not a name")
    return text


def encode_frames(frames: Iterable[FileRange], *, compress: bool = True) -> bytes:
    """A body; compressed ones are sent with `Content-Encoding: gzip`."""
    pieces = []
    for frame in frames:
        header = {"path": frame.path, "kind": frame.kind, "size": len(frame.data)}
        optional = {"offset": frame.offset, "generation": frame.generation, "modified": frame.modified}
        header.update({name: value for name, value in optional.items() if value})
        pieces += [orjson.dumps(header, option=orjson.OPT_APPEND_NEWLINE), frame.data]
    body = b"".join(pieces)
    # Level 1: lines of JSON shrink to a fifth at a quarter of the time that the usual level takes.
    return gzip.compress(body, 1, mtime=0) if compress else body


def decompress(body: bytes, most: int = MOST_BYTES) -> bytes:
    """A gzip body, at most so long; raises WireError, before a longer one is in memory."""
    made = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        found = made.decompress(body, most + 1)
    except zlib.error as error:
        raise WireError(f"the body is not gzip: {error}") from error
    if len(found) > most:
        raise TooLong(f"the body is longer than {most >> 20} MB")
    if not made.eof or made.unused_data:
        raise WireError("the body is not one whole gzip stream")
    return found


def decode_frames(body: bytes) -> Iterator[FileRange]:
    """Raises WireError at the first frame that is wrong; none before it is to be used then."""
    place = 0
    while place < len(body):
        end = body.find(b"\n", place, place + LONGEST_HEADER)
        if end < 0:
            raise WireError("a frame has no header")
        try:
            header = orjson.loads(body[place:end])
        except orjson.JSONDecodeError as error:
            raise WireError(f"a frame's header is not JSON: {error}") from error
        frame, size = _parse_header(header)
        place = end + 1 + size
        if place > len(body):
            raise WireError(f"{frame['path']}: the frame is cut off")
        yield FileRange(data=body[end + 1 : place], **frame)


def _parse_header(header: object) -> tuple[dict[str, Any], int]:
    if not isinstance(header, dict):
        raise WireError("a frame's header is not an object")
    path, kind, size = header.get("path"), header.get("kind"), header.get("size")
    offset, generation = header.get("offset", 0), header.get("generation", "")
    modified = header.get("modified", 0.0)
    if not isinstance(path, str) or not is_safe_path(path):
        raise WireError(f"{str(path)[:80]!r} is not the path of a file of a run")
    if kind not in KINDS or kind_of(path) != kind:
        raise WireError(f"{path} is not shipped as {str(kind)[:20]!r}")
    if not isinstance(size, int) or not isinstance(offset, int) or not isinstance(generation, str):
        raise WireError(f"{path}: size, offset or generation is of another type")
    if not 0 <= size <= MOST_BYTES or not 0 <= offset < 1 << 62 or len(generation) > 64:
        raise WireError(f"{path}: size, offset or generation makes no sense")
    if kind in ("segment", "document") and offset:
        raise WireError(f"{path} is shipped whole")
    if kind == "document" and size > MOST_DOCUMENT:
        raise TooLong(f"{path} is larger than {MOST_DOCUMENT >> 20} MB")
    moment = float(modified) if isinstance(modified, (int, float)) and 0 <= modified < 1e11 else 0.0
    return {"path": path, "kind": kind, "offset": offset, "generation": generation, "modified": moment}, size
