"""A source that gives what cannot be written anywhere."""

from trainvitals.sources import Sample, SourceRow

GARBLED = SourceRow("garbled", __name__, "gpu", visible_variables=("GARBLED_VISIBLE_DEVICES",), names_processes=True)


def create(world):
    return Garbled()


class Garbled:
    name = "garbled"
    key = "garbled:0"

    def discover(self):
        return [self]

    def describe(self):
        return {"gpus": [{"uuid": "garbled-0"}, "not a mapping"]}

    def read(self):
        return [Sample("gpu", {"gpu_index": 0, "gpu_uuid": "garbled-0", "vendor": "garbled"}, {"x": object()}, 0.0)]

    def close(self):
        raise RuntimeError("cannot be closed")
