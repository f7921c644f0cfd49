"""The description of the API, made from the table of endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainvitals import __version__
from trainvitals.views.web.endpoints import Endpoint, Parameter

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
VALUE: Schema = {"type": ["number", "string", "null"], "description": 'A number, or "NaN", "Infinity", "-Infinity"'}
WHOLE: Schema = {"type": "integer"}
WHOLE_OR_NULL: Schema = {"type": ["integer", "null"]}
SWITCH: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object", "additionalProperties": True}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "required": sorted(properties),
        "properties": properties,
        "additionalProperties": True,
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_ARRAY = _list(NUMBER_OR_NULL)
_SERIES_ITEM = {
    **_object(
        name=TEXT,
        labels=OBJECT,
        rank=WHOLE_OR_NULL,
        total=WHOLE,
        nonfinite_total=WHOLE,
        x=_list({"type": "number"}),
        y=_ARRAY,
    ),
    "description": (
        "`y` is null where a value is not finite; then `nonfinite` has its index and spelling. A band also has "
        "`low`, `high` and `members`, and in `nonfinite` the places where only some of its series are not finite. "
        "`total` and `nonfinite_total` count before downsampling."
    ),
}
_ROW = {
    "key": TEXT,
    "id": TEXT,
    "name": TEXT,
    "project": TEXT,
    "status": TEXT,
    "live": SWITCH,
    "cause": TEXT_OR_NULL,
    "kind": TEXT,
    "started": TEXT_OR_NULL,
    "ended": TEXT_OR_NULL,
    "seconds": NUMBER_OR_NULL,
    "step": WHOLE_OR_NULL,
    "attempt": WHOLE,
    "simulated": SWITCH,
    "tags": _list(TEXT),
    "host": TEXT,
    "config": OBJECT,
    "summary": {"type": "object", "additionalProperties": VALUE},
    "energy_joules": NUMBER_OR_NULL,
}

SCHEMAS: dict[str, Schema] = {
    "Anything": OBJECT,
    "Error": _object(error=_object(message=TEXT, hint=TEXT)),
    "About": _object(version=TEXT, root=TEXT, allow_edit=SWITCH, runs=WHOLE),
    "Panels": _object(
        groups=_list(OBJECT), panels=_list(OBJECT), scheduled=_list(TEXT), metrics=OBJECT, thresholds=_list(OBJECT)
    ),
    "Row": _object(**_ROW),
    "Runs": _object(total=WHOLE, projects=_list(TEXT), runs=_list(_ref("Row"))),
    "Machine": _object(written=TEXT_OR_NULL, samples=_list(OBJECT)),
    "Run": _object(
        **_ROW,
        health=_object(word=TEXT, severity=TEXT, reason=TEXT, advice=TEXT),
        progress=_object(
            step=WHOLE_OR_NULL, total_steps=WHOLE_OR_NULL, share=NUMBER_OR_NULL, seconds_left=NUMBER_OR_NULL
        ),
        step_seconds=NUMBER_OR_NULL,
        cost={"type": ["object", "null"]},
        gpu_seconds=NUMBER_OR_NULL,
        metrics=_list(_object(name=TEXT, count=WHOLE, last=VALUE, low=VALUE, high=VALUE, nonfinite=WHOLE)),
        tables={"type": "object", "additionalProperties": _object(names=_list(TEXT), labels=_list(OBJECT))},
        layers={"type": "object", "additionalProperties": WHOLE},
        histograms=_list(TEXT),
        ranks=_list(OBJECT),
        firing=_list(OBJECT),
        damage=_object(torn=WHOLE, foreign=WHOLE, files=WHOLE),
        details=OBJECT,
        stacks=_list(TEXT),
        consoles=_list(TEXT),
    ),
    "Series": _object(axis=TEXT, table=TEXT, series=_list(_SERIES_ITEM)),
    "Layers": _object(
        measure=TEXT,
        layers=_list(TEXT),
        x=_list(WHOLE),
        values=_list(_list(NUMBER_OR_NULL)),
        left_out=WHOLE,
    ),
    "Histograms": _object(name=TEXT, histograms=_list(OBJECT)),
    "Events": _object(total=WHOLE, events=_list(OBJECT)),
    "Alerts": _object(firing=_list(OBJECT), total=WHOLE, history=_list(OBJECT), deliveries=_list(OBJECT)),
    "Diagnosis": _object(
        findings=_list(_object(rule=TEXT, severity=TEXT, title=TEXT, evidence=_list(TEXT), advice=TEXT)),
        fine=_list(TEXT),
        from_step=WHOLE_OR_NULL,
        not_judged=_list(_object(rule=TEXT, title=TEXT, needs=TEXT)),
        resources=_list(_object(subject=TEXT, table=TEXT, metric=TEXT, unit=TEXT, low=VALUE, mean=VALUE, high=VALUE)),
    ),
    "Lines": _list(OBJECT),
    "Report": _object(runs=_list(OBJECT)),
    "States": _object(
        table=TEXT,
        states=_list(
            _object(
                name=TEXT,
                labels=OBJECT,
                rank=WHOLE_OR_NULL,
                gpu=WHOLE_OR_NULL,
                left_out=WHOLE,
                changes=_list({**_list({"type": ["number", "string"]}), "minItems": 2, "maxItems": 2}),
            )
        ),
    ),
    "Text": _object(name=TEXT, size=WHOLE, start=WHOLE, next=WHOLE, cut=SWITCH, text=TEXT),
    "Comparison": _object(
        runs=_list(_ref("Row")),
        config=_list(_object(key=TEXT, values={"type": "array"})),
        metrics=_list(_object(name=TEXT, values={"type": "array"}, best=WHOLE_OR_NULL)),
        verdicts=_list(_object(run=WHOLE, metric=TEXT, word=TEXT, reason=TEXT)),
        axis=TEXT,
        names=_list(TEXT),
        series=_list(_SERIES_ITEM),
    ),
    "Edited": _object(tags=_list(TEXT), notes=TEXT),
    "Removed": _object(removed=TEXT),
    "Asked": _object(asked=OBJECT),
}

ERRORS = {
    400: "A parameter is wrong; the message says which",
    401: "A token is needed",
    403: "Not allowed here: the server was started without --allow-edit",
    404: "There is no such run or file",
    409: "The run is alive",
    421: "The Host header names another server",
}

STREAM: Schema = {
    "get": {
        "operationId": "stream_run",
        "summary": "Live updates as server-sent events: points, event, alert, state, reset",
        "description": "Send `Last-Event-ID` to get what was missed. Never ends by itself.",
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


def describe(endpoints: Sequence[Endpoint], allow_edit: bool) -> Schema:
    """The OpenAPI document."""
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    stream = {**STREAM["get"]}
    stream["responses"] = {**stream["responses"], **_errors((400, 404))}
    paths["/runs/{run}/stream"] = {"get": stream}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "trainvitals",
            "version": __version__,
            "description": (
                "Runs, series, alerts and events of a run folder. Read only"
                + ("." if not allow_edit else ", and changes to runs that are over (--allow-edit).")
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/api/v1"}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "Only where the server has one"}
            },
        },
        "security": [{}, {"token": []}],
    }


def _operation(endpoint: Endpoint) -> Schema:
    if endpoint.media:
        # A file of JSON is JSON all the same.
        file = {"type": "string", "format": "binary"}
        content = {m: {"schema": _ref(endpoint.schema) if m == "application/json" else file} for m in endpoint.media}
    else:
        content = {"application/json": {"schema": _ref(endpoint.schema)}}
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
        fields = {
            "type": "object",
            "properties": {p.name: {**p.schema(), "description": p.help} for p in body},
            "required": [p.name for p in body if p.required],
            "additionalProperties": False,
        }
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": fields}}}
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
    content = {"application/json": {"schema": _ref("Error")}}
    return {str(code): {"description": ERRORS[code], "content": content} for code in (*codes, 401, 421)}


INTRODUCTION = """# The API

