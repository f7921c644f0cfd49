"""The run folder itself and its run.json.

run.json has one writer: the training (rank 0). When the training died without a word, the agent is its heir and
writes the end; a client of another tracker in the same program adds what it knows of the run, and a user edits name,
notes and tags at any time (`trainvitals.journal.edits`). Who changes what another wrote does so with `change_run`, and
who writes all of it anew with `replace_run`. What the agent knows about a live run is in its own file,
`status[.host-H].json`.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import orjson

from trainvitals import runtime
from trainvitals.errors import JournalError, RunNotFound, nearest
from trainvitals.journal import layout
from trainvitals.journal.documents import cause as causes
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.documents.status import Status
from trainvitals.journal.encoding import encode_line

Answer = TypeVar("Answer")
Key = TypeVar("Key")
Asking = Callable[[str], Answer]
"""Asked about a place."""

_STAMP = re.compile(r"\d{8}-\d{6}-")
_STAMP_LENGTH = len("20261115-223601")
LOCK_SECONDS = 2.0


def new_run_id(name: str | None, when: float | None = None) -> str:
    """Sorts by time, is readable and unique: `20261115-223601-baseline-k3f9`. `when` the run began, now by default."""
    import secrets  # with what it imports it is a tenth of the start of `trainvitals runs`, which makes no run

    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(when))
    suffix = "".join(secrets.choice("abcdefghjkmnpqrstuvwxyz23456789") for _ in range(4))
    slug = slugify(name or "run")
    return f"{stamp}-{slug}-{suffix}"


def slugify(text: str) -> str:
    """`text` as allowed in a folder name, at most 40 characters."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "run"


def project_folder(project: str) -> str:
    """A project as a folder name: its own spelling where the file system allows, never a path."""
    name = re.sub(r"[/\\:\x00-\x1f]+", "-", project).strip(". ")[:100]
    return name or "default"


def create(folder: Path, shared: bool = False) -> None:
    """Make the run folder and those above it that are missing, 0700 unless `shared`."""
    try:
        runtime.make_folders(folder, 0o777 if shared else 0o700)
    except OSError as error:
        raise JournalError(
            f"cannot create the run folder {folder}: {error.strerror or error}",
            hint="choose another folder: dir=..., --dir or TRAINVITALS_DIR",
        ) from error


def make_within(folder: Path, name: str) -> Path:
    """A folder within a run folder, for whom that one is."""
    place = folder / name
    place.mkdir(mode=folder.stat().st_mode & 0o777, exist_ok=True)
    if place.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "is a link, so nothing is written there", str(place))
    return place


def file_rights(folder: Path) -> int:
    """Rights of a file within such a folder."""
    return folder.stat().st_mode & 0o666


def open_within(folder: Path, name: str) -> int:
    """A descriptor that appends to a file within such a folder; the file is made if it is missing."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | runtime.NO_LINK
    return os.open(folder / name, flags, file_rights(folder))


def append_within(folder: Path, name: str, data: bytes) -> None:
    """Add lines to such a file. Raises OSError, also if the disk had no room for all of them."""
    descriptor = open_within(folder, name)
    try:
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / name))
    finally:
        os.close(descriptor)


def write_run(folder: Path, run: RunFile, mode: int = 0o600) -> None:
    """Replace run.json atomically."""
    plain = orjson.loads(encode_line(run.as_json()))
    data = orjson.dumps(plain, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    runtime.write_atomically(folder / layout.RUN_FILE, data, mode)


def change_run(folder: Path, change: Callable[[RunFile], RunFile | None], mode: int = 0o600) -> RunFile | None:
    """Read run.json, and replace it by what `change` makes of it, which is None if it is to stay as it is. No other
    process changes it meanwhile. Returns what was written; None if nothing was, or there is no run. Raises OSError."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        runtime.try_lock(descriptor, LOCK_SECONDS)  # who holds it for longer hangs, and nobody waits for that
        run = find_run(folder)
        changed = change(run) if run is not None else None
        if changed is not None:
            write_run(folder, changed, mode)
        return changed
    finally:
        os.close(descriptor)


def replace_run(folder: Path, run: RunFile, before: RunFile | None, mode: int = 0o600) -> None:
    """Replace run.json by `run`, whose writer last knew it as `before`: what a user has edited since then stays. Raises
    OSError."""
    known = before if before is not None else run
    if change_run(folder, lambda found: merge_description(found, known, run), mode) is None:
        write_run(folder, run, mode)  # the first time, or it was removed


