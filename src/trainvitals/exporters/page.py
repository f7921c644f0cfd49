"""The page that Prometheus reads: the text format, or on request OpenMetrics (units, exemplars, created times), its
version 2 and protobuf (native histograms).

Byte for byte what prometheus-client writes, and several times faster: labels are shared and already text, and a page
that is being made is made for everybody who asked before it was begun.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from trainvitals.exporters import wire
from trainvitals.exporters.contracts import Order
from trainvitals.exporters.labels import escape, text_of
from trainvitals.exporters.names import NAME_ENDINGS
from trainvitals.exporters.server import PageServer, ServedAddress

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
OPENMETRICS_2 = "application/openmetrics-text; version=2.0.0; charset=utf-8"

PROTOBUF = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"

_spell_as_go: Callable[[float], str] = floatToGoString
_TYPES = {"info": "gauge", "stateset": "gauge", "unknown": "untyped"}


def start(order: Order) -> PageServer:
    """Serve the page where the settings want it."""
    settings = order.settings
    options = replace(
        order.options,
        compat=frozenset(settings.prometheus_compat),
        user_names=settings.prometheus_user_metrics,
        max_user_series=settings.prometheus_max_user_series,
        native=True,
    )
    return PageServer(
        ServedAddress.of(settings), SharedPage(lambda: order.collect(options)), lambda: ServedAddress.of(settings)
    )


def content_type(accept: str) -> str:
    """What is sent to whoever accepts this: what is wanted most, and of equals the first."""
    wanted: list[tuple[float, str]] = []
    for item in accept.split(","):
        kind, *details = (word.strip() for word in item.split(";"))
        about = dict(detail.partition("=")[::2] for detail in details)
        try:
            quality = float(about.get("q", 1))
        except ValueError:
            continue
        if kind == "application/openmetrics-text":
            wanted.append((quality, OPENMETRICS_2 if about.get("version") == "2.0.0" else OPENMETRICS))
        elif kind == "application/vnd.google.protobuf" and about.get("encoding") == "delimited":
            wanted.append((quality, PROTOBUF))
    return max(wanted, key=lambda item: item[0], default=(0.0, TEXT))[1]


def render(families: Iterable[Metric], accept: str = "") -> tuple[bytes, str]:
    """(the page, its content type) for an Accept header."""
    kind = content_type(accept)
    if kind == PROTOBUF:
        return wire.encode_families(families), kind
    return _render_text(families) if kind == TEXT else _render_openmetrics(families, kind == OPENMETRICS_2), kind


class SharedPage:
    """One page for all who ask at the same time. Nobody gets one that was begun before they asked."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect
        self._lock = threading.Lock()
        self._made: dict[str, tuple[float, bytes]] = {}

    def __call__(self, accept: str) -> tuple[bytes, str]:
        """As `render`."""
        asked = time.monotonic()
        kind = content_type(accept)
        with self._lock:
            begun, body = self._made.get(kind, (0.0, b""))
            if begun <= asked:
                begun = time.monotonic()
                body, _ = render(self._collect(), accept)
                self._made[kind] = (begun, body)
        return body, kind


def _render_text(families: Iterable[Metric]) -> bytes:
    lines = []
    for family in families:
        name = family.name + NAME_ENDINGS.get(family.type, "")
        help = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {name} {help}\n# TYPE {name} {_TYPES.get(family.type, family.type)}\n")
        # Created times are OpenMetrics' own; in the text format they would be one more series each.
        created = f"{family.name}_created"
        lines += [
            f"{sample.name}{text_of(sample.labels)} {_number(sample.value)}\n"
            for sample in family.samples
            if sample.name != created and sample.native_histogram is None
        ]
    return "".join(lines).encode()


def _render_openmetrics(families: Iterable[Metric], native: bool) -> bytes:
    lines = []
    for family in families:
        lines.append(f"# HELP {family.name} {escape(family.documentation)}\n# TYPE {family.name} {family.type}\n")
        if family.unit:
            lines.append(f"# UNIT {family.name} {family.unit}\n")
        lines += [
            f"{sample.name}{text_of(sample.labels)} {_value(sample)}{_exemplar(sample)}\n"
            for sample in family.samples
            if native or sample.native_histogram is None
        ]
    lines.append("# EOF\n")
    return "".join(lines).encode()


def _number(value: float) -> str:
    # Between these Go and Python write the same; everything else, NaN too, is for the library to say.
    if type(value) is float and -1e6 < value < 1e6:
        return repr(value)
    return _spell_as_go(value)


def _value(sample: Sample) -> str:
    """A number, or a native histogram: `{count:3,sum:0.5,schema:3,...,positive_spans:[0:2],positive_deltas:[1,1]}`."""
    found = sample.native_histogram
    if found is None:
        return _number(sample.value)
    spans = ",".join(f"{span.offset}:{span.length}" for span in found.pos_spans or ())
    deltas = ",".join(map(str, found.pos_deltas or ()))
    return (
        f"{{count:{found.count_value},sum:{found.sum_value},schema:{found.schema},zero_threshold:{found.zero_threshold},"
        f"zero_count:{found.zero_count},positive_spans:[{spans}],positive_deltas:[{deltas}]}}"
    )


def _exemplar(sample: Sample) -> str:
    example = sample.exemplar
    if example is None:
        return ""
    moment = "" if example.timestamp is None else f" {example.timestamp}"
    return f" # {text_of(example.labels)} {_number(example.value)}{moment}"
