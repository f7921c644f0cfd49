"""The description of the API, made from the table of endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from trainvitals import __version__
from trainvitals.views.data.shapes import AlertJson, ErrorJson, EventJson, PointsJson, ReportDataJson, StateJson
from trainvitals.views.web.endpoints import Endpoint, Parameter, describe_fields
from trainvitals.views.web.schemas import Schema, Schemas

BESIDES = (ErrorJson, PointsJson, EventJson, AlertJson, StateJson, ReportDataJson)
"""Shapes that no endpoint returns: errors, the messages of the stream, what an HTML report holds."""

ERRORS = {
    400: "A parameter is invalid; see the message",
    401: "Authentication required",
    403: "Not allowed here: the server was started without --allow-edit",
    404: "No such run or file",
    409: "Not possible now: the run is still active, or what is kept cannot be written over",
    412: "Changed by somebody else since it was read: read it again",
    421: "The Host header names another server",
}

TEXT: Schema = {"type": "string"}
STREAM: Schema = {
    "get": {
        "operationId": "stream_run",
        "summary": "Live updates as server-sent events: points, event, alert, state, reset",
        "description": "Send `Last-Event-ID` to get what was missed. Stays open until the client disconnects.",
        "parameters": [
            {
                "name": "run",
                "in": "path",
                "required": True,
                "description": "Key of the run",
                "schema": {"type": "string", "minLength": 1, "maxLength": 300},
            }
        ],
        "responses": {"200": {"description": "The stream", "content": {"text/event-stream": {"schema": TEXT}}}},
    }
}


@cache  # it takes some 20 ms, and never changes
def describe(endpoints: tuple[Endpoint, ...], allow_edit: bool) -> Schema:
    """The OpenAPI document."""
    schemas = Schemas()
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
    for shape in BESIDES:
        schemas.describe(shape)
    stream = {**STREAM["get"]}
    stream["responses"] = {**stream["responses"], **_errors((400, 404))}
    paths["/runs/{run}/stream"] = {"get": stream}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "trainvitals",
            "version": __version__,
            "description": (
                "Runs, series, alerts and events of a run folder. Read-only"
                + ("." if not allow_edit else ", except for edits (--allow-edit).")
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/api/v1"}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.named.items())),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "Unless started with --no-token"}
            },
        },
        "security": [{}, {"token": []}],
    }


def _operation(endpoint: Endpoint, schemas: Schemas) -> Schema:
    # A JSON file has a schema too.
    file = {"type": "string", "format": "binary"}
    answer = schemas.describe(endpoint.shape)
    media = endpoint.media or ("application/json",)
    content = {kind: {"schema": answer if kind == "application/json" else file} for kind in media}
    found: Schema = {
        "operationId": endpoint.call.__name__,
        "summary": endpoint.summary,
        "parameters": [_parameter(p) for p in endpoint.parameters if p.place != "body"],
        "responses": {
            "200": {"description": "The answer", "content": content},
            **_errors((400, *endpoint.errors)),
        },
    }
    body = [p for p in endpoint.parameters if p.place == "body"]
    if body:
        content = {"application/json": {"schema": describe_fields(body)}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _parameter(parameter: Parameter) -> Schema:
    found: Schema = {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required or parameter.place == "path",
        "description": parameter.help,
        "schema": parameter.schema(),
    }
    if parameter.kind == "texts":
        found.update({"style": "form", "explode": True})
    return found


def _errors(codes: Sequence[int]) -> Schema:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {str(code): {"description": ERRORS[code], "content": content} for code in (*codes, 401, 421)}


INTRODUCTION = """# The API

Made from `src/trainvitals/views/web/api.py` by `python -m trainvitals.views.web.openapi > docs/api.md`.

`trainvitals serve` provides the API under `/api/v1`; the dashboard uses nothing else. The full description, with the
schema of every answer, is OpenAPI 3.1 at `/api/v1/openapi.json`.

```bash
token=$(cat /tmp/trainvitals-$(id -u)/serve.token)
api=http://127.0.0.1:8080/api/v1
curl -s -H "Authorization: Bearer $token" "$api/runs/latest/series?name=loss&points=500" | jq '.series[0].y[-1]'
```

- Answers are JSON, compressed if the client accepts gzip, with an `ETag`: an unchanged answer is a 304.
- A series has `x` and `y` of equal length. A NaN or infinite `y` is null, with its index and value in `nonfinite`;
  everywhere else such a value is the string `"NaN"`, `"Infinity"` or `"-Infinity"`, as in the run folder.
- `points` limits a series. Beyond that, the min and max of each bucket are kept, so no peak is lost; `total` is the
  number of points logged. `start` and `end` select a range in more detail.
- Errors are `{"error": {"message": ..., "hint": ...}}` with status 400 (invalid parameter), 401 (token), 403 (needs
  `--allow-edit`), 404, 409 (not possible now), 412 (changed by somebody else) or 421 (wrong Host header).
- The token goes into `Authorization: Bearer ...`; it is in `serve.token` of the [runtime
  folder](agent.md#where-things-are). With `serve --no-token` none is needed.
"""


def render_markdown(endpoints: Sequence[Endpoint]) -> str:
    """docs/api.md."""
    lines = [INTRODUCTION.rstrip(), ""]
    for endpoint in endpoints:
        lines += [f"## {endpoint.method} {endpoint.path}", "", f"{endpoint.summary}.", ""]
        if endpoint.edits:
            lines += ["Needs `--allow-edit`.", ""]
        if endpoint.parameters:
            lines += ["| parameter | in | kind | meaning |", "|---|---|---|---|"]
            lines += [_markdown_row(parameter) for parameter in endpoint.parameters]
            lines.append("")
    lines += [
        "## POST /reader",
        "",
        "Questions of another trainvitals that shows this machine with `--host` ([several machines](machines.md)).",
        "Their format is its own and changes with the version.",
        "",
        "With `--host`, what is asked about a run of a machine that does not answer is answered with 503.",
        "",
        "## GET /runs/{run}/stream",
        "",
        "Live updates as server-sent events. One reader of the run folder serves any number of viewers. A client that",
        "sends `Last-Event-ID` gets what it missed, or `reset`.",
        "",
        "| event | data |",
        "|---|---|",
        "| `points` | `series`, each with `table`, `name`, `labels`, `rank`, `step`, `time`, `y`, `nonfinite` |",
        "| `event`, `alert` | a row of the run's events or alerts |",
        "| `state` | `status`, `cause`, `live`, `attempt`, `consoles` (bytes by file); every two seconds |",
        "| `reset` | there is a gap between what was sent before and what comes next: reload everything |",
    ]
    return "\n".join(lines) + "\n"


def _markdown_row(parameter: Parameter) -> str:
    kind = " \\| ".join(f"`{choice}`" for choice in parameter.choices) or parameter.kind
    if parameter.low is not None and parameter.high is not None:
        kind += f", {parameter.low:g} to {parameter.high:g}"
    notes = ["required"] if parameter.required or parameter.place == "path" else []
    if parameter.default is not None:
        notes.append(f"default `{str(parameter.default).lower()}`")
    note = f" ({', '.join(notes)})" if notes else ""
    return f"| `{parameter.name}` | {parameter.place} | {kind} | {parameter.help}{note} |"


if __name__ == "__main__":
    import sys

    from trainvitals.views.web.api import ENDPOINTS

    sys.stdout.write(render_markdown(ENDPOINTS))
