"""The protocol of the W&B client: GraphQL operations, and the stream of history, system metrics and console.

Written against clients 0.17 to 0.31. What is not known is answered as an error of GraphQL, with which the client goes
on; an HTTP error of the 500s would make it try for a week. Not affiliated with Weights & Biases.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from trainvitals import runtime
from trainvitals.errors import JournalError
from trainvitals.journal import layout
from trainvitals.journal.encoding import dump_json, format_time, spell_all
from trainvitals.journal.media import OverLimit
from trainvitals.plain_json import parse_json
from trainvitals.trackers.intake import wandb_lines
from trainvitals.trackers.intake.answers import IntakeAnswer, OnceReporter, refuse_trouble
from trainvitals.trackers.intake.runs import IntakeRun, IntakeRuns
from trainvitals.trackers.intake.uploads import BadName, Signer, clean_path, find_below, make_place
from trainvitals.trackers.intake.wandb_artifacts import WandbArtifacts
from trainvitals.trackers.intake.wandb_reading import WandbReading
from trainvitals.trackers.intake.wandb_references import ENTITY, PROJECT, TOOL, RunReference, read_texts, refer
from trainvitals.trackers.run_writing import About
from trainvitals.trackers.wandb_conventions import (
    ARTIFACTS,
    FILES,
    SEVERITIES,
    SUMMARY,
    SUMMARY_EVENT,
    describe_own_values,
    find_own_values,
    list_files,
    write_summary,
)

SILENT_SECONDS = 300.0
"""A client sends something every 30 s as long as it lives."""
LIVE_SECONDS = 40.0
"""A run whose client was heard from so lately is not begun by another one."""
RESUME_SECONDS = 120.0
DROPPED_FILES = frozenset({"config.yaml", "wandb-metadata.json", "requirements.txt", "output.log", SUMMARY})
"""Uploads that say what the run has already, and may hold secrets."""
MOST_BEGUN = 1000
"""Metrics that may have been logged before a definition of theirs came."""

SWEEP_OPERATIONS = frozenset(
    {"UpsertSweep", "CreateAgent", "Heartbeat", "GetSweep", "GetSweepLegacy", "GetSweeps", "Sweep"}
)
SWEEPS = (
    "trainvitals does not run sweeps of W&B: start one run per configuration (a loop, Optuna, Ray Tune); "
    "`trainvitals compare` and the sweep view of its page compare them"
)

_TYPES = ("MutationType", "TypeInfo", "CreateArtifactInputInfoType", "UseArtifactInputInfoType")
"""What clients call the types that they ask about."""
_OPERATION = re.compile(r"(?:#[^\n]*\n|[^\w#])*(?:(?:query|mutation)\b\W*)?([A-Za-z_]\w*)")
"""The name of an operation, or of the first field of one without a name, behind comments."""


def _as_fields(*names: str) -> dict[str, Any]:
    fields = [{"name": name} for name in names]
    return {"fields": fields, "inputFields": fields}


_INTROSPECTION = {
    "QueryType": _as_fields("serverInfo"),
    "ServerInfoType": _as_fields("cliVersionInfo", "latestLocalVersionInfo"),
}


_Operation = Callable[[Mapping[str, Any], str], Any]
"""Given its variables and the address under which the client reached us."""


class Wandb:
    """Answers requests of clients. Called from several threads."""

    def __init__(self, runs: IntakeRuns, signer: Signer, report_once: OnceReporter) -> None:
        self._runs = runs
        self._signer = signer
        self._report_once = report_once
        self._resuming: dict[str, float] = {}
        self._artifacts = WandbArtifacts(runs, self._upload_url)
        self._reading = WandbReading(runs, self._upload_url)
        self._operations: Mapping[str, _Operation] = {
            "Viewer": self._viewer,
            "UpsertBucket": self._upsert,
            "RunResumeStatus": self._resume_status,
            "RunStoppedStatus": self._stopped_status,
            "NotifyScriptableRunAlert": self._alert,
            "CreateRunFiles": self._run_files,
            "RunUploadUrls": self._upload_urls,
            "CreateArtifact": self._artifacts.create,
            "CreateArtifactManifest": self._artifacts.create_manifest,
            "UpdateArtifactManifest": self._artifacts.update_manifest,
            "CreateArtifactFiles": self._artifacts.create_files,
            "CommitArtifact": self._artifacts.commit,
            "ClientIDMapping": self._artifacts.map_client_id,
            "ArtifactByID": self._artifacts.find,
            "ArtifactByIDShort": self._artifacts.find,
            "ArtifactByName": self._artifacts.find_named,
            "ArtifactMembershipByName": self._artifacts.find_named,
            "ArtifactManifest": self._artifacts.find_manifest,
            "FetchArtifactManifest": self._artifacts.find,
            "ArtifactFileURLs": self._artifacts.find_files,
            "ArtifactFileURLsByManifestEntries": self._artifacts.find_files,
            "GetArtifactMembershipFileUrls": self._artifacts.find_files,
            "ArtifactCreatedBy": self._artifacts.find,
            "ArtifactType": self._artifacts.find_type,
            "UseArtifact": self._artifacts.use,
            "RunOutputArtifacts": self._artifacts.find_logged,
            "RunInputArtifacts": self._artifacts.find_used,
            "GetDefaultEntity": self._viewer,
            "Run": self._reading.read_run,
            "RunState": self._reading.read_run,
            "RunHistoryKeys": self._reading.read_run,
            "Runs": self._reading.read_runs,
            "GetProjects": self._reading.read_projects,
            "Projects": self._reading.read_projects,
            "GetProject": self._reading.read_project,
            "RunFullHistory": self._reading.read_history,
            "RunSampledHistory": self._reading.read_sampled,
            "SampledHistoryPage": self._reading.read_sampled,
            "HistoryPage": self._reading.read_page,
            "RunParquetHistory": self._reading.read_exports,
            "RunFiles": self._reading.read_files,
            "ServerInfo": self._server_info,
            "ServerFeaturesQuery": self._server_info,
            "InputFields": self._nothing_offered,
            "TypeFields": self._nothing_offered,
            "TypeInfo": self._nothing_offered,
            "OrganizationCoreWeaveOrganizationID": self._organization,
            "MarkRunFilesUploaded": self._succeed,
        }

    # -- GraphQL

    def answer_graphql(self, body: bytes, base: str) -> IntakeAnswer:
        """`base` is the address under which the client reached us."""
        try:
            request = parse_json(body)
            query, variables = request["query"], request.get("variables") or {}
            operation = request.get("operationName") or _OPERATION.match(query)[1]  # type: ignore[index]
            given = variables.get("input") or variables
            if not isinstance(given, dict) or not isinstance(operation, str):
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError):
            return IntakeAnswer(400, {"data": None, "errors": [{"message": "the body is not a GraphQL request"}]})
        handler = self._operations.get(operation[:1].upper() + operation[1:])
        if operation.startswith("ProbeServer"):
            handler = self._nothing_offered
        if handler is None:
            self._report_once(f"W&B's operation {operation[:80]} is not supported: answered with an error")
            message = f"trainvitals does not support the operation {operation[:80]}"
            if operation in SWEEP_OPERATIONS:
                message = SWEEPS
            return IntakeAnswer(200, {"data": None, "errors": [{"message": message}]})
        try:
            return IntakeAnswer(200, {"data": handler({**variables, **given}, base)})
        except (JournalError, OSError, BadName, TypeError, ValueError) as error:
            return IntakeAnswer(200, {"data": None, "errors": [{"message": f"{operation}: {error}"[:500]}]})

    def _viewer(self, given: Mapping[str, Any], base: str) -> Any:
        viewer = {"id": ENTITY, "entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}", "name": ENTITY}
        return {"viewer": {**viewer, "admin": False, "teams": {"edges": []}}, **self._server_info(given, base)}

    def _upsert(self, given: Mapping[str, Any], base: str) -> Any:
        reference = self._refer_to_bucket(given)
        begins = given.get("host") is not None or given.get("program") is not None
        with self._runs.hold(TOOL, reference.key) as known:
            inserted = known is None
            if known is not None and begins:
                reference = self._begin_again(known, reference)
        with self._runs.begin(TOOL, reference.key, _read_about(given, reference)) as run:
            self._note_definitions(run, given.get("config"))
            run.save()
            if isinstance(host := given.get("host"), str):
                run.tables["host"] = host
            return {"upsertBucket": {"bucket": _describe_bucket(run, reference), "inserted": inserted}}

    def _refer_to_bucket(self, given: Mapping[str, Any]) -> RunReference:
        """`Run.update()` of `wandb.Api()` knows a run by the id that we gave. Raises BadName."""
        identity = given.get("id")
        if not isinstance(identity, str) or given.get("name"):
            return refer(given, run=given.get("name"))
        if self._runs.find_folder(TOOL, identity) is None:
            raise BadName("there is no such run")
        return RunReference(*identity.split("/", 2))

    def _begin_again(self, run: IntakeRun, reference: RunReference) -> RunReference:
        """A client begins with an id that is known: it goes on with that run, or starts it over, or, if another client
        is still at it, gets a run of its own under another id."""
        resumes = time.monotonic() - self._resuming.pop(reference.key, -RESUME_SECONDS) < RESUME_SECONDS
        if not run.position.get("history") and not run.file.is_over:
            return reference  # the same request again, or nothing was logged
        if not resumes and not run.file.is_over and self._is_heard(run):
            other = reference._replace(run=f"{reference.run}-{secrets.token_hex(3)}")
            self._report_once(f"two W&B clients use the run id {reference.run}: the second one got {other.run}")
            return other
        if not resumes:
            run.position = {name: value for name, value in run.position.items() if name == "console"}
        run.begin_attempt()
        run.writer.watch()
        run.save()
        return reference

    @staticmethod
    def _is_heard(run: IntakeRun) -> bool:
        return time.monotonic() - float(run.tables.get("heard", -LIVE_SECONDS)) < LIVE_SECONDS

    def _note_definitions(self, run: IntakeRun, config: object) -> None:
        own = _read_config(config).get("_wandb")
        defined = own.get("m") if isinstance(own, dict) else None
        if isinstance(defined, list) and defined and defined != run.position.get("metrics"):
            run.position["metrics"] = defined
            # The client sends definitions when it likes: what was logged before them goes on as it began.
            run.position["begun"] = sorted({*run.position.get("begun", ()), *run.writer.names})[:MOST_BEGUN]
            run.tables.pop("steps", None)

    def _resume_status(self, given: Mapping[str, Any], base: str) -> Any:
        reference = refer(given, run=given.get("name"))
        model = {"id": reference.project, "name": reference.project, "entity": _describe_entity(reference)}
        with self._runs.hold(TOOL, reference.key) as run:
            if run is None:
                return {"model": {**model, "bucket": None}}
            self._resuming[reference.key] = time.monotonic()
            last = run.position.get("last_history") or {}
            file = run.described
            bucket = {
                **_describe_bucket(run, reference),
                "config": _spell_config(file.config),
                "summaryMetrics": _read_text(run.folder / FILES / SUMMARY) or "{}",
                "logLineCount": (run.position.get("console") or {}).get("lines", 0),
                "historyLineCount": run.position.get("history", 0),
                "eventsLineCount": run.position.get("events", 0),
                "historyTail": orjson.dumps([orjson.dumps(last).decode()]).decode() if last else "[]",
                "eventsTail": "[]",
                "tags": list(file.tags),
                "notes": file.notes,
                "wandbConfig": orjson.dumps({"t": 1}).decode(),
            }
        return {"model": {**model, "bucket": bucket}}

    def _stopped_status(self, given: Mapping[str, Any], base: str) -> Any:
        reference = refer(given, run=given.get("runId"))
        with self._runs.hold(TOOL, reference.key) as run:
            return {"project": {"run": {"stopped": run is not None and run.is_stop_requested}}}

    def _alert(self, given: Mapping[str, Any], base: str) -> Any:
        reference = refer(given, run=given.get("runName"))
        title, text = str(given.get("title") or ""), str(given.get("text") or "")
        severity = SEVERITIES.get(str(given.get("severity")), "info")
        message = f"{title}: {text}" if text and text != title else title
        with self._runs.hold(TOOL, reference.key) as run:
            if run is not None:
                run.writer.event("wandb_alert", message, severity=severity, data={"title": title, "text": text})
                run.save()
        return {"notifyScriptableRunAlert": {"success": run is not None}}

    # -- files

    def _run_files(self, given: Mapping[str, Any], base: str) -> Any:
        reference = refer(given, run=given.get("run"))
        files = [
            {"name": name, "uploadUrl": self._upload_url(base, reference, name)}
            for name in read_texts(given.get("files"))
        ]
        return {"createRunFiles": {"runID": reference.key, "uploadHeaders": [], "files": files}}

    def _upload_urls(self, given: Mapping[str, Any], base: str) -> Any:
        reference = refer({**given, "project": given.get("name")}, run=given.get("run"))
        edges = [
            {"node": {"name": name, "url": self._upload_url(base, reference, name), "updatedAt": None}}
            for name in read_texts(given.get("files"))
        ]
        return {"model": {"bucket": {"id": reference.key, "files": {"uploadHeaders": [], "edges": edges}}}}

    def _upload_url(self, base: str, reference: RunReference, name: str) -> str:
        path = f"/wandb-files/{reference.key}/{name}"
        return base + self._signer.sign(path)

    def find_place(self, entity: str, project: str, run_id: str, name: str) -> Path | None:
        """Where an uploaded file goes; None if it is received and not kept. Raises BadName or OSError."""
        if name in DROPPED_FILES:
            return None
        top, _, rest = str(clean_path(name)).partition("/")
        with self._runs.hold(TOOL, RunReference(entity, project, run_id).key) as run:
            if run is None:
                raise BadName("there is no such run")
            if top in (layout.MEDIA, ARTIFACTS) and rest:
                return make_place(run.folder, top, rest)
            return make_place(run.folder, FILES, name)

    def find_file(self, entity: str, project: str, run_id: str, name: str) -> Path | None:
        """A file that was uploaded, for a client that wants it back."""
        folder = self._runs.find_folder(TOOL, RunReference(entity, project, run_id).key)
        top, _, rest = name.partition("/")
        if folder is None:
            return None
        in_place = top in (layout.MEDIA, ARTIFACTS) and rest
        found = find_below(folder, top, rest) if in_place else find_below(folder, FILES, name)
        return found if found is not None and found.is_file() else None

    def find_folder(self, entity: str, project: str, run_id: str) -> Path | None:
        """Of the run whose page a client names."""
        return self._runs.find_folder(TOOL, RunReference(entity, project, run_id).key)

    # -- answers that never change

    def _server_info(self, given: Mapping[str, Any], base: str) -> Any:
        version = {"max_cli_version": "99.0.0"}
        latest = {"outOfDate": False, "latestVersionString": "0.99.0", "versionOnThisInstanceString": "0.99.0"}
        return {"serverInfo": {"features": [], "cliVersionInfo": version, "latestLocalVersionInfo": latest}}

    def _nothing_offered(self, given: Mapping[str, Any], base: str) -> Any:
        """Of the types that a client asks about: what the server says of itself, and no optional field."""
        return {**dict.fromkeys(_TYPES, _as_fields()), **_INTROSPECTION, "__type": None}

    def _organization(self, given: Mapping[str, Any], base: str) -> Any:
        return {"entity": {"organization": None}}

    def _succeed(self, given: Mapping[str, Any], base: str) -> Any:
        return {"markRunFilesUploaded": {"success": True}}

    # -- the stream

    def answer_stream(self, entity: str, project: str, run_id: str, body: bytes) -> IntakeAnswer:
        """What a client has logged since its last request, or a sign of life."""
        try:
            request = parse_json(body)
            if not isinstance(request, dict):
                raise ValueError
        except ValueError:
            return IntakeAnswer(400, {"error": "the body is not JSON"})
        files = request.get("files")
        with self._runs.hold(TOOL, RunReference(entity, project, run_id).key) as run:
            if run is None:
                return IntakeAnswer(404, {"error": f"no run {run_id[:100]} in project {project[:100]}"})
            run.tables["heard"] = time.monotonic()
            try:
                for name, part in (files if isinstance(files, dict) else {}).items():
                    if isinstance(part, dict) and isinstance(lines := part.get("content"), list):
                        offset = part.get("offset")
                        self._take(run, name, offset if isinstance(offset, int) and offset >= 0 else 0, lines)
                run.save()
                if request.get("complete"):
                    self._complete(run, request.get("exitcode"))
            except (JournalError, OSError) as error:
                return refuse_trouble(error)
            return IntakeAnswer(200, {"stopped": True} if run.is_stop_requested and not run.file.is_over else {})

    def _take(self, run: IntakeRun, name: str, offset: int, lines: list[Any]) -> None:
        if name == "wandb-history.jsonl":
            self._take_history(run, offset, lines)
        elif name == "wandb-events.jsonl":
            self._take_system(run, offset, lines)
        elif name == "output.log":
            run.print_lines(offset, list(wandb_lines.show_console(lines)))
        elif name == SUMMARY and lines:
            self._take_summary(run, lines[-1])

    def _take_history(self, run: IntakeRun, offset: int, lines: list[Any]) -> None:
        known = int(run.position.get("history", 0))
        run.tables.setdefault("first", known)
        last = run.tables.setdefault("last", {})
        steps = run.tables.get("steps")
        if steps is None:
            begun = run.position.get("begun", ())
            steps = run.tables["steps"] = wandb_lines.StepMetrics(run.position.get("metrics"), begun)
        for place, line in enumerate(lines, offset):
            if place < known:
                continue  # it came before, and the client does not know
            parsed = wandb_lines.parse_history(line, steps)
            run.writer.append(parsed.values, step=parsed.step, time=parsed.time or time.time())
            last.update(parsed.values)
            for media in parsed.media:
                try:
                    _keep_media(run, media, parsed)
                except OverLimit:
                    self._leave_out(run, media.name)
            for what in parsed.left_out:
                self._leave_out(run, what)
            run.position["history"] = place + 1
            if parsed.own:
                run.position["last_history"] = parsed.own

    def _take_system(self, run: IntakeRun, offset: int, lines: list[Any]) -> None:
        known = int(run.position.get("events", 0))
        if run.is_part_of_program:
            return  # the agent measures that machine itself
        host = str(run.tables.get("host") or run.file.host_name or "unknown")
        for place, line in enumerate(lines, offset):
            if place >= known and (rows := wandb_lines.parse_system(line, host)):
                for table, row in rows:
                    run.add_sample(table, row, host)
            run.position["events"] = max(place + 1, known)

    def _take_summary(self, run: IntakeRun, line: object) -> None:
        try:
            summary = parse_json(line) if isinstance(line, str) else None
        except ValueError:
            return
        if isinstance(summary, dict):
            write_summary(run.folder, summary, self._runs.settings.redact)

    def _note_summary(self, run: IntakeRun) -> None:
        """What the program has put into the summary itself is in no metric: an event has it."""
        try:
            summary = parse_json(_read_text(run.folder / FILES / SUMMARY))
        except ValueError:
            return
        own = find_own_values(summary, self._find_last(run)) if isinstance(summary, dict) else {}
        if own:
            run.writer.event(SUMMARY_EVENT, describe_own_values(own), data=own)

    @staticmethod
    def _find_last(run: IntakeRun) -> dict[str, float]:
        """The last value of every metric."""
        last: dict[str, float] = run.tables.get("last", {})
        if not run.tables.get("first", run.position.get("history")):
            return last
        from trainvitals.journal.reader import RunReader  # the first rows came to a process before this one

        theirs = {own: name for name, own in run.writer.origin.renamed.items()}
        summary = RunReader(run.folder).summary()
        return {**{theirs.get(name, name): float(item.last) for name, item in summary.items()}, **last}

    def _leave_out(self, run: IntakeRun, what: str) -> None:
        left_out = dict(run.writer.origin.left_out)
        if what in left_out or len(left_out) < 100:
            left_out[what] = left_out.get(what, 0) + 1
            run.writer.describe_origin(left_out=left_out)

    def _complete(self, run: IntakeRun, code: object) -> None:
        code = code if isinstance(code, int) else 0
        if not run.file.is_over:
            self._note_summary(run)
            run.end("finished" if code == 0 else "failed", exit_code=code)
        self._runs.forget(run)


def _keep_media(run: IntakeRun, media: wandb_lines.LoggedMedia, line: wandb_lines.HistoryLine) -> None:
    """A histogram as ours are; images and tables in the index of media, whose files are uploaded; of anything else what
    the client says of it."""
    if (histogram := media.as_histogram()) is not None:
        run.media.write_histogram(media.name, histogram, step=line.step, time=line.time, participant=run.participant)
        return
    files = list_files(media.value)
    for kind, path, facts in files:
        file = path.removeprefix(f"{layout.MEDIA}/")
        run.media.index(kind, media.name, file, step=line.step, time=line.time, **facts)
    if not files:
        row = {"timestamp": format_time(line.time), "step": line.step, "name": media.name, **media.value}
        run.media.append("wandb.jsonl", row)


def _read_config(text: object) -> dict[str, Any]:
    """Each key of W&B's configuration with its value."""
    try:
        found = parse_json(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
    found = found if isinstance(found, dict) else {}
    return {key: item["value"] if isinstance(item, dict) and "value" in item else item for key, item in found.items()}


def _read_about(given: Mapping[str, Any], reference: RunReference) -> About:
    config = _read_config(given.get("config"))
    config.pop("_wandb", None)
    program = given.get("program")
    grouped = [text for key in ("groupName", "jobType") if isinstance(text := given.get(key), str) and text]
    return About(
        name=str(given.get("displayName") or ""),
        project="" if reference.project == PROJECT else reference.project,
        config=config or None,
        tags=(*read_texts(given.get("tags")), *grouped) or None,
        notes=str(given.get("notes") or ""),
        host=str(given.get("host") or ""),
        command=program if isinstance(program, str) else None,
        started=time.time(),
    )


def _spell_config(config: Mapping[str, Any] | None) -> str:
    wrapped = {key: {"value": value} for key, value in (config or {}).items()}
    return dump_json(spell_all(wrapped)).decode()


def _describe_entity(reference: RunReference) -> dict[str, str]:
    return {"id": reference.entity, "name": reference.entity}


def _describe_bucket(run: IntakeRun, reference: RunReference) -> dict[str, Any]:
    return {
        "id": reference.key,
        "name": reference.run,
        "displayName": run.described.name or reference.run,
        "description": None,
        "config": _spell_config(run.file.config),
        "sweepName": None,
        "historyLineCount": run.position.get("history", 0),
        "project": {"id": reference.project, "name": reference.project, "entity": _describe_entity(reference)},
    }


def _read_text(path: Path) -> str:
    try:
        return runtime.read_regular(path, 16 << 20).decode("utf-8", "replace")
    except OSError:
        return ""
