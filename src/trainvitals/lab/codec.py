"""What a reader returns, as JSON and bytes, and back. Documents bring their own JSON, and their `parse` takes anything;
the rest is here. Nothing that comes from another machine is believed to have the right type.
Tested in tests/lab/test_readers.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from trainvitals.errors import MachineError
from trainvitals.journal.contracts import MediaItem, MediaKind, Series, States, TextFile, TextPart
from trainvitals.journal.damage import Damage
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.fields import finite, is_mapping, list_of, mapping, real, text, texts, whole
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.identity import Participant
from trainvitals.journal.run_info import RunInfo
from trainvitals.lab.messages import Message

if TYPE_CHECKING:  # numpy, which a list of runs does not wait for
    from trainvitals.journal.points import Floats

Json = Mapping[str, Any]
T = TypeVar("T")


def require(value: T | None, what: str) -> T:
    """`value`; raises MachineError if there is none."""
    if value is None:
        raise MachineError(f"invalid response: {what}")
    return value


# -- a run at a glance


def dump_info(info: RunInfo) -> dict[str, Any]:
    return {
        "place": info.place,
        "id": info.id,
        "project": info.project,
        "name": info.name,
        "status": info.status,
        "cause": info.cause.as_json() if info.cause is not None else None,
        "started": info.started,
        "ended": info.ended,
        "attempt": info.attempt,
        "simulated": info.simulated,
        "file": info.file.as_json(),
    }


def load_info(data: Json, machine: str) -> RunInfo:
    """Of a run of this machine."""
    cause = mapping(data.get("cause"))
    return RunInfo(
        place=f"{machine}:{text(data.get('place')) or ''}",
        folder=None,
        id=text(data.get("id")) or "",
        project=text(data.get("project")) or "",
        name=text(data.get("name")) or "",
        status=text(data.get("status")) or "unreadable",
        cause=Cause.parse(cause) if cause is not None else None,
        started=text(data.get("started")),
        ended=text(data.get("ended")),
        attempt=whole(data.get("attempt")) or 1,
        simulated=data.get("simulated") is True,
        file=RunFile.parse(data.get("file")),
    )


# -- numbers


def dump_series(found: Iterable[Series]) -> Message:
    """The arrays one behind the other, x and y of each series."""
    import numpy as np

    arrays: list[bytes] = []
    described = []
    for series in found:
        arrays += [np.ascontiguousarray(axis, dtype="<f8").tobytes() for axis in (series.x, series.y)]
        described.append(
            {
                "name": series.name,
                "labels": dict(series.labels),
                "rank": series.rank,
                "points": len(series.x),
                "total": series.total,
                "nonfinite": series.nonfinite,
            }
        )
    return Message({"series": described}, b"".join(arrays))


def load_series(answer: Message) -> list[Series]:
    place = 0

    def take(count: int) -> Floats:
        import numpy as np

        nonlocal place
        place += 8 * count
        if count < 0 or place > len(answer.rest):
            raise MachineError("invalid response: fewer numbers than announced")
        return np.frombuffer(answer.rest, "<f8", count, place - 8 * count).astype(np.float64)

    found = []
    for item in require(list_of(mapping)(answer.json.get("series")), "series"):
        count = require(whole(item.get("points")), "points")
        found.append(
            Series(
                name=require(text(item.get("name")), "a name"),
                labels=mapping(item.get("labels")) or {},
                rank=whole(item.get("rank")),
                x=take(count),
                y=take(count),
                total=whole(item.get("total")) or count,
                nonfinite=whole(item.get("nonfinite")) or 0,
            )
        )
    return found


def dump_states(found: Iterable[States]) -> list[dict[str, Any]]:
    return [
        {"name": item.name, "labels": dict(item.labels), "rank": item.rank, "changes": list(item.changes)}
        for item in found
    ]


def load_states(data: object) -> list[States]:
    return [
        States(
            name=text(item.get("name")) or "",
            labels=mapping(item.get("labels")) or {},
            rank=whole(item.get("rank")),
            changes=_pairs(item.get("changes"), real, text),
        )
        for item in _mappings(data)
    ]


A = TypeVar("A")
B = TypeVar("B")


def _pairs(
    data: object, first: Callable[[object], A | None], second: Callable[[object], B | None]
) -> list[tuple[A, B]]:
    found = []
    for item in data if isinstance(data, list) else ():
        if isinstance(item, list) and len(item) == 2:
            one, two = first(item[0]), second(item[1])
            if one is not None and two is not None:
                found.append((one, two))
    return found


def load_steps(data: object) -> list[tuple[int, float]]:
    """Of `newest_steps`."""
    return _pairs(data, whole, real)


def load_first_steps(data: object) -> dict[int, int]:
    return dict(_pairs(data, whole, whole))


def load_extent(data: object) -> dict[str, int]:
    found = mapping(data) or {}
    return {str(stem): count for stem, count in found.items() if type(count) is int}


def load_damage(data: object) -> Damage:
    found = mapping(data) or {}
    return Damage(*(whole(found.get(name)) or 0 for name in ("torn", "foreign", "files")))


# -- names


def load_texts(data: object) -> list[str]:
    return list(texts(data) or ())


def load_objects(data: object) -> list[dict[str, Any]]:
    return [dict(item) for item in _mappings(data)]


def load_participants(data: object) -> list[Participant]:
    return [found for item in texts(data) or () if (found := Participant.parse(item)) is not None]


def _mappings(data: object) -> Sequence[Json]:
    return list_of(mapping)(data) or ()


# -- texts and media


def load_text_files(data: object) -> list[TextFile]:
    return [
        TextFile(text(item.get("name")) or "", whole(item.get("size")) or 0, finite(item.get("modified")) or 0.0)
        for item in _mappings(data)
    ]


def load_text_part(data: object) -> TextPart:
    found = data if is_mapping(data) else {}
    return TextPart(
        name=text(found.get("name")) or "",
        size=whole(found.get("size")) or 0,
        start=whole(found.get("start")) or 0,
        next=whole(found.get("next")) or 0,
        cut=found.get("cut") is True,
        text=text(found.get("text")) or "",
    )


def dump_media(found: Iterable[MediaItem]) -> list[dict[str, Any]]:
    return [
        {
            "kind": item.kind,
            "name": item.name,
            "step": item.step,
            "time": item.time,
            "file": item.file,
            "participant": str(item.participant),
            "facts": dict(item.facts),
        }
        for item in found
    ]


def load_media(data: object, read: Callable[[str], bytes]) -> list[MediaItem]:
    """`read` gets the content of a file."""
    found = []
    for item in _mappings(data):
        kind, file = item.get("kind"), text(item.get("file"))
        participant = Participant.parse(text(item.get("participant")) or "")
        if kind not in get_args(MediaKind) or file is None or participant is None:
            continue
        found.append(
            MediaItem(
                kind=cast("MediaKind", kind),
                name=text(item.get("name")) or "",
                step=whole(item.get("step")),
                time=finite(item.get("time")),
                file=file,
                participant=participant,
                facts=mapping(item.get("facts")) or {},
                read=lambda file=file: read(file),  # type: ignore[misc]
            )
        )
    return found


def dump_plain(found: object) -> Any:
    """A dataclass, or a list of them."""
    return [asdict(cast("Any", item)) for item in found] if isinstance(found, list) else asdict(cast("Any", found))