def merge_description(found: RunFile, before: RunFile, run: RunFile) -> RunFile:
    """`run`, with the name, notes and tags of `found` except for what `run` has changed of `before`, and a user has
    not edited or removed."""
    tags = tuple(tag for tag in run.tags if tag not in found.untagged)
    return replace(
        run,
        name=run.name if run.name != before.name and "name" not in found.edited else found.name,
        notes=run.notes if run.notes != before.notes and "notes" not in found.edited else found.notes,
        edited=found.edited,
        untagged=found.untagged,
        tags=merge_tags(found.tags, before.tags, tags),
    )


def merge_tags(found: tuple[str, ...], before: tuple[str, ...], tags: tuple[str, ...]) -> tuple[str, ...]:
    """`found`, with those added and without those removed on the way from `before` to `tags`."""
    removed, added = set(before) - set(tags), [tag for tag in tags if tag not in before]
    return tuple(dict.fromkeys([*(tag for tag in found if tag not in removed), *added]))


def read_run(folder: Path) -> RunFile:
    """run.json as it is now; a folder without a readable one is not a run."""
    try:
        return RunFile.parse(runtime.load_json(folder / layout.RUN_FILE))
    except FileNotFoundError:
        raise RunNotFound(f"{folder} is not a run folder: it has no {layout.RUN_FILE}") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise RunNotFound(f"cannot read {folder / layout.RUN_FILE}: {why}") from None


def is_run(folder: str | Path) -> bool:
    """Whether there is a run, readable or not."""
    return (Path(folder) / layout.RUN_FILE).exists()


def find_run(folder: Path) -> RunFile | None:
    """run.json as it is now, None if there is none that can be read."""
    found = runtime.read_json(folder / layout.RUN_FILE)
    return RunFile.parse(found) if found is not None else None


def write_status(folder: Path, status: Status, host: str | None = None, mode: int = 0o600) -> None:
    """What the agent of `host` knows, replaced atomically."""
    write_status_values(folder, status.as_json(), host, mode)


def write_status_values(folder: Path, values: Mapping[str, Any], host: str | None = None, mode: int = 0o600) -> None:
    """The same of what `as_json` has made of it."""
    name = layout.status_file(layout.host_token(host) if host else None)
    runtime.write_atomically(folder / name, encode_line(values), mode)


def own_token(folder: Path, host: str) -> str | None:
    """How a host is called in the names of its files in this folder; None if it has those without a name."""
    written = runtime.read_json(folder / layout.STATUS_FILE)
    return None if written is not None and written.get("host") == host else layout.host_token(host)


def read_statuses(folder: Path) -> list[Status]:
    """What each host's agent wrote last."""
    try:
        # Asked of a thousand runs in a row, where a Path for every file takes longer than reading.
        names = sorted(name for name in os.listdir(folder) if name.startswith("status") and name.endswith(".json"))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = (runtime.read_json(folder / name) for name in names)
    return [Status.parse(status) for status in found if status is not None]


def write_findings(folder: Path, findings: FindingsFile, mode: int = 0o600) -> None:
    """Replace findings.json atomically."""
    runtime.write_atomically(folder / layout.FINDINGS_FILE, encode_line(findings.as_json()), mode)


def find_findings(folder: Path) -> FindingsFile | None:
    """The findings of an ended run; None if nobody has written them."""
    found = runtime.read_json(folder / layout.FINDINGS_FILE)
    return FindingsFile.parse(found) if found is not None else None


def read_state(folder: Path, run: RunFile | None = None) -> tuple[str, Cause | None]:
    """(status, why): the truth as far as it can be known from here.

    A run whose run.json has `running` may be dead with no agent left to write that; on the same machine that is
    checked, elsewhere the file is believed.
    """
    run = run if run is not None else read_run(folder)
    return find_state(run, lambda: read_statuses(folder))


def find_state(
    run: RunFile, read_all: Callable[[], list[Status]], *, may_be_here: bool = True
) -> tuple[str, Cause | None]:
    """The same from run.json and, where they are needed, what the agents reported. A run that came from elsewhere may
    be of another machine with the name of this one: its process is not looked for here."""
    if run.is_over:
        return run.status, run.cause
    if may_be_here and run.process.is_gone:
        return "crashed", Cause(kind=causes.GONE)
    for status in read_all():
        if status.attempt == run.attempt and status.state in ("stalled", "hung"):
            return status.state, status.cause
    return run.status, run.cause


def find(reference: str | Path, root: Path, *, by_part: bool = True) -> Path:
    """The folder of a run given as a path, a run id, the beginning of one, a name, `latest` or, with `by_part`, a part
    of an id or name that no other run has."""
    text = str(reference)
    path = Path(text)
    if (path / layout.RUN_FILE).is_file():
        return path
    ids = {folder: folder.name for folder in list_folders(root)}

    def read_names() -> dict[Path, str]:
        return {folder: run.name for folder in ids if (run := find_run(folder)) is not None}

    return choose(text, ids, read_names, str(root), by_part=by_part)


