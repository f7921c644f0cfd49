"""Artifacts of W&B's clients: plain files, `artifacts/NAME/DIGEST/` in the run folder, and what the client said of each
in `artifacts/NAME/.DIGEST.json`. Those of one name are versions of one, whichever run of the project logged them.
Tested in tests/trackers/intake/test_wandb.py."""

from __future__ import annotations

import base64
import functools
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals import runtime
from trainvitals.journal import folder as run_folder
from trainvitals.journal.encoding import dump_json, format_time
from trainvitals.plain_json import parse_object
from trainvitals.trackers.intake.runs import IntakeRuns
from trainvitals.trackers.intake.uploads import BadName, find_below, list_files, make_place
from trainvitals.trackers.intake.wandb_references import TOOL, RunReference, as_part, read_texts, refer
from trainvitals.trackers.wandb_conventions import ARTIFACTS

MANIFEST = "manifest.json"
MOST_FACTS = 4 << 20
MOST_MANIFEST = 64 << 20
MOST_USED = 1000
"""Artifacts that a run notes as used."""
MOST_CLIENT_IDS = 10_000
"""Ids that clients made up, of artifacts that were logged lately."""


class _Version(NamedTuple):
    """One that was logged."""

    identity: str
    folder: Path
    facts: dict[str, Any]

    @property
    def is_committed(self) -> bool:
        return self.facts.get("state") == "COMMITTED"


class _Versions:
    """What there is, as one request finds it: runs are looked through once, however many artifacts are described."""

    def __init__(self, runs: IntakeRuns, read_facts: Callable[[str], dict[str, Any]]) -> None:
        self._runs = runs
        self._read_facts = read_facts
        self._listed: dict[tuple[str, str, str], list[_Version]] = {}

    @functools.cached_property
    def _keys(self) -> list[tuple[str, Path]]:
        return self._runs.list_keys(TOOL)

    def choose(self, owner: RunReference, collection: str, alias: str) -> _Version | None:
        """The version that an alias stands for: a number, `latest`, or the newest that was given it."""
        versions = self.all_of(owner, collection)
        if alias[:1] == "v" and alias[1:].isdecimal() and len(alias) < 9:
            return versions[int(alias[1:])] if int(alias[1:]) < len(versions) else None
        return next((item for item in versions if alias in _aliases_of(item, versions)), None)

    def all_of(self, owner: RunReference, collection: str) -> list[_Version]:
        """All versions of one, the oldest first; the same contents again are no version."""
        key = (owner.entity, owner.project, collection)
        if key not in self._listed:
            self._listed[key] = self._join(owner, collection)
        return self._listed[key]

    def _join(self, owner: RunReference, collection: str) -> list[_Version]:
        found: dict[str, _Version] = {}
        for version in sorted(self._find_all(owner, collection), key=lambda item: str(item.facts.get("created"))):
            known = found.setdefault(version.identity.rpartition("/")[2], version)
            if known is not version:
                given = [*read_texts(known.facts.get("aliases")), *read_texts(version.facts.get("aliases"))]
                logged = max(str(known.facts.get("logged")), str(version.facts.get("logged")))
                facts = {**known.facts, "aliases": given, "logged": logged}
                found[version.identity.rpartition("/")[2]] = known._replace(facts=facts)
        return list(found.values())

    def _find_all(self, owner: RunReference, collection: str) -> Iterator[_Version]:
        for key, folder in self._keys:
            place = find_below(folder, ARTIFACTS, collection) if collection else None
            if place is None or key.split("/")[:2] != list(owner[:2]):
                continue
            for path, is_folder, _ in list_files(place):
                identity = f"{key}/{ARTIFACTS}/{collection}/{path.name}"
                if is_folder and (facts := self._read_facts(identity)):
                    yield _Version(identity, path, facts)


