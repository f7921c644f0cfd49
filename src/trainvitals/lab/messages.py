"""One question or answer as bytes: a JSON object, and behind it the bytes that are no JSON.

    4 bytes `tvr1`   length of the JSON   length of the rest   JSON   the rest

Arrays of numbers are 64-bit floats as they are in memory, so that a number there is the same number here, to the last
bit. Both lengths are bounded: whoever is on the other end decides nothing about the memory of this process.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from trainvitals.journal.encoding import dump_json, spell_all
from trainvitals.plain_json import MOST_DEPTH as MOST_IN_A_DOCUMENT
from trainvitals.plain_json import parse_json

PROTOCOL = 1
"""To be raised with every change that the other end would not understand."""
GREETING = b"trainvitals reader "
"""How the first line of a far side begins: what a login shell prints before it is skipped."""
MOST_JSON = 64 << 20
MOST_REST = 512 << 20
MOST_QUESTION = 1 << 20
MOST_DEPTH = 2 * MOST_IN_A_DOCUMENT
"""Documents are within lists and objects of the message."""
_HEAD = struct.Struct(">4sII")
_MAGIC = b"tvr1"

ReadBytes = Callable[[int], bytes]
"""Exactly so many bytes; raises EOFError if there are fewer."""


class MessageError(Exception):
    """Bytes that are no message of ours."""


class Message(NamedTuple):
    """A question or an answer."""

    json: Mapping[str, Any]
    rest: bytes = b""


def encode(message: Message) -> bytes:
    """Raises MessageError if it is too large for the other end."""
    json = dump_json(spell_all(message.json))
    if len(json) > MOST_JSON or len(message.rest) > MOST_REST:
        raise MessageError(f"an answer of {(len(json) + len(message.rest)) >> 20:,} MB is too large to be sent")
    return b"".join((_HEAD.pack(_MAGIC, len(json), len(message.rest)), json, message.rest))


def read(read_bytes: ReadBytes, *, most_json: int = MOST_JSON, most_rest: int = MOST_REST) -> Message:
    """The next message; raises MessageError and EOFError."""
    magic, length, more = _HEAD.unpack(read_bytes(_HEAD.size))
    if magic != _MAGIC:
        raise MessageError("not a trainvitals message")
    if length > most_json or more > most_rest:
        raise MessageError(f"a message of {(length + more) >> 20:,} MB is larger than allowed")
    try:
        json = parse_json(read_bytes(length), MOST_DEPTH)
    except ValueError as error:
        raise MessageError(f"a message that is not JSON: {error}") from error
    if not isinstance(json, dict):
        raise MessageError("a message that is not a JSON object")
    return Message(json, read_bytes(more))


def decode(data: bytes, *, most_json: int = MOST_JSON, most_rest: int = MOST_REST) -> Message:
    """One message, and nothing behind it; raises MessageError."""
    place = 0

    def take(size: int) -> bytes:
        nonlocal place
        if len(data) - place < size:
            raise EOFError
        place += size
        return data[place - size : place]

    try:
        message = read(take, most_json=most_json, most_rest=most_rest)
    except EOFError:
        raise MessageError("a message that is cut off") from None
    if place != len(data):
        raise MessageError("more than one message")
    return message
