"""The language of conditions: `loss > 2 * median(loss, 200) and gpu[*].temperature_celsius < 90`.

Text is parsed into a small tree and checked; it is never run as Python. An error names what is wrong and points at the
character. Docs: docs/alerts.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn

from trainvitals import catalog
from trainvitals.errors import SettingError, nearest

MAX_LENGTH = 2000
MAX_DEPTH = 40
MAX_STEPS = 10_000
MAX_SECONDS = 7 * 86400.0

Type = Literal["number", "condition", "text"]


class RuleError(SettingError):
    """A rule that cannot be used. `position` is the character of the condition that is wrong, counted from 0."""

    def __init__(self, message: str, text: str = "", position: int | None = None) -> None:
        shown = message
        if position is not None:
            start = max(0, position - 60)
            line = text[start : start + 120].replace("\n", " ").replace("\t", " ")
            shown = f"{message}\n    {line}\n    {' ' * (position - start)}^"
        super().__init__(shown)
        self.reason = message
        self.position = position


# -- the tree


@dataclass(frozen=True, slots=True)
class Number:
    value: float
    position: int


@dataclass(frozen=True, slots=True)
class Text:
    value: str
    position: int


@dataclass(frozen=True, slots=True)
class MetricReference:
    """A number or text that is measured. `selector` is None for "each", else the labels that are meant."""

    table: str
    name: str
    selector: tuple[str, ...] | None
    starred: bool
    position: int


@dataclass(frozen=True, slots=True)
class Operation:
    """`-x`, `not x`, or two operands with an operator between them."""

    operator: str
    operands: tuple[Node, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Window:
    """How far back a function looks: so many lines, so many seconds, so many values, or everything (all None)."""

    steps: int | None = None
    seconds: float | None = None
    values: int | None = None
    """For what is not in every line, such as what a Trainer logs every tenth step."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function. With `window` it looks back over time; with `across` over every GPU, rank or process."""

    name: str
    arguments: tuple[Node, ...]
    window: Window | None
    across: bool
    position: int


Node = Number | Text | MetricReference | Operation | Call

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")

# Functions that look back, and how many numbers they take between the value and the window.
WINDOWED: Mapping[str, int] = {
    "mean": 0,
    "median": 0,
    "min": 0,
    "max": 0,
    "std": 0,
    "slope": 0,
    "correlation": 0,
    "rate": 0,
    "change": 0,
    "count": 0,
    "zscore": 0,
    "deviation": 0,
    "quantile": 1,
    "first": 0,
}
ACROSS = ("mean", "median", "min", "max", "std", "count")
ONLY_ACROSS = ("usual",)
# Plain functions: how many numbers they take.
PLAIN: Mapping[str, tuple[int, Type]] = {
    "abs": (1, "number"),
    "isnan": (1, "condition"),
    "isinf": (1, "condition"),
    "isfinite": (1, "condition"),
    "at_least": (2, "number"),
    "at_most": (2, "number"),
}
# Functions over everything there was, with a share that is a constant, and an example of it.
SHARED: Mapping[str, tuple[str, str]] = {
    "since_improved": ("counts as better", "0.002"),
    "shifted": ("is a change of level", "0.04"),
    "since_shifted": ("is a change of level", "0.04"),
    "risen": ("is a rise", "0.1"),
    "since_risen": ("is a rise", "0.1"),
    "leaking": ("is a leak", "0.05"),
}
WHOLE = ("baseline", "early", *SHARED)
SPECIAL = ("stale", "contains", *WHOLE)
FUNCTIONS = (*WINDOWED, *ONLY_ACROSS, *PLAIN, *SPECIAL)

TABLES = {
    "gpu": "gpu",
    "system": "system",
    "process": "process",
    "training": "training",
    "rank": "training",
    "run": "run",
    "event": "event",
    "openmetrics": "openmetrics",
}
# What the agent knows of a rank or a GPU, and what an event carries: not in the catalog, for no file has these columns.
EXTRA: Mapping[str, Mapping[str, Type]] = {
    "gpu": {"held_by_run": "number", "gpu_name": "text"},
    "run": {
        "state": "text",
        "cause": "text",
        "cause_kind": "text",
        "seconds_since_step": "number",
        "world_size": "number",
    },
    "event": {"total": "number", "interval": "number", "message": "text", "severity": "text"},
}

