"""The page's TypeScript types, made from the description of the API."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

HEAD = """// Made from src/trainvitals/views/data/shapes.py by
// python -m trainvitals.views.web.typescript > web/src/data/types.ts
"""
_WORDS = {"string": "string", "boolean": "boolean", "integer": "number", "number": "number", "null": "null"}


def render_types(openapi: Mapping[str, Any]) -> str:
    """web/src/data/types.ts."""
    schemas = openapi["components"]["schemas"]
    return HEAD + "".join(f"\n{_declare(name, schema)}" for name, schema in schemas.items())


def _declare(name: str, schema: Mapping[str, Any]) -> str:
    if "properties" not in schema:
        return f"export type {name} = {_render(schema)};\n"
    return "\n".join([*_comment(schema, ""), f"export interface {name} {{", *_fields(schema), "}\n"])


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    for name, field in schema["properties"].items():
        yield from _comment(field, "  ")
        yield f"  {name}{'' if name in schema['required'] else '?'}: {_render(field)};"
    if schema.get("additionalProperties"):
        yield "  [more: string]: unknown;"


def _comment(schema: Mapping[str, Any], indent: str) -> list[str]:
    return textwrap.wrap(
        schema.get("description", ""), 120, initial_indent=f"{indent}// ", subsequent_indent=f"{indent}// "
    )


def _render(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(json.dumps(item) for item in schema["enum"])
    for key, sign in (("anyOf", " | "), ("allOf", " & ")):
        if key in schema:
            return sign.join(map(_render, schema[key]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(dict.fromkeys(_WORDS[word] for word in kind))
    if kind == "array" and "prefixItems" in schema:
        return f"[{', '.join(map(_render, schema['prefixItems']))}]"
    if kind == "array":
        item = schema["items"]
        is_several = {"anyOf", "allOf", "enum"} & item.keys() or isinstance(item.get("type"), list)
        return f"({_render(item)})[]" if is_several else f"{_render(item)}[]"
    if kind == "object":
        values = schema["additionalProperties"]
        return f"Record<string, {'unknown' if values is True else _render(values)}>"
    return _WORDS[kind] if kind else "unknown"


if __name__ == "__main__":
    import sys

    from trainvitals.views.web.api import ENDPOINTS
    from trainvitals.views.web.openapi import describe

    sys.stdout.write(render_types(describe(ENDPOINTS, allow_edit=True)))
