"""Artifacts of W&B's clients: plain files, `artifacts/NAME/DIGEST/` in the run folder.
Tested in tests/trackers/intake/test_wandb.py."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainvitals.journal.encoding import format_time
from trainvitals.trackers.intake.runs import IntakeRuns
from trainvitals.trackers.intake.uploads import find_below, list_files
from trainvitals.trackers.intake.wandb_references import TOOL, RunReference, as_part, read_texts, refer
from trainvitals.trackers.wandb_conventions import ARTIFACTS

MOST_ARTIFACTS = 1000
MANIFEST = "manifest.json"


class WandbArtifacts:
    """Answers the operations about them. Called from several threads."""

    def __init__(self, runs: IntakeRuns, make_url: Callable[[str, RunReference, str], str]) -> None:
        """`make_url` makes the address that a file of a run is uploaded to, of the server's own."""
        self._runs = runs
        self._make_url = make_url
        self._known: dict[str, dict[str, Any]] = {}
        """What clients said of those that they log now, the newest last."""

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
        self._known[artifact] = {
            "artifactType": {"name": str(given.get("artifactTypeName") or "artifact")},
            "description": given.get("description"),
            "metadata": given.get("metadata"),
            "historyStep": given.get("historyStep"),
            "digest": str(given.get("digest") or version),
            "createdAt": format_time(None),
            "state": "PENDING",
        }
        while len(self._known) > MOST_ARTIFACTS:
            self._known.pop(next(iter(self._known)), None)
        made = {
            "id": artifact,
            "digest": given.get("digest"),
            "state": "PENDING",
            "artifactSequence": {"id": collection, "name": collection, "latestArtifact": None},
        }
        return {"createArtifact": {"artifact": made}}

    def create_manifest(self, given: Mapping[str, Any], base: str) -> Any:
        artifact = str(given.get("artifactID"))
        url = self._url(base, artifact, MANIFEST)
        file = {"id": artifact, "uploadUrl": url, "uploadHeaders": []}
        return {"createArtifactManifest": {"artifactManifest": {"id": artifact, "file": file}}}

    def update_manifest(self, given: Mapping[str, Any], base: str) -> Any:
        artifact = str(given.get("artifactManifestID"))
        url = self._url(base, artifact, MANIFEST)
        file = {"id": artifact, "uploadUrl": url, "uploadHeaders": []}
        return {"updateArtifactManifest": {"artifactManifest": {"id": artifact, "file": file}}}

    def create_files(self, given: Mapping[str, Any], base: str) -> Any:
        edges = []
        for item in given.get("artifactFiles") or ():
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
        known = self._known.setdefault(artifact, _new_artifact(artifact))
        known["state"] = "COMMITTED"
        return {"commitArtifact": {"artifact": {"id": artifact, "digest": known["digest"]}}}

    def find(self, given: Mapping[str, Any], base: str) -> Any:
        """One that a client has logged, for `Artifact.wait()`."""
        return {"artifact": self._describe(str(given.get("id")), base)}

    def find_manifest(self, given: Mapping[str, Any], base: str) -> Any:
        """Of one that is named as a client names it, `NAME:v0`: older clients ask after they have waited."""
        owner = refer(given, run="")
        for identity in reversed(list(self._known)):
            entity, project, _, _, collection, _ = (*identity.split("/", 5), *[""] * 6)[:6]
            if (entity, project) == owner[:2] and str(given.get("name")).startswith(f"{collection}:"):
                found = self._describe(identity, base)
                if found is not None and given.get("name") == f"{collection}:v{found['versionIndex']}":
                    return {"project": {"artifact": found}}
        return {"project": {"artifact": None}}

    def _describe(self, identity: str, base: str) -> dict[str, Any] | None:
        entity, project, run_id, _, collection, version = (*identity.split("/", 5), *[""] * 6)[:6]
        with self._runs.hold(TOOL, RunReference(entity, project, run_id).key) as run:
            place = find_below(run.folder, ARTIFACTS, collection) if run is not None and collection else None
        versions = sorted((item for item, _, _ in list_files(place)), key=_read_birth) if place is not None else []
        names = [item.name for item in versions]
        if place is None or version not in names:
            return None
        files = [item for item in (place / version).rglob("*") if item.is_file() and item.name != MANIFEST]
        owner = {
            "id": project,
            "internalId": project,
            "name": project,
            "entity": {"name": entity},
            "entityName": entity,
        }
        return {
            **(self._known.get(identity) or _new_artifact(identity)),
            "__typename": "Artifact",
            "id": identity,
            "artifactSequence": {
                "__typename": "ArtifactSequence",
                "id": collection,
                "name": collection,
                "project": owner,
            },
            "versionIndex": names.index(version),
            "ttlDurationSeconds": -1,
            "ttlIsInherited": False,
            "tags": [],
            "aliases": [],
            "size": sum(item.stat().st_size for item in files),
            "fileCount": len(files),
            "digestAlgorithm": None,
            "commitHash": None,
            "updatedAt": None,
            "currentManifest": {
                "id": identity,
                "file": {"id": identity, "directUrl": self._url(base, identity, MANIFEST)},
            },
        }

    def _url(self, base: str, artifact: str, name: str) -> str:
        entity, project, run_id, rest = (*artifact.split("/", 3), "", "", "")[:4]
        return self._make_url(base, RunReference(entity, project, run_id), f"{rest}/{name}")

    def find_none(self, given: Mapping[str, Any], base: str) -> Any:
        return {"project": {"artifact": None, "artifactType": None}}


def _new_artifact(identity: str) -> dict[str, Any]:
    """One of which no more is known than its id: it was logged to a server that was killed since."""
    return {
        "artifactType": {"name": "artifact"},
        "description": None,
        "metadata": None,
        "historyStep": None,
        "digest": identity.rpartition("/")[2],
        "createdAt": format_time(None),
        "state": "PENDING",
    }


def _read_birth(path: Path) -> tuple[float, str]:
    return path.stat().st_ctime, path.name