# -- tokens

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TOKEN = re.compile(
    r"\s*(?:"
    r"(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?P<unit>ms|s|m|h|d)?(?![\w.])"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|`(?P<quoted>[^`]+)`"
    r"|(?P<text>\"[^\"]*\"|'[^']*')"
    r"|\$(?P<parameter>[A-Za-z_]\w*)"
    r"|(?P<symbol><=|>=|==|!=|[-+*/<>()\[\],.])"
    r")",
    re.ASCII,
)


_SLASHED = re.compile(r"[A-Za-z_]\w*(?:/[A-Za-z_]\w*)+")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int
    unit: str = ""


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            at = position + len(text[position:]) - len(text[position:].lstrip())
            _fail_token(text, at)
        kind = "number" if match["number"] is not None else match.lastgroup
        value = match[kind]
        start = match.start(kind) - (1 if kind in ("parameter", "quoted") else 0)
        yield _Token(kind, value[1:-1] if kind == "text" else value, start, match["unit"] or "")
        position = match.end()
    yield _Token("end", "", len(text))


def _fail_token(text: str, at: int) -> NoReturn:
    character = text[at]
    hints = {
        "=": "use == to compare",
        "&": "use 'and'",
        "|": "use 'or'",
        "!": "use 'not', or != to compare",
        "`": "missing closing backquote",
        '"': "missing closing quote",
        "'": "missing closing quote",
        "%": "omit it: percentages go from 0 to 100",
        "{": "{fields} can only be used in the message",
    }
    if character.isdigit() or character == ".":
        raise RuleError("not a number; write durations as 30s, 5m or 2h", text, at)
    hint = f": {hints[character]}" if character in hints else ""
    raise RuleError(f"unexpected {character!r}{hint}", text, at)


# -- parsing


def parse(text: str, parameters: Mapping[str, float] | None = None) -> Node:
    """The tree of a condition or an expression. `parameters` are the values of `$name`."""
    if len(text) > MAX_LENGTH:
        raise RuleError(f"longer than {MAX_LENGTH} characters")
    if not text.strip():
        raise RuleError("empty", text, 0)
    parser = _Parser(text, parameters or {})
    return parser.whole()


def parse_condition(text: str, parameters: Mapping[str, float] | None = None) -> Node:
    """The same for text that must be true or false."""
    node = parse(text, parameters)
    if type_of(node) != "condition":
        raise RuleError(f"this is a {type_of(node)}, not a condition: add a comparison", text, _start(node))
    return node


