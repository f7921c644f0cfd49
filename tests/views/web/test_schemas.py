"""JSON Schemas of types, and whether what is sent beside the endpoints' answers keeps them; `test_openapi.py` asks the
endpoints themselves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import jsonschema
import pytest

from trainvitals.conditions import Conditions
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.encoding import Real
from trainvitals.journal.reader import RunReader
from trainvitals.prices import Prices
from trainvitals.views.data.shapes import Wire
from trainvitals.views.data.wire import encode
from trainvitals.views.report.data import make_data
from trainvitals.views.web.api import ENDPOINTS
from trainvitals.views.web.live import Collector, read_state
from trainvitals.views.web.openapi import describe
from trainvitals.views.web.schemas import Schemas


class Pair(NamedTuple):
    """Two of a kind."""

    left: int
    right: Real


class ShapeJson(TypedDict):
    pair: Annotated[dict[str, Any], Wire(Pair)]
    word: NotRequired[Literal["a", "b"]]
    places: Annotated[list[tuple[int, str]], "Where"]


@dataclass
class Other:
    name: str | None
    inner: Annotated[dict[str, Any], Wire(ShapeJson, Pair)]


def check(name: str, value: Any) -> None:
    """That `value` has the shape of that name, as it goes over the wire."""
    document = describe(ENDPOINTS, allow_edit=True)
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(json.loads(encode(value)))


def test_types_become_schemas_that_refer_to_each_other() -> None:
    schemas = Schemas()
    assert schemas.describe(list[Other]) == {"type": "array", "items": {"$ref": "#/components/schemas/Other"}}
    assert schemas.named["Pair"] == {
        "type": "object",
        "description": "Two of a kind.",
        "required": ["left", "right"],
        "properties": {"left": {"type": "integer"}, "right": {"type": ["number", "string"]}},
    }
    shape = schemas.named["Shape"]
    assert shape["required"] == ["pair", "places"] and shape["properties"]["word"] == {"enum": ["a", "b"]}
    assert shape["properties"]["places"]["description"] == "Where"
    assert schemas.named["Other"]["properties"] == {
        "name": {"type": ["string", "null"]},
        "inner": {"allOf": [{"$ref": "#/components/schemas/Shape"}, {"$ref": "#/components/schemas/Pair"}]},
    }


def test_a_document_needs_only_what_it_always_writes_and_allows_what_others_wrote() -> None:
    schemas = Schemas()
    schemas.describe(AlertRow)
    found = schemas.named["AlertRow"]
    assert found["required"] == ["timestamp"] and found["additionalProperties"] is True
    assert found["properties"]["silenced"] == {"type": ["boolean", "string"]}


def test_two_types_of_one_name_and_a_type_without_a_shape_are_refused() -> None:
    schemas = Schemas()
    schemas.describe(Pair)
    with pytest.raises(TypeError, match="two types are called Pair"):
        schemas.describe(NamedTuple("Pair", [("one", int)]))
    with pytest.raises(TypeError, match="neither a shape"):
        schemas.describe(Path)


def test_a_report_holds_what_is_described(root: Path, keys: list[str]) -> None:
    readers = [(key, RunReader(next(root.glob(f"*/{key}")))) for key in keys]
    check("ReportData", make_data(readers, Conditions(), Prices(gpu_hour=2.0)))


def test_the_stream_sends_what_is_described(root: Path, keys: list[str]) -> None:
    reader = RunReader(next(root.glob(f"*/{keys[0]}")))
    rows = reader.follow(("training", "gpu", "events", "alerts")).poll(1 << 30)
    names = {"points": "Points", "event": "EventRow", "alert": "AlertRow"}
    messages = Collector().collect(rows)
    assert {event for event, _ in messages} == set(names)
    for event, content in messages:
        check(names[event], content)
    check("State", read_state(reader))
