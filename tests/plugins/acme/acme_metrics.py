"""Metric families, written to a file in the text format of Prometheus."""

import os
from pathlib import Path

from trainvitals.exporters.page import TEXT, render
from trainvitals.exporters.pushing import Pushing
from trainvitals.exporters.registry import ExporterRow

EXPORTER = ExporterRow("acme_metrics", __name__, "families", needs="prometheus_client")


def start(order):
    def write(families):
        path = Path(order.target)
        path.with_suffix(".new").write_bytes(render(families, TEXT)[0])
        os.replace(path.with_suffix(".new"), path)

    return Pushing(write, lambda: order.collect(order.options), interval=1.0, title="Acme", warn=order.warn)
