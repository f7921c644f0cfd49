"""Text of a metrics page, Prometheus and OpenMetrics alike, to series.

A page has thousands of lines whose names and labels are the same on every scrape, so those are parsed once
and remembered; a line that is not understood is counted, and the others are kept.
Tested in tests/sources/test_openmetrics.py.
"""

from __future__ import annotations

import re
from typing import NamedTuple

Labels = tuple[tuple[str, str], ...]


class ScrapedSeries(NamedTuple):
    """One line of a page."""

    name: str
    labels: Labels
    value: float
    time: float | None
    """Unix seconds, if the page has them"""


class ScrapedPage(NamedTuple):
    """A parsed page: what was understood, and how many lines were not."""

    series: list[ScrapedSeries]
    malformed: int
    beyond: int
    """Series left out because the page has more than allowed"""


_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_HEAD = re.compile(r'[^{\s]*\s*\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\}')
_QUOTED = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_LABEL = re.compile(r'\s*(?:([a-zA-Z_][a-zA-Z0-9_.]*)|"((?:[^"\\\n]|\\.)*)")\s*=\s*"((?:[^"\\\n]|\\.)*)"\s*(,|$)')
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|infinity|nan)", re.IGNORECASE)
_ESCAPE = re.compile(r"\\(.)")


class PageParser:
    """Parses the pages of one target."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heads: dict[str, tuple[str, Labels]] = {}

    def parse(self, text: str, openmetrics: bool = False) -> ScrapedPage:
        """OpenMetrics has its timestamps in seconds, the older format in milliseconds."""
        series: list[ScrapedSeries] = []
        malformed = beyond = 0
        heads: dict[str, tuple[str, Labels]] = {}
        for raw in text.split("\n"):
            line = raw.strip()
            if not line or line[0] == "#":
                continue
            end = line.rfind("}") + 1 or line.find(" ")
            head, tail = line[:end], line[end:]
            known = self._heads.get(head)
            if known is None:
                head, tail = split_line(line)
                known = parse_head(head)
            numbers = parse_tail(tail, openmetrics)
            if known is None or numbers is None:
                malformed += 1
            elif len(series) >= self._most:
                beyond += 1
            else:
                heads[head] = known
                series.append(ScrapedSeries(known[0], known[1], *numbers))
        self._heads = heads
        return ScrapedPage(series, malformed, beyond)


def split_line(line: str) -> tuple[str, str]:
    """`name{labels}` and the rest. A label may hold any character, a closing brace too, inside its quotes."""
    head = _HEAD.match(line)
    if head is not None:
        return head[0], line[head.end() :]
    name, _, rest = line.replace("\t", " ", 1).partition(" ")
    return name, rest


def parse_head(head: str) -> tuple[str, Labels] | None:
    """`name{a="b"}` or `{"a name", a="b"}` to (name, labels); None for anything else."""
    name, brace, rest = head.partition("{")
    name = name.strip()
    if not brace:
        return (name, ()) if _NAME.fullmatch(name) else None
    if not rest.endswith("}"):
        return None
    inside = rest[:-1].strip()
    if not name:
        quoted = _QUOTED.match(inside)
        if quoted is None:
            return None
        name, inside = unescape(quoted[1]), inside[quoted.end() :].strip().removeprefix(",")
    elif not _NAME.fullmatch(name):
        return None
    labels: dict[str, str] = {}
    at = 0
    while at < len(inside):
        found = _LABEL.match(inside, at)
        if found is None:
            return None
        label = found[1] if found[1] is not None else unescape(found[2])
        if label in labels:
            return None
        labels[label] = unescape(found[3])
        at = found.end()
    return name, tuple(sorted(labels.items()))


def unescape(text: str) -> str:
    r"""`\n`, `\"` and `\\` as the format writes them."""
    return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], text) if "\\" in text else text


def parse_tail(tail: str, openmetrics: bool) -> tuple[float, float | None] | None:
    """` 1.5 1700000000 # {exemplar}` to (value, time); None for anything else. NaN and infinity are data."""
    parts = tail.split("#", 1)[0].split() if openmetrics else tail.split()
    if not 1 <= len(parts) <= 2 or not all(_NUMBER.fullmatch(part) for part in parts):
        return None
    moment = float(parts[1]) / (1 if openmetrics else 1000) if len(parts) == 2 else None
    return float(parts[0]), moment


def group_series(page: ScrapedPage, reserved: frozenset[str]) -> dict[tuple[Labels, float | None], dict[str, float]]:
    """Series with the same labels and time together: {(labels, time): {name: value}}.

    Names that are reserved get `exported_` in front, as Prometheus does it.
    """
    groups: dict[tuple[Labels, float | None], dict[str, float]] = {}
    for name, labels, value, moment in page.series:
        if any(label in reserved for label, _ in labels):
            labels = tuple((f"exported_{label}" if label in reserved else label, text) for label, text in labels)
        groups.setdefault((labels, moment), {})[f"exported_{name}" if name in reserved else name] = value
    return groups