class WandbArtifacts:
    """Answers the operations about them. Called from several threads."""

    def __init__(self, runs: IntakeRuns, make_url: Callable[[str, RunReference, str], str]) -> None:
        """`make_url` makes the address of a file of a run, of the server's own."""
        self._runs = runs
        self._make_url = make_url
        self._by_client: dict[str, str] = {}
        """Ids of ours by those of clients."""

    # -- logging one

    def create(self, given: Mapping[str, Any], base: str) -> Any:
        reference = refer(
            {"entity": given.get("entityName"), "project": given.get("projectName")}, run=given.get("runName")
        )
        collection = as_part(
            str(
                next(iter(read_texts(given.get("artifactCollectionNames"))), "")
                or given.get("artifactCollectionName")
                or "artifact"
            )
        )
        version = as_part(str(given.get("digest") or secrets.token_hex(8)))[:16]
        artifact = f"{reference.key}/{ARTIFACTS}/{collection}/{version}"
        known = self._read_facts(artifact)
        aliases = [str(item.get("alias")) for item in given.get("aliases") or () if isinstance(item, dict)]
        facts = {
            "type": str(given.get("artifactTypeName") or "artifact"),
            "description": given.get("description"),
            "metadata": given.get("metadata"),
            "historyStep": given.get("historyStep"),
            "digest": str(given.get("digest") or version),
            "clientID": given.get("clientID"),
            "aliases": aliases,
            "created": known.get("created") or format_time(),
            "logged": format_time(),
            "state": "PENDING",
        }
        self._write_facts(artifact, facts)
        if isinstance(client_id := given.get("clientID"), str):
            if len(self._by_client) >= MOST_CLIENT_IDS:
                self._by_client.clear()  # an older one is found in the files
            self._by_client[client_id] = artifact
        made = {
            "id": artifact,
            "digest": given.get("digest"),
            "state": "PENDING",
            "artifactSequence": {"id": collection, "name": collection, "latestArtifact": None},
        }
        return {"createArtifact": {"artifact": made}}

    def map_client_id(self, given: Mapping[str, Any], base: str) -> Any:
        """Ours of an artifact that a client knows only by an id that it made up: one of its artifacts has a file, such
        as a table, that another one has. It decodes the answer, and references have it in hexadecimal."""
        client_id = str(given.get("clientID"))
        artifact = self._by_client.get(client_id) or self._find_client_id(client_id)
        return {"clientIDMapping": artifact and {"serverID": base64.b64encode(artifact.encode()).decode()}}

    def _find_client_id(self, client_id: str) -> str | None:
        """Among all that were logged."""
        for key, folder in self._runs.list_keys(TOOL):
            for place, is_folder, _ in list_files(folder / ARTIFACTS):
                for path, _, _ in list_files(place) if is_folder else ():
                    artifact = f"{key}/{ARTIFACTS}/{place.name}/{path.name}"
                    if self._read_facts(artifact).get("clientID") == client_id:
                        return artifact
        return None

    def create_manifest(self, given: Mapping[str, Any], base: str) -> Any:
        return {"createArtifactManifest": self._offer_manifest(str(given.get("artifactID")), base)}

    def update_manifest(self, given: Mapping[str, Any], base: str) -> Any:
        return {"updateArtifactManifest": self._offer_manifest(str(given.get("artifactManifestID")), base)}

    def _offer_manifest(self, artifact: str, base: str) -> Any:
        """Where its list of files is uploaded to."""
        file = {"id": artifact, "uploadUrl": self._url(base, artifact, MANIFEST), "uploadHeaders": []}
        return {"artifactManifest": {"id": artifact, "file": file}}

    def create_files(self, given: Mapping[str, Any], base: str) -> Any:
        edges = []
        for item in given.get("artifactFiles") or ():
            if not isinstance(item, dict):
                raise BadName("a file of an artifact is not described by an object")
            artifact, name = str(item.get("artifactID")), str(item.get("name"))
            node: dict[str, Any] = {
                "id": f"{artifact}/{name}",
                "name": name,
                "displayName": name,
                "storagePath": None,
                "uploadUrl": self._url(base, artifact, name),
                "uploadHeaders": [],
                "uploadMultipartUrls": None,
                "artifact": {"id": artifact},
            }
            edges.append({"node": node})
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def commit(self, given: Mapping[str, Any], base: str) -> Any:
        artifact = str(given.get("artifactID"))
        facts = {**self._read_facts(artifact), "state": "COMMITTED"}
        self._write_facts(artifact, facts)
        return {"commitArtifact": {"artifact": {"id": artifact, "digest": facts.get("digest")}}}

    def _write_facts(self, artifact: str, facts: Mapping[str, Any]) -> None:
        """Raises BadName or OSError."""
        reference, collection, version = _split(artifact)
        folder = self._runs.find_folder(TOOL, reference.key)
        if folder is None or not collection or not version:
            raise BadName("there is no such run")
        place = make_place(folder, ARTIFACTS, f"{collection}/.{version}.json")
        runtime.write_atomically(place, dump_json(dict(facts)), run_folder.file_rights(folder))

    def _read_facts(self, artifact: str) -> dict[str, Any]:
        reference, collection, version = _split(artifact)
        folder = self._runs.find_folder(TOOL, reference.key)
        place = find_below(folder, ARTIFACTS, f"{collection}/.{version}.json") if folder is not None else None
        try:
            return parse_object(runtime.read_regular(place, MOST_FACTS)) if place is not None else {}
        except (OSError, ValueError):
            return {}

    # -- reading one back

    def find(self, given: Mapping[str, Any], base: str) -> Any:
        """By its id."""
        return {"artifact": self._describe(str(given.get("id") or given.get("artifact_id")), base)}

    def find_manifest(self, given: Mapping[str, Any], base: str) -> Any:
        """By its id, or as older clients name it."""
        return self.find(given, base) if given.get("artifact_id") else self.find_named(given, base)

    def find_named(self, given: Mapping[str, Any], base: str) -> Any:
        """By a name such as `dataset:v0` or `dataset:latest`."""
        owner, (collection, _, alias) = refer(given, run="-"), str(given.get("name") or "").partition(":")
        versions = self._look_up()
        version = versions.choose(owner, collection, alias or "latest")
        described = self._describe(version.identity, base, versions) if version is not None else None
        membership = None
        if described is not None:
            membership = {
                "id": described["id"],
                "versionIndex": described["versionIndex"],
                "createdAt": described["createdAt"],
                "aliases": described["aliases"],
                "artifactCollection": described["artifactSequence"],
                "artifact": described,
            }
        found = {"artifact": described, "artifactCollectionMembership": membership}
        return {"project": {**_describe_owner(owner), **found}}

    def find_files(self, given: Mapping[str, Any], base: str) -> Any:
        """With their addresses: of one named by id, or by collection and alias."""
        if given.get("id"):
            return {"artifact": self._describe(str(given["id"]), base)}
        owner, collection = refer(given, run="-"), str(given.get("collection") or "")
        versions = self._look_up()
        version = versions.choose(owner, collection, str(given.get("alias") or "latest"))
        described = self._describe(version.identity, base, versions) if version is not None else None
        made = {"__typename": "ArtifactSequence", "name": collection, "artifactMembership": described}
        return {"project": {"artifactCollection": made}}

    def find_logged(self, given: Mapping[str, Any], base: str) -> Any:
        """All that a run has logged, newest versions last."""
        reference = refer(given, run=given.get("run") or given.get("runName") or "-")
        folder = self._runs.find_folder(TOOL, reference.key)
        names = [path.name for path, is_folder, _ in list_files(folder / ARTIFACTS) if is_folder] if folder else []
        versions = self._look_up()
        chosen = [
            version
            for name in names
            for version in versions.all_of(reference, name)
            if version.identity.startswith(f"{reference.key}/")
        ]
        return _wrap_artifacts(self._describe(version.identity, base, versions) for version in chosen)

    def find_used(self, given: Mapping[str, Any], base: str) -> Any:
        reference = refer(given, run=given.get("run") or given.get("runName") or "-")
        folder = self._runs.find_folder(TOOL, reference.key)
        file = run_folder.find_run(folder) if folder is not None else None
        used = read_texts(file.origin.position.get("used")) if file is not None and file.origin is not None else []
        versions = self._look_up()
        return _wrap_artifacts(self._describe(identity, base, versions) for identity in used)

    def use(self, given: Mapping[str, Any], base: str) -> Any:
        """A run notes that it uses one."""
        artifact = _identify(str(given.get("artifactID")))
        described = self._describe(artifact, base)
        if described is None:
            raise BadName("there is no such artifact")
        with self._runs.hold(TOOL, refer(given, run=given.get("runName") or "-").key) as run:
            if run is not None:
                used = read_texts(run.position.get("used"))
                if artifact not in used and len(used) < MOST_USED:
                    run.position["used"] = [*used, artifact]
                    run.save()
        return {"useArtifact": {"artifact": described}}

    def find_type(self, given: Mapping[str, Any], base: str) -> Any:
        found = self.find_named(given, base)["project"]["artifact"]
        return {"project": {"artifact": found, "artifactType": found["artifactType"] if found is not None else None}}

    def _look_up(self) -> _Versions:
        return _Versions(self._runs, self._read_facts)

    def _describe(self, identity: str, base: str, known: _Versions | None = None) -> dict[str, Any] | None:
        reference, collection, name = _split(identity)
        versions = (known or self._look_up()).all_of(reference, collection)
        names = [item.identity.rpartition("/")[2] for item in versions]
        if name not in names:
            return None
        version = versions[names.index(name)]
        facts, owner = version.facts, _describe_owner(reference)
        sequence = {"__typename": "ArtifactSequence", "id": collection, "name": collection, "project": owner}
        files = _list_below(version.folder)
        urls = {name: self._url(base, version.identity, name) for name, _ in files}
        urls |= _read_references(version.folder)
        edges = [
            {"node": {"id": name, "name": name, "directUrl": url, **_EMPTY_FILE}} for name, url in sorted(urls.items())
        ]
        page = {"__typename": "PageInfo", "hasNextPage": False, "endCursor": None}
        connection = {"edges": edges, "pageInfo": page, "totalCount": len(edges)}
        manifest = self._url(base, version.identity, MANIFEST)
        aliases = [*_aliases_of(version, versions), f"v{names.index(name)}"]
        return {
            "__typename": "Artifact",
            "id": version.identity,
            "artifactType": {"name": str(facts.get("type"))},
            "description": facts.get("description"),
            "metadata": facts.get("metadata"),
            "historyStep": facts.get("historyStep"),
            "digest": str(facts.get("digest")),
            "createdAt": facts.get("created"),
            "state": facts.get("state"),
            "artifactSequence": sequence,
            "versionIndex": names.index(name),
            "ttlDurationSeconds": -1,
            "ttlIsInherited": False,
            "tags": [],
            "aliases": [
                {"__typename": "ArtifactAlias", "id": alias, "alias": alias, "artifactCollection": sequence}
                for alias in aliases
            ],
            "size": sum(size for _, size in files),
            "fileCount": len(urls),
            "digestAlgorithm": None,
            "commitHash": None,
            "updatedAt": None,
            "currentManifest": {"id": version.identity, "file": {"id": version.identity, "directUrl": manifest}},
            "files": connection,
            "filesByManifestEntries": connection,
            "createdBy": {"__typename": "Run", "id": reference.key, "name": reference.run, "project": owner},
        }

    def _url(self, base: str, artifact: str, name: str) -> str:
        entity, project, run_id, rest = (*artifact.split("/", 3), "", "", "")[:4]
        return self._make_url(base, RunReference(entity, project, run_id), f"{rest}/{name}")


