"""Objects that are of the wrong kind, take a name of ours, or raise when they are used."""

from trainvitals.conditions import Condition, LiveRule, Threshold
from trainvitals.exporters.registry import ExporterRow
from trainvitals.sources import SourceRow

TAKEN = SourceRow("nvidia", __name__, "gpu")
RAISING_SOURCE = SourceRow("raising", __name__, "gpu", pci_vendor="0xbad0")
ASTRAY = SourceRow("astray", __name__, "gpu", setting="no_such_setting")
AIMLESS = ExporterRow("aimless", __name__, "rows", settings=("no.such.setting",))
RAISING_METRICS = ExporterRow("raising_metrics", __name__, "families")
RAISING_ROWS = ExporterRow("raising_rows", __name__, "rows")
WRONG = {"name": "wrong"}
RULE = Condition("broken_rule", "gpu", "", "info", "", live=LiveRule("gpu[*].temperature_celsius >", ""))
WIDE_RULE = RULE._replace(id="wide_rule", thresholds=(Threshold("gpu_limit", 1.0, "", ""),))
PANEL = COMMAND = None


class TransformersCallback:
    pass


class Raising:
    name = "raising"

    def discover(self):
        raise RuntimeError("this source is broken")

    describe = discover

    def open(self, run):
        pass

    def write(self, rows):
        raise RuntimeError("this exporter is broken")

    def close(self, end):
        raise RuntimeError("this exporter is broken")


def create(*_):
    return Raising()


def start(order):
    raise RuntimeError("this exporter is broken")
