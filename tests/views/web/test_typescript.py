"""The page's types are those of the API."""

from __future__ import annotations

from pathlib import Path

from trainvitals.views.web.api import ENDPOINTS
from trainvitals.views.web.openapi import describe
from trainvitals.views.web.typescript import render_types

TYPES = Path(__file__).parents[3] / "web" / "src" / "data" / "types.ts"


def test_the_types_of_the_page_are_up_to_date() -> None:
    made = render_types(describe(ENDPOINTS, allow_edit=True))
    assert TYPES.read_text() == made, f"python -m trainvitals.views.web.typescript > {TYPES}"


def test_a_schema_becomes_a_type() -> None:
    nothing = {"type": ["number", "null"]}
    schema = {
        "type": "object",
        "description": "A thing.",
        "required": ["grid"],
        "properties": {
            "grid": {"type": "array", "items": {"type": "array", "items": nothing}},
            "marks": {"type": "array", "items": {"type": "array", "prefixItems": [{"type": "integer"}, {}]}},
            "word": {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}], "description": "Which."},
            "both": {"allOf": [{"$ref": "#/components/schemas/A"}, {"$ref": "#/components/schemas/B"}]},
            "rest": {"type": "object", "additionalProperties": True},
        },
        "additionalProperties": True,
    }
    (_, _, *lines) = render_types({"components": {"schemas": {"Thing": schema}}}).splitlines()
    assert lines == [
        "",
        "// A thing.",
        "export interface Thing {",
        "  grid: (number | null)[][];",
        "  marks?: [number, unknown][];",
        "  // Which.",
        '  word?: "a" | "b" | null;',
        "  both?: A & B;",
        "  rest?: Record<string, unknown>;",
        "  [more: string]: unknown;",
        "}",
    ]