_EMPTY_FILE = {"__typename": "File", "url": None, "sizeBytes": 0, "mimetype": None, "updatedAt": None, "md5": None}


def _wrap_artifacts(found: Iterator[dict[str, Any] | None]) -> dict[str, Any]:
    edges = [{"node": item} for item in found if item is not None]
    page = {"__typename": "PageInfo", "hasNextPage": False, "endCursor": None}
    connection = {"edges": edges, "pageInfo": page, "totalCount": len(edges)}
    return {"project": {"run": {"artifacts": connection, "outputArtifacts": connection, "inputArtifacts": connection}}}


def _split(identity: str) -> tuple[RunReference, str, str]:
    """(run, collection, version) of an id that we gave."""
    entity, project, run_id, _, collection, version = (*_identify(identity).split("/", 5), *[""] * 6)[:6]
    return RunReference(entity, project, run_id), collection, version


def _identify(text: str) -> str:
    """An id that we gave: as it is, or as it was in a reference."""
    if f"/{ARTIFACTS}/" in text:
        return text
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        return text


def _describe_owner(reference: RunReference) -> dict[str, Any]:
    return {
        "__typename": "Project",
        "id": reference.project,
        "internalId": reference.project,
        "name": reference.project,
        "entity": {"id": reference.entity, "name": reference.entity},
        "entityName": reference.entity,
    }


def _aliases_of(version: _Version, versions: list[_Version]) -> list[str]:
    """An alias belongs to the version that was given it last; the newest one is `latest`."""
    ready = sorted((item for item in versions if item.is_committed), key=lambda item: str(item.facts.get("logged")))
    owners = {alias: item.identity for item in ready for alias in read_texts(item.facts.get("aliases"))}
    if ready:
        owners["latest"] = ready[-1].identity
    return [alias for alias, identity in owners.items() if identity == version.identity]


def _read_references(folder: Path) -> dict[str, str]:
    """Files of a version that are elsewhere: where, by name."""
    try:
        manifest = parse_object(runtime.read_regular(folder / MANIFEST, MOST_MANIFEST))
        entries = manifest["contents"].items()
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
    return {name: ref for name, item in entries if isinstance(item, dict) and isinstance(ref := item.get("ref"), str)}


def _list_below(folder: Path) -> list[tuple[str, int]]:
    """(name, bytes) of the files of a version."""
    found = []
    waiting = [folder]
    while waiting:
        for path, is_folder, size in list_files(waiting.pop()):
            if is_folder:
                waiting.append(path)
            elif path != folder / MANIFEST:
                found.append((path.relative_to(folder).as_posix(), size))
    return sorted(found)