class _Parser:
    def __init__(self, text: str, parameters: Mapping[str, float]) -> None:
        self.text = text
        self.parameters = parameters
        self.tokens = list(_tokens(text))
        self.place = 0
        self.depth = 0

    def whole(self) -> Node:
        node = self.disjunction()
        if self.now.kind != "end":
            self.fail(f"unexpected '{self.now.text}'", self.now.position)
        return node

    # tokens

    @property
    def now(self) -> _Token:
        return self.tokens[self.place]

    def take(self, *texts: str) -> _Token | None:
        """The token, if it is one of these symbols or words."""
        token = self.now
        if token.kind in ("symbol", "name") and token.text in texts:
            self.place += 1
            return token
        return None

    def need(self, text: str, why: str) -> _Token:
        token = self.take(text)
        if token is None:
            found = f", found '{self.now.text}'" if self.now.text else ""
            self.fail(f"expected '{text}' {why}{found}", self.now.position)
        return token

    def fail(self, message: str, position: int) -> NoReturn:
        raise RuleError(message, self.text, position)

    # the grammar, loosest first

    def disjunction(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail("nested too deeply", self.now.position)
        node = self.conjunction()
        while token := self.take("or"):
            node = self.join(token, node, self.conjunction(), "condition", "condition")
        self.depth -= 1
        return node

    def conjunction(self) -> Node:
        node = self.negation()
        while token := self.take("and"):
            node = self.join(token, node, self.negation(), "condition", "condition")
        return node

    def negation(self) -> Node:
        count, first = 0, self.now.position
        while self.take("not"):
            count += 1
        node = self.comparison()
        if count:
            self.want(node, "condition", "after 'not'")
        return Operation("not", (node,), first) if count % 2 else node

    def comparison(self) -> Node:
        left = self.sum()
        token = self.take(*COMPARISONS)
        if token is None:
            return left
        right = self.sum()
        if (another := self.take(*COMPARISONS)) is not None:
            self.fail("only one comparison at a time: combine two with 'and'", another.position)
        if type_of(left) != type_of(right):
            self.fail(
                f"cannot compare a {type_of(left)} with a {type_of(right)}",
                token.position,
            )
        if type_of(left) != "number" and token.text not in ("==", "!="):
            self.fail(f"a {type_of(left)} can only be compared with == and !=", token.position)
        return Operation(token.text, (left, right), token.position)

    def sum(self) -> Node:
        node = self.product()
        while token := self.take("+", "-"):
            node = self.join(token, node, self.product(), "number", "number")
        return node

    def product(self) -> Node:
        node = self.sign()
        while token := self.take("*", "/"):
            node = self.join(token, node, self.sign(), "number", "number")
        return node

    def sign(self) -> Node:
        count, first = 0, self.now.position
        while self.take("-"):
            count += 1
        node = self.atom()
        if not count:
            return node
        self.want(node, "number", "after '-'")
        return Operation("negative", (node,), first) if count % 2 else node

    def join(self, token: _Token, left: Node, right: Node, kind: Type, why: str) -> Node:
        for operand in (left, right):
            if type_of(operand) != kind:
                self.fail(
                    f"'{token.text}' needs a {why} on both sides, this is a {type_of(operand)}",
                    _start(operand),
                )
        return Operation(token.text, (left, right), token.position)

    def want(self, node: Node, kind: Type, where: str) -> None:
        if type_of(node) != kind:
            self.fail(f"expected a {kind} {where}, this is a {type_of(node)}", _start(node))

    def atom(self) -> Node:
        token = self.now
        if token.kind == "end":
            self.fail("missing value", token.position)
        self.place += 1
        if token.kind == "number":
            return Number(float(token.text) * _UNITS.get(token.unit, 1.0), token.position)
        if token.kind == "text":
            return Text(token.text, token.position)
        if token.kind == "quoted":
            return self.metric("training", token.text, None, False, token.position)
        if token.kind == "parameter":
            if token.text not in self.parameters:
                self.fail(f"unknown threshold '${token.text}'{nearest(token.text, self.parameters)}", token.position)
            return Number(self.parameters[token.text], token.position)
        if token.kind == "symbol" and token.text == "(":
            node = self.disjunction()
            self.need(")", "to close the bracket")
            return node
        if token.kind == "name" and token.text not in ("and", "or", "not"):
            if self.now.text == "(" and self.now.kind == "symbol":
                return self.call(token)
            if token.text in TABLES and self.now.text in ("[", ".") and self.now.kind == "symbol":
                return self.selected(token)
            return self.bare(token)
        raise RuleError(f"unexpected '{token.text}'", self.text, token.position)

    # metrics

    def bare(self, token: _Token) -> MetricReference:
        found = [
            table for table in ("training", "system", "gpu", "process") if catalog.find(table, token.text) is not None
        ]
        if "training" in found or not found:
            table = "training"
        elif len(found) == 1:
            table = found[0]
        else:
            choices = " or ".join(f"{name}{'[*]' if name in ('gpu', 'process') else ''}.{token.text}" for name in found)
            self.fail(f"'{token.text}' is ambiguous: use {choices}", token.position)
        return self.metric(table, token.text, None, False, token.position)

    def selected(self, token: _Token) -> MetricReference:
        selector: list[str] | None = None
        starred = False
        if self.take("["):
            if self.take("*"):
                starred = True
            else:
                selector = [self.label()]
                while self.take(","):
                    selector.append(self.label())
            self.need("]", 'to close the selection, such as gpu[0], gpu[*] or gpu["GPU-6f1c..."]')
        self.need(".", f"and a metric after '{token.text}', such as {token.text}.{_example(token.text)}")
        name = self.now
        if name.kind not in ("name", "quoted"):
            self.fail("expected a metric name", name.position)
        self.place += 1
        chosen = tuple(selector) if selector is not None else None
        return self.metric(TABLES[token.text], name.text, chosen, starred, name.position)

    def label(self) -> str:
        token = self.now
        if token.kind not in ("number", "name", "text", "quoted"):
            self.fail("expected an index, a name or *", token.position)
        self.place += 1
        return token.text

    def metric(
        self, table: str, name: str, selector: tuple[str, ...] | None, starred: bool, position: int
    ) -> MetricReference:
        known = [row.name for row in catalog.TABLES.get(table, ())] + list(EXTRA.get(table, ()))
        if table in ("gpu", "system", "process", "run") and name not in known:
            self.fail(f"unknown metric '{table}.{name}'{nearest(name, known)}", position)
        return MetricReference(table, name, selector, starred, position)

    # functions

    def call(self, token: _Token) -> Call:
        name = token.text
        if name not in FUNCTIONS:
            self.fail(f"unknown function '{name}'{nearest(name, FUNCTIONS)}", token.position)
        self.need("(", "")
        arguments: list[Node] = []
        window: Window | None = None
        while not self.take(")"):
            if arguments:
                self.need(",", "or ')' in the call")
            found = self.window_word(name, len(arguments))
            if found is not None:
                window = found
                self.need(")", "after the window")
                break
            arguments.append(self.disjunction())
        return self.check_call(token, arguments, window)

    def window_word(self, name: str, count: int) -> Window | None:
        """The window, if it is here: `200`, `200 steps`, `20 values`, `5m` or `all`."""
        if name not in WINDOWED or count != 1 + WINDOWED[name]:
            return None
        token = self.now
        if token.kind == "name" and token.text == "all":
            self.place += 1
            if name not in ("min", "max", "mean", "std", "count", "change"):
                self.fail(f"{name}() needs a bounded window, such as 1000 or 1h", token.position)
            return Window()
        if token.kind != "number":
            self.fail("expected a window: a number of steps such as 200, or a duration such as 5m", token.position)
        self.place += 1
        if token.unit:
            if name == "first":
                self.fail("first() takes a number of values, such as first(loss, 10)", token.position)
            seconds = float(token.text) * _UNITS[token.unit]
            if not 0 < seconds <= MAX_SECONDS:
                self.fail(f"a window must be longer than 0 and at most {MAX_SECONDS / 86400:g}d", token.position)
            return Window(seconds=seconds)
        steps = float(token.text)
        if steps != int(steps) or not 1 <= steps <= MAX_STEPS:
            self.fail(
                f"a window is a number of steps from 1 to {MAX_STEPS:,}, or a duration such as 5m",
                token.position,
            )
        if self.take("values", "value") or name == "first":
            return Window(values=int(steps))
        self.take("steps", "step", "points", "point")
        return Window(steps=int(steps))

    def check_call(self, token: _Token, arguments: list[Node], window: Window | None) -> Call:
        name = token.text
        across = False
        if name in WINDOWED:
            across = window is None and len(arguments) == 1 and name in ACROSS
            if across and not _stars(arguments[0]):
                self.fail(
                    f"{name}() needs a window, such as {name}(loss, 200) or {name}(loss, 5m); "
                    f"or [*] for all GPUs or ranks, such as {name}(gpu[*].power_draw_watts)",
                    token.position,
                )
            if not across and window is None:
                extra = "a share from 0 to 1 and " if name == "quantile" else ""
                self.fail(f"{name}() needs a value, {extra}a window", token.position)
            if name == "quantile" and window is not None:
                share = arguments[1]
                if not isinstance(share, Number) or not 0 <= share.value <= 1:
                    self.fail("expected a share from 0 to 1, such as quantile(loss, 0.9, 200)", _start(share))
            types: list[Type] = ["number"] * (1 + WINDOWED[name])
        elif name in ONLY_ACROSS:
            across, types = True, ["number"]
            if len(arguments) == 1 and not _stars(arguments[0]):
                self.fail(f"{name}() needs [*], such as {name}(rank[*].forward_time)", token.position)
        elif name in PLAIN:
            types = ["number"] * PLAIN[name][0]
        elif name == "contains":
            types = ["text", "text"]
        elif name == "stale":
            types = [type_of(arguments[0]) if arguments else "number"]
        else:
            types = ["number"] * (2 if name in SHARED else 1)
        if len(arguments) != len(types):
            self.fail(f"{name}() takes {len(types)} value{'s' * (len(types) > 1)}", token.position)
        for argument, wanted in zip(arguments, types, strict=True):
            self.want(argument, wanted, f"in {name}()")
        if name in ("stale", "baseline", "early") and not isinstance(arguments[0], MetricReference):
            self.fail(f"{name}() takes a metric", _start(arguments[0]))
        if name in SHARED:
            constant = _constant(arguments[1])
            if constant is None or constant < 0:
                self.fail("expected a number: which share {}, such as {}".format(*SHARED[name]), _start(arguments[1]))
            arguments[1] = Number(constant, _start(arguments[1]))
        call = Call(name, tuple(arguments), window, across, token.position)
        if window is not None or across or name in WHOLE:
            homes = {(metric.table, metric.selector) for metric in metrics(call)}
            if len(homes) != 1:
                self.fail(f"{name}() takes metrics of one table only", token.position)
        return call


def _constant(node: Node) -> float | None:
    """The value of numbers that are multiplied or divided: `$percent / 100`."""
    if isinstance(node, Number):
        return node.value
    if not isinstance(node, Operation) or node.operator not in ("*", "/"):
        return None
    first, second = (_constant(operand) for operand in node.operands)
    if first is None or second is None:
        return None
    return first * second if node.operator == "*" else first / second if second else None


def _example(word: str) -> str:
    return {"gpu": "temperature_celsius", "run": "state", "event": "total", "process": "rss_mb"}.get(word, "loss")


def _stars(node: Node) -> bool:
    return any(metric.starred for metric in metrics(node))


def _start(node: Node) -> int:
    """Where the text of this node begins, as near as is known."""
    if isinstance(node, Operation):
        return min([node.position, *(_start(operand) for operand in node.operands)])
    return node.position


# -- looking at a tree


def type_of(node: Node) -> Type:
    """What the node gives."""
    if isinstance(node, Number):
        return "number"
    if isinstance(node, Text):
        return "text"
    if isinstance(node, MetricReference):
        if node.name in EXTRA.get(node.table, ()):
            return EXTRA[node.table][node.name]
        row = catalog.find(node.table, node.name)
        return "text" if row is not None and row.kind == "text" else "number"
    if isinstance(node, Operation):
        return "condition" if node.operator in (*COMPARISONS, "and", "or", "not") else "number"
    if node.name == "contains":
        return "condition"
    return PLAIN[node.name][1] if node.name in PLAIN else "number"


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    yield node
    if isinstance(node, Operation):
        for operand in node.operands:
            yield from walk(operand)
    elif isinstance(node, Call):
        for argument in node.arguments:
            yield from walk(argument)


def metrics(node: Node, *, across: bool = True) -> Iterator[MetricReference]:
    """The metrics it looks at; without those inside a function that looks over all if `across` is False."""
    if isinstance(node, MetricReference):
        yield node
    elif isinstance(node, Operation):
        for operand in node.operands:
            yield from metrics(operand, across=across)
    elif isinstance(node, Call) and (across or not node.across):
        for argument in node.arguments:
            yield from metrics(argument, across=across)


def slashed(text: str, name: str) -> str | None:
    """`val/loss` if the metric of that name is in a condition as a division without blanks: it may be meant as one
    name."""
    plain = re.sub(r"`[^`]*`|\"[^\"]*\"|'[^']*'", " ", text)
    return next((found for found in _SLASHED.findall(plain) if name in found.split("/")), None)


def key(node: Node) -> tuple[object, ...]:
    """Equal for nodes that mean the same, wherever they are: what they share is computed once."""
    if isinstance(node, (Number, Text)):
        return ("constant", node.value)
    if isinstance(node, MetricReference):
        return ("metric", node.table, node.name, node.selector)
    if isinstance(node, Operation):
        return (node.operator, *(key(operand) for operand in node.operands))
    window = (node.window.steps, node.window.seconds, node.window.values) if node.window else None
    return (node.name, window, node.across, *(key(argument) for argument in node.arguments))
