"""GPUs of a vendor that trainvitals does not know."""

import json
import time
from pathlib import Path

from trainvitals.sources import Sample, SourceRow, SourceUnavailable
from trainvitals.sources.visibility import pick_visible

SOURCE = SourceRow(
    name="acme",
    module=__name__,
    kind="gpu",
    pci_vendor="0x1ace",
    command="sudo modprobe acme",
    visible_variables=("ACME_VISIBLE_DEVICES",),
)


def create(world):
    return AcmeSource(world)


def visible_devices(environment, gpus):
    return pick_visible(environment.get("ACME_VISIBLE_DEVICES"), [gpu["uuid"] for gpu in gpus])


class AcmeSource:
    name = "acme"

    def __init__(self, world):
        self._folder = Path(world.sysfs_root, "class/acme")

    def discover(self):
        units = [AcmeCard(path, index) for index, path in enumerate(sorted(self._folder.glob("card*")))]
        if not units:
            raise SourceUnavailable("no Acme card in sysfs", kind="broken", command="sudo acme-setup")
        return units

    def describe(self):
        gpus = [{"uuid": unit.uuid, "name": "Acme Rocket"} for unit in self.discover()]
        return {"gpus": gpus, "driver_version": "7.0"}


class AcmeCard:
    def __init__(self, path, index):
        self.uuid = f"ACME-{path.name}"
        self.key = f"acme:{self.uuid}"
        self._path = path
        self._labels = {"gpu_index": index, "gpu_uuid": self.uuid, "gpu_name": "Acme Rocket", "vendor": "acme"}

    def read(self):
        began = time.time()
        return [Sample("gpu", self._labels, json.loads(self._path.read_text()), began)]

    def close(self):
        pass