def choose(
    text: str,
    ids: Mapping[Key, str],
    read_names: Callable[[], Mapping[Key, str]],
    place: str,
    *,
    by_part: bool = True,
    shown: Mapping[Key, str] | None = None,
) -> Key:
    """The run that is meant by a text, of those with these ids, oldest first: see `find`. `shown` is how to tell them
    apart, where that is not the id."""
    if text == "latest":
        if not ids:
            raise RunNotFound(f"no runs in {place}", hint="start one: trainvitals run -- python train.py")
        return list(ids)[-1]
    by_id = [key for key, run_id in ids.items() if run_id == text]
    # An empty text, such as a variable that is not set, begins every id and means none.
    matches = by_id or [key for key, run_id in ids.items() if text and run_id.startswith(text)]
    names: Mapping[Key, str] = {}
    if not matches:
        names = read_names()
        matches = [key for key, name in names.items() if text and name == text]
        matches = matches[-1:]  # several runs may share a name: the newest is meant
    if not matches and text and by_part:
        part = text.lower()
        matches = [key for key, run_id in ids.items() if part in run_id.lower() or part in names.get(key, "").lower()]
    if len(matches) == 1:
        return matches[0]
    if matches:
        listing = ", ".join((shown or ids)[key] for key in matches[:5])
        more = ", ..." if len(matches) > 5 else ""
        raise RunNotFound(f"'{text}' matches {len(matches)} runs: {listing}{more}", hint="type more of its name or id")
    known = {name for name in names.values() if name} | {_readable_part(found) for found in ids.values()}
    known |= set(ids.values())
    raise RunNotFound(f"no run '{text}' in {place}{nearest(text, known, most=3)}", hint="list them: trainvitals runs")


def _readable_part(run_id: str) -> str:
    """`baseline` of `20261115-223601-baseline-k3f9`."""
    return run_id[_STAMP_LENGTH + 1 : -5] if _STAMP.match(run_id) else run_id


def list_folders(root: Path) -> list[Path]:
    """Every run folder below `root` (<root>/<project>/<run-id> or <root>/<run-id>), oldest first."""
    return [Path(place) for place in list_places(root)]


def list_places(
    root: Path,
    *,
    may_follow: Asking[bool] | None = None,
    find_created: Asking[str | None] | None = None,
    is_known: Asking[bool] = lambda place: False,
) -> list[str]:
    """The same as text: of ten thousand, a Path each takes longer than finding them. `may_follow` says of a link
    whether it counts, `find_created` when a run was created if that is known without reading it, and `is_known`
    whether there is a run without a look at its folder."""
    found = []
    for place in _subfolders(root, may_follow):
        if is_known(place) or has_run(place, may_follow):
            found.append(place)
        else:
            inside = _subfolders(place, may_follow)
            found.extend(inner for inner in inside if is_known(inner) or has_run(inner, may_follow))
    return _sort_by_age(found, find_created)


def name_of(place: str) -> str:
    """The last part of a path."""
    return place.rpartition(os.sep)[2]


def has_run(place: str, may_follow: Asking[bool] | None = None) -> bool:
    """Whether this folder is a run's."""
    file = f"{place}{os.sep}{layout.RUN_FILE}"
    try:
        if not stat.S_ISLNK(os.lstat(file).st_mode):
            return True
    except OSError:
        return False
    return (may_follow is None or may_follow(file)) and os.path.exists(file)  # noqa: PTH110


def _sort_by_age(places: list[str], find_created: Asking[str | None] | None) -> list[str]:
    """Oldest first. The id contains the second; run.json is read only where several ids have the same, or none."""
    names = {place: name_of(place) for place in places}
    in_one_second = Counter([name[:_STAMP_LENGTH] for name in names.values()])

    if len(in_one_second) == len(names) and all(map(_STAMP.match, names.values())):
        return sorted(names, key=names.__getitem__)

    def age(place: str) -> tuple[str, str, str]:
        name = names[place]
        stamp = name[:_STAMP_LENGTH]
        has_stamp = _STAMP.match(name) is not None
        if has_stamp and in_one_second[stamp] == 1:
            return stamp, "", name
        created = find_created(place) if find_created is not None else None
        if created is None:
            run = find_run(Path(place))
            created = (run.created if run is not None else None) or ""
        digits = re.sub(r"\D", "", created)
        if not has_stamp and digits:
            stamp = f"{digits[:8]}-{digits[8:14]}"
        return stamp, created, name

    return sorted(places, key=age)


def _subfolders(folder: str | Path, may_follow: Asking[bool] | None) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [
                entry.path
                for entry in entries
                if entry.is_dir()
                and not entry.name.startswith(".")
                and (may_follow is None or not entry.is_symlink() or may_follow(entry.path))
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