Made from `src/trainvitals/views/web/api.py` by `python -m trainvitals.views.web.openapi > docs/api.md`.

`trainvitals serve` answers under `/api/v1`; the dashboard uses nothing else. The whole description, with the shape of
every answer, is OpenAPI 3.1 at `/api/v1/openapi.json`.

```bash
curl -s 'http://127.0.0.1:8080/api/v1/runs/latest/series?name=loss&points=500' | jq '.series[0].y[-1]'
```

- Answers are JSON, compressed where the client accepts gzip, with an `ETag`: an answer that has not changed is a 304.
- A series has `x` and `y` of the same length. A `y` that is NaN or infinite is null, and `nonfinite` has its index and
  its spelling; anywhere else such a value is the string `"NaN"`, `"Infinity"` or `"-Infinity"`, as in the run folder.
- `points` limits a series. Where it has more, the smallest and the largest value of each bucket are kept, so no peak is
  lost; `total` says how many there were. `start` and `end` zoom in, and the detail comes back.
- An error is `{"error": {"message": ..., "hint": ...}}` with status 400 (a parameter is wrong), 401 (token), 403 (needs
  `--allow-edit`), 404, 409 (the run is alive) or 421 (wrong Host header).
- A token, where the server has one, goes into `Authorization: Bearer ...`.
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
        "## GET /runs/{run}/stream",
        "",
        "Live updates as server-sent events. One reader of the run folder serves any number of viewers. A client that",
        "sends `Last-Event-ID` gets what it missed, or `reset`.",
        "",
        "| event | data |",
        "|---|---|",
        "| `points` | `series`, each with `table`, `name`, `labels`, `rank`, `step`, `time`, `y`, `nonfinite` |",
        "| `event`, `alert` | a line of the events or alerts of the run |",
        "| `state` | `status`, `cause`, `live`, `attempt`, `consoles` (bytes by file); every two seconds |",
        "| `reset` | what was sent before does not connect to what comes now: read everything again |",
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
