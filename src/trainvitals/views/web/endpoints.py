"""What an endpoint is: declared once, and from the declaration come the route, the checks and the OpenAPI text.
Tested in tests/views/web/test_openapi.py."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from trainvitals.errors import TrainvitalsError, nearest

MAX_TEXT = 500
Values = Mapping[str, Any]


class BadRequest(TrainvitalsError):
    """An invalid request: answered 400 with the reason."""


class NotFound(TrainvitalsError):
    """Nothing there: answered 404."""


class Forbidden(TrainvitalsError):
    """Not allowed here: answered 403."""


class Conflict(TrainvitalsError):
    """Not possible in the current state: answered 409."""


class Outdated(TrainvitalsError):
    """Somebody else has changed it since it was read: answered 412."""


def tag_of(body: bytes) -> str:
    """The ETag of an answer; weak, as the same answer is also sent compressed."""
    return f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter in the path, the query, a header or the JSON body."""

    name: str
    help: str
    kind: str = "text"
    """`text`, `integer`, `number`, `switch`, `texts`, or `objects` in a body."""
    place: str = "query"
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    most: int = MAX_TEXT
    """Characters of a text, or items of several."""
    pattern: str = ""
    fields: tuple[Parameter, ...] = ()
    """Of each of several objects."""

    def schema(self) -> dict[str, Any]:
        """As JSON Schema."""
        if self.kind == "texts":
            items = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}
            least = {"minItems": 1} if self.required else {}
            return {"type": "array", "items": items, "maxItems": self.most, **least}
        if self.kind == "objects":
            return {"type": "array", "items": describe_fields(self.fields), "maxItems": self.most}
        found: dict[str, Any] = {"type": {"switch": "boolean", "text": "string"}.get(self.kind, self.kind)}
        if self.choices:
            found["enum"] = list(self.choices)
        elif self.kind == "text":
            found["maxLength"] = self.most
            found.update({"minLength": 1} if self.required or self.place == "path" else {})
        if self.low is not None:
            found["minimum"] = self.low
        if self.high is not None:
            found["maximum"] = self.high
        if self.default is not None:
            found["default"] = self.default
        return found

    def parse(self, text: str) -> Any:
        """The value of one spelling in the path or the query; raises BadRequest."""
        if "\0" in text:
            raise BadRequest(f"'{self.name}' contains a NUL character")
        if self.kind in ("text", "texts"):
            return self.check(text)
        if self.kind == "switch":
            if text not in ("true", "false"):
                raise BadRequest(f"'{self.name}' must be true or false, not '{_short(text)}'")
            return text == "true"
        # int() and float() also read "1_000" and blanks, which the description does not promise.
        plain = text.isascii() and "_" not in text and text == text.strip()
        try:
            value = (int(text) if self.kind == "integer" else float(text)) if plain and len(text) < 40 else None
        except ValueError:
            value = None
        if value is None:
            raise BadRequest(f"'{self.name}' must be {self._word()}, not '{_short(text)}'")
        return self.check(value)

    def check(self, value: Any) -> Any:
        """`value` if it is allowed; raises BadRequest."""
        if self.kind in ("text", "texts"):
            if not isinstance(value, str):
                raise BadRequest(f"'{self.name}' must be a string")
            if len(value) > (MAX_TEXT if self.kind == "texts" else self.most):
                raise BadRequest(f"'{self.name}' is longer than {MAX_TEXT if self.kind == 'texts' else self.most:,}")
            if not value and (self.required or self.kind == "texts"):
                raise BadRequest(f"'{self.name}' is empty")
            if self.choices and value not in self.choices:
                raise BadRequest(
                    f"'{self.name}' must be one of {', '.join(self.choices)}, not '{_short(value)}'"
                    f"{nearest(value, self.choices)}"
                )
            return value
        if self.kind == "switch":
            if not isinstance(value, bool):
                raise BadRequest(f"'{self.name}' must be true or false")
            return value
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole and not (self.kind == "number" and isinstance(value, float) and math.isfinite(value)):
            raise BadRequest(f"'{self.name}' must be {self._word()}")
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            raise BadRequest(f"'{self.name}' must be {self._word()}, not {value}")
        return value

    def _word(self) -> str:
        word = "an integer" if self.kind == "integer" else "a number"
        if self.low is not None and self.high is not None:
            return f"{word} from {self.low:g} to {self.high:g}"
        return word


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One thing the API does. `call(web, values)` returns the answer, whose shape is the declared return type; it runs
    in a thread and may block."""

    method: str
    path: str
    summary: str
    call: Callable[..., Any]
    parameters: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = ()
    edits: bool = False
    """Whether it changes something, and so is refused without `--allow-edit`."""
    media: tuple[str, ...] = ()
    """Media types of an answer that is a file."""

    @property
    def shape(self) -> Any:
        """The type of the answer; of a file, that of the JSON it may hold."""
        return get_type_hints(self.call, include_extras=True)["return"]

    def read(
        self, path: Mapping[str, str], query: Sequence[tuple[str, str]], headers: Mapping[str, str], body: Any
    ) -> dict[str, Any]:
        """The values of all parameters; raises BadRequest."""
        values: dict[str, Any] = {}
        given: dict[str, list[str]] = {}
        for name, text in query:
            given.setdefault(name, []).append(text)
        known = {p.name: p for p in self.parameters if p.place == "query"}
        for name in given:
            if name not in known:
                raise BadRequest(f"unknown parameter '{_short(name)}'{nearest(name, known)}")
        in_body = [p for p in self.parameters if p.place == "body"]
        if in_body:
            values.update(_read_fields(in_body, body, "the body"))
        for parameter in self.parameters:
            if parameter.place == "path":
                values[parameter.name] = parameter.parse(path[parameter.name])
            elif parameter.place == "query":
                values[parameter.name] = _read_query(parameter, given.get(parameter.name, []))
            elif parameter.place == "header":
                sent = headers.get(parameter.name)
                values[parameter.name] = _read_query(parameter, [] if sent is None else [sent])
        return values


def describe_fields(fields: Sequence[Parameter]) -> dict[str, Any]:
    """An object, as JSON Schema."""
    return {
        "type": "object",
        "properties": {field.name: {**field.schema(), "description": field.help} for field in fields},
        "required": [field.name for field in fields if field.required],
        "additionalProperties": False,
    }


def _read_fields(expected: Sequence[Parameter], found: Any, where: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise BadRequest(f"{where} is not a JSON object")
    names = {field.name for field in expected}
    for name in found:
        if name not in names:
            raise BadRequest(f"unknown field '{_short(str(name))}'{nearest(str(name), names)}")
    values: dict[str, Any] = {}
    for field in expected:
        if field.name not in found:
            if field.required:
                raise BadRequest(f"'{field.name}' is missing in {where}")
            values[field.name] = field.default
        elif field.kind in ("texts", "objects"):
            items, word = found[field.name], "strings" if field.kind == "texts" else "objects"
            if not isinstance(items, list) or len(items) > field.most:
                raise BadRequest(f"'{field.name}' must be a list of at most {field.most} {word}")
            values[field.name] = [
                field.check(item) if field.kind == "texts" else _read_fields(field.fields, item, f"'{field.name}'")
                for item in items
            ]
        else:
            values[field.name] = field.check(found[field.name])
    return values


def _read_query(parameter: Parameter, given: list[str]) -> Any:
    if parameter.kind == "texts":
        if len(given) > parameter.most:
            raise BadRequest(f"'{parameter.name}' is given {len(given)} times; at most {parameter.most} are allowed")
        if not given and parameter.required:
            raise BadRequest(f"'{parameter.name}' is missing")
        return [parameter.parse(text) for text in given]
    if not given:
        if parameter.required:
            raise BadRequest(f"'{parameter.name}' is missing")
        return parameter.default
    if len(given) > 1:
        raise BadRequest(f"'{parameter.name}' is given more than once")
    return parameter.parse(given[0])
